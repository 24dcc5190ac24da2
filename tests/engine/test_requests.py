"""Requests on one node: who asked is told once that it is over, whatever happens."""

from __future__ import annotations

from tools.simulator.timeline import ManualClock

from holdfast.core.protocol.messages import (
    CloseRequest,
    ForwardRequest,
    FromNode,
    OfRequests,
    PassResponse,
    RequestAnswered,
    RequestMade,
)
from holdfast.engine.ports import Ports
from holdfast.engine.requests import COORDINATOR_PATIENCE_S, NO_COORDINATOR, Requests

from .by_hand import World, job


class Stage:
    """One node's requests, a clock of the test's own, and all that was sent and told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sent: list[FromNode] = []
        self.heard: list[object] = []
        ports = Ports(self.clock, None, None, lambda text: None)  # type: ignore[arg-type]
        ports.answer = lambda request, reply: reply(b"to " + request)
        self.requests = Requests(ports, self.sent.append)

    def on_answer(self, number: int, node: str, answer: bytes) -> None:
        self.heard.append((number, node, answer))

    def on_settled(self, settled: CloseRequest) -> None:
        self.heard.append(settled)

    def ask(self, number: int) -> None:
        self.requests.ask(self, RequestMade(number, b"how?", "all"))

    def hear(self, *messages: OfRequests) -> None:
        for message in messages:
            self.requests.told(message)


def reached() -> Stage:
    stage = Stage()
    stage.requests.reached()
    return stage


def test_answers_come_under_the_numbers_of_whoever_asked() -> None:
    stage = reached()
    stage.ask(41)
    stage.ask(42)
    assert stage.sent == [RequestMade(1, b"how?", "all"), RequestMade(2, b"how?", "all")]
    stage.hear(PassResponse(2, "b", b"well"), CloseRequest(2), CloseRequest(1, "no"))
    assert stage.heard == [(42, "b", b"well"), CloseRequest(42), CloseRequest(41, "no")]


def test_what_is_put_to_this_node_is_answered_under_the_same_number() -> None:
    stage = reached()
    stage.hear(ForwardRequest(9, b"how?"))
    assert stage.sent == [RequestAnswered(9, b"to how?")]


def test_without_a_coordinator_the_answer_is_that_there_is_none() -> None:
    stage = Stage()
    stage.ask(1)
    assert stage.heard == [CloseRequest(1, NO_COORDINATOR)]
    assert stage.sent == []


def test_a_lost_coordinator_settles_what_it_was_asked_and_nothing_twice() -> None:
    stage = reached()
    stage.ask(1)
    stage.requests.lost("the connection was reset")
    stage.hear(PassResponse(1, "b", b"late"), CloseRequest(1))
    reason = "the coordinator was lost: the connection was reset"
    assert stage.heard == [CloseRequest(1, reason)]


def test_a_mute_coordinator_is_not_waited_for_without_end() -> None:
    stage = reached()
    stage.ask(1)
    stage.clock.advance(COORDINATOR_PATIENCE_S)
    assert stage.heard == [CloseRequest(1, NO_COORDINATOR)]


def test_who_has_gone_is_told_nothing() -> None:
    stage = reached()
    stage.ask(1)
    stage.requests.drop(stage)
    stage.hear(PassResponse(1, "b", b"well"), CloseRequest(1))
    stage.clock.advance(2 * COORDINATOR_PATIENCE_S)
    assert stage.heard == []


def test_a_request_passes_the_machine_and_the_journal_by_and_is_answered() -> None:
    world = World()
    node = world.node("a", job()).start()
    world.pass_time()
    node.engine.ports.answer = lambda request, reply: reply(b"well")
    stage, before = Stage(), (len(node.order), len(node.coordinated))
    node.engine.requests.ask(stage, RequestMade(5, b"how?", "all"))
    world.pass_time()
    assert stage.heard == [(5, "host-a", b"well"), CloseRequest(5)]
    assert (len(node.order), len(node.coordinated)) == before
