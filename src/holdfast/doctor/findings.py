"""Findings: problems, certain or possible, and how to fix them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta, Struct

from holdfast.core.protocol.bounds import Line

Level = Literal["error", "warning"]
"""An *error*: a job will fail or hang of it. A *warning*: it may, or it will be slow."""
_ORDER: tuple[Level, ...] = ("error", "warning")


class Finding(Struct, frozen=True):
    """One thing that is not as it should be."""

    level: Level
    what: Line
    fix: Line
    nodes: Annotated[tuple[Line, ...], Meta(max_length=100_000)] = ()
    """Where; empty on a single machine, or where it is about all of them."""


def most_serious_first(found: Iterable[Finding]) -> list[Finding]:
    """Findings that several nodes have in common are one; the order is otherwise kept."""
    merged: dict[tuple[Level, str, str], list[str]] = {}
    for one in found:
        merged.setdefault((one.level, one.what, one.fix), []).extend(one.nodes)
    every = [Finding(*key, tuple(dict.fromkeys(nodes))) for key, nodes in merged.items()]
    return sorted(every, key=lambda one: _ORDER.index(one.level))


def has_errors(found: Iterable[Finding]) -> bool:
    return any(one.level == "error" for one in found)
