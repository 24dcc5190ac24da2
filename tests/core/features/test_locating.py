"""Where workers are that the end of a round finds running."""

from __future__ import annotations

import signal

from holdfast.core.features.hangs import LOCATE_TIMER
from holdfast.core.node_io import (
    AllGone,
    EndpointReserved,
    LocateWorkers,
    NodeTimerFired,
    Report,
    SignalWorkers,
    Told,
    WorkersLocated,
)
from holdfast.core.protocol.messages import FrameGroup, RoundStopped, StopRound

from ..node.agent_life import PORT, TERMINATED, Life, exited, running

LOCK = FrameGroup((1,), "takes_a_lock", "train.py:9")
BACKWARD = FrameGroup((0,), "backward", "train.py:5")
STOP = SignalWorkers(signal.SIGTERM, (0, 1))


def asked() -> Life:
    life = running()
    effects = life.take(Told(StopRound(1, "a collective timed out", locate=True)))
    assert LocateWorkers(1) in effects
    assert STOP not in effects
    return life


def test_workers_are_stopped_once_they_have_told() -> None:
    effects = asked().take(WorkersLocated(1, (LOCK, BACKWARD)))
    assert STOP in effects


def test_workers_that_do_not_tell_are_stopped_all_the_same() -> None:
    assert STOP in asked().take(NodeTimerFired(LOCATE_TIMER))


def test_an_answer_that_comes_too_late_stops_nobody_twice() -> None:
    life = asked()
    life.take(NodeTimerFired(LOCATE_TIMER))
    assert life.take(WorkersLocated(1, (LOCK,))) == []
    assert life.take(NodeTimerFired(LOCATE_TIMER)) == []


def test_where_nobody_wants_to_know_workers_are_stopped_at_once() -> None:
    assert STOP in running().take(Told(StopRound(1, "rank 0 failed")))


def test_what_they_told_is_part_of_how_they_ended() -> None:
    life = asked()
    life.take(WorkersLocated(1, (LOCK, BACKWARD)))
    ends = [exited(local_rank, TERMINATED) for local_rank in (0, 1)]
    (report,) = life.take(*ends, AllGone(1), EndpointReserved(PORT))
    assert isinstance(report, Report)
    assert isinstance(report.message, RoundStopped)
    found = {one.rank: (one.location, one.in_collective) for one in report.message.failures}
    assert found == {
        0: ("in backward at train.py:5", True),
        1: ("in takes_a_lock at train.py:9", False),
    }
