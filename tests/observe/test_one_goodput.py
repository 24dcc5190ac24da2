"""Goodput is one thing, whoever shows it: report, metrics, dashboard and `holdfast status`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.simulator import make_plan, simulate

from holdfast.core.policy.config import JobConfig, Program
from holdfast.dashboard.views import static_page
from holdfast.observe.goodput import PARTS, ledger
from holdfast.observe.history import ROUNDS_MOST, History, LiveHistory, RoundHistory, TimeSpan
from holdfast.observe.job_report import report
from holdfast.observe.journal import SCHEMA, ClockPair, Gap, JournalHeader, read
from holdfast.observe.metrics import job_samples

JOB = JobConfig("job", Program("script", "train.py"))
ROUNDED_S = 5e-3
"""Times of a journal are in milliseconds, and a part is the sum of several spans."""


def test_all_views_of_one_journal_say_the_same(tmp_path: Path) -> None:
    simulate(make_plan(2, "workers"), journals=tmp_path)
    for path in tmp_path.glob("*.jsonl"):
        header, steps = read(path)
        book = report([(header, steps)]).ledger
        taken = [step for step in steps if not isinstance(step, Gap)]
        live = LiveHistory(header)
        for step in taken:
            live.feed(step)
        samples = job_samples(live, taken[-1].at)
        metric = {name: seconds for (name,), seconds in samples["holdfast_time_seconds"].items()}
        shown = static_page(report([(header, steps)])).ledger
        assert shown is not None
        page = {part.name: part.seconds for part in shown.parts}
        told = live.book(taken[-1].at).parts_s  # What `HistoryAsked` is answered with.
        for part in PARTS:
            known = pytest.approx(book.parts_s[part], abs=ROUNDED_S)
            assert metric[part.replace(" ", "_")] == known, (path.name, part)
            assert page[part] == known, (path.name, part)
            assert told[part] == known, (path.name, part)
        assert samples["holdfast_goodput_ratio"][()] == pytest.approx(book.goodput, abs=ROUNDED_S)


def restarted(rounds: int) -> History:
    """A job that does half of its steps again after each of its restarts."""
    history = History(JOB)
    history.start, history.end = 0.0, 10.0 * rounds
    for k in range(rounds):
        at, first = 10.0 * k, 5 * k
        history.waits.append(TimeSpan(at, at + 1))
        history.pauses.append(TimeSpan(at + 1, at + 2))
        history.rounds.append(
            RoundHistory(
                k + 1,
                at + 2,
                started=at + 3,
                first_stepped=at + 4,
                first_step=first,
                furthest_step=first + 9,
                ended=at + 9,
                stopped=at + 9.5,
            )
        )
    return history


def test_what_is_long_past_is_worked_out_once() -> None:
    header = JournalHeader(SCHEMA, "job", "n", "here", "", JOB, ClockPair(0.0, 0.0))
    live, whole = LiveHistory(header), restarted(5 * ROUNDS_MOST)
    for number, one in enumerate(whole.rounds):
        known = live.history
        known.start = one.announced if known.start is None else known.start
        known.rounds.append(one)
        known.waits.append(whole.waits[number])
        known.pauses.append(whole.pauses[number])
        if number % 50 == 0:
            live.book(one.announced + 3.0)
            assert len(known.rounds) <= ROUNDS_MOST + 50
    whole.start = whole.rounds[0].announced
    assert live.book(whole.end).parts_s == pytest.approx(ledger(whole).parts_s)
