"""A part of a job's time has one colour, whoever shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from holdfast.observe.goodput import PARTS

ROOT = Path(__file__).resolve().parents[2]
SHEET = (ROOT / "frontend/src/style.css").read_text()
BOARD = json.loads((ROOT / "examples/grafana/holdfast.json").read_text())
COLOURS = {
    name.replace("-", " "): colour
    for name, colour in re.findall(r"--part-([a-z-]+): light-dark\((#\w+),", SHEET)
}


def test_each_part_has_a_colour_of_its_own() -> None:
    assert set(COLOURS) == set(PARTS)
    assert len(set(COLOURS.values())) == len(PARTS)


def test_the_board_has_the_colours_of_the_page() -> None:
    shown = [
        panel
        for panel in BOARD["panels"]
        if any(target.get("legendFormat") == "{{part}}" for target in panel.get("targets", ()))
    ]
    assert shown
    for panel in shown:
        found = {
            one["matcher"]["options"]: one["properties"][0]["value"]["fixedColor"]
            for one in panel["fieldConfig"]["overrides"]
        }
        assert found == COLOURS, panel["title"]
