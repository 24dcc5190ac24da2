"""Members whose own machine proves that they have ended."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.core.coordinator.coordinated_job import Job, members, told

from holdfast.core.coordinator import Beginning
from holdfast.core.protocol.document import Ledger
from holdfast.core.protocol.messages import (
    EndedMember,
    MembersEnded,
    RoundReport,
    StopRound,
)
from holdfast.core.protocol.model import Term

ROUND = 4
INSTANCE = 7


def ended(seat: int, **changes: object) -> EndedMember:
    known = EndedMember(f"old{seat}-1", INSTANCE, ROUND, seat)
    return replace(known, **changes)


def started_again(held_s: float = 60.0) -> Job:
    """A coordinator that knows nothing but what is written down of round 4."""
    job = Job(nodes=3)
    written = Ledger(ROUND, 3, instance=INSTANCE)
    beginning = Beginning(Term(1, 2), embedded=False, leader="a", ledger=written)
    beginning = replace(beginning, gone_after_s=held_s + 12.1)
    job.state = beginning.state(job.state.config, job.now)
    return job


def come(job: Job, *nodes: str) -> None:
    for node in nodes:
        job.greet(node, endpoint=job.endpoint())


def test_when_all_have_ended_the_next_round_forms_at_once() -> None:
    job = started_again()
    come(job, "a", "b", "c")
    assert told(job.hear("a", MembersEnded((ended(0), ended(1))))) == {}
    assert members(job.hear("c", MembersEnded((ended(2),)))) == ["a", "b", "c"]
    assert job.state.group.round_number == ROUND + 1
    assert job.state.group.budget.charges == 0


def test_it_can_be_told_with_the_greeting() -> None:
    job = started_again()
    come(job, "a", "b")
    told_by: dict[str, Any] = {"endpoint": job.endpoint(), "ended": (ended(0), ended(1), ended(2))}
    assert members(job.greet("c", **told_by)) == ["a", "b", "c"]


def test_one_that_is_not_proven_is_waited_for_as_long_as_before() -> None:
    job = started_again()
    come(job, "a", "b", "c")
    job.hear("a", MembersEnded((ended(0), ended(1))))
    assert all(told(job.wake(0.25)) == {} for _ in range(4 * 72)), "72.1 s is when it must be gone"
    assert members(job.wake(0.2)) == ["a", "b", "c"]


def test_one_that_runs_is_stopped_first() -> None:
    job = started_again()
    come(job, "a", "b")
    job.hear("a", MembersEnded((ended(0), ended(1))))
    stopping = told(job.greet("c", RoundReport(ROUND, 2, 3, "running")))
    assert isinstance(stopping["c"], StopRound)
    assert members(job.stop("c", round=ROUND)) == ["c", "a", "b"]


def test_what_does_not_fit_is_of_another_round_and_ignored() -> None:
    job = started_again()
    come(job, "a", "b", "c")
    wrong = (
        ended(1, instance=INSTANCE - 1),
        ended(1, round=ROUND - 1),
        replace(ended(1), seat=7),
    )
    job.hear("b", MembersEnded((ended(0), ended(2), *wrong)))
    assert told(job.wake(30.0)) == {}
    assert members(job.hear("b", MembersEnded((ended(1),)))) == ["a", "b", "c"]


def test_told_twice_it_counts_once() -> None:
    job = started_again()
    come(job, "a", "b", "c")
    for _ in range(2):
        job.hear("a", MembersEnded((ended(0),)))
    assert told(job.wake(30.0)) == {}


def test_a_member_of_a_round_that_runs_is_gone_when_its_machine_says_so() -> None:
    job = Job(nodes=2, at_most=3)
    job.join("a", "b", "c")
    wrong, known = EndedMember("x", 1, 1, 1), EndedMember("b", 1, 1, 1)
    assert told(job.greet("new", endpoint=job.endpoint(), ended=(wrong,))) == {}
    stopping = told(job.hear("new", MembersEnded((known,))))
    assert {node for node, one in stopping.items() if isinstance(one, StopRound)} == {"a", "c"}
    job.stop("a")
    assert members(job.stop("c")) == ["a", "c", "new"]
