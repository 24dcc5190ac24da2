"""How long each part of a recovery took, read off steps at known times."""

from __future__ import annotations

import pytest

from holdfast.core.coordinator_io import CoordinatorTimerFired
from holdfast.core.node_io import (
    AllGone,
    NodeEvent,
    StepReported,
    Told,
    WorkerExited,
    WorkerStarted,
)
from holdfast.core.policy.config import JobConfig, Program
from holdfast.core.protocol.messages import CloseJob, RunRound
from holdfast.core.protocol.model import Assignment, Endpoint, ExitStatus, Outcome, Ranks
from holdfast.observe.history import History, Recovery
from holdfast.observe.journal import CoordinatorStep, Gap, NodeStep, Step

OVER = Told(CloseJob(Outcome("succeeded", "all workers succeeded", 0)))
KILLED = ExitStatus(signal=9)
STOPPED = ExitStatus(signal=15)
ENDED_WELL = ExitStatus(code=0)

JOB = JobConfig("job", Program("script", "train.py"), slots=2)
Happening = tuple[float, NodeEvent]


def recoveries(taken: list[Step]) -> list[Recovery]:
    history = History(JOB)
    for step in taken:
        assert not isinstance(step, Gap)
        history.feed("here", step.at, step)
    return history.recoveries


def steps(*happenings: Happening) -> list[Step]:
    return [NodeStep(n, at, event, []) for n, (at, event) in enumerate(happenings, 1)]


def announced(number: int) -> Told:
    ranks = (Ranks(0, 0, 0), Ranks(1, 1, 1))
    master = Endpoint("127.0.0.1", 29500)
    return Told(RunRound(Assignment(number, number - 1, 0, 1, 2, 2, ranks, master)))


def started(number: int, local_rank: int) -> WorkerStarted:
    return WorkerStarted(number, local_rank, 100 * number + local_rank)


def exited(number: int, local_rank: int, status: ExitStatus = KILLED) -> WorkerExited:
    return WorkerExited(number, local_rank, 100 * number + local_rank, status)


FIRST_ROUND: list[Happening] = [
    (0.0, announced(1)),
    (0.1, started(1, 0)),
    (0.2, started(1, 1)),
    (0.5, StepReported(1, 0, 1)),
]
RECOVERY: list[Happening] = [
    (10.0, exited(1, 1)),
    (10.25, exited(1, 0, STOPPED)),
    (10.5, AllGone()),
    (11.5, announced(2)),
    (12.0, started(2, 1)),
    (13.5, started(2, 0)),
    (15.5, StepReported(2, 1, 1)),
    (16.0, StepReported(2, 0, 1)),
    (17.0, StepReported(2, 0, 2)),
]


def test_each_part_goes_from_the_end_of_the_one_before_to_its_own() -> None:
    (found,) = recoveries(steps(*FIRST_ROUND, *RECOVERY))
    parts_s = {"stop": 0.5, "form": 1.0, "spawn": 2.0, "first step": 2.0}
    assert found == Recovery(from_round=1, to_round=2, parts_s=parts_s)
    assert found.total_s == 5.5
    assert found.in_words() == (
        "recovered in 5500 ms (stop 500, form 1000, spawn 2000, first step 2000)"
    )


def test_a_step_before_the_last_worker_is_there_does_not_make_the_whole_longer() -> None:
    early: list[Happening] = [*RECOVERY[:5], (12.5, StepReported(2, 1, 1)), (13.5, started(2, 0))]
    (found,) = recoveries(steps(*FIRST_ROUND, *early))
    assert found.total_s == 3.5


def test_where_workers_report_no_steps_a_recovery_ends_with_their_birth() -> None:
    (found,) = recoveries(steps(*FIRST_ROUND[:3], *RECOVERY[:6]))
    assert "first step" not in found.parts_s
    assert found.parts_s == {"stop": 0.5, "form": 1.0, "spawn": 2.0}


def test_a_job_without_failures_has_no_recoveries() -> None:
    well: list[Happening] = [
        (1.0, exited(1, 0, ENDED_WELL)),
        (1.1, exited(1, 1, ENDED_WELL)),
        (1.2, AllGone()),
    ]
    assert recoveries(steps(*FIRST_ROUND, *well)) == []


def test_a_failure_that_no_round_followed_is_no_recovery() -> None:
    assert recoveries(steps(*FIRST_ROUND, *RECOVERY[:3])) == []


def test_each_failed_round_has_a_recovery_of_its_own() -> None:
    second: list[Happening] = [
        (20.0, exited(2, 0)),
        (21.0, AllGone()),
        (21.0, announced(3)),
        (22.0, started(3, 0)),
        (23.0, started(3, 1)),
        (24.0, OVER),
    ]
    found = recoveries(steps(*FIRST_ROUND, *RECOVERY, *second))
    assert [(one.from_round, one.to_round) for one in found] == [(1, 2), (2, 3)]
    assert found[1].parts_s == {"stop": 1.0, "form": 0.0, "spawn": 2.0}


def test_a_round_that_fails_before_it_is_whole_has_recovered_nothing() -> None:
    hasty: list[Happening] = [
        (10.0, exited(1, 0)),
        (11.0, AllGone()),
        (12.0, announced(2)),
        (13.0, exited(2, 0)),
        (14.0, AllGone()),
        (16.0, announced(3)),
        (17.0, OVER),
    ]
    (found,) = recoveries(steps(*FIRST_ROUND, *hasty))
    assert (found.from_round, found.to_round) == (2, 3)
    assert found.parts_s == {"stop": 1.0, "form": 2.0}


def test_the_steps_of_the_coordinator_are_not_needed() -> None:
    between: list[Step] = [
        CoordinatorStep(99, 10.7, CoordinatorTimerFired("form"), []),
        *steps(*FIRST_ROUND, *RECOVERY),
    ]
    assert recoveries(between) == recoveries(steps(*FIRST_ROUND, *RECOVERY)) != []


@pytest.mark.parametrize("late", [started(1, 1), StepReported(1, 1, 9), exited(1, 0), AllGone()])
def test_what_the_old_round_still_says_does_not_count_for_the_new_one(late: NodeEvent) -> None:
    (expected,) = recoveries(steps(*FIRST_ROUND, *RECOVERY))
    late_step = (11.6, late)
    assert recoveries(steps(*FIRST_ROUND, *RECOVERY[:4], late_step, *RECOVERY[4:])) == [expected]
