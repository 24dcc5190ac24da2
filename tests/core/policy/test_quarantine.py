"""When a host is quarantined: the rules of `core.policy.quarantine`, one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.membership import HostRecord
from holdfast.core.policy import root_cause as rootcause
from holdfast.core.policy.config import Quarantine
from holdfast.core.policy.quarantine import (
    blamed,
    blamed_host,
    failed_elsewhere,
    is_forgotten,
    let_in,
    quarantine_s,
    remembered,
)
from holdfast.core.protocol.model import ErrorDetail, ExitStatus, Failure

RULES = Quarantine(after=3, first_s=300.0, longest_s=3600.0, forget_s=3600.0)
HOSTS = {"a-1": "a", "b-1": "b", "b-2": "b"}
NO_DEVICE = "RuntimeError: no device"
TIMED_OUT = "RuntimeError: Timed out waiting 30000ms for recv operation to complete"


def failure(node: str, message: str = NO_DEVICE, rank: int = 0) -> Failure:
    code = ExitStatus(code=1)
    return Failure(node, HOSTS[node], 0, rank, "default", 7, code, 1.0, ErrorDetail(message))


def cause(first: Failure, *others: Failure, stopped: tuple[str, ...] = ()) -> rootcause.Cause:
    ended = tuple(failure(node, "", rank) for rank, node in enumerate(stopped, 7))
    return rootcause.Cause(first, others, (), ended)


def rounds_that_failed(times: list[float], record: HostRecord | None = None) -> HostRecord:
    record = record or HostRecord("b")
    for at in times:
        record = blamed(RULES, record, NO_DEVICE, at)
    return record


# Rule 1: who is blamed.


@pytest.mark.parametrize(
    ("what", "found", "lost", "host"),
    [
        ("a worker failed", cause(failure("b-1")), (), "b"),
        ("two workers of one host", cause(failure("b-1"), failure("b-2", rank=1)), (), "b"),
        ("workers of two hosts", cause(failure("b-1"), failure("a-1", rank=1)), (), ""),
        ("a victim alone", cause(failure("b-1", "connection reset by peer")), (), ""),
        ("a collective timed out", cause(failure("a-1", TIMED_OUT)), (), ""),
        ("one rank did not come", cause(failure("a-1", TIMED_OUT), stopped=("b-1",)), (), "b"),
        ("two did not come", cause(failure("a-1", TIMED_OUT), stopped=("b-1", "b-2")), (), ""),
        ("a host was lost", None, ("b",), "b"),
        ("two hosts were lost", None, ("a", "b"), ""),
        ("nothing", None, (), ""),
    ],
)
def test_a_round_blames(
    what: str, found: rootcause.Cause | None, lost: tuple[str, ...], host: str
) -> None:
    assert blamed_host(found, lost, HOSTS) == host, what


# Rules 2 and 3: rows, and quarantines.


def test_it_takes_three_in_a_row() -> None:
    twice = rounds_that_failed([1.0, 2.0])
    assert not twice.is_out(2.0)
    thrice = rounds_that_failed([3.0], twice)
    assert thrice.is_out(3.0)
    assert thrice.until == 303.0
    assert thrice.failures == 3


def test_a_failure_elsewhere_ends_the_row() -> None:
    record = failed_elsewhere(rounds_that_failed([1.0, 2.0]), "another cause", 3.0)
    assert not rounds_that_failed([4.0, 5.0], record).is_out(5.0)


def test_a_host_that_comes_back_is_on_trial_and_stays_out_longer_each_time() -> None:
    record, now, quarantines = rounds_that_failed([0.0, 0.0, 0.0]), 0.0, []
    for _ in range(6):
        quarantines.append(record.until - now)
        now = record.until
        record = rounds_that_failed([now], record)
    assert quarantines == [300.0, 600.0, 1200.0, 2400.0, 3600.0, 3600.0]


def test_a_stay_can_be_forgotten_a_million_times_over() -> None:
    assert quarantine_s(RULES, 10**6) == 3600.0


# Rule 4: it was not the host.


def test_the_same_failure_elsewhere_lets_it_come_back_at_once() -> None:
    out = rounds_that_failed([1.0, 2.0, 3.0])
    assert failed_elsewhere(out, "another cause", 4.0) == out
    back = failed_elsewhere(out, NO_DEVICE, 4.0)
    assert not back.is_out(4.0)
    assert (back.failures, back.quarantines) == (0, 0)


def test_failures_that_say_nothing_of_their_cause_are_not_the_same() -> None:
    out = HostRecord("b", 3, 1, 300.0, cause="")
    assert failed_elsewhere(out, "", 4.0).is_out(4.0)


# Rule 5: nothing is held against a host for ever.


def test_a_row_is_forgotten_after_an_hour() -> None:
    assert not rounds_that_failed([1.0, 2.0, 3700.0]).is_out(3700.0)


def test_one_stay_is_forgotten_with_each_quiet_hour() -> None:
    record = HostRecord("b", 5, 3, 1000.0)
    assert [remembered(RULES, record, 1000.0 + 3600.0 * n).quarantines for n in range(5)] == [
        *(3, 2, 1, 0, 0)
    ]
    assert is_forgotten(remembered(RULES, record, 1000.0 + 3 * 3600.0), 1000.0 + 3 * 3600.0)


def test_a_stay_that_did_not_take_place_does_not_count() -> None:
    needed = let_in(rounds_that_failed([1.0, 2.0, 3.0]), 3.0)
    assert not needed.is_out(3.0)
    again = rounds_that_failed([4.0], needed)
    assert again.until == 304.0, "it is quarantined no longer than the first time"
    assert again.failures == 4


# Any story.

moves = st.lists(
    st.tuples(st.floats(0, 5000), st.sampled_from(["here", "elsewhere", "let in"])), max_size=60
)


@given(moves, st.integers(1, 5), st.floats(1, 1000), st.floats(1, 5000))
def test_no_story_keeps_a_host_out_too_soon_too_long_or_for_ever(
    story: list[tuple[float, str]], after: int, first_s: float, forget_s: float
) -> None:
    rules = Quarantine(after, first_s, longest_s=2000.0, forget_s=forget_s)
    record, now, failed = HostRecord("b"), 0.0, 0
    for wait_s, what in story:
        now += wait_s
        was_out = record.is_out(now)
        if what == "here" and not was_out:
            record, failed = blamed(rules, record, "x", now), failed + 1
        elif what == "elsewhere":
            record = failed_elsewhere(record, "y", now)
        elif what == "let in" and was_out:
            record = let_in(record, now)
        assert record.quarantines >= 0
        assert record.until - now <= max(2000.0, 0.0)
        assert failed >= after or not record.is_out(now)
        if was_out and what == "elsewhere":
            assert record.is_out(now), "another cause elsewhere says nothing of this host"
    quiet = now + 2000.0 + forget_s * (record.quarantines + 1)
    assert is_forgotten(remembered(rules, record, quiet), quiet)
