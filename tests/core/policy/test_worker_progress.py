"""How fast workers are, and which are stragglers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as some

from holdfast.core.policy import sentences
from holdfast.core.policy.worker_progress import (
    MARKS_APART_S,
    WINDOW_S,
    StepMarks,
    StragglerWatch,
    WorkerProgress,
    note,
    pace,
    stragglers,
)


def stepping(times: list[float], steps: list[int] | None = None) -> StepMarks:
    seen = StepMarks()
    for step, at in zip(steps or range(len(times)), times, strict=True):
        note(seen, step, at)
    return seen


def test_before_a_second_step_there_is_no_pace() -> None:
    assert pace(StepMarks(), 5.0) is None
    assert pace(stepping([1.0]), 5.0) is None


@given(some.floats(0.001, 100.0), some.integers(2, 200))
def test_even_steps_have_their_own_pace(every_s: float, count: int) -> None:
    seen = stepping([number * every_s for number in range(count)])
    last = (count - 1) * every_s
    assert pace(seen, last) == pytest.approx(1 / every_s)
    assert pace(seen, last + every_s) == pytest.approx(1 / every_s), "the next is not overdue yet"


def test_the_pace_is_of_late_and_not_of_long_ago() -> None:
    slow = [float(number) for number in range(100)]
    fast = [100 + number / 10 for number in range(1000)]
    assert pace(stepping(slow + fast), fast[-1]) == pytest.approx(10, rel=0.05)


def test_steps_that_take_longer_than_the_window_still_have_a_pace() -> None:
    seen = stepping([0.0, 3 * WINDOW_S, 6 * WINDOW_S])
    assert pace(seen, 6 * WINDOW_S) == pytest.approx(1 / (3 * WINDOW_S))


def test_the_pace_of_one_that_stands_still_falls_towards_nothing() -> None:
    seen = stepping([0.1 * number for number in range(100)])
    paces = [pace(seen, 9.9 + late) or 0.0 for late in (0, 1, 10, 100, 1000)]
    assert paces == sorted(paces, reverse=True)
    assert paces[0] == pytest.approx(10)
    assert 0 < paces[-1] < 0.2


def test_a_count_that_begins_anew_is_no_step_back() -> None:
    assert pace(stepping([0.0, 1.0, 2.0], [8, 9, 0]), 2.0) is None
    again = stepping([0.0, 1.0, 2.0, 3.0], [8, 9, 0, 1])
    assert pace(again, 3.0) == pytest.approx(1.0)


@given(some.lists(some.tuples(some.floats(0, 5), some.integers(-3, 9)), max_size=300))
def test_whatever_is_seen_few_marks_are_kept_and_no_pace_is_below_nothing(
    moves: list[tuple[float, int]],
) -> None:
    seen, at, step = StepMarks(), 0.0, 0
    for late_s, further in moves:
        at, step = at + late_s, step + further
        note(seen, step, at)
        found = pace(seen, at + late_s)
        assert found is None or found > 0
        assert len(seen.marks) <= WINDOW_S / MARKS_APART_S + 3


# --- stragglers ------------------------------------------------------------------------------

AFTER_S = 90.0


def run(paces: Mapping[int, float], length_s: float = 10 * AFTER_S) -> list[str]:
    """What is told of workers that step at these paces, and are looked at every two seconds."""
    watch, marks = StragglerWatch(AFTER_S), {rank: StepMarks() for rank in paces}
    told = []
    for check in range(int(length_s / 2)):
        now, seen = 2.0 * check, []
        for rank, each in paces.items():
            step = int(each * now)
            at = step / each if each else 0.0
            note(marks[rank], step, at)
            found = pace(marks[rank], now)
            seen.append(WorkerProgress(rank, rank, 100, step, now - at, found))
        told += stragglers(watch, seen, now)
    return told


def test_one_that_makes_less_than_half_the_steps_is_told_of_once() -> None:
    (told,) = run({0: 10.0, 1: 10.0, 2: 10.0, 3: 4.0})
    assert told == sentences.straggler(3, 4.0, 10.0, AFTER_S)


def test_one_that_makes_a_step_in_many_seconds_may_be_a_straggler() -> None:
    (told,) = run({0: 0.5, 1: 0.5, 2: 0.5, 3: 0.1})
    assert told.startswith("rank 3 ")


def test_one_that_is_slow_for_a_while_is_none() -> None:
    assert run({0: 10.0, 1: 10.0, 2: 10.0, 3: 4.0}, AFTER_S - 4.0) == []


def test_a_little_slower_is_no_straggler() -> None:
    assert run({0: 10.0, 1: 10.0, 2: 10.0, 3: 6.0}) == []


def test_two_have_no_middle() -> None:
    assert run({0: 10.0, 1: 1.0}) == []


def test_one_that_makes_no_steps_is_no_matter_of_pace() -> None:
    assert run({0: 10.0, 1: 10.0, 2: 10.0, 3: 0.0}) == []


@given(some.floats(0.01, 1000), some.integers(1, 16))
def test_where_all_wait_for_each_other_nobody_is_a_straggler(each: float, ranks: int) -> None:
    assert run(dict.fromkeys(range(ranks), each), 2 * AFTER_S) == []
