"""What probes are told about a node in every stage of its life."""

from __future__ import annotations

import pytest

from holdfast.core import health
from holdfast.core.node import Phase
from holdfast.core.node_io import AllGone, CoordinatorLost, StepReported, Told, WorkerStarted
from holdfast.core.policy.worker_progress import WorkerProgress
from holdfast.core.protocol.messages import CloseJob

from .node.agent_life import SUCCEEDED, Life, exited, member, run_round, running, stopping, waiting


def stood(*ages_s: float | None) -> list[WorkerProgress]:
    """Workers by rank, each with the age of its last step."""
    return [
        WorkerProgress(rank, rank, 100 + rank, None if age is None else 7 + rank, age)
        for rank, age in enumerate(ages_s)
    ]


def test_a_sign_of_life_is_recent_enough_or_not() -> None:
    assert health.liveness(5.0, 5.0) == health.Health(True, "alive")
    late = health.liveness(5.1, 5.0)
    assert not late.is_well
    assert late.words == "no sign of life for 5 s, and 5 s are allowed"


def test_a_node_is_ready_when_all_workers_of_a_formed_round_exist() -> None:
    life = Life()
    assert "prepares" in health.readiness(life.state).words
    life = waiting()
    assert "waits for a round to form" in health.readiness(life.state).words
    life.take(run_round(), WorkerStarted(1, 0, 101))
    half = health.readiness(life.state)
    assert (half.is_well, half.words) == (False, "not ready: the workers of round 1 start")
    life.take(WorkerStarted(1, 1, 102))
    ready = health.readiness(life.state)
    assert (ready.is_well, ready.words) == (True, "ready: in round 1 with ranks 0 to 1 of 2")
    assert ready.facts["phase"] == "running"
    assert ready.facts["workers"] == 2


def test_one_worker_is_one_rank() -> None:
    assert health.readiness(running(slots=1).state).words == "ready: in round 1 with rank 0 of 1"


def test_a_round_that_stops_or_is_over_is_not_ready() -> None:
    stops = health.readiness(stopping().state)
    assert (stops.is_well, stops.words) == (
        False,
        "not ready: a round is being stopped, and another follows",
    )
    over = running()
    over.take(Told(CloseJob(SUCCEEDED)))
    assert "the job is over" in health.readiness(over.state).words
    over.take(exited(0), exited(1), AllGone(1))
    over.state.phase = Phase.FINISHED
    assert not health.readiness(over.state).is_well


def test_a_lost_coordinator_does_not_make_a_running_node_unready() -> None:
    life = member()
    life.take(CoordinatorLost("it is gone"))
    ready = health.readiness(life.state)
    assert ready.is_well
    assert ready.facts["coordinator_reached"] is False


def test_the_youngest_step_counts() -> None:
    life = running()
    found = health.progress(life.state, stood(3.0, 50.0), 100.0, 10.0)
    assert (found.is_well, found.words) == (True, "step 8 was reported 3.0 s ago")
    assert found.facts["age_s"] == 3.0
    late = health.progress(life.state, stood(12.0, 50.0), 100.0, 10.0)
    assert not late.is_well
    assert late.words == "step 8 was reported 12.0 s ago, and 10 s are allowed"


def test_without_a_limit_no_age_is_too_old() -> None:
    assert health.progress(running().state, stood(1e6), 1e6, None).is_well


def test_a_round_without_a_step_yet_is_as_old_as_itself() -> None:
    life = running()
    life.take(StepReported(1, 0, 5))
    found = health.progress(life.state, stood(None, None), 20.0, 10.0)
    assert not found.is_well
    assert found.words == "round 1 began 20.0 s ago, and 10 s are allowed"


@pytest.mark.parametrize(
    ("life", "workers"),
    [
        (waiting(), []),
        (stopping(), stood(99.0)),
        (running(), []),
        (running(), stood(None, None)),
    ],
    ids=["no round", "stopping", "all workers are done", "nobody ever says a step"],
)
def test_nobody_is_accused_of_what_he_cannot_know(
    life: Life, workers: list[WorkerProgress]
) -> None:
    assert health.progress(life.state, workers, 1e6, 1.0).is_well
