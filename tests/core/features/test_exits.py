"""What a node says and does about workers that have not exited while others finished well."""

from __future__ import annotations

import signal

from msgspec.structs import replace

from holdfast.core.node_io import (
    LookAtUnexited,
    NodeTimerFired,
    Report,
    SignalWorkers,
    Told,
    Unexited,
    UnexitedFound,
    WakeNode,
)
from holdfast.core.policy import sentences
from holdfast.core.protocol.messages import ExpectExits, WorkersFailed, WorkersSucceeded
from holdfast.core.protocol.model import ExitStatus

from ..node.agent_life import (
    KILLED,
    TERMINATED,
    Life,
    exited,
    running,
    said,
    stopping,
    without_words,
)

DONE = ExitStatus(code=0)
FIRED = NodeTimerFired("exit")
LIMIT_S = 100.0
LOCATION, FILE = "in write at a.py:9", "/logs/stacks_1.txt"
WHERE = sentences.at_exit(LOCATION, False) + sentences.its_stack(FILE)


def running_with(slots: int = 2, **oversight: object) -> Life:
    life = running(slots)
    config = life.state.config
    life.state.config = replace(config, oversight=replace(config.oversight, **oversight))
    return life


def found(*, is_finalizing: bool = False, ends: bool = False) -> UnexitedFound:
    left = Unexited(1, LOCATION, is_finalizing)
    return UnexitedFound(1, (left,), FILE, ends)


def ending(*, is_finalizing: bool = False) -> Life:
    """Rank 0 has finished, rank 1 has been asked to end for not having exited."""
    life = running_with(exit_s=LIMIT_S)
    life.take(exited(0, DONE), FIRED, found(), FIRED)
    effects = life.take(found(is_finalizing=is_finalizing, ends=True))
    assert without_words(effects) == [SignalWorkers(signal.SIGTERM, (1,)), WakeNode("exit", 30.0)]
    return life


def test_one_that_is_left_is_told_of_with_where_it_is_and_nothing_is_done_about_it() -> None:
    life = running()
    assert life.take(exited(0, DONE)) == [WakeNode("exit", 30.0)]
    assert life.take(FIRED) == [LookAtUnexited(1, ends=False)]
    effects = life.take(found())
    assert said(effects) == sentences.not_exited("rank 1 on here (pid 102)", 30.0, WHERE)
    assert without_words(effects) == []


def test_with_each_exit_the_time_begins_anew() -> None:
    life = running_with(3)
    life.take(exited(0, DONE))
    assert life.take(exited(2, DONE)) == [WakeNode("exit", 30.0)]


def test_that_others_have_finished_may_be_told_from_elsewhere() -> None:
    assert running().take(Told(ExpectExits(1))) == [WakeNode("exit", 30.0)]
    assert running().take(Told(ExpectExits(2))) == []
    assert stopping().take(Told(ExpectExits(1))) == []


def test_nothing_is_expected_of_others_when_one_has_left_because_it_was_asked_to_save() -> None:
    life = running()
    life.state.workers[0].was_asked = True
    assert life.take(exited(0, DONE)) == []


def test_nothing_is_expected_when_one_has_failed_or_none_is_left() -> None:
    life = running()
    life.take(exited(0, KILLED))
    assert life.take(Told(ExpectExits(1))) == []
    life = running()
    life.take(exited(0, DONE))
    assert life.take(exited(1, DONE)) == [Report(WorkersSucceeded(1))]
    assert life.take(FIRED) == []
    assert life.take(found()) == []


def test_without_a_look_at_hangs_and_without_a_limit_nothing_is_waited_for() -> None:
    assert running_with(hang="off").take(exited(0, DONE)) == []
    limited = running_with(hang="off", exit_s=LIMIT_S)
    assert limited.take(exited(0, DONE)) == [WakeNode("exit", LIMIT_S)]
    assert limited.take(FIRED) == [LookAtUnexited(1, ends=True)]


def test_a_limit_ends_it_after_the_words() -> None:
    life = running_with(exit_s=LIMIT_S)
    life.take(exited(0, DONE), FIRED)
    assert without_words(life.take(found())) == [WakeNode("exit", LIMIT_S - 30.0)]
    assert life.take(FIRED) == [LookAtUnexited(1, ends=True)]


def test_one_that_was_past_the_end_of_its_program_has_finished_whatever_ends_it() -> None:
    life = ending(is_finalizing=True)
    assert life.take(FIRED) == [SignalWorkers(signal.SIGKILL, (1,))]
    assert life.take(exited(1, KILLED)) == [Report(WorkersSucceeded(1))]


def test_one_that_still_ran_its_program_has_failed_and_says_where() -> None:
    (report,) = ending().take(exited(1, TERMINATED))
    assert isinstance(report, Report)
    assert isinstance(report.message, WorkersFailed)
    (failure,) = report.message.failures
    assert failure.ended_for == "hang at the end"
    assert failure.error.message == sentences.ended_unexited(LIMIT_S, WHERE)


def test_one_that_goes_by_itself_before_it_is_ended_is_left_alone() -> None:
    life = running_with(exit_s=LIMIT_S)
    life.take(exited(0, DONE), FIRED, found(), FIRED)
    assert life.take(exited(1, DONE)) == [Report(WorkersSucceeded(1))]
    assert life.take(found(ends=True)) == []
