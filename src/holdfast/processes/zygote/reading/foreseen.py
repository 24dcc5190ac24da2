"""What installed packages import once a program uses something of them: known beforehand.

Workers tell what they import late, and later rounds and launches have it ready. What nearly every
program of a kind comes to is known without that, so that it is there at the first launch.

Rules
1. A row counts where the program takes the package, and names what brings the module along.
2. It is imported ahead like what was learned, under the same conditions. A row that is wrong costs
   time only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from msgspec import Struct

from holdfast.core.protocol.preload_steps import brought_by


class Foreseen(Struct, frozen=True):
    """A module that comes late, and how it is told from a program's text that it will."""

    package: str
    named: bytes
    module: str
    reason: str


FORESEEN = (
    Foreseen(
        "torch",
        rb"\boptim\b|\bDistributedDataParallel\b|\btorch\.compile\b",
        "torch._dynamo",
        "is imported when the first optimizer or DistributedDataParallel is made",
    ),
)


def foreseen(
    steps: tuple[str, ...], texts: Iterable[bytes], is_there: Callable[[str], bool]
) -> tuple[str, ...]:
    """What will be imported late by a program of these steps, whose own files have these texts."""
    brought = brought_by(steps)
    rows = [row for row in FORESEEN if row.package in brought and row.module not in brought]
    return tuple(
        row.module
        for row in rows
        if any(re.search(row.named, text) for text in texts) and is_there(row.module)
    )
