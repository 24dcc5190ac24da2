"""The ledger: its parts add up to the whole, whatever happened; and are what they are called."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.simulator import make_plan, simulate

from holdfast.core.policy.config import JobConfig, Program
from holdfast.observe.goodput import PARTS, TimeLedger, ledger
from holdfast.observe.history import History, RoundHistory, TimeSpan
from holdfast.observe.job_report import report, within
from holdfast.observe.journal import read

JOB = JobConfig("job", Program("script", "train.py"))
moments = st.floats(0.0, 100.0)
perhaps = st.none() | moments


@st.composite
def rounds(draw: st.DrawFn) -> list[RoundHistory]:
    """Whatever a journal could say, in any order, with anything missing."""
    made = []
    for number in range(1, draw(st.integers(1, 6))):
        first = draw(st.none() | st.integers(0, 50))
        one = RoundHistory(
            number,
            announced=draw(moments),
            started=draw(perhaps),
            imports_s=draw(st.floats(0.0, 5.0)),
            first_stepped=draw(moments) if first is not None else None,
            first_step=first,
            furthest_step=None if first is None else first + draw(st.integers(0, 30)),
            ended=draw(perhaps),
            unnoticed_s=draw(st.floats(0.0, 20.0)),
            stopped=draw(perhaps),
            succeeded=draw(perhaps),
        )
        made.append(one)
    return made


@st.composite
def any_marks(draw: st.DrawFn) -> History:
    history = History(JOB)
    history.start = draw(st.floats(0.0, 10.0))
    history.end = history.start + draw(st.floats(0.0, 200.0))
    history.rounds = draw(rounds())
    history.closed = draw(perhaps)
    spans = st.lists(st.builds(TimeSpan, moments, perhaps), max_size=3)
    history.imports, history.waits, history.pauses = draw(spans), draw(spans), draw(spans)
    return history


def assert_sound(book: TimeLedger) -> None:
    assert all(seconds >= 0 for seconds in book.parts_s.values())
    assert sum(book.parts_s.values()) == pytest.approx(book.end - book.start, abs=1e-6)
    assert all(one.seconds > 0 for one in book.segments)
    edges = [(one.start, one.end) for one in book.segments]
    assert all(before[1] == pytest.approx(after[0]) for before, after in pairwise(edges))
    if edges:
        assert (edges[0][0], edges[-1][1]) == (book.start, book.end)


@given(any_marks())
def test_the_parts_add_up_to_the_whole_and_none_is_counted_twice(history: History) -> None:
    book = ledger(history)
    assert_sound(book)
    in_incidents = sum(one.total_s for one in book.interruptions)
    wasted = sum(book.parts_s[part] for part in PARTS if part != "useful")
    assert in_incidents <= wasted + 1e-6


@given(any_marks(), moments, moments)
def test_a_part_of_the_time_adds_up_as_well(history: History, one: float, other: float) -> None:
    book = ledger(history)
    pieces = [
        min(segment.end, max(one, other)) - max(segment.start, min(one, other))
        for segment in book.segments
        if segment.end > min(one, other) and segment.start < max(one, other)
    ]
    assert sum(pieces) <= abs(one - other) + 1e-6


@pytest.mark.parametrize("profile", ["", "leader", "drains", "embedded", "deaths", "workers"])
def test_ledgers_of_whole_clusters_are_sound(profile: str, tmp_path: Path) -> None:
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        simulate(make_plan(seed, profile), journals=folder)
        journals = [read(path) for path in sorted(folder.glob("*.jsonl"))]
        whole = report(journals)
        assert_sound(whole.ledger)
        assert_sound(within(whole, whole.start + 3, whole.start + 8).ledger)
        for journal in journals:
            assert_sound(report([journal]).ledger)
        cut = [(header, steps[: len(steps) // 2]) for header, steps in journals]
        assert_sound(report(cut).ledger)


def stepping_job(*, saved_at: int) -> History:
    """Steps 0 to 9, one a second, from 10 on; broken at 20, and again from `saved_at` on at 25."""
    history = History(JOB)
    history.start, history.end, history.closed = 0.0, 40.0, 38.0
    first = RoundHistory(
        1, announced=5.0, started=6.0, first_stepped=10.0, first_step=0, furthest_step=9,
        ended=20.0, stopped=21.0, reason="rank 1 failed",
    )  # fmt: skip
    second = RoundHistory(
        2, announced=22.0, started=23.0, first_stepped=25.0, first_step=saved_at, furthest_step=30,
        succeeded=35.0,
    )  # fmt: skip
    history.rounds = [first, second]
    history.imports = [TimeSpan(1.0, 4.0)]
    return history


def test_each_part_is_what_it_is_called() -> None:
    book = ledger(stepping_job(saved_at=10))
    shown = {part: took for part, took in book.parts_s.items() if took}
    assert shown == pytest.approx(
        {
            "import": 3.0,
            "form": 2.0 + 1.0,
            "spawn": 1.0 + 1.0,
            "first step": 4.0 + 2.0,
            "useful": 10.0 + 10.0,
            "stop": 1.0,
            "idle after the end": 5.0,
        }
    )
    (incident,) = book.interruptions
    assert (incident.round, incident.next_round, incident.reason) == (1, 2, "rank 1 failed")
    assert incident.parts_s == pytest.approx(
        {"stop": 1.0, "form": 1.0, "spawn": 1.0, "first step": 2.0}
    )
    assert incident.steps_lost == 0
    assert book.goodput == pytest.approx(0.5)


def test_steps_that_are_made_again_were_not_useful() -> None:
    book = ledger(stepping_job(saved_at=6))
    (incident,) = book.interruptions
    assert incident.steps_lost == 4
    assert book.parts_s["lost steps"] == pytest.approx(4.0)
    assert book.parts_s["useful"] == pytest.approx(16.0)


def test_steps_of_rounds_before_the_last_one_can_be_lost_too() -> None:
    """The newest save was broken: two rounds' work is done again."""
    history = stepping_job(saved_at=6)
    history.rounds[1].succeeded, history.rounds[1].ended, history.rounds[1].stopped = (
        None,
        30.0,
        30.5,
    )
    third = RoundHistory(3, 31.0, started=31.5, first_stepped=32.0, first_step=3, furthest_step=40)
    third.succeeded = 36.0
    history.rounds.append(third)
    book = ledger(history)
    assert [one.steps_lost for one in book.interruptions] == [4, 3 + 25]
    assert book.parts_s["lost steps"] == pytest.approx(7.0 + 5.0)


def test_without_reported_steps_running_is_useful_and_nothing_counts_as_lost() -> None:
    history = stepping_job(saved_at=6)
    for one in history.rounds:
        one.first_stepped = one.first_step = one.furthest_step = None
    book = ledger(history)
    assert not book.reports_steps
    assert book.parts_s["first step"] == book.parts_s["lost steps"] == 0.0
    assert book.parts_s["useful"] == pytest.approx(14.0 + 12.0)
    assert book.interruptions[0].steps_lost is None


def test_what_was_silent_before_it_was_known_is_detection() -> None:
    history = stepping_job(saved_at=10)
    history.rounds[0].unnoticed_s = 5.0
    book = ledger(history)
    assert book.parts_s["detect"] == pytest.approx(5.0)
    assert book.interruptions[0].parts_s["detect"] == pytest.approx(5.0)


def test_a_pause_and_a_wait_for_nodes_are_told_from_forming() -> None:
    history = stepping_job(saved_at=10)
    history.rounds[1].announced = history.rounds[1].started = 24.0
    history.pauses, history.waits = [TimeSpan(21.0, 22.0)], [TimeSpan(22.5, 24.0)]
    book = ledger(history)
    assert book.parts_s["pause"] == pytest.approx(1.0)
    assert book.parts_s["waiting for nodes"] == pytest.approx(1.5)


def test_a_job_that_runs_is_counted_up_to_now() -> None:
    history = stepping_job(saved_at=10)
    history.closed, history.rounds[1].succeeded = None, None
    book = ledger(history, until=60.0)
    assert not book.is_over
    assert book.parts_s["useful"] == pytest.approx(10.0 + 35.0)
