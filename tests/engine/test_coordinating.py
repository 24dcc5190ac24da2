"""The coordinator's driver: what may be said when, in which order, and to whom."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.core.border import Write, Written
from holdfast.core.coordinator import Beginning
from holdfast.core.election import SendVerdict
from holdfast.core.protocol.messages import (
    HeartbeatAnswered,
    NodeGreeted,
    RoundStopped,
    RunRound,
    StopRound,
    ToNode,
    Welcomed,
    WorkersFailed,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import Endpoint, ExitStatus, Failure, NodeInfo, Term
from holdfast.engine.coordinating import Coordinating

from .by_hand import MemoryExchange, World, job

PLACE = Endpoint("127.0.0.1", 29500)


class KeeperByHand:
    """Keeps at once, and lets through what the test wants."""

    def __init__(self) -> None:
        self.verdict: SendVerdict = "send"
        self.asked: list[tuple[float, ToNode]] = []
        self.kept: list[Callable[[], None]] = []
        self.waits = False

    def keep(self, write: Write, done: Callable[[Written], None]) -> None:
        if self.waits:
            self.kept.append(lambda: done(Written(write.version)))
        else:
            done(Written(write.version))

    def may_send(
        self, message: ToNode, all_heard: Callable[[float], bool], now: float
    ) -> SendVerdict:
        self.asked.append((now, message))
        return self.verdict


class Stage:
    """A coordinator whose nodes `b` and `c` are a test's to play; it lives on node `a`."""

    def __init__(self, nodes: int = 2) -> None:
        self.world = World()
        self.config = job(nodes)
        self.node = self.world.node("a", self.config)
        self.keeper = KeeperByHand()
        self.exchange = MemoryExchange(self.world, self)
        state = Beginning(Term(1, 1)).state(self.config, 0.0)
        engine, keep = self.node.engine, self.keeper
        self.coordinating = Coordinating(state, engine, self.exchange, keep.may_send)
        engine.routes[Write] = lambda write: keep.keep(write, self.coordinating.post)

    def greet(self, *names: str) -> None:
        for name in names:
            info = NodeInfo(name, f"host-{name}", slots=1)
            greeting = NodeGreeted(info, endpoint=PLACE, heartbeat=1)
            self.coordinating.on_message(name, greeting)

    def fail(self, name: str) -> None:
        seats = self.coordinating.state.group.round
        assert seats is not None
        rank = next(
            message.assignment.workers[0].rank
            for node, message in reversed(self.told())
            if node == name and isinstance(message, RunRound)
        )
        failure = Failure(name, f"host-{name}", 0, rank, "default", 7, ExitStatus(code=1), 1.0)
        number = self.coordinating.state.group.round_number
        self.coordinating.on_message(name, WorkersFailed(number, (failure,)))

    def stop(self, name: str) -> None:
        number = self.coordinating.state.group.round_number
        self.coordinating.on_message(name, RoundStopped(number, (), PLACE))

    def told(self, kind: type[ToNode] | None = None) -> list[tuple[str, ToNode]]:
        sent = [(node, message) for node, _, message in self.exchange.sent]
        return [one for one in sent if kind is None or isinstance(one[1], kind)]

    # Nobody is on the exchange: what nodes say is said to the coordinator by the test.
    def on_message(self, node: str, message: object) -> None: ...
    def on_lost(self, node: str, reason: str) -> None: ...
    def on_tether(self, node: str) -> None: ...
    def on_tether_ended(self, node: str, clean: bool) -> None: ...


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_nothing_is_announced_before_it_is_kept(stage: Stage) -> None:
    stage.keeper.waits = True
    stage.greet("b", "c")
    assert not stage.told(RunRound)
    while stage.keeper.kept:
        stage.keeper.kept.pop(0)()
    assert {node for node, _ in stage.told(RunRound)} == {"b", "c"}


def test_what_is_kept_back_is_said_in_its_order_once_it_may_be(stage: Stage) -> None:
    stage.keeper.verdict = "keep"
    stage.greet("b", "c")
    assert not stage.told()
    asked = [message for _, message in stage.keeper.asked]
    assert any(isinstance(message, RunRound) for message in asked)
    stage.keeper.verdict = "send"
    stage.coordinating.speak_again()
    assert [message for _, message in stage.told()] == asked
    stage.coordinating.speak_again()
    assert len(stage.told()) == len(asked), "said once"


def test_what_may_never_be_said_is_lost(stage: Stage) -> None:
    stage.keeper.verdict = "drop"
    stage.greet("b", "c")
    stage.keeper.verdict = "send"
    stage.coordinating.speak_again()
    assert not stage.told()


def test_a_greeting_forgets_what_was_kept_back_for_that_node_alone(stage: Stage) -> None:
    stage.keeper.verdict = "keep"
    stage.greet("b", "c")
    stage.keeper.verdict = "send"
    stage.greet("b")
    before = len(stage.told())
    stage.coordinating.speak_again()
    assert {node for node, _ in stage.told()[before:]} == {"c"}


def test_the_gate_is_asked_when_a_word_is_sent_not_when_it_was_decided(stage: Stage) -> None:
    """A coordinator that stands still between its words finds that its term is over."""
    stage.greet("b", "c")
    stage.keeper.asked.clear()
    before = len(stage.told())
    send = stage.exchange.send

    def stand_still(node: str, term: Term, message: ToNode) -> bool:
        stage.world.clock.timeline.now += 5.0
        stage.keeper.verdict = "drop"
        return send(node, term, message)

    stage.exchange.send = stand_still  # type: ignore[method-assign]
    stage.fail("b")
    times = [at for at, message in stage.keeper.asked if isinstance(message, StopRound)]
    assert times == [0.0, 5.0]
    assert len(stage.told()) == before + 1, "the second word was for after its term"


def test_a_coordinator_that_is_closed_in_the_middle_says_no_more(stage: Stage) -> None:
    stage.greet("b", "c")
    before = len(stage.told())
    send = stage.exchange.send

    def end_it(node: str, term: Term, message: ToNode) -> bool:
        stage.coordinating.close()
        return send(node, term, message)

    stage.exchange.send = end_it  # type: ignore[method-assign]
    stage.fail("b")
    assert len(stage.told()) == before + 1
    stage.world.pass_time(10_000)
    stage.greet("b")
    stage.coordinating.speak_again()
    assert len(stage.told()) == before + 1


def test_a_round_has_its_keys_before_anybody_is_told_and_until_it_is_stopped(
    stage: Stage,
) -> None:
    stage.greet("b", "c")
    stage.fail("b")
    for name in ("b", "c"):
        stage.stop(name)
    seen = [
        (kind, what if isinstance(what, int) else type(what).__name__)
        for kind, what in stage.exchange.keys.seen
        if isinstance(what, int | RunRound | StopRound)
    ]
    assert seen == [
        *[("open", 1), ("told", "RunRound")] * 2,
        *[("end", 1), ("told", "StopRound")] * 2,
        *[("open", 2), ("told", "RunRound")] * 2,
    ]


def test_the_keys_of_a_round_that_succeeded_stay(stage: Stage) -> None:
    stage.greet("b", "c")
    for name in ("b", "c"):
        stage.coordinating.on_message(name, WorkersSucceeded(1))
    assert ("end", 1) not in stage.exchange.keys.seen


def test_its_own_node_is_told_without_the_exchange(stage: Stage) -> None:
    stage.greet("a", "b")
    assert {node for node, _ in stage.told()} == {"b"}
    kinds = [
        type(what[0].message) for kind, what in stage.node.order if hasattr(what[0], "message")
    ]
    assert kinds[:2] == [HeartbeatAnswered, Welcomed]


def test_who_is_refused_is_told_of_once_for_each_kind(stage: Stage) -> None:
    stage.greet("b")
    for _ in range(3):
        stage.coordinating.on_message("mallory", WorkersSucceeded(1))
    assert stage.exchange.refused == [("mallory", "greeting")] * 3
    assert len([text for text in stage.node.said if "refused a node" in text]) == 1


def test_silence_is_judged_after_what_could_be_read_was(stage: Stage) -> None:
    """Both came while the loop was held up: the heartbeat counts, the timer waits behind it."""
    stage.greet("b", "c")
    leases = stage.config.leases
    clock = stage.world.clock
    clock.advance(leases.suspect_s - 0.5)
    for name in ("b", "c"):
        clock.call_later(0.5, stage.greet, name)
    clock.advance(leases.suspect_s - 0.5)
    assert stage.coordinating.state.group.round_number == 1
    assert not stage.told(StopRound)
    clock.advance(100)
    assert stage.told(StopRound), "and silence is judged"
