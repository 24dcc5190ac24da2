"""What an operator wants of a whole job."""

from __future__ import annotations

import pytest
from tests.core.coordinator.coordinated_job import Job, running

from holdfast.core import coordinator
from holdfast.core.coordinator_io import CoordinatorEffect, Explain, OperatorAsked, Tell, Write
from holdfast.core.features import commands
from holdfast.core.policy import sentences
from holdfast.core.protocol.document import NodeLimits
from holdfast.core.protocol.messages import RoundStopped, RunRound, StopRound, WorkersSucceeded
from holdfast.core.protocol.model import Endpoint, Term

RESTART, STOP = OperatorAsked("restart", "ada on desk"), OperatorAsked("stop", "ada on desk")


def stops(effects: list[CoordinatorEffect]) -> dict[str, str]:
    """The nodes that are told to stop, and why."""
    return {
        one.node: one.message.reason
        for one in effects
        if isinstance(one, Tell) and isinstance(one.message, StopRound)
    }


def stopped(job: Job, *nodes: str) -> list[CoordinatorEffect]:
    effects: list[CoordinatorEffect] = []
    for number, node in enumerate(nodes):
        back = RoundStopped(1, (), Endpoint("10.0.0.1", 2000 + number))
        effects += job.hear(node, back)
    return effects


def test_a_restart_ends_the_round_for_all_and_costs_nothing() -> None:
    job = running("a", "b")
    reason = "ada on desk asked for a restart"
    assert stops(job.take(RESTART)) == {}
    assert stops(job.save()) == {"a": reason, "b": reason}
    effects = stopped(job, "a", "b")
    said = [one.text for one in effects if isinstance(one, Explain)]
    assert said == [f"{reason}; re-forming, not counted against --max-restarts"]
    assert job.state.group.round_number == 2
    assert job.state.group.budget.charges == 0


def test_a_restart_of_a_round_that_stops_is_refused_and_changes_nothing() -> None:
    job = running("a", "b")
    assert commands.refusal(job.state, "restart") == ""
    job.take(RESTART)
    job.save()
    assert "no round is running" in commands.refusal(job.state, "restart")
    assert job.state.group.round is not None
    assert job.state.group.round.stop is not None
    assert stops(job.take(RESTART)) == {}


def test_a_stop_closes_the_job_as_interrupted() -> None:
    job = running("a", "b")
    job.take(STOP)
    assert job.state.outcome is not None
    outcome = job.state.outcome
    assert (outcome.verdict, outcome.exit_status) == ("interrupted", 143)
    assert outcome.reason == "stopped by ada on desk"
    assert commands.refusal(job.state, "stop") == "the job is over"


def test_what_is_wanted_of_a_job_that_is_over_is_nothing() -> None:
    job = running("a")
    job.take(STOP)
    first = job.state.outcome
    job.take(OperatorAsked("stop", "bob"))
    job.take(RESTART)
    assert job.state.outcome is first
    assert job.state.end is not None


def scale(least: int, most: int) -> OperatorAsked:
    return OperatorAsked("scale", "ada on desk", NodeLimits(least, most, "ada on desk"))


def elastic(*nodes: str, at_most: int = 4) -> Job:
    job = Job(1, at_most)
    for node in nodes:
        job.join(node)
    job.wake(job.state.config.timeouts.last_call_s + 1)
    assert job.state.group.round is not None
    assert job.state.group.round.is_whole
    return job


def test_a_round_with_more_nodes_than_asked_for_ends_and_the_last_stand_by() -> None:
    job = elastic("a", "b", "c")
    effects = job.take(scale(1, 2))
    assert [one.text for one in effects if isinstance(one, Explain)] == [
        sentences.scaled("ada on desk", 1, 2)
    ]
    assert set(stops(job.save()).values()) == {"ada on desk asked for at most 2 nodes"}
    stopped(job, "a", "b", "c")
    assert job.state.group.round is not None
    assert job.state.group.round.is_whole
    assert job.state.group.round.seats.nodes() == ["a", "b"]
    assert list(job.state.ready) == ["c"]
    assert job.state.group.budget.charges == 0


def test_a_round_with_fewer_nodes_than_asked_for_goes_on_and_the_next_waits() -> None:
    job = elastic("a", "b")
    effects = job.take(scale(3, 3))
    assert not stops(effects)
    assert [one.text for one in effects if isinstance(one, Explain)] == [
        sentences.scaled("ada on desk", 3, 3) + "; round 1 goes on with 2"
    ]
    job.take(RESTART)
    job.save()
    effects = stopped(job, "a", "b")
    assert job.state.group.round is None
    assert any("2 of at least 3 nodes" in one.text for one in effects if isinstance(one, Explain))


def test_a_coordinator_that_takes_over_knows_what_was_asked_for() -> None:
    job = elastic("a", "b")
    writes = [one for one in job.take(scale(2, 3)) if isinstance(one, Write)]
    ledger = writes[-1].ledger
    assert ledger.limits == NodeLimits(2, 3, "ada on desk")
    later = coordinator.take_over(job.state.config, Term(1, 2), ledger, job.now, 10.0)
    assert (later.min_nodes, later.max_nodes) == (2, 3)


def test_a_round_that_was_not_announced_yet_is_not_when_it_has_too_many() -> None:
    job = Job(3, 3)
    job.register_answers = False
    for node in "abc":
        job.join(node)
    assert job.state.group.round is not None
    assert not job.state.group.round.announced
    job.take(scale(1, 2))
    job.register_answers = True
    effects = job.write()
    told = [one for one in effects if isinstance(one, Tell) and isinstance(one.message, RunRound)]
    assert [one.node for one in told] == ["a", "b"]


def test_a_round_that_comes_to_its_end_is_left_alone() -> None:
    job = elastic("a", "b", "c")
    job.hear("a", WorkersSucceeded(1))
    assert not stops(job.take(scale(1, 2)))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (None, "a job has at least 1 node"),
        (NodeLimits(0, 2), "a job has at least 1 node"),
        (NodeLimits(3, 2), "a maximum that is not below its minimum"),
    ],
)
def test_a_number_of_nodes_that_makes_no_sense_is_refused(
    limits: NodeLimits | None, reason: str
) -> None:
    job = running("a", "b")
    assert reason in commands.refusal(job.state, "scale", limits)
    job.take(OperatorAsked("scale", "ada", limits))
    assert job.state.group.limits is None


def test_a_job_of_one_node_cannot_have_more() -> None:
    refused = commands.refusal(running("a").state, "scale", NodeLimits(1, 4))
    assert "start it with --nnodes 1:4 and an --rdzv-endpoint" in refused
