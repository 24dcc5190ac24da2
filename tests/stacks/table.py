"""The table of the stacks: what is preloaded, what is not and why, and what importing is left."""

from __future__ import annotations

import sys
from typing import NamedTuple

from .launches import Launch

HEADER = (
    "stack",
    "preloaded at the first launch",
    "tried and left out, and why",
    "import left, cold",
    "first launch",
    "restarted worker",
    "later launch",
    "cold / restarted",
)
TEXT_COLUMNS = 3


class Entry(NamedTuple):
    """What is known of one stack."""

    stack: str
    cold: Launch
    first: Launch
    later: Launch
    killed: Launch | None = None
    """A first launch as well."""


def row(entry: Entry) -> tuple[str, ...]:
    cold_s = entry.cold.import_s()
    restarted_s = entry.killed.import_s(attempt=1) if entry.killed else None
    left_out = [f"{module}: {reason}" for module, reason in entry.first.left_out.items()]
    return (
        entry.stack,
        ", ".join(_tops(entry.first.preloaded)) or "nothing",
        "; ".join(left_out) or "nothing",
        _seconds(cold_s),
        _seconds(entry.first.import_s()),
        _seconds(restarted_s),
        _seconds(entry.later.import_s()),
        f"{cold_s / restarted_s:.0f}×" if restarted_s else "–",
    )


def as_markdown(entries: list[Entry]) -> str:
    rule = tuple("---" if place < TEXT_COLUMNS else "--:" for place in range(len(HEADER)))
    rows = [HEADER, rule, *map(row, entries)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def as_text(entry: Entry) -> str:
    """One stack, as lines of a terminal."""
    name, *cells = row(entry)
    lines = [f"  {title}: {cell}" for title, cell in zip(HEADER[1:], cells, strict=True)]
    return "\n".join([name, *lines])


def _tops(modules: list[str]) -> list[str]:
    """Installed packages, by their first name; those of the standard library go without saying."""
    tops = dict.fromkeys(module.partition(".")[0] for module in modules)
    return [top for top in tops if top not in sys.stdlib_module_names]


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"
