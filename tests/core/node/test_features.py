"""What a node's kernel owes its features: hooks at their points, and what is theirs to take."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from msgspec import field

from holdfast.core.features.of_node import new_node
from holdfast.core.features.warm_start import NodeWarmStart
from holdfast.core.node import NodeState, Phase, WorkerHere
from holdfast.core.node_hooks import Effects, NodeFeature
from holdfast.core.node_io import (
    CoordinatorReached,
    EndpointReserved,
    NodeEvent,
    NodeStarted,
    NodeTimerFired,
    Report,
    Say,
    SpawnerEnded,
    StragglerFound,
    Told,
    WorkerStarted,
)
from holdfast.core.protocol.messages import CloseJob, NodeGreeted, StopRound, TellHang, ToNode
from holdfast.core.protocol.model import ExitStatus, Failure

from .agent_life import PORT, SUCCEEDED, Life, exited, run_round, said

WELL = ExitStatus(code=0)


class Watcher(NodeFeature):
    """A feature that notes when it is called."""

    TAKES: ClassVar = (StragglerFound, TellHang, "watch")
    calls: list[str] = field(default_factory=list)
    excuses: bool = False
    stops: bool = False

    def note(self, what: str) -> Effects:
        self.calls.append(what)
        return [Say(what)]

    def take(self, state: NodeState, event: NodeEvent | ToNode, now: float) -> Effects:
        return self.note(f"takes {type(event).__name__}")

    def started(self, state: NodeState, event: NodeStarted) -> Effects:
        return self.note("started")

    def connected(self, state: NodeState) -> Effects:
        return self.note("connected")

    def in_report(self, state: NodeState, now: float) -> dict[str, Any]:
        return {"saved": 7}

    def round_started(self, state: NodeState) -> Effects:
        return self.note("round started")

    def worker_exited(self, state: NodeState, worker: WorkerHere) -> Effects:
        return self.note(f"rank {worker.rank} exited")

    def is_excused(self, state: NodeState, failure: Failure) -> bool:
        return self.excuses

    def before_stop(self, state: NodeState, message: StopRound) -> Effects:
        return self.note("before stop") if self.stops else []

    def finishing(self, state: NodeState) -> Effects:
        return self.note("finishing")


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
def life(watcher: Watcher) -> Life:
    life = Life()
    life.state = NodeState(life.state.config, "here-1", "here", features=(watcher, NodeWarmStart()))
    life.take(NodeStarted(cold="not wanted"), CoordinatorReached(), EndpointReserved(PORT))
    return life


def in_a_round(life: Life) -> Life:
    life.take(run_round(), WorkerStarted(1, 0, 101), WorkerStarted(1, 1, 102))
    return life


def greeting(life: Life) -> NodeGreeted:
    told = [one.message for one in life.take(CoordinatorReached()) if isinstance(one, Report)]
    assert isinstance(told[0], NodeGreeted)
    return told[0]


def test_hooks_come_in_the_order_of_a_life(life: Life, watcher: Watcher) -> None:
    in_a_round(life).take(exited(0, WELL), exited(1, WELL), Told(CloseJob(SUCCEEDED)))
    life.take(SpawnerEnded())
    exits = ["rank 0 exited", "rank 1 exited"]
    assert watcher.calls == ["started", "connected", "round started", *exits, "finishing"]


def test_what_a_feature_names_as_its_own_comes_to_it_alone(life: Life, watcher: Watcher) -> None:
    in_a_round(life)
    watcher.calls.clear()
    own = (StragglerFound(1, "slow"), Told(TellHang(1)), NodeTimerFired("watch"))
    assert [said(life.take(each)) for each in own] == watcher.calls
    assert watcher.calls == ["takes StragglerFound", "takes TellHang", "takes NodeTimerFired"]
    assert life.take(NodeTimerFired("of nobody")) == []


def test_a_greeting_has_what_features_say_of_the_round(life: Life) -> None:
    assert greeting(life).report is None
    told = greeting(in_a_round(life)).report
    assert told is not None
    assert (told.round, told.saved) == (1, 7)


def test_a_worker_that_a_feature_excuses_has_not_failed(life: Life, watcher: Watcher) -> None:
    watcher.excuses = True
    assert said(in_a_round(life).take(exited(1))) == "rank 1 exited"
    assert life.failures[1].stopped_by_us


def test_a_feature_may_stop_the_workers_itself(life: Life, watcher: Watcher) -> None:
    watcher.stops = True
    assert in_a_round(life).take(Told(StopRound(1, "late"))) == [Say("before stop")]
    assert life.state.phase is Phase.STOPPING


def test_no_two_features_take_the_same() -> None:
    state = new_node(Life().state.config, "here-1", "here")
    assert len(state.owners) == sum(len(each.TAKES) for each in state.features)
