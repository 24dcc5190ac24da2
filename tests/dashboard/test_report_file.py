"""A report as one file: the page, with what a server would tell it."""

from __future__ import annotations

import base64
import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tools.simulator import make_plan, simulate

from holdfast.core.node_io import Told
from holdfast.core.protocol.messages import StopRound
from holdfast.dashboard.report_file import report_file
from holdfast.observe.causes import JournalRead
from holdfast.observe.job_report import report, within
from holdfast.observe.journal import NodeStep, Step, read


@pytest.fixture
def journals(tmp_path: Path) -> list[JournalRead]:
    simulate(make_plan(2, "deaths"), journals=tmp_path)
    return [read(path) for path in sorted(tmp_path.glob("*.jsonl"))]


class FileRead(HTMLParser):
    """Its scripts and styles, by their attributes, and whatever else could fetch something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], str]] = []
        self.outside: list[str] = []
        self.policy = ""
        self._is_inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self._is_inside = tag in ("script", "style")
        if self._is_inside:
            self.elements.append((tag, known, ""))
        elif tag in ("iframe", "img", "object") or (tag == "link" and known["href"] != "data:,"):
            self.outside.append(tag)
        if "src" in known or any(name.startswith("on") for name in known):
            self.outside.append(str(attrs))
        if known.get("http-equiv") == "Content-Security-Policy":
            self.policy = known["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        self._is_inside = False

    def handle_data(self, data: str) -> None:
        if self._is_inside:
            tag, known, text = self.elements[-1]
            self.elements[-1] = (tag, known, text + data)

    def told(self) -> dict[str, Any]:
        """What the page is told, by the kind of message."""
        (text,) = (text for _, known, text in self.elements if known.get("id") == "told")
        blocks = [block.partition("\ndata: ") for block in text.split("\n\n") if block.strip()]
        return {kind.removeprefix("event: ").strip(): json.loads(data) for kind, _, data in blocks}


def test_the_file_stands_alone_and_runs_nothing_but_the_page(journals: list[JournalRead]) -> None:
    file = FileRead(report_file(report(journals)))
    assert file.outside == []
    assert [(tag, known.get("type")) for tag, known, _ in file.elements] == [
        ("style", None),
        ("script", "text/plain"),
        ("script", "module"),
    ]
    for tag, known, text in file.elements:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert (f"{tag}-src 'sha256-{digest}'" in file.policy) == (known.get("id") != "told")
    assert file.policy.startswith("default-src 'none';")
    assert "connect-src" not in file.policy


def test_it_has_the_numbers_of_the_report(journals: list[JournalRead]) -> None:
    whole = report(journals)
    told = FileRead(report_file(whole)).told()
    parts = {part["name"]: part["seconds"] for part in told["ledger"]["parts"]}
    assert parts == {part: pytest.approx(s) for part, s in whole.ledger.parts_s.items()}
    assert len(told["incidents"]) == len(whole.ledger.incidents) > 0
    assert told["job"]["restarts"] == whole.restarts
    segments = told["segments"]
    assert sum(one["end"] - one["start"] for one in segments) == pytest.approx(
        whole.end - whole.start
    )
    lanes = told["lanes"]
    assert [lane["node"] for lane in lanes] == [node.host for node in whole.nodes]
    assert all(run["round"] == 1 for lane in lanes for run in lane["runs"][:1])


def test_a_part_of_the_time_is_a_page_of_that_time(journals: list[JournalRead]) -> None:
    whole = report(journals)
    middle = (whole.start + whole.end) / 2
    told = FileRead(report_file(within(whole, middle, whole.end))).told()
    assert told["ledger"]["start"] == pytest.approx(middle)
    assert told["ledger"]["total_s"] == pytest.approx(whole.end - middle)


def spoiled(journals: list[JournalRead], text: str) -> list[JournalRead]:
    """Journals in which this stands wherever another machine may write something."""
    found: list[JournalRead] = []
    for header, steps in journals:
        changed: list[Step] = []
        for step in steps:
            if isinstance(step, NodeStep) and isinstance(step.event, Told):
                message = step.event.message
                if isinstance(message, StopRound):
                    word = Told(msgspec.structs.replace(message, reason=text), step.event.term)
                    changed.append(NodeStep(step.seq, step.at, word, step.effects))
                    continue
            changed.append(step)
        found.append((msgspec.structs.replace(header, job=text, host=text), changed))
    return found


@pytest.mark.parametrize(
    "evil", ["</script><script>alert(1)</script>\"'&", "<!-- <script>", "\n\nevent: job\ndata: {}"]
)
def test_nothing_out_of_a_journal_becomes_part_of_the_file(
    journals: list[JournalRead], evil: str
) -> None:
    file = FileRead(report_file(report(spoiled(journals, evil))))
    assert len(file.elements) == 3
    assert file.outside == []
    assert file.told()["job"]["run"] == evil
