"""The end of a run: the table that is printed, and the files that are kept."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.figures import HOLDFAST, TORCHRUN, Figure, format_value
from benchmarks.floor import FLOOR

FOLDER = Path(__file__).parent / "results"
HEADER = ("", "measure", "holdfast", "torchrun", "ratio", "target", "")
LEFT_ALIGNED = 2
"""How many columns are text."""


Rows = list[tuple[str, ...]]
"""A table: its header, then the others, all of the same length."""


class Conditions(Struct, frozen=True):
    """Under which a run was made."""

    date: str
    processor: str
    cores: int
    kernel: str
    python: str
    holdfast: str
    torch: str
    repeats: int
    load_before: float
    """Processes that ran or wanted to, on average over the minute before the start."""


class Run(Struct):
    """What was measured together."""

    conditions: Conditions
    figures: list[Figure]
    remark: str = ""

    @property
    def measures(self) -> list[str]:
        return list(dict.fromkeys(figure.measure for figure in self.figures))


class Distance(Struct, frozen=True):
    """A figure of Holdfast beside the parts of it that the machine itself takes."""

    figure: str
    parts: tuple[str, ...]
    """Names of figures of the floor, to be added up."""


DISTANCES = (
    Distance("nothing_2", ("interpreter", "interpreter")),
    Distance("nothing_8", ("interpreter", "interpreter")),
    Distance("group_2", ("import_torch", "fork_and_connect_2")),
    Distance("group_8", ("import_torch", "fork_and_connect_8")),
    Distance("recover_2", ("fork_and_connect_2",)),
    Distance("recover_4", ("fork_and_connect_4",)),
)


def conditions(repeats: int, date: str, load_before: float) -> Conditions:
    """Describe this machine and what is installed, without saying whose it is."""
    return Conditions(
        date=date,
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release().partition("-")[0],
        python=platform.python_version(),
        holdfast=version("holdfast"),
        torch=version("torch"),
        repeats=repeats,
        load_before=round(load_before, 2),
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def comparison_rows(figures: list[Figure]) -> Rows:
    """The table of Holdfast beside torchrun, its header first."""
    rows: Rows = [HEADER]
    for figure in figures:
        if figure.measure == FLOOR:
            continue
        ratio = figure.ratio()
        rows.append(
            (
                figure.measure,
                figure.title,
                figure.show(HOLDFAST),
                figure.show(TORCHRUN),
                f"{format_value(ratio)}×" if ratio else "",
                figure.target.describe(figure.unit) if figure.target else "",
                figure.verdict(),
            )
        )
    return rows


def floor_rows(figures: list[Figure]) -> Rows:
    """What the machine itself takes."""
    rows: Rows = [("", "the floor", "median", "least")]
    for figure in figures:
        if figure.measure == FLOOR:
            best = max if figure.more_is_better else min
            least = f"{format_value(best(figure.samples[FLOOR]))} {figure.unit}"
            rows.append(("", figure.title, figure.show(FLOOR), least))
    return rows


def distance_rows(figures: list[Figure]) -> Rows:
    """How far Holdfast is from the floor, where both were measured."""
    known = {figure.name: figure for figure in figures}
    rows: Rows = [("", "measure", "holdfast", "floor", "times", "made of")]
    for distance in DISTANCES:
        if distance.figure not in known or not set(distance.parts) <= set(known):
            continue
        ours = known[distance.figure].median(HOLDFAST)
        parts = [known[part] for part in distance.parts]
        below = sum(part.median(FLOOR) or 0 for part in parts)
        if ours and below:
            values = (f"{format_value(ours)} s", f"{format_value(below)} s")
            made_of = " + ".join(part.title for part in parts)
            rows.append(
                ("", known[distance.figure].title, *values, f"{ours / below:.1f}×", made_of)
            )
    return rows


def as_text(rows: Rows) -> str:
    """Columns that line up in a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width)
            if place < LEFT_ALIGNED or place == len(row) - 1
            else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_markdown(rows: Rows) -> str:
    header, *others = rows
    last = len(header) - 1
    rule = ["---" if place < LEFT_ALIGNED or place == last else "--:" for place in range(last + 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, tuple(rule), *others))


def tables(figures: list[Figure]) -> list[Rows]:
    """All tables that have something in them."""
    made = (comparison_rows(figures), floor_rows(figures), distance_rows(figures))
    return [rows for rows in made if len(rows) > 1]


def store(run: Run, folder: Path) -> None:
    """Keep every sample as JSON, and the tables as Markdown.

    What this run did not measure is kept from the runs before, each with its own conditions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "latest.json"
    earlier = msgspec.json.decode(kept.read_bytes(), type=list[Run]) if kept.exists() else []
    runs = [*_without(earlier, run.measures), run]
    kept.write_bytes(msgspec.json.format(msgspec.json.encode(runs), indent=1) + b"\n")
    figures = sorted((figure for run in runs for figure in run.figures), key=_place)
    parts = ["# The last results", "Medians.", *map(_described, runs)]
    (folder / "latest.md").write_text(
        "\n\n".join([*parts, *map(as_markdown, tables(figures))]) + "\n"
    )


def _without(runs: list[Run], measures: list[str]) -> list[Run]:
    """What is left of earlier runs when these measures were taken anew."""
    left = []
    for run in runs:
        figures = [figure for figure in run.figures if figure.measure not in measures]
        if figures:
            left.append(Run(run.conditions, figures, run.remark))
    return left


def _place(figure: Figure) -> tuple[bool, str]:
    return figure.measure != FLOOR, figure.measure


def _described(run: Run) -> str:
    conditions = msgspec.structs.asdict(run.conditions)
    words = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in conditions.items())
    remark = f" {run.remark}" if run.remark else ""
    return f"{', '.join(run.measures)}: {words}.{remark}"
