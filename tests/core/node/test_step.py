"""An agent in a round: its rules, one by one.

That they hold together is for `test_one_node.py` to show.
"""

from __future__ import annotations

import pytest

from holdfast.core.node import Phase
from holdfast.core.node_io import (
    AllGone,
    DropZygote,
    EndpointReserved,
    KillZygote,
    NodeStarted,
    NodeTimerFired,
    Report,
    StartWorkers,
    StepReported,
    Told,
    WakeNode,
    WorkerExited,
    WorkerStarted,
    ZygoteLost,
    ZygoteReady,
)
from holdfast.core.policy import sentences
from holdfast.core.protocol.messages import (
    StopRound,
    WorkersFailed,
    WorkersProgressed,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import ErrorDetail, ExitStatus

from .agent_life import (
    KILLED,
    PORT,
    TERMINATED,
    Life,
    assignment,
    exited,
    run_round,
    running,
    said,
    stopping,
    waiting,
    without_words,
)


def test_a_round_that_is_not_newer_than_the_last_is_not_started() -> None:
    life = stopping()
    life.take(exited(0, TERMINATED), AllGone(1), EndpointReserved(PORT))
    assert life.state.phase is Phase.WAITING
    assert life.take(run_round(1)) == []
    assert life.take(run_round(2)) == [StartWorkers(assignment(2), (0, 1), warm=False)]


@pytest.mark.parametrize("life", [Life(), running(), stopping()], ids=lambda x: x.state.phase)
def test_a_round_starts_only_on_a_node_that_waits_for_one(life: Life) -> None:
    assert life.take(run_round(2)) == []


def test_success_is_told_when_the_last_worker_has_ended_well() -> None:
    life = running()
    assert life.take(exited(1, ExitStatus(code=0))) == [WakeNode("exit", 30.0)]
    assert life.take(exited(0, ExitStatus(code=0))) == [Report(WorkersSucceeded(1))]


def test_the_first_failure_is_told_at_once_and_the_next_with_the_end_of_the_round() -> None:
    life = running(slots=3)
    (report,) = life.take(exited(1))
    assert isinstance(report, Report)
    assert isinstance(report.message, WorkersFailed)
    (first,) = report.message.failures
    assert (first.rank, first.pid, first.status, first.stopped_by_us) == (1, 102, KILLED, False)
    assert first.observed_at == life.now
    assert life.take(exited(2)) == []


def test_a_worker_that_ends_before_its_start_is_told_counts_all_the_same() -> None:
    life = waiting()
    life.take(run_round())
    (report,) = life.take(exited(0))
    assert isinstance(report, Report)
    assert life.take(WorkerStarted(1, 0, 101)) == []


def test_what_an_older_round_says_is_ignored() -> None:
    life = stopping()
    life.take(exited(0, TERMINATED), AllGone(1), EndpointReserved(PORT), run_round(2))
    assert life.take(exited(0)) == []
    assert life.take(StepReported(1, 0, 99)) == []
    assert life.take(Told(StopRound(1, "late"))) == []
    assert life.state.phase is Phase.RUNNING


def test_that_all_of_the_last_round_are_gone_may_be_told_twice() -> None:
    life = running(slots=1)
    assert life.take(AllGone(1)) == []
    assert life.take(exited(0, ExitStatus(code=0))) == [Report(WorkersSucceeded(1))]


def test_only_steps_that_lead_further_than_ever_are_told() -> None:
    life = running()
    assert life.take(StepReported(1, 0, 5)) == [Report(WorkersProgressed(1, 5))]
    assert life.take(StepReported(1, 1, 5)) == []
    assert life.take(StepReported(1, 1, 4)) == []
    assert life.take(StepReported(1, 1, 6)) == [Report(WorkersProgressed(1, 6))]


def test_a_zygote_that_does_not_fork_is_killed_and_only_while_somebody_waits_for_it() -> None:
    life = Life()
    life.take(NodeStarted(), ZygoteReady(()), EndpointReserved(PORT), run_round())
    life.take(WorkerStarted(1, 0, 101))
    assert without_words(life.take(NodeTimerFired("fork"))) == [KillZygote()]
    life.take(WorkerStarted(1, 1, 102))
    assert life.take(NodeTimerFired("fork")) == []


def test_what_a_lost_zygote_did_not_fork_starts_cold() -> None:
    life = Life()
    life.take(NodeStarted(), ZygoteReady(()), EndpointReserved(PORT))
    start = StartWorkers(assignment(), (0, 1), warm=True)
    assert life.take(run_round()) == [WakeNode("fork", 60.0), start]
    effects = life.take(WorkerStarted(1, 0, 101), ZygoteLost("it ended with status 1"))
    cold = StartWorkers(assignment(), (1,), warm=False)
    assert without_words(effects) == [DropZygote(), cold]
    assert said(effects) == sentences.cold_start("it ended with status 1")


def test_a_loss_that_is_told_twice_starts_nobody_twice() -> None:
    life = Life()
    life.take(NodeStarted(), ZygoteReady(()), EndpointReserved(PORT), run_round())
    life.take(ZygoteLost("it ended with status 1"))
    assert life.take(ZygoteLost("it had already ended")) == []


def test_a_worker_that_had_raised_before_it_was_stopped_has_failed_by_itself() -> None:
    """Its peer lost it, ended sooner than it did, and the round was stopped for that."""
    life = running()
    life.take(exited(0, ExitStatus(code=1), message="ConnectionError: gone"))
    life.take(Told(StopRound(1, "rank 0 failed")))
    raised = "ValueError: the batch is empty"
    life.take(exited(1, ExitStatus(signal=15), message=raised))
    assert not life.failures[1].stopped_by_us
    assert life.failures[1].error.message == raised


def test_a_worker_that_left_nothing_and_died_of_our_signal_was_stopped() -> None:
    life = running()
    life.take(exited(0, ExitStatus(code=1)))
    life.take(Told(StopRound(1, "rank 0 failed")))
    life.take(exited(1, ExitStatus(signal=15)))
    assert life.failures[1].stopped_by_us


def test_an_exception_is_as_old_as_its_own_host_says() -> None:
    for raised_at, expected_s in ((988.25, 11.75), (988.0, 11.0), (1001.5, 0.0), (None, 0.0)):
        life = running()
        error = ErrorDetail("ValueError: no", timestamp=raised_at)
        event = WorkerExited(1, 1, 102, ExitStatus(code=1), error=error, wall_time=1000.0)
        (report,) = life.take(event)
        assert isinstance(report, Report)
        assert isinstance(report.message, WorkersFailed)
        (failure,) = report.message.failures
        assert failure.raised_s == expected_s
