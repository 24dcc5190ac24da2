"""What differs from what a page has heard: ten thousand workers are not told of twice a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MOSTLY = 0.3
"""Where more than this share has changed, all of a column is shorter than its changes."""

Column = Sequence[float | int | None]


def changed_column(before: Column | None, now: Column) -> dict[str, Any] | None:
    """All values, or those that changed and whose they are; None where nothing did."""
    if before == now:
        return None
    if before is None or len(before) != len(now):
        return {"v": now}
    which = [k for k, (old, new) in enumerate(zip(before, now, strict=True)) if old != new]
    if len(which) > len(now) * MOSTLY:
        return {"v": now}
    return {"i": which, "v": [now[k] for k in which]}


def changed_columns(
    before: Mapping[str, Column], now: Mapping[str, Column]
) -> dict[str, dict[str, Any]]:
    """By name, those of which something changed."""
    found = {name: changed_column(before.get(name), column) for name, column in now.items()}
    return {name: change for name, change in found.items() if change is not None}


def changed_items(before: Sequence[Any], now: Sequence[Any]) -> dict[str, Any] | None:
    """Which places of a list hold something else now, and how long it is; None where nothing."""
    if before == now:
        return None
    known = len(before)
    which = [[k, item] for k, item in enumerate(now) if k >= known or before[k] != item]
    return {"set": which, "count": len(now)}
