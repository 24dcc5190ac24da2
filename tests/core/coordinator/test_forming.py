"""How the next round comes about: who sits in it, when, and how it is announced."""

from __future__ import annotations

from holdfast.core.coordinator_io import Write, Written
from holdfast.core.membership import NodeGone, NodeHeardAgain, NodeSuspected
from holdfast.core.policy import sentences
from holdfast.core.protocol.messages import RoundStopped, WorkersSucceeded

from .coordinated_job import Job, explained, failure, members, outcome, running, told, woken_after


def test_a_round_is_announced_only_after_it_is_written_down() -> None:
    job = Job(nodes=2)
    job.register_answers = False
    effects = job.join("a", "b")
    assert told(effects) == {}
    (write,) = [effect for effect in effects if isinstance(effect, Write)]
    assert (write.ledger.round, write.ledger.size) == (1, 2)
    assert told(job.take(Written(write.version - 1))) == {}, "an older write says nothing of it"
    assert members(job.write()) == ["a", "b"]


def test_a_round_that_ended_before_it_was_written_is_never_announced() -> None:
    job = Job(nodes=2)
    job.register_answers = False
    job.join("a", "b")
    job.take(NodeGone("b", "all its processes have ended"))
    assert told(job.write()) == {}
    job.register_answers = True
    assert members(job.join("c")) == ["a", "c"]
    assert job.state.group.round_number == 2


def test_too_few_for_too_long_end_the_job() -> None:
    job = Job(nodes=2)
    assert woken_after(job.join("a")) == [600.0]
    ended = outcome(job.wake(600.0))
    assert (ended.verdict, ended.exit_status) == ("not_formed", 3)
    assert ended.reason == sentences.too_few_came(1, 2, 600.0)


def test_the_surplus_stands_by_and_takes_over_when_a_member_is_gone() -> None:
    job = running("a", "b")
    job.join("c")
    assert told(job.wake(10.0)) == {}
    job.take(NodeGone("b", "all its processes have ended"))
    assert members(job.stop("a")) == ["a", "c"]


def test_a_node_that_is_suspected_or_not_ready_is_no_candidate() -> None:
    job = Job(nodes=2)
    job.greet("a")
    assert told(job.join("b")) == {}
    job.take(NodeSuspected("b", "silent"))
    assert told(job.join("a")) == {}


def test_newcomers_are_taken_in_together_a_moment_later() -> None:
    job = running("a", at_most=4)
    job.now += 60.0
    assert woken_after(job.join("b")) == [1.0]
    job.now += 0.5
    job.join("c")
    job.wake(0.5)
    assert set(told(job.save())) == {"a"}
    effects = job.stop("a")
    assert explained(effects) == sentences.re_forming(sentences.joined(2))
    assert members(effects) == ["a", "b", "c"]
    assert job.state.group.budget.charges == 0


def test_a_round_that_is_closing_is_not_ended_for_a_newcomer() -> None:
    job = running("a", "b", at_most=3)
    job.hear("a", WorkersSucceeded(1))
    job.join("c")
    assert told(job.wake(1000.0)) == {}


def test_survivors_keep_their_order_and_newcomers_come_last() -> None:
    job = running("b", "c", at_most=3)
    job.now += 60.0
    job.join("a")
    job.wake(1.0)
    job.stop("b")
    assert members(job.stop("c")) == ["b", "c", "a"]


def after_a_round_of_nobody(job: Job, *silent: str) -> None:
    """A newcomer is told to run while the others are not heard of, and starts nothing."""
    for node in silent:
        job.take(NodeSuspected(node, "silent"))
        job.stop(node)
    assert members(job.join("z")) == ["z"]
    for node in silent:
        job.take(NodeHeardAgain(node))


def test_a_newcomer_that_was_told_to_run_and_did_not_has_no_state() -> None:
    job = Job(1, at_most=3)
    job.join("a", "b")
    job.wake(5.0)
    after_a_round_of_nobody(job, "a", "b")
    assert members(job.hear("z", RoundStopped(2, (), job.endpoint(), ran=False))) == ["a", "b", "z"]


def test_a_newcomer_whom_the_word_to_run_did_not_reach_has_no_state() -> None:
    job = Job(1, at_most=3)
    job.join("a", "b")
    job.wake(5.0)
    after_a_round_of_nobody(job, "a", "b")
    job.take(NodeSuspected("z", "silent"))
    assert members(job.greet("z", endpoint=job.endpoint())) == ["a", "b", "z"]


def test_a_spare_of_another_role_does_not_get_the_seat() -> None:
    job = Job(nodes=2)
    job.join("a", role="trainer")
    job.join("b", role="server")
    job.join("c", role="trainer")
    job.take(NodeGone("b", "all its processes have ended"))
    assert told(job.stop("a")) == {}
    assert members(job.join("d", role="server")) == ["a", "d"]


def test_a_host_that_was_lost_twice_sits_out_for_a_while() -> None:
    job = running("a", "b", at_most=2)
    for number in (1, 2):
        job.take(NodeGone("b", "all its processes have ended"))
        job.stop("a", round=number)
        effects = job.join("b")
    assert told(effects) == {}
    assert members(job.wake(2.0)) == ["a", "b"]


def test_a_wait_in_a_crowd_is_not_counted_aloud() -> None:
    job = Job(nodes=100)
    said = [explained(job.join(f"n{number}")) for number in range(50)]
    assert all(said[:8])
    assert not any(said[10:])


def test_a_restart_keeps_the_seats_though_a_spare_is_ready_first() -> None:
    job = running("a", "b", max_restarts=1)
    job.join("c")
    job.fail("b", failure(2))
    job.stop("b", failure(2))
    assert told(job.wake(4.0)) == {}, "a is slow, and its seat is its own"
    assert members(job.stop("a")) == ["a", "b"]
