"""What a node says and does about workers that are stalled."""

from __future__ import annotations

import signal

from msgspec.structs import replace

from holdfast.core.node_io import (
    CoordinatorReached,
    DeadlineMissed,
    Report,
    Say,
    SignalWorkers,
    StallFound,
    StallOver,
    StragglerFound,
    Told,
    WorkerStuck,
)
from holdfast.core.policy import sentences
from holdfast.core.protocol.messages import (
    FrameGroup,
    TellHang,
    WorkersFailed,
    WorkersResumed,
    WorkersStalled,
)
from holdfast.core.protocol.model import ExitStatus

from ..node.agent_life import Life, exited, running, said, stopping, without_words

PLACES = (FrameGroup((0,), "all_reduce", "a.py:9"), FrameGroup((1,), "f", "a.py:1"))
STALLED = StallFound(1, "all workers are stalled", "/logs/stacks_1.txt", 1, PLACES, 300.0)


def stalled() -> Life:
    life = running()
    life.take(STALLED)
    return life


def test_nothing_is_said_before_the_coordinator_knows_that_it_is_true_of_all() -> None:
    assert running().take(STALLED) == [Report(WorkersStalled(1, PLACES, 300.0))]


def test_the_words_and_the_file_are_said_once() -> None:
    life = stalled()
    text = said(life.take(Told(TellHang(1))))
    assert text == sentences.hang_here(STALLED.words, (), 0.0, STALLED.file)
    assert life.take(Told(TellHang(1))) == []


def test_the_suspect_is_ended_after_the_words_and_fails_with_where_it_was() -> None:
    life = stalled()
    effects = life.take(Told(TellHang(1, ends=True)))
    assert effects[-1] == SignalWorkers(signal.SIGKILL, (1,))
    assert [type(effect) for effect in effects[:-1]] == [Say, Say]
    (report,) = life.take(exited(1))
    assert isinstance(report, Report)
    assert isinstance(report.message, WorkersFailed)
    (failure,) = report.message.failures
    assert not failure.stopped_by_us
    assert failure.error.message == sentences.ended_for_hang("in f at a.py:1", STALLED.file)


def test_the_one_that_stands_out_among_all_nodes_is_ended_in_place_of_the_suspect() -> None:
    effects = stalled().take(Told(TellHang(1, ends=True, rank=0)))
    assert effects[-1] == SignalWorkers(signal.SIGKILL, (0,))


def test_one_is_ended_however_often_that_is_told() -> None:
    life = stalled()
    life.take(Told(TellHang(1, ends=True)))
    assert life.take(Told(TellHang(1, ends=True))) == []


def test_a_suspect_that_has_ended_by_itself_is_replaced_by_the_first_that_runs() -> None:
    life = stalled()
    life.state.workers[1].status = exited(1).status
    effects = without_words(life.take(Told(TellHang(1, ends=True))))
    assert effects == [SignalWorkers(signal.SIGKILL, (0,))]


def test_nobody_is_ended_who_does_not_stand_still_any_more() -> None:
    life = stalled()
    assert life.take(StallOver(1)) == [Report(WorkersResumed(1))]
    assert life.take(Told(TellHang(1, ends=True))) == []


def test_that_they_move_again_is_said_where_the_hang_was() -> None:
    life = stalled()
    life.take(Told(TellHang(1)))
    assert said(life.take(StallOver(1))) == sentences.RESUMED
    assert life.take(StallOver(1)) == []


def test_a_coordinator_that_is_reached_anew_is_told_again() -> None:
    effects = stalled().take(CoordinatorReached())
    assert effects[-1] == Report(WorkersStalled(1, PLACES, 300.0))
    assert Report(WorkersStalled(1, PLACES, 300.0)) not in running().take(CoordinatorReached())


def test_once_a_worker_has_ended_those_that_never_spoke_are_looked_at_anew() -> None:
    life = running()
    silent = replace(STALLED, never_reported=True, needs_cause=True)
    life.take(silent)
    assert Report(WorkersResumed(1)) in life.take(exited(1, ExitStatus(code=0)))
    (report,) = life.take(silent)
    assert isinstance(report, Report)
    assert isinstance(report.message, WorkersStalled)
    assert report.message.has_early_end
    text = said(life.take(Told(TellHang(1))))
    assert text == sentences.hang_here(STALLED.words, (1,), 2.0, STALLED.file)


def test_what_is_about_another_round_or_one_that_stops_is_nothing() -> None:
    assert running().take(StallFound(2, "x")) == []
    assert stopping().take(STALLED) == []
    life = stalled()
    assert life.take(Told(TellHang(2, ends=True))) == []


def test_a_straggler_is_told_of_and_nothing_is_done() -> None:
    assert running().take(StragglerFound(1, "rank 1 is slow")) == [Say("rank 1 is slow")]
    assert stopping().take(StragglerFound(1, "rank 1 is slow")) == []


def test_a_worker_that_misses_a_deadline_is_ended_and_fails_with_its_name() -> None:
    life = running()
    missed = DeadlineMissed(1, 1, "the deadline of loading", "in load at a.py:3", "/logs/s.txt")
    effects = life.take(missed)
    words = sentences.deadline_missed("the deadline of loading", "in load at a.py:3")
    assert said(effects) == sentences.ending_for_deadline(1, words, "/logs/s.txt")
    assert without_words(effects) == [SignalWorkers(signal.SIGKILL, (1,))]
    (report,) = life.take(exited(1))
    assert isinstance(report, Report)
    assert isinstance(report.message, WorkersFailed)
    (failure,) = report.message.failures
    assert failure.error.message == words + sentences.its_stack("/logs/s.txt")


def test_a_deadline_of_a_worker_that_has_ended_or_of_another_round_is_nothing() -> None:
    missed = DeadlineMissed(1, 1, "the deadline of loading")
    life = running()
    life.take(exited(1, ExitStatus(code=0)))
    assert life.take(missed) == []
    assert stopping().take(DeadlineMissed(1, 0, "x")) == []
    assert running().take(DeadlineMissed(2, 0, "x")) == []


STUCK = "is stuck in the kernel for 30 s: it waits for /data/x, and no signal reaches it"


def test_a_worker_that_is_held_is_told_of() -> None:
    assert said(running().take(WorkerStuck(1, 1, STUCK))).endswith(STUCK)
    assert running().take(WorkerStuck(2, 1, STUCK)) == []
    assert stopping().take(WorkerStuck(1, 1, STUCK)) == []


def test_a_worker_that_is_stuck_for_too_long_counts_as_failed_though_it_does_not_end() -> None:
    life = running()
    say, kill, report = life.take(WorkerStuck(1, 1, STUCK, ends=True))
    assert isinstance(say, Say)
    assert kill == SignalWorkers(signal.SIGKILL, (1,))
    assert isinstance(report, Report)
    assert isinstance(report.message, WorkersFailed)
    (failure,) = report.message.failures
    assert (failure.error.message, failure.ended_for) == (STUCK, "stuck in the kernel")
    assert life.take(WorkerStuck(1, 1, STUCK, ends=True))[-1] == kill, "its failure is told once"


def test_the_time_of_the_whole_run_ends_the_job_and_no_other_deadline_does() -> None:
    for is_final in (True, False):
        life = running()
        life.take(DeadlineMissed(1, 1, "the time", is_final=is_final))
        (report,) = life.take(exited(1))
        assert isinstance(report, Report)
        assert isinstance(report.message, WorkersFailed)
        assert report.message.failures[0].error.non_retryable is is_final
