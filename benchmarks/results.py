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


def store(made_under: Conditions, figures: list[Figure], folder: Path) -> None:
    """Keep every sample as JSON, and the tables as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"conditions": made_under, "figures": figures}
    text = msgspec.json.format(msgspec.json.encode(whole), indent=1)
    (folder / "latest.json").write_bytes(text + b"\n")
    described = ", ".join(
        f"{name.replace('_', ' ')} {value}"
        for name, value in msgspec.structs.asdict(made_under).items()
    )
    parts = ["# The last results", f"Medians. {described}.", *map(as_markdown, tables(figures))]
    (folder / "latest.md").write_text("\n\n".join(parts) + "\n")
