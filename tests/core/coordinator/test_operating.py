"""What an operator wants of a whole job."""

from __future__ import annotations

from holdfast.core.coordinator import operating
from holdfast.core.coordinator.io import CoordinatorEffect, Explain, OperatorAsked, Tell
from holdfast.core.coordinator.round import RunningRound, StoppingRound
from holdfast.core.protocol.messages import RoundStopped, StopRound
from holdfast.core.protocol.model import Endpoint

from .coordinated_job import Job, running

RESTART, STOP = OperatorAsked("restart", "ada on desk"), OperatorAsked("stop", "ada on desk")


def stops(effects: list[CoordinatorEffect]) -> dict[str, str]:
    """Who is told to stop, and why."""
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
    assert stops(job.take(RESTART)) == {"a": reason, "b": reason}
    effects = stopped(job, "a", "b")
    said = [one.text for one in effects if isinstance(one, Explain)]
    assert said == [f"{reason}; re-forming, not counted against --max-restarts"]
    assert job.state.round_number == 2
    assert job.state.budget.charges == 0


def test_a_restart_of_a_round_that_stops_is_refused_and_changes_nothing() -> None:
    job = running("a", "b")
    assert operating.refusal(job.state, "restart") == ""
    job.take(RESTART)
    assert "no round is running" in operating.refusal(job.state, "restart")
    assert isinstance(job.state.round, StoppingRound)
    assert stops(job.take(RESTART)) == {}


def test_a_stop_closes_the_job_as_interrupted() -> None:
    job = running("a", "b")
    job.take(STOP)
    assert job.state.outcome is not None
    outcome = job.state.outcome
    assert (outcome.verdict, outcome.exit_status) == ("interrupted", 143)
    assert outcome.reason == "ada on desk stopped the job"
    assert operating.refusal(job.state, "stop") == "the job is over"


def test_what_is_wanted_of_a_job_that_is_over_is_nothing() -> None:
    job = running("a")
    job.take(STOP)
    first = job.state.outcome
    job.take(OperatorAsked("stop", "bob"))
    job.take(RESTART)
    assert job.state.outcome is first
    assert not isinstance(job.state.round, RunningRound) or job.state.end is not None
