"""Quarantined hosts: the seats of the next round, what is told and what is written down."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.core.coordinator.coordinated_job import Job, explained, failure, members, told

from holdfast.core import coordinator
from holdfast.core.coordinator import ledger
from holdfast.core.coordinator_io import Tell, Write
from holdfast.core.features import quarantine
from holdfast.core.membership import NodeGone
from holdfast.core.policy import sentences
from holdfast.core.protocol.document import HOSTS_KEPT
from holdfast.core.protocol.messages import NodeLeft, RunRound, StandBy
from holdfast.core.protocol.model import ErrorDetail, ExitStatus, Term

RAISED = ExitStatus(code=1)


def job_of(least: int, most: int, *nodes: str, backoff_first_s: float = 0.0) -> Job:
    job = Job(least, most, max_restarts=50, same_cause_limit=0, backoff_first_s=backoff_first_s)
    job.join(*nodes)
    if job.state.group.round is None:
        job.wake(job.state.config.timeouts.last_call_s)
    return job


def seated(job: Job) -> list[str]:
    assert job.state.group.round is not None
    return sorted(job.state.group.round.seats.by_node)


def fail_on(job: Job, node: str, message: str = "RuntimeError: no device"):  # type: ignore[no-untyped-def]
    """The round fails on that node; what comes of it once all have stopped."""
    number, here = job.state.group.round_number, seated(job)
    job.now += 1.0
    bad = replace(
        failure(status=RAISED, error=ErrorDetail(message)), node=node, host=f"host-{node}"
    )
    job.fail(node, bad, number)
    effects = []
    for name in here:
        effects = job.stop(name, round=number)
    return effects


def lose(job: Job, *nodes: str):  # type: ignore[no-untyped-def]
    number, here = job.state.group.round_number, seated(job)
    job.now += 1.0
    effects = []
    for node in nodes:
        effects = job.take(NodeGone(node, "all its processes have ended"))
    for name in here:
        if name not in nodes:
            effects = job.stop(name, round=number)
    return effects


def test_the_spare_takes_the_seat_and_everybody_is_told() -> None:
    job = job_of(2, 2, "a", "b", "c")
    for _ in range(2):
        assert members(fail_on(job, "b")) == ["a", "b"]
    effects = fail_on(job, "b")
    assert members(effects) == ["a", "c"]
    said = sentences.quarantined("host-b", 300.0, sentences.failed_there(3))
    assert said in explained(effects)
    runs = told(effects)
    assert [run.note for run in runs.values() if isinstance(run, RunRound)] == [said] * 2
    stands = [one.message for one in effects if isinstance(one, Tell) and one.node == "b"]
    assert isinstance(stands[0], StandBy)
    why = sentences.failed_there(3, "here")
    assert stands[0].reason == sentences.quarantined_here(300.0, why, 3)


def test_a_job_that_needs_everybody_goes_on_and_says_so_each_time() -> None:
    job = job_of(2, 2, "a", "b")
    for number in range(1, 6):
        effects = fail_on(job, "b")
        assert members(effects) == ["a", "b"]
        why = sentences.failed_there(number)
        said = sentences.needed_all_the_same("host-b", why, 2, 2)
        assert (said in explained(effects)) == (number >= 3)


def test_only_as_many_come_back_early_as_are_needed_the_soonest_first() -> None:
    job = job_of(1, 4, "a", "b", "c", "d")
    for node in ("b", "c"):
        for _ in range(3):
            fail_on(job, node, f"OSError: {node}")
    assert seated(job) == ["a", "d"]
    job.state.config = replace(job.state.config, min_nodes=2)
    lose(job, "d")
    assert seated(job) == ["a", "b"]


def test_losses_count_too_but_not_those_of_several_hosts_at_once() -> None:
    job = job_of(1, 3, "a", "b", "c")
    for _ in range(4):
        lose(job, "b", "c")
        job.join("b", "c")
        job.wake(120.0)
        job.stop("a", round=job.state.group.round_number)
    assert seated(job) == ["a", "b", "c"]
    for _ in range(3):
        lose(job, "b")
        job.join("b")
        job.wake(120.0)
        if seated(job) == ["a", "c"]:
            for name in ("a", "c"):
                job.stop(name, round=job.state.group.round_number)
    assert seated(job) == ["a", "c"]
    assert [record.host for record in quarantine.out(job.state, job.now).values()] == ["host-b"]


def test_a_running_round_is_not_ended_for_one_that_is_kept_out_until_its_time_is_over() -> None:
    job = job_of(1, 2, "a", "b")
    for _ in range(3):
        fail_on(job, "b")
    assert seated(job) == ["a"]
    number = job.state.group.round_number
    for _ in range(5):
        assert told(job.wake(50.0)) == {}
    assert set(told(job.wake(60.0))) == {"a"}
    assert members(job.stop("a", round=number)) == ["a", "b"]


def test_what_is_held_against_hosts_is_taken_over_and_a_stay_that_is_over_is_not_repeated() -> None:
    job = job_of(1, 2, "a", "b")
    for _ in range(3):
        fail_on(job, "b")
    written = ledger(job.state, job.now + 100.0)
    (kept,) = written.hosts
    assert (kept.failures, kept.quarantines, kept.left_s) == (3, 1, 200.0)
    later = coordinator.take_over(job.state.config, Term(1, 2), written, 5000.0, 1.0)
    (record,) = quarantine.out(later, 5000.0).values()
    assert record.until == 5200.0
    writes = [effect for effect in job.wake(301.0) if isinstance(effect, Write)]
    assert writes[0].ledger.hosts[0].left_s <= 0, "that its time is over is written down"


def test_a_pause_after_losses_is_taken_over_and_progress_ends_it() -> None:
    job = job_of(2, 2, "a", "b", backoff_first_s=3.0)
    lose(job, "b")
    job.join("b")
    lose(job, "b")
    written = ledger(job.state, job.now)
    (kept,) = written.hosts
    assert (kept.losses, kept.pause_s) == (2, 3.0)
    later = coordinator.take_over(job.state.config, Term(1, 2), written, 5000.0, 1.0)
    (record,) = later.hosts.values()
    assert (record.losses, record.paused_until) == (2, 5000.0 + kept.pause_s)
    later.pause("host-b", 1.0)
    assert record in later.hosts.values(), "a pause is never shortened"


def test_no_more_is_kept_than_can_be_written_down() -> None:
    job = job_of(1, 100, *(f"n{number:02}" for number in range(30)))
    for number in range(29):
        fail_on(job, f"n{number:02}", f"OSError: {chr(97 + number % 26)}")
    assert 0 < len(job.state.hosts) <= HOSTS_KEPT


@pytest.mark.parametrize("after", [0, 3])
def test_a_job_of_one_node_and_one_that_wants_none_of_it_keep_nobody_out(after: int) -> None:
    job = job_of(1, 1, "a") if after else job_of(1, 2, "a", "b")
    rules = replace(job.state.config.quarantine, after=after)
    job.state.config = replace(job.state.config, quarantine=rules)
    for _ in range(5):
        fail_on(job, "a" if after else "b")
    assert not job.state.hosts
    assert job.state.outcome is None


def test_a_node_that_did_not_pass_its_check_is_told_of_and_missed_by_nobody() -> None:
    job = job_of(2, 2, "a", "b")
    job.greet("c")
    effects = job.hear("c", NodeLeft("/data has 12 MB left", unfit=True))
    assert explained(effects) == "host-c stays out: /data has 12 MB left"
    assert told(effects) == {}
    assert "c" not in job.state.members
