"""The report of a whole job: as text, as a page, of journals that are whole, cut, or few."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tools.simulator import make_plan, simulate

from holdfast.observe import sentences
from holdfast.observe.causes import JournalRead
from holdfast.observe.history import History
from holdfast.observe.job_report import JobReport, report, within
from holdfast.observe.journal import CoordinatorStep, Gap, read
from holdfast.observe.report_text import ALIKE_SHOWN, duration, moment, render_text


@pytest.fixture
def journals(tmp_path: Path) -> list[JournalRead]:
    simulate(make_plan(2, "deaths"), journals=tmp_path)
    return [read(path) for path in sorted(tmp_path.glob("*.jsonl"))]


def test_a_failed_job_is_told_with_its_cause(journals: list[JournalRead]) -> None:
    whole = report(journals)
    text = render_text(whole)
    assert whole.verdict == "failed"
    assert whole.outcome in text
    (failed, *_) = [event for event in whole.events if event.kind == "worker_failed"]
    assert (failed.rank, failed.host) == (1, "host1")
    assert failed.words in whole.outcome
    assert len(whole.nodes) == 2
    (interruption,) = whole.ledger.interruptions
    assert interruption.next_round == 0
    assert "no round after" in text
    (formed, *_) = [event for event in whole.events if event.kind == "round_formed"]
    assert text.count(formed.words) == 1


def test_the_words_that_were_just_said_are_not_said_again(journals: list[JournalRead]) -> None:
    lines = render_text(report(journals)).splitlines()
    story = lines[lines.index("What happened") : lines.index("Where the time went")]
    assert sum("ValueError: something is wrong" in line for line in story) <= 3


def test_what_is_not_known_is_said(journals: list[JournalRead]) -> None:
    whole = report(journals)
    assert not whole.unknowns
    (alone,) = (one for one in journals if one[0].node == "host0-1")
    assert sentences.missing_journals(1, 2) in report([alone]).unknowns
    cut = [(header, steps[:20]) for header, steps in journals]
    assert sentences.CUT_OFF in report(cut).unknowns
    assert not report(cut).verdict


def test_a_journal_with_nothing_but_its_first_line_is_no_trouble(
    journals: list[JournalRead],
) -> None:
    empty = report([(journals[0][0], [])])
    assert render_text(empty)
    assert empty.ledger.goodput is None


def test_a_part_of_the_time_shows_what_happened_then(journals: list[JournalRead]) -> None:
    whole = report(journals)
    failed = next(event for event in whole.events if event.kind == "worker_failed")
    part = within(whole, failed.at - 0.5, failed.at + 0.5)
    assert failed in part.events
    assert all(abs(event.at - failed.at) <= 0.5 for event in part.events)
    assert part.ledger.end - part.ledger.start <= 1.0


def test_the_report_goes_through_json_and_back(journals: list[JournalRead]) -> None:
    whole = report(journals)
    assert msgspec.json.decode(msgspec.json.encode(whole), type=JobReport) == whole


def test_the_coordinator_alone_tells_when_workers_of_all_nodes_ran(
    journals: list[JournalRead],
) -> None:
    header, steps = max(
        journals, key=lambda one: sum(isinstance(step, CoordinatorStep) for step in one[1])
    )
    history = History(header.config)
    for step in steps:
        if not isinstance(step, Gap):
            history.feed(header.node, step.at, step)
    assert set(history.nodes) == {one[0].node for one in journals}
    for known in history.nodes.values():
        assert [run.round for run in known.runs] == [one.number for one in history.rounds]
        assert all(known.start <= run.start < run.end <= history.end for run in known.runs)


def test_many_nodes_that_tell_the_same_are_counted(tmp_path: Path) -> None:
    simulate(make_plan(2, "deaths"), journals=tmp_path)
    (first, *_) = [read(path) for path in sorted(tmp_path.glob("*.jsonl"))]
    header, steps = first
    many = [
        (msgspec.structs.replace(header, node=f"host{n:02}-1", host=f"host{n:02}"), steps[:2])
        for n in range(12)
    ]
    text = render_text(report(many))
    assert text.count("started on") == ALIKE_SHOWN
    assert f"… {12 - ALIKE_SHOWN} more like these" in text
    assert render_text(report(many), all_events=True).count("started on") == 12


def test_times_and_lengths_are_words() -> None:
    assert moment(1.9996).endswith(":02.000")
    assert [duration(each) for each in (0.0421, 1.5, 61.0, 3725.0)] == [
        "42 ms",
        "1.50 s",
        "1 min 1 s",
        "1 h 2 min",
    ]
