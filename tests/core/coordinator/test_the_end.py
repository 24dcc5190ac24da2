"""The job is over: what counts between the decision, its being written down, and its being told."""

from __future__ import annotations

import pytest

from holdfast.core.coordinator import all_heard, coordinator_of
from holdfast.core.coordinator_io import OperatorAsked
from holdfast.core.membership import NodeGone, NodeSuspected
from holdfast.core.protocol.messages import (
    ClosingWanted,
    FromNode,
    NodeDraining,
    NodeLeft,
    RoundReport,
    WorkersFailed,
    WorkersStalled,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import Outcome

from .coordinated_job import Job, explained, failure, outcome, running, told

GONE = "all its processes have ended"
LEAVES = NodeDraining("SIGTERM was sent to its agent")


def stopped(*nodes: str, max_restarts: int = 0) -> Job:
    """Somebody has stopped the job, and the register does not answer."""
    job = running(*nodes, max_restarts=max_restarts)
    return stop(job)


def stop(job: Job) -> Job:
    job.register_answers = False
    job.take(OperatorAsked("stop", "somebody"))
    assert job.state.outcome is not None
    return job


def test_a_draining_node_that_dies_then_is_waited_for_by_nobody() -> None:
    job = running("a", "b")
    job.hear("b", LEAVES)
    stop(job)
    job.take(NodeGone("b", GONE))
    assert told(job.wake(6.0)) == {}


def test_a_stalled_node_that_is_gone_then_is_not_looked_for() -> None:
    job = running("a", "b")
    job.hear("b", WorkersStalled(1))
    stop(job)
    job.take(NodeGone("b", GONE))
    assert job.hear("a", WorkersStalled(1)) == []


def test_a_failure_after_that_is_not_charged_and_announces_no_restart() -> None:
    job = stopped("a", "b", max_restarts=3)
    effects = [*job.fail("a", failure(0)), *job.stop("a", failure(0)), *job.stop("b")]
    assert "restart" not in explained(effects)
    assert job.state.group.budget.charges == 0
    assert outcome(job.write()).verdict == "interrupted"


@pytest.mark.parametrize(
    "word",
    [
        WorkersFailed(1, (failure(0),)),
        WorkersSucceeded(1),
        LEAVES,
        ClosingWanted(Outcome("failed", "no further round is wanted", 1)),
    ],
    ids=lambda word: type(word).__name__,
)
def test_nothing_that_a_node_says_then_changes_what_is_to_be_written(word: FromNode) -> None:
    job = stopped("a", "b")
    version = job.state.version
    assert told(job.hear("a", word)) == {}
    assert job.state.version == version


def test_whoever_comes_greets_or_is_suspected_then_waits_for_the_outcome() -> None:
    job = stopped("a", "b")
    job.take(NodeSuspected("b", "silent"))
    assert told(job.greet("b", RoundReport(1, 1, 2, "running"))) == {}
    assert told(job.join("c")) == {}
    assert set(told(job.write())) == {"a", "b", "c"}


def test_whoever_has_left_or_is_gone_then_is_not_told() -> None:
    job = stopped("a", "b", "c")
    job.hear("b", NodeLeft("SIGTERM", signal=15))
    job.take(NodeGone("c", GONE))
    assert set(told(job.write())) == {"a"}


@pytest.mark.parametrize("had_succeeded", [False, True])
def test_no_lease_is_held_without_a_member_that_has_gone_since(had_succeeded: bool) -> None:
    job = running("a", "b")
    if had_succeeded:
        job.hear("b", WorkersSucceeded(1))
    stop(job)
    liveness = coordinator_of(job.state)
    liveness.leases.connected("a", job.now)
    assert all_heard(liveness, job.now)
    job.hear("b", NodeLeft("SIGTERM", signal=15))
    assert all_heard(liveness, job.now) == had_succeeded


def test_a_greeting_that_ends_the_job_counts_for_nothing_else() -> None:
    job = running("a", "b")
    job.hear("a", WorkersSucceeded(1))
    job.register_answers = False
    effects = job.greet("b", RoundReport(1, 1, 2, "succeeded"), draining="it was asked to leave")
    assert told(effects) == {}
    assert outcome(job.write()).verdict == "succeeded"
