"""The coordinator's rules, one by one; some of them need more than one node to be seen.

How rounds come about is in `test_coordinator_forming.py`; how they end and are judged, with
nodes that come and go, in `test_coordinator_ending.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from holdfast.core.coordinator import (
    Beginning,
    Succession,
    begin,
    next_life,
    step,
)
from holdfast.core.coordinator_io import HandOverAsked, Heard, Resign, Retire, Tell, Write
from holdfast.core.policy import sentences
from holdfast.core.policy.config import JobConfig, Program
from holdfast.core.protocol.document import Document, Ledger
from holdfast.core.protocol.messages import (
    CloseJob,
    ExpectExits,
    FromNode,
    NodeGreeted,
    NodeLeft,
    RunRound,
    StopRound,
    WorkersProgressed,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import (
    Endpoint,
    ErrorDetail,
    ExitStatus,
    NodeInfo,
    Outcome,
    Term,
)

from .coordinated_job import Job, assignment, explained, failure, outcome, told, woken_after

# --- forming ------------------------------------------------------------------------------


def test_a_round_forms_when_the_last_node_that_it_may_have_joins() -> None:
    job = Job(nodes=2)
    assert explained(job.join("a")) == sentences.too_few_yet(1, 2, None)
    effects = job.join("b")
    first, second = assignment(effects, "a"), assignment(effects, "b")
    assert (first.round, first.restart_count, first.world_size) == (1, 0, 4)
    assert [ranks.rank for ranks in second.workers] == [2, 3]
    assert first.master == second.master == Endpoint("10.0.0.1", 29501)


def test_a_wait_is_explained_once_and_not_at_every_look() -> None:
    job = Job(nodes=3)
    assert explained(job.join("a"))
    assert explained(job.wake()) == ""
    assert explained(job.join("b")) == sentences.too_few_yet(2, 3, None)


def test_the_first_round_makes_a_last_call() -> None:
    job = Job(nodes=1, at_most=2)
    effects = job.join("a")
    assert woken_after(effects) == [5.0]
    assert assignment(job.wake(5.0)).world_size == 2


def test_a_node_that_comes_after_the_end_is_told_how_it_ended() -> None:
    job = Job()
    job.join("a")
    ended = outcome(job.hear("a", WorkersSucceeded(1)))
    assert outcome(job.join("z"), "z") == ended


# --- ending a round -----------------------------------------------------------------------


def test_the_first_failure_stops_the_round_everywhere() -> None:
    job = Job(nodes=2)
    job.join("a", "b")
    effects = job.fail("b", failure(3))
    reason = "rank 3 on host-a was killed (SIGKILL)"
    stop = StopRound(1, reason, goes_on=True, kind="failure")
    assert told(effects) == {"a": stop, "b": stop}
    assert job.fail("a", failure(0)) == []


def test_success_needs_every_node() -> None:
    job = Job(nodes=2)
    job.join("a", "b")
    assert job.hear("a", WorkersSucceeded(1)) == [Tell("b", ExpectExits(1))]
    effects = job.hear("b", WorkersSucceeded(1))
    assert outcome(effects, "a") == outcome(effects, "b")
    assert outcome(effects) == Outcome("succeeded", "all workers succeeded", 0)


def test_a_round_that_is_being_stopped_cannot_succeed_any_more() -> None:
    job = Job(nodes=2)
    job.join("a", "b")
    job.fail("a", failure(0))
    assert job.hear("a", WorkersSucceeded(1)) == []
    assert job.hear("b", WorkersSucceeded(1)) == []


def test_what_names_an_older_round_is_ignored() -> None:
    job = Job(max_restarts=1)
    job.join("a")
    job.fail_and_stop(failure())
    assert job.state.group.round_number == 2
    assert job.fail("a", failure(), round=1) == []
    assert job.hear("a", WorkersSucceeded(1)) == []
    assert job.stop("a", failure(), round=1) == []
    assert job.hear("a", WorkersProgressed(1, 99)) == []
    assert job.state.group.round is not None
    assert job.state.group.round.furthest_step is None


def test_failures_are_ordered_by_when_they_were_heard_of() -> None:
    """Clocks of different hosts say nothing about each other."""
    job = Job(nodes=2)
    job.join("a", "b")
    first = failure(3, at=5000.0)
    job.fail("b", first)
    job.now += 0.5
    job.stop("a", failure(0, at=1.0))
    ended = outcome(job.stop("b", first))
    assert ended.cause is not None
    assert (ended.cause.rank, ended.cause.observed_at) == (3, 1000.0)
    assert [(one.rank, one.observed_at) for one in ended.others] == [(0, 1000.5)]


# --- judging ------------------------------------------------------------------------------


def test_a_round_is_judged_when_every_member_has_stopped() -> None:
    job = Job(nodes=2, max_restarts=1)
    job.join("a", "b")
    job.fail("b", failure(3))
    assert job.stop("b", failure(3)) == []
    effects = job.stop("a")
    assert {node: type(message) for node, message in told(effects).items()} == {
        "a": RunRound,
        "b": RunRound,
    }


def test_the_cause_is_chosen_among_all_failures_not_only_the_first_report() -> None:
    job = Job(nodes=2)
    job.join("a", "b")
    lost = ErrorDetail("RuntimeError: Connection reset by peer")
    victim = failure(0, status=ExitStatus(code=1), error=lost)
    guilty = failure(3)
    job.fail("a", victim)
    job.fail("b", guilty)
    job.stop("a", victim, failure(1, status=ExitStatus(signal=15), stopped_by_us=True))
    ended = outcome(job.stop("b", guilty))
    assert ended.cause == guilty
    assert [one.rank for one in ended.others] == [0, 1]
    assert ended.reason.startswith("rank 3 on host-a was killed (SIGKILL); ")


def test_the_last_word_of_a_node_on_a_rank_counts() -> None:
    job = Job()
    job.join("a")
    job.fail("a", failure(1))
    better = failure(1, out_of_memory="the kernel's log says so")
    assert outcome(job.stop("a", better)).cause == better


MISSING_MODULE: dict[str, Any] = {
    "status": ExitStatus(code=1),
    "error": ErrorDetail("ModuleNotFoundError: No module named 'x'"),
}


def test_a_module_that_is_missing_on_two_hosts_ends_the_job_at_once() -> None:
    job = Job(nodes=2, max_restarts=9)
    job.join("a", "b")
    job.fail("a", failure(0, **MISSING_MODULE))
    job.stop("a", failure(0, **MISSING_MODULE), failure(1, stopped_by_us=True))
    elsewhere = structs.replace(failure(2, **MISSING_MODULE), node="b", host="host-b")
    ended = outcome(job.stop("b", elsewhere))
    assert ended.verdict == "failed"
    assert ended.reason.endswith("; a restart would not help: a module is missing")


def test_a_module_that_is_missing_on_one_host_of_two_does_not() -> None:
    job = Job(nodes=2, max_restarts=9)
    job.join("a", "b")
    both = (failure(0, **MISSING_MODULE), failure(1, **MISSING_MODULE))
    job.fail("a", both[0])
    job.stop("a", *both)
    assert explained(job.stop("b", failure(2, stopped_by_us=True))).endswith(
        "; restarting (1 of 9)"
    )


def test_nor_does_one_that_is_missing_after_the_first_step() -> None:
    job = Job(max_restarts=9)
    job.join("a")
    job.hear("a", WorkersProgressed(1, 5))
    both = (failure(0, **MISSING_MODULE), failure(1, **MISSING_MODULE))
    job.fail("a", both[0])
    assert explained(job.stop("a", *both)).endswith("; restarting (1 of 9)")
    job.fail("a", both[0], round=2)
    assert explained(job.stop("a", *both, round=2)).startswith("rank 0")
    assert job.state.end is None


def test_without_a_budget_the_first_failure_ends_the_job() -> None:
    job = Job()
    job.join("a")
    ended = outcome(job.fail_and_stop(failure()))
    assert (ended.verdict, ended.exit_status) == ("failed", 1)
    assert ended.reason.endswith("; no restarts were allowed (--max-restarts 0)")


def test_a_restart_is_a_new_round_at_the_new_endpoint() -> None:
    job = Job(max_restarts=1)
    job.join("a")
    effects = job.fail_and_stop(failure())
    assert explained(effects).endswith("; restarting (1 of 1)")
    second = assignment(effects)
    assert (second.round, second.restart_count) == (2, 1)
    assert second.master == Endpoint("10.0.0.1", 29502)


def test_a_later_restart_waits_for_the_end_of_its_pause() -> None:
    job = Job(max_restarts=3, backoff_first_s=8.0)
    job.join("a")
    job.fail_and_stop(failure())
    effects = job.fail_and_stop(failure(), round=2)
    assert told(effects) == {}
    (pause_s,) = woken_after(effects)
    assert 6.0 <= pause_s <= 10.0
    assert told(job.wake(pause_s / 2)) == {}, "woken too early"
    assert assignment(job.wake(pause_s)).round == 3


def test_steps_that_lead_further_than_ever_are_progress() -> None:
    job = Job(max_restarts=9, backoff_first_s=8.0)
    job.join("a")
    job.hear("a", WorkersProgressed(1, 100))
    job.fail_and_stop(failure())
    job.hear("a", WorkersProgressed(2, 200))
    effects = job.fail_and_stop(failure(), round=2)
    assert assignment(effects).round == 3, "progress makes the restart immediate"
    effects = job.fail_and_stop(failure(), round=3)
    assert assignment(effects).round == 4, "the first without progress still is"
    effects = job.fail_and_stop(failure(), round=4)
    assert told(effects) == {}, "the second is not"


def test_the_same_cause_again_and_again_ends_the_job_before_the_budget_does() -> None:
    job = Job(max_restarts=100, same_cause_limit=3, backoff_first_s=0.0)
    job.join("a")
    raised = failure(status=ExitStatus(code=1), error=ErrorDetail("ValueError: no"))
    for number in (1, 2):
        assert assignment(job.fail_and_stop(raised, round=number)).round == number + 1
    ended = outcome(job.fail_and_stop(raised, round=3))
    assert "the same failure came 3 times in a row" in ended.reason


def test_what_cannot_be_helped_by_a_restart_ends_the_job_and_is_said_once() -> None:
    job = Job(max_restarts=100)
    job.join("a")
    error = ErrorDetail("Broken: config", non_retryable=True)
    ended = outcome(job.fail_and_stop(failure(status=ExitStatus(code=1), error=error)))
    assert ended.reason == (
        "rank 0 on host-a ended with exit code 1 (Broken: config); "
        "it was marked as a failure that a restart cannot help"
    )


# --- leaving ------------------------------------------------------------------------------


def test_when_the_last_node_leaves_for_a_signal_the_job_was_interrupted() -> None:
    job = Job()
    job.join("a")
    effects = job.hear("a", NodeLeft("SIGTERM was sent", signal=15))
    assert Retire() in effects
    assert told(effects) == {}, "whoever left is not there any more"
    assert job.state.outcome == Outcome("interrupted", "SIGTERM was sent", 143)


def test_when_the_last_node_cannot_go_on_the_job_failed_with_its_cause() -> None:
    job = Job()
    job.join("a")
    first = failure(1)
    ended = outcome(job.hear("a", NodeLeft("pid 7 cannot be killed", failures=(first,))))
    assert (ended.verdict, ended.exit_status, ended.cause) == ("failed", 1, first)


@pytest.mark.parametrize("message", [NodeLeft("late", signal=15), WorkersProgressed(1, 5)])
def test_a_job_closes_once(message: FromNode) -> None:
    job = Job()
    job.join("a")
    job.hear("a", WorkersSucceeded(1))
    assert told(job.hear("a", message)) == {}
    assert told(job.wake()) == {}
    assert job.state.outcome == Outcome("succeeded", "all workers succeeded", 0)


def test_whose_coordinator_died_before_everybody_knew_the_outcome_is_told_it_by_the_next() -> None:
    config = JobConfig("job", Program("script", "train.py"), max_nodes=2)
    over = Outcome("succeeded", "all workers succeeded", 0)
    written = Document(7, 2, 9, "a/9", "a", ledger=Ledger(3, 2, outcome=over))
    state = next_life(config, written, instance=50).state(config, 0.0)
    effects = step(state, Heard("b", NodeGreeted(NodeInfo("b", "b", slots=1))), 1.0)
    assert CloseJob(over) in [effect.message for effect in effects if isinstance(effect, Tell)]


def test_a_coordinator_that_goes_hands_over_what_is_decided_where_somebody_can_follow() -> None:
    config = JobConfig("job", Program("script", "train.py"), max_nodes=2)
    elected = begin(config, succession=Succession("a"))
    kinds = [type(effect) for effect in step(elected, HandOverAsked(), 1.0)]
    assert kinds[:2] == [Write, Resign]
    embedded = step(begin(config), HandOverAsked(), 1.0)
    assert not any(isinstance(effect, Resign) for effect in embedded)


def test_a_coordinator_goes_on_above_its_record_and_waits_for_the_last_round() -> None:
    config = JobConfig("job", Program("script", "train.py"), max_nodes=2)
    written = Document(7, 2, 9, "a/9", "a", ledger=Ledger(round=3, size=2, charges=1))
    gone_after_s = config.leases.gone_after_s
    on_from = Beginning(Term(7, 3), ledger=written.ledger, gone_after_s=gone_after_s)
    assert next_life(config, written, instance=50) == on_from
    over = Document(7, 2, 9, "a/9", "a", ledger=Ledger(outcome=Outcome("succeeded", "", 0)))
    assert next_life(config, over, instance=50) == Beginning(Term(7, 3), ledger=over.ledger)
    assert next_life(config, None, instance=50) == Beginning(Term(50, 1), ledger=Ledger())
