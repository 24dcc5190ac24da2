"""Workers that are stuck in the kernel or stopped by a signal, and when they are reported."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.policy.stuck import StuckFinding, StuckLimits, StuckSample, StuckWatch, check

TERMS = StuckLimits(told_after_s=10.0, limit_s=0.0, interval_s=2.0)
LIMITED = StuckLimits(told_after_s=300.0, limit_s=6.0, interval_s=2.0)


def looks(terms: StuckLimits, *seen: StuckSample, every_s: float = 2.0) -> list[StuckFinding]:
    watch = StuckWatch(terms)
    return [
        finding
        for number, one in enumerate(seen)
        for finding in check(watch, [one], every_s * number)
    ]


def stuck(times: int, switches: int = 7, state: str = "D") -> list[StuckSample]:
    return [StuckSample(1, state, switches)] * times


def test_who_is_stuck_for_long_is_told_of_once() -> None:
    assert looks(TERMS, *stuck(5)) == []
    assert looks(TERMS, *stuck(20)) == [StuckFinding(1, "stuck", 10.0, ends=False)]


def test_who_has_run_in_between_was_never_held_for_long() -> None:
    for broken in (StuckSample(1, "D", 8), StuckSample(1, "S", 7), StuckSample(1, "R", 7)):
        assert looks(TERMS, *stuck(4), broken, *stuck(4)) == []


def test_one_that_is_held_anew_is_told_of_anew() -> None:
    found = looks(TERMS, *stuck(7), *stuck(7, switches=9))
    assert [finding.how for finding in found] == ["stuck", "stuck"]


def test_a_limit_ends_who_is_stuck_before_anybody_else_is_told() -> None:
    assert looks(LIMITED, *stuck(10)) == [StuckFinding(1, "stuck", 6.0, ends=True)]


def test_who_was_stopped_by_a_signal_is_only_told_of() -> None:
    assert looks(LIMITED, *stuck(50, state="T")) == []
    assert looks(TERMS, *stuck(50, state="T")) == [StuckFinding(1, "stopped", 10.0, ends=False)]


def test_the_sleep_of_a_machine_counts_as_two_looks() -> None:
    assert looks(TERMS, *stuck(2), every_s=3600.0) == []


@given(st.lists(st.sampled_from("RSDTtZ")))
def test_nobody_is_accused_who_is_not_held_at_this_very_look(states: list[str]) -> None:
    watch = StuckWatch(TERMS)
    for number, state in enumerate(states):
        for finding in check(watch, [StuckSample(0, state, 0)], 2.0 * number):
            assert state in "DT"
            assert states[number - 5 : number + 1] == [state] * 6, finding
