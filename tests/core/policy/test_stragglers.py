"""Who is a straggler, and who is not."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.policy.stragglers import WINDOWS, PaceWatch, note

AFTER_S = 90.0
WINDOW_S = AFTER_S / WINDOWS


def run(paces: Mapping[int, float], windows: int, watch: PaceWatch | None = None) -> list[str]:
    """Workers that step at these paces, looked at every two seconds; what was told."""
    watch = watch or PaceWatch(AFTER_S)
    began = watch.began_at or 0.0
    told = []
    for look in range(int(windows * WINDOW_S / 2) + 1):
        now = began + 2.0 * look
        told += note(watch, {rank: int(pace * now) for rank, pace in paces.items()}, now)
    return told


def test_one_that_makes_less_than_half_the_steps_is_told_of_once() -> None:
    watch = PaceWatch(AFTER_S)
    told = run({0: 10.0, 1: 10.0, 2: 10.0, 3: 4.0}, 10, watch)
    assert told == [
        "rank 3 is a straggler: 4.0 steps a second, where others make 10.0 steps a second, for 90 s"
    ]


def test_a_slow_pace_is_told_in_seconds_a_step() -> None:
    (told,) = run({0: 0.5, 1: 0.5, 2: 0.5, 3: 0.1}, WINDOWS)
    assert "a step in 10.0 s, where others make a step in 2.0 s" in told


def test_one_that_is_slow_for_a_while_is_none() -> None:
    watch = PaceWatch(AFTER_S)
    assert run({0: 10.0, 1: 10.0, 2: 10.0, 3: 4.0}, WINDOWS - 1, watch) == []


def test_a_little_slower_is_no_straggler() -> None:
    assert run({0: 10.0, 1: 10.0, 2: 10.0, 3: 6.0}, 10) == []


def test_two_have_no_middle() -> None:
    assert run({0: 10.0, 1: 1.0}, 10) == []


def test_one_that_makes_no_steps_is_no_matter_of_pace() -> None:
    assert run({0: 10.0, 1: 10.0, 2: 10.0, 3: 0.0}, 10) == []


@given(st.floats(0.01, 1000), st.integers(1, 16))
def test_where_all_wait_for_each_other_nobody_is_a_straggler(pace: float, ranks: int) -> None:
    assert run(dict.fromkeys(range(ranks), pace), 6) == []
