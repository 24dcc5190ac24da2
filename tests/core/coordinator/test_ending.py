"""How a round ends, who is waited for, and how it is judged, with nodes that come and go."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from holdfast.core import coordinator
from holdfast.core.coordinator import Succession
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    Depose,
    LoopDelayed,
    Resign,
    Retire,
    Revoke,
    Tell,
)
from holdfast.core.membership import NodeGone, NodeHeardAgain, NodeSuspected
from holdfast.core.policy import sentences
from holdfast.core.protocol.document import Ledger
from holdfast.core.protocol.messages import (
    DescribeFailures,
    ExpectExits,
    FailuresDescribed,
    NodeDraining,
    NodeLeft,
    RoundReport,
    RoundStopped,
    RunRound,
    Seen,
    StopRound,
    WorkersFailed,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import ErrorDetail, Term

from .coordinated_job import Job, explained, failure, members, outcome, running, told

TraceFunction = Callable[[FrameType, str, Any], Any]
GONE = "all its processes have ended"


def test_a_suspicion_ends_the_round_and_replaces_nobody() -> None:
    job = running("a", "b")
    job.join("c")
    effects = job.take(NodeSuspected("b", "it has been silent for 5.0 s"))
    assert set(told(effects)) == {"a", "b"}
    assert told(job.stop("a")) == {}
    assert members(job.take(NodeGone("b", "it was silent for 12.1 s"))) == ["a", "c"]


def test_after_a_time_out_the_workers_that_still_run_are_located_before_they_are_stopped() -> None:
    timed_out = ErrorDetail("RuntimeError: Timed out waiting 4000ms for recv operation")
    for error, locate in ((timed_out, True), (ErrorDetail("ValueError: no"), False)):
        job = running("a", "b")
        stops = told(job.fail("a", failure(0, error=error)))
        assert [one.locate for one in stops.values() if isinstance(one, StopRound)] == [locate] * 2


def test_the_loss_of_a_member_is_free_and_of_its_victims_too() -> None:
    job = running("a", "b", at_most=3, max_restarts=0)
    job.join("c")
    job.fail("a", failure(0))
    job.stop("a", failure(0))
    effects = job.take(NodeGone("b", GONE))
    assert members(effects) == ["a", "c"]
    assert sentences.FREE in explained(effects)
    assert job.state.group.budget.charges == 0


@pytest.mark.parametrize("told_in", ["its last word", "its greeting"])
def test_peers_of_a_node_without_a_lease_are_not_charged(told_in: str) -> None:
    """It had to stop its workers, theirs failed for it, and that was heard first."""
    job = running("a", "b", max_restarts=0)
    job.fail("a", failure(0))
    job.stop("a", failure(0))
    if told_in == "its greeting":
        stopped = RoundReport(1, 1, 2, "stopped", lease_ended=True)
        effects = job.greet("b", report=stopped, endpoint=job.endpoint())
    else:
        effects = job.hear("b", RoundStopped(1, (), job.endpoint(), lease_ended=True))
    lost = f"host-b {sentences.LOST_LEASE}"
    assert explained(effects) == sentences.re_forming(sentences.peers_failed(lost))
    assert job.state.outcome is None
    assert job.state.group.budget.charges == 0


def test_failures_are_in_the_order_in_which_they_were_raised() -> None:
    job = running("a", "b", max_restarts=0)
    victim = failure(0, error=ErrorDetail("KeyError: 'x'"))
    kept_alive = failure(2, error=ErrorDetail("ValueError: no"), raised_s=12.0)
    job.fail("a", victim)
    job.stop("a", victim)
    ended = outcome(job.stop("b", kept_alive))
    assert ended.cause is not None
    assert ended.cause.rank == 2, "a thread kept its process alive for 12 s"


def test_a_node_that_had_succeeded_is_named_where_its_peers_missed_it() -> None:
    job = running("a", "b", max_restarts=0)
    job.hear("b", WorkersSucceeded(1))
    missed = failure(0, error=ErrorDetail("RuntimeError: Connection closed by peer"))
    job.fail("a", missed)
    job.stop("a", missed, failure(1, stopped_by_us=True))
    ended = outcome(job.stop("b"))
    early = "rank 2 on host-b and rank 3 on host-b had ended with exit code 0"
    assert ended.reason.startswith(f"{early}, while others still ran; then rank 0 on host-a")
    assert ended.blame is not None
    assert (ended.blame.kind, ended.blame.who) == ("ended too early", "rank 2 on host-b")
    assert ended.cause is not None
    assert [end.rank for end in ended.cause.ended_before] == [2, 3]


def test_an_end_that_cannot_be_written_down_is_said_to_wait_for_that() -> None:
    job = running("a", "b")
    job.state.succession, job.register_answers = Succession("a"), False
    job.hear("a", WorkersSucceeded(1))
    assert told(job.hear("b", WorkersSucceeded(1))) == {}
    assert explained(job.wake(0.5)) == ""
    waits = "all workers are done; waiting for the register to record it"
    assert explained(job.wake(1.0)) == waits
    assert explained(job.wake(1.0)) == "", "it is said once"
    assert outcome(job.write()).verdict == "succeeded"


def test_giving_up_waits_for_everybody() -> None:
    job = running("a", "b", max_restarts=0)
    job.fail("a", failure(0))
    assert told(job.stop("a", failure(0))) == {}
    assert outcome(job.stop("b")).verdict == "failed"


def test_a_node_that_is_lost_never_closes_the_job() -> None:
    job = running("a", "b")
    job.take(NodeGone("b", GONE))
    job.stop("a")
    job.take(NodeGone("a", GONE))
    assert job.state.outcome is None


def test_losing_a_node_that_has_finished_does_not_count() -> None:
    job = running("a", "b")
    job.hear("b", WorkersSucceeded(1))
    assert told(job.take(NodeGone("b", GONE))) == {}
    assert outcome(job.hear("a", WorkersSucceeded(1))).verdict == "succeeded"


@pytest.mark.parametrize("with_spare", [True, False])
def test_a_drain_is_let_out_at_once_where_the_job_can_do_without(with_spare: bool) -> None:
    job = running("a", "b")
    if with_spare:
        job.join("c")
    effects = job.hear("b", NodeDraining("SIGTERM was sent to its agent"))
    assert bool(told(effects)) == with_spare
    if not with_spare:
        assert told(job.wake(4.9)) == {}
        assert set(told(job.wake(0.2))) == {"a", "b"}


def operations(call: Callable[[], object]) -> int:
    """How many operations of the interpreter it takes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> TraceFunction:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def suspicions(nodes: int) -> int:
    """What the last of the suspicions takes when half of a round falls silent."""
    names = [f"n{number}" for number in range(nodes)]
    job = running(*names)
    job.state.succession = Succession(names[0])
    job.register_answers = False
    *first, last = names[nodes // 2 :]
    for name in first:
        job.take(NodeSuspected(name, "silent"))
    effects: list[CoordinatorEffect] = []
    took = operations(lambda: effects.extend(job.take(NodeSuspected(last, "silent"))))
    assert Resign(sentences.out_of_reach(nodes // 2, nodes)) in effects
    return took


def test_when_half_of_a_round_falls_silent_each_suspicion_takes_as_long_in_a_larger_one() -> None:
    assert suspicions(400) < 1.5 * suspicions(40)


def test_who_is_heard_again_or_gone_is_out_of_reach_no_more() -> None:
    job = running(*"abcdef")
    job.state.succession = Succession("a")
    for name in "bcd":
        effects = job.take(NodeSuspected(name, "silent"))
    assert any(isinstance(effect, Resign) for effect in effects)
    job.take(NodeHeardAgain("b"))
    job.take(NodeGone("c", GONE))
    effects = job.take(NodeSuspected("e", "silent"))
    assert not any(isinstance(effect, Resign) for effect in effects)
    effects = job.take(NodeSuspected("f", "silent"))
    assert Resign(sentences.out_of_reach(3, 6)) in effects


def test_a_drain_that_waits_goes_when_a_replacement_comes() -> None:
    job = running("a", "b")
    job.hear("b", NodeDraining("SIGTERM was sent to its agent"))
    assert set(told(job.join("c"))) == {"a", "b"}
    job.hear("b", NodeLeft("SIGTERM", signal=15))
    assert members(job.stop("a")) == ["a", "c"]
    assert job.state.group.budget.charges == 0


def test_where_everybody_leaves_nobody_waits_for_a_replacement() -> None:
    job = running("a", "b")
    assert told(job.hear("b", NodeDraining("SIGTERM was sent to its agent"))) == {}
    assert set(told(job.hear("a", NodeDraining("SIGTERM was sent to its agent")))) == {"a", "b"}


def test_a_node_that_does_not_stop_loses_its_lease() -> None:
    job = running("a", "b")
    job.take(NodeSuspected("b", "silent"))
    job.stop("a")
    said = explained(job.wake(1.0))
    assert said == sentences.stopping(sentences.may_be_lost("host-b", "silent"), 1), (
        "it takes long: nobody is to wonder why"
    )
    assert Revoke("b") in job.wake(64.0)


def test_a_cause_that_was_said_while_the_workers_were_stopped_is_not_said_again() -> None:
    job = running("a", "b", max_restarts=2)
    cause = failure(0)
    job.fail("a", cause)
    job.stop("a", cause)
    assert explained(job.wake(1.0)).endswith(sentences.stopping("", 1))
    assert explained(job.stop("b")) == "restarting (1 of 2)"


def test_rounds_in_a_row_without_progress_end_the_job() -> None:
    job = running("a", "b", at_most=2, fruitless_rounds_limit=2)
    job.take(NodeGone("b", GONE))
    job.stop("a")
    job.join("c")
    job.take(NodeGone("c", GONE))
    ended = outcome(job.stop("a", round=2))
    assert sentences.without_progress(2) in ended.reason


def test_failures_in_a_row_without_progress_end_the_job_before_the_budget_does() -> None:
    job = running("a", fruitless_rounds_limit=2, max_restarts=9)
    assert isinstance(told(job.fail_and_stop(failure()))["a"], RunRound)
    ended = outcome(job.fail_and_stop(failure(), round=2))
    assert sentences.without_progress(2) in ended.reason
    assert ended.cause is not None
    assert job.state.group.budget.charges == 2, "the last failure is charged like any other"


def test_stalls_of_our_own_put_a_revoking_off_by_their_length_only() -> None:
    job = running("a", "b")
    job.take(NodeSuspected("b", "silent"))
    job.stop("a")
    job.wake(1.0)
    for _ in range(10):
        job.now += 6.0
        job.take(LoopDelayed(0.5))
    assert not job.state.members["b"].revoked, "it had 60 s, of which 5 s were our own"
    assert Revoke("b") in job.wake(10.0)


def test_a_stall_that_is_noticed_twice_counts_once() -> None:
    job = running("a", "b")
    job.take(NodeSuspected("b", "silent"))
    job.stop("a")
    job.wake(1.0)
    job.now += 73.0  # The look of its own, due after 65 s, is late as well.
    assert Revoke("b") not in job.take(LoopDelayed(10.0))
    assert Revoke("b") in job.wake(1.0)


def test_details_are_asked_of_the_first_few_nodes_only() -> None:
    job = running(*"abcde")
    brief = failure(0, brief=True)
    asked = []
    for number, node in enumerate("abcde"):
        effects = job.hear(node, WorkersFailed(1, (failure(number, brief=True),)))
        asked += [one for one in told(effects).values() if isinstance(one, DescribeFailures)]
    assert len(asked) == 3
    job.hear("a", FailuresDescribed(1, (failure(0, stderr_tail="all of it"),)))
    job.fail("a", brief)
    assert job.state.group.round is not None
    assert any(one.stderr_tail == "all of it" for one in job.state.group.round.failures.values())


def test_everybody_is_told_the_outcome_before_the_coordinator_retires() -> None:
    job = running("a", "b")
    job.hear("a", WorkersSucceeded(1))
    assert Retire() not in job.hear("b", WorkersSucceeded(1))
    assert Retire() not in job.hear("a", NodeLeft("done"))
    assert Retire() in job.hear("b", NodeLeft("done"))


def test_a_node_that_never_takes_the_outcome_is_not_waited_for_for_ever() -> None:
    job = running("a", "b")
    job.hear("a", WorkersSucceeded(1))
    job.hear("b", WorkersSucceeded(1))
    assert Retire() in job.wake(30.0)


# --- after a takeover ---------------------------------------------------------------------


def taken_over(size: int = 3, charges: int = 0) -> Job:
    job = Job(nodes=2, at_most=size, max_restarts=3)
    written = Ledger(4, size, charges)
    term = Term(1, 2)
    job.state = coordinator.take_over(job.state.config, term, written, job.now, 12.1)
    return job


def test_when_all_have_reported_the_round_goes_on_untouched() -> None:
    job = taken_over()
    for rank, node in enumerate("abc"):
        effects = job.greet(node, RoundReport(4, rank, 3, "running"))
        assert told(effects) == {}
    assert explained(effects) == sentences.all_reported(4, 3, False)


def test_nothing_forms_before_everybody_has_reported_or_must_be_gone() -> None:
    job = taken_over()
    assert told(job.join("x", "y", "z")) == {}
    waits = explained(job.wake(2.0))
    assert waits == sentences.awaiting_reports(4, 3, 10.0)
    assert told(job.wake(10.0)) == {}
    assert members(job.wake(0.2)) == ["x", "y", "z"]
    assert job.state.group.round_number == 5


def test_after_a_takeover_everybody_who_reported_is_waited_for() -> None:
    job = taken_over()
    job.greet("a", RoundReport(4, 0, 3, "running"))
    job.greet("b", RoundReport(4, 1, 3, "running"))
    job.wake(2.0)
    assert {type(one) for one in told(job.wake(10.2)).values()} == {StopRound}
    assert told(job.stop("a", round=4)) == {}, "b may still have workers"
    assert members(job.stop("b", round=4)) == ["a", "b"]


def test_charges_are_not_forgotten_by_a_takeover() -> None:
    job = taken_over(charges=3)
    for rank, node in enumerate("abc"):
        job.greet(node, RoundReport(4, rank, 3, "running"))
    job.fail("a", failure(0), round=4)
    for node in "abc":
        effects = job.stop(node, round=4)
    assert "all 3 restarts were used" in outcome(effects).reason


def test_a_host_without_its_record_learns_it_from_the_nodes() -> None:
    job = Job(nodes=2, at_most=3, max_restarts=2)
    job.state.term = Term(2, 1)
    job.greet("a", RoundReport(7, 0, 3, "running"), seen=Seen(Term(1, 3), 7, 2))
    assert (job.state.group.round_number, job.state.group.budget.charges) == (7, 2)
    assert told(job.join("x", "y", "z")) == {}, "b and c of round 7 may still run"


def test_the_most_charges_that_a_node_remembers_count() -> None:
    job = Job(nodes=2, at_most=4, max_restarts=3)
    for node, charges, counted in (("a", 1, 1), ("b", 2, 2), ("c", 1, 2)):
        job.greet(node, seen=Seen(Term(1, 3), 7, charges))
        assert job.state.group.budget.charges == counted


def test_a_job_that_goes_on_was_not_charged_more_than_it_could_be() -> None:
    job = Job(nodes=2, max_restarts=3)
    for node in "ab":
        job.greet(node, seen=Seen(Term(1, 3), 7, 1_000_000))
    assert job.state.group.budget.charges == 3


def test_charges_that_nodes_remember_count_as_fresh_and_the_causes_known_here_stay() -> None:
    job = running("a", max_restarts=3, window_s=100.0)
    job.state.term = Term(2, 1)
    job.fail_and_stop(failure(error=ErrorDetail("boom")))
    for witness in "bc":
        job.greet(witness, seen=Seen(Term(1, 3), 7, 3))
    assert job.state.group.budget.charges == 3
    assert [one.fingerprint for one in job.state.group.budget.history] == ["", "", "boom"]
    job.fail("a", failure(), round=2)
    assert "all 3 restarts were used within 100 s" in outcome(job.stop("a", round=2)).reason


def test_a_coordinator_that_is_not_alone_gives_way_to_a_higher_term() -> None:
    job = Job(nodes=2)
    job.state.succession = Succession("b")
    effects = job.greet("a", seen=Seen(Term(1, 9), 7))
    assert Depose(Term(1, 9)) in effects
    assert told(effects) == {}


def test_a_round_that_a_node_has_not_heard_of_is_offered_again() -> None:
    job = running("a", "b")
    (message,) = told(job.greet("b")).values()
    assert isinstance(message, RunRound)


def test_a_node_that_still_runs_an_old_round_is_told_to_stop_it() -> None:
    job = running("a", "b")
    effects = job.greet("z", RoundReport(9, 0, 1, "running"))
    assert Tell("z", StopRound(9, sentences.ROUND_OVER)) in effects
    assert not job.state.members["z"].ready


def test_nodes_that_are_left_are_told_once_that_half_of_all_have_finished() -> None:
    job = running("a", "b", "c")
    assert job.hear("a", WorkersSucceeded(1)) == []
    assert job.hear("b", WorkersSucceeded(1)) == [Tell("c", ExpectExits(1))]
    job = running("a", "b", "c", "d", "e")
    assert [bool(job.hear(node, WorkersSucceeded(1))) for node in "abcd"] == [
        *(False, False),
        *(True, False),
    ]
