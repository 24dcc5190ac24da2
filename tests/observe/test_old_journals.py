"""Journals that earlier versions wrote are still read; the files here are as they wrote them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.core.border import Told
from holdfast.core.node_io import Finish
from holdfast.core.protocol.messages import RunRound
from holdfast.observe.journal import ElectionStep, NodeStep, Step, read
from holdfast.observe.old_journals import FIELDS, KNOWN, TYPES, renewed

JOURNALS = sorted((Path(__file__).parent / "journals").glob("*.jsonl"))


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def rounds(steps: list[Step]) -> list[int]:
    """Those that its node was told to run."""
    return [
        step.event.message.assignment.round
        for step in steps
        if isinstance(step, NodeStep)
        and isinstance(step.event, Told)
        and isinstance(step.event.message, RunRound)
    ]


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_a_journal_of_an_earlier_version_is_read_to_its_end(path: Path) -> None:
    header, steps = read(path)
    assert header.schema == 2
    assert header.config.leases.term_s == 3.0
    assert len(steps) == len(lines_of(path)) - 1
    assert rounds(steps) == [1, 2]
    ends = [effect for step in steps if isinstance(step, NodeStep) for effect in step.effects]
    (end,) = [effect.outcome.verdict for effect in ends if isinstance(effect, Finish)]
    assert end == "succeeded"


def test_steps_of_the_election_have_present_names_and_are_not_decided_again() -> None:
    line = (
        b'{"machine":"election","seq":1,"at":1.0,"before":{"mute":true},'
        b'"event":{"type":"ResignationWanted","reason":"cut off"},"effects":[{"type":"Announce"}]}'
    )
    found = json.loads(renewed(line) or b"")
    assert found["before"] is None
    assert found["event"] == {"type": "Resign", "reason": "cut off"}
    assert found["effects"] == [{"type": "Say"}]
    _, steps = read(JOURNALS[0])
    election = [step for step in steps if isinstance(step, ElectionStep)]
    assert election
    assert all(step.before is None for step in election)


def test_what_is_not_there_any_more_is_left_out() -> None:
    line = '{"machine":"agent","seq":1,"at":1.0,"event":{"type":"%s"},"effects":[%s]}'
    assert renewed((line % ("ImportedTwice", "")).encode()) is None
    found = renewed((line % ("AllGone", '{"type":"PutRight"},{"type":"Dial"}')).encode())
    assert json.loads(found or b"")["effects"] == [{"type": "Dial"}]


def test_the_location_of_a_worker_is_read_under_its_present_name() -> None:
    failure = '{"place":"in load at data.py:88","in_collective":false}'
    line = f'{{"machine":"agent","event":{{"type":"Finish","failures":[{failure}]}},"effects":[]}}'
    found = json.loads(renewed(line.encode()) or b"")["event"]["failures"]
    assert found == [{"location": "in load at data.py:88", "in_collective": False}]


def test_no_old_name_is_one_of_today() -> None:
    assert not TYPES.keys() & KNOWN
    assert not FIELDS.keys() & set(FIELDS.values())
