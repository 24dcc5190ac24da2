"""A round that an earlier coordinator formed: who died with it, and what never ran."""

from __future__ import annotations

import pytest

from holdfast.core.coordinator import Beginning
from holdfast.core.protocol.document import Ledger, roll
from holdfast.core.protocol.messages import RoundReport, Seen, StopRound
from holdfast.core.protocol.model import Term

from .coordinated_job import Job, members, told


def taken_over(
    *, names: str = "abc", seat: int | None = None, dead: str = "a", least: int = 2
) -> Job:
    """The coordinator on b takes over while the ledger says round 4 of these nodes."""
    job = Job(nodes=least, at_most=4, max_restarts=3)
    written = Ledger(4, len(names), leader_seat=seat, roll=roll(names))
    beginning = Beginning(
        Term(1, 2),
        embedded=False,
        leader="b",
        ledger=written,
        gone_after_s=12.1,
        dead=dead if seat is not None else "",
        dead_seat=seat,
    )
    job.state = beginning.state(job.state.config, job.now)
    return job


def test_a_member_that_died_with_the_coordinator_is_not_waited_for() -> None:
    job = taken_over(seat=0)
    for rank, node in ((1, "b"), (2, "c")):
        stopping = told(job.greet(node, RoundReport(4, rank, 3, "running")))
        assert isinstance(stopping[node], StopRound)
        job.stop(node, round=4)
    assert told(job.wake(0.2)) == {}, "what its agent started may be dying still"
    assert members(job.wake(0.2)) == ["b", "c"]
    assert job.state.group.budget.charges == 0


def test_a_dead_coordinator_s_seat_is_nobody_else_s() -> None:
    job = taken_over(seat=0)
    job.greet("x", RoundReport(4, 0, 3, "running"))
    assert job.state.group.round is not None
    assert job.state.group.round.seats.by_rank[0].node == "a"


def test_without_a_seat_the_coordinator_s_death_ends_no_round() -> None:
    job = taken_over()
    for rank, node in enumerate("abc"):
        assert told(job.greet(node, RoundReport(4, rank, 3, "running"))) == {}
    assert told(job.wake(1.0)) == {}


def ready(job: Job, *nodes: str, round: int = 3) -> None:
    """Nodes greet that ran round 3 and have not heard of round 4."""
    for node in nodes:
        report = RoundReport(round, 0, 3, "stopped")
        job.greet(node, report, seen=Seen(Term(1, 1), round), endpoint=job.endpoint())


def formed(job: Job) -> list[str]:
    assert job.state.group.round is not None
    return sorted(job.state.group.round.seats.nodes())


def test_a_round_that_nobody_was_told_of_is_over_when_its_members_are_here() -> None:
    job = taken_over()
    ready(job, "a", "b")
    assert job.state.group.round is not None
    assert job.state.group.round.number == 4
    ready(job, "c")
    assert (job.state.group.round.number, formed(job)) == (5, ["a", "b", "c"])


def test_one_more_node_than_its_members_does_no_harm() -> None:
    job = taken_over()
    ready(job, "a", "b", "x")
    assert job.state.group.round is not None
    assert job.state.group.round.number == 4, "c may run it, for all that is known"
    ready(job, "c")
    assert (job.state.group.round.number, formed(job)) == (5, ["a", "b", "c", "x"])


@pytest.mark.parametrize("strangers", ["xyz", "xya", "bxa"])
def test_other_nodes_prove_nothing_about_it(strangers: str) -> None:
    job = taken_over()
    ready(job, *strangers)
    assert job.state.group.round is not None
    assert job.state.group.round.number == 4
    assert job.state.group.round is not None
    assert job.state.group.round.missing is not None


def test_one_member_that_runs_it_is_enough_to_wait_for_the_others() -> None:
    job = taken_over()
    job.greet("a", RoundReport(4, 0, 3, "running"))
    ready(job, "b")
    assert job.state.group.round is not None
    assert job.state.group.round.number == 4
    ready(job, "c")
    assert job.state.group.round is not None
    assert job.state.group.round.stop is not None
    assert job.state.group.round.stop.cause.kind == "loss"


def test_the_dead_coordinator_counts_as_a_member_of_a_round_that_never_ran() -> None:
    job = taken_over(seat=1, dead="b", least=1)
    ready(job, "a", "c")
    assert members(job.wake(0.4)) == ["a", "c"]


def test_a_roll_tells_any_two_sets_apart_and_adds_up() -> None:
    assert roll("abc") == roll("cab")
    assert roll("abc") != roll("abd")
    assert roll("ab") ^ roll("c") == roll("abc")
    assert roll("") == 0


def test_a_hold_is_over_when_a_member_that_it_needs_reports_and_not_before() -> None:
    job = taken_over()
    held = job.state.group.round
    assert held is not None
    assert held.missing is not None
    held.missing.until = held_until = job.now + 72.7
    job.greet("a", RoundReport(4, 0, 3, "succeeded"))
    assert held.missing.until == held_until, "the others may be held without it"
    job.greet("b", RoundReport(4, 1, 3, "running"))
    assert held.missing.until < held_until
