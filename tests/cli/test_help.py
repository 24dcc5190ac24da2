"""What `holdfast run --help` prints."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.cli.help import EXAMPLES, SYNOPSIS, render_run_help
from holdfast.cli.options import parse_run
from holdfast.cli.table import GROUPS, OPTIONS

from .conftest import Run

REVIEWED = Path(__file__).with_name("run_help_80.txt")
"""The page as it was last looked at. To renew it after a change of the table:
python -c 'from holdfast.cli.help import *; print(render_run_help(80, False), end="")'
"""


def without_color(text: str) -> str:
    return re.sub(r"\033\[\d*m", "", text)


def test_the_page_at_80_columns_is_the_reviewed_one() -> None:
    assert render_run_help(80, color=False) == REVIEWED.read_text()


@pytest.mark.parametrize("width", [*range(72, 132), 200])
def test_no_line_is_wider_than_asked_for(width: int) -> None:
    lines = render_run_help(width, color=False).splitlines()
    assert max(map(len, lines)) <= width
    assert not any(line.endswith((" ", "-")) for line in lines)


def test_a_terminal_of_no_width_still_gets_a_page() -> None:
    assert render_run_help(0, color=False) == render_run_help(72, color=False)


def test_color_changes_nothing_but_color() -> None:
    assert "\033[" not in render_run_help(80, color=False)
    assert "\033[1m" in render_run_help(80, color=True)
    for width in (72, 80):
        assert without_color(render_run_help(width, color=True)) == render_run_help(width, False)


def test_every_option_is_on_the_page_once_with_its_default() -> None:
    lines = render_run_help(100, color=False).splitlines()
    for option in OPTIONS:
        found = [line for line in lines if re.match(rf"[ +] --{option.name}\b(?!-)", line)]
        assert len(found) == 1, option.name
        assert found[0].startswith("+") == option.ours
        assert option.help in found[0]
        assert not option.default or found[0].endswith(f"[{option.default}]")


def test_at_80_columns_an_option_takes_one_line() -> None:
    """But for the one whose default alone takes most of a line, and those with a note below."""
    page = render_run_help(80, color=False)
    options = page[page.index(GROUPS[0]) : page.index("Also read")].splitlines()
    continued = [before for before, line in pairwise(options) if line.startswith(" " * 8)]
    names = [line.split()[0].strip(",") for line in continued if line.startswith("  --")]
    noted = [f"--{option.name}" for option in OPTIONS if option.note]
    assert names == [*noted, "--signals-to-handle"]


def test_the_groups_come_in_order_and_none_is_empty() -> None:
    page = render_run_help(80, color=False)
    places = [page.index(f"\n{group}\n") for group in GROUPS]
    assert places == sorted(places)
    assert {option.group for option in OPTIONS} == set(GROUPS)


def test_the_page_begins_with_a_synopsis_and_two_examples_that_work() -> None:
    lines = render_run_help(80, color=False).splitlines()
    assert lines[0] == f"Usage: {SYNOPSIS}"
    assert [line[9:] for line in lines[2:4]] == list(EXAMPLES)
    for example in EXAMPLES:
        command, verb, *words = shlex.split(example)
        assert (command, verb) == ("holdfast", "run")
        assert parse_run(words, {}).config.slots >= 1


def test_exit_statuses_end_the_page() -> None:
    tail = render_run_help(80, color=False).splitlines()[-8:]
    assert tail[0] == "Exit status"
    assert [line.split()[0] for line in tail[1:]] == ["0", "1", "2", "3", "4", "75", "128+n"]


def test_without_a_verb_there_is_a_short_help(run_holdfast: Run) -> None:
    ended = run_holdfast()
    assert ended.returncode == 2
    assert "Usage: holdfast run [options] SCRIPT [arguments]" in ended.stderr
    assert "holdfast run --help" in ended.stderr
    assert ended.stdout == ""
    assert run_holdfast("--help").stdout == ended.stderr
