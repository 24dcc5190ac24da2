"""What a node ends with, for each engine; and that the page for users says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.protocol import exit_status
from holdfast.core.protocol.exit_status import RUNS_AGAIN_UNLESS_0, WORST_COUNTS, of_node

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "exit-statuses.md"
TERM = exit_status.BY_SIGNAL + 15
ENDS: dict[str, tuple[int, str]] = {
    "all workers succeeded": (exit_status.SUCCEEDED, ""),
    "workers failed for good": (exit_status.FAILED, ""),
    "bad usage": (exit_status.USAGE, ""),
    "the nodes did not meet in time": (exit_status.NOT_FORMED, ""),
    "this node did not pass its check (`--check`), the job can do without it": (
        exit_status.UNFIT,
        "node",
    ),
    "this node did not pass its check, and the job needs all nodes": (exit_status.UNFIT, ""),
    "this node was asked to leave, the job goes on": (TERM, "node"),
    "the whole job was asked to leave: run it again": (TERM, "job"),
    "Ctrl-C, or another signal that ends at once": (TERM, ""),
}
"""The rows of the page: the status of the outcome, and who was asked to leave."""
COLUMNS = (("",), WORST_COUNTS, RUNS_AGAIN_UNLESS_0)


def rows() -> dict[str, list[str]]:
    """The page's own table, by how it ended."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {how: statuses for how, *statuses in cells[1:]}


def test_the_page_has_every_end_and_no_other() -> None:
    assert rows().keys() == ENDS.keys()


@pytest.mark.parametrize("how", ENDS)
def test_the_page_says_what_each_engine_gets(how: str) -> None:
    status, asked = ENDS[how]
    for said, engines in zip(rows()[how], COLUMNS, strict=True):
        for engine in engines:
            ends_with = of_node(status, asked, engine)
            assert said == ("128 + signal" if ends_with == TERM else str(ends_with)), engine


def test_no_engine_is_of_both_kinds_and_the_page_names_them_all() -> None:
    assert not set(WORST_COUNTS) & set(RUNS_AGAIN_UNLESS_0)
    head = next(line for line in PAGE.read_text().splitlines() if line.startswith("| how"))
    assert head.strip("| ").split(" | ")[2:] == [", ".join(column) for column in COLUMNS[1:]]


@pytest.mark.parametrize("engine", ["Slurm", "Kubernetes Job", "an engine of tomorrow", ""])
@pytest.mark.parametrize("status", [0, 1, 2, 3, TERM])
def test_who_was_not_asked_to_leave_ends_as_ever(engine: str, status: int) -> None:
    assert of_node(status, "", engine) == status
