"""Several nodes' journals as one story: order, clocks, and everything once."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import structs
from tools.simulator import make_plan, simulate
from tools.simulator.everywhere import Case

from holdfast.observe.causes import JournalRead
from holdfast.observe.journal import ClockPair, ClockRead, read
from holdfast.observe.merged_story import tell


def journals_of(folder: Path) -> list[JournalRead]:
    return [read(path) for path in sorted(folder.glob("*.jsonl"))]


def moved(journal: JournalRead, by_s: float) -> JournalRead:
    """The same journal of a host whose clock was wrong."""
    header, steps = journal
    clock = ClockPair(header.clock.at, header.clock.wall + by_s)
    set_too = [
        ClockRead(step.seq, step.at, step.wall + by_s) if isinstance(step, ClockRead) else step
        for step in steps
    ]
    return structs.replace(header, clock=clock), set_too


def test_a_failure_is_told_from_its_root_to_the_end(tmp_path: Path) -> None:
    simulate(make_plan(2, "deaths"), journals=tmp_path)
    story = tell(journals_of(tmp_path))
    kinds = [event.kind for event in story.events]
    assert kinds.count("round_formed") == kinds.count("round_ended") == 1
    assert kinds.count("job_finished") == kinds.count("worker_failed") == 1
    by_id = {f"{event.by}:{event.seq}": event for event in story.events}
    way = [story.events[-1]]
    while way[-1].cause:
        way.append(by_id[way[-1].cause])
    assert [event.kind for event in way] == [
        "job_finished",
        "decision",
        "round_ended",
        "worker_failed",
    ]


@pytest.mark.parametrize("profile", ["", "leader", "drains", "embedded", "sleep"])
@pytest.mark.parametrize("seed", range(3))
def test_with_true_clocks_nothing_is_moved_and_all_is_in_order(
    profile: str, seed: int, tmp_path: Path
) -> None:
    simulate(make_plan(seed, profile), journals=tmp_path)
    story = tell(journals_of(tmp_path))
    times = [event.at for event in story.events]
    assert not story.moved_s
    # A pair of messages that is mistaken by less than `MISTAKEN_S` is not told from a true one.
    assert all(later >= earlier - 0.06 for earlier, later in pairwise(times))


def test_a_clock_that_is_wrong_by_minutes_is_found_and_corrected(tmp_path: Path) -> None:
    simulate(make_plan(2, "deaths"), journals=tmp_path)
    true = journals_of(tmp_path)
    wrong = [moved(one, 180.0) if "host0" in one[0].node else one for one in true]
    expected, story = tell(true), tell(wrong)
    (by_s,) = story.moved_s.values()
    assert by_s == pytest.approx(-180.0, abs=0.5)
    assert [(e.kind, e.words) for e in story.events] == [(e.kind, e.words) for e in expected.events]


def test_a_takeover_is_part_of_one_story(tmp_path: Path) -> None:
    Case.named("steady round/plain/its node is killed/33").play(journals=tmp_path)
    story = tell(journals_of(tmp_path))
    kinds = [event.kind for event in story.events]
    assert "coordinator" in kinds
    assert kinds.index("takeover") > kinds.index("round_formed")
    assert kinds.count("job_finished") == 1


def test_a_single_journal_is_a_story_too(tmp_path: Path) -> None:
    simulate(make_plan(2, "deaths"), journals=tmp_path)
    (one, *_) = journals_of(tmp_path)
    assert [event.kind for event in tell([one]).events][-1] == "job_finished"
