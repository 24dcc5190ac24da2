"""The timers that a process waits for by a descriptor, as the kernel shows them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class ShownTimer(NamedTuple):
    """One `timerfd`: its clock's number, and how long it has to go; 0 where it is not set."""

    clock: int
    left_s: float


def timers_of(pid: int, number: int | None = None) -> list[ShownTimer]:
    """All of them, or that of one descriptor."""
    found = []
    for path in Path(f"/proc/{pid}/fdinfo").glob("*" if number is None else str(number)):
        try:
            text = path.read_text()
        except OSError:
            continue  # It was closed meanwhile.
        clock = re.search(r"^clockid: (\d+)$", text, re.MULTILINE)
        left = re.search(r"^it_value: \((\d+), (\d+)\)$", text, re.MULTILINE)
        if clock is not None and left is not None:
            found.append(ShownTimer(int(clock[1]), int(left[1]) + int(left[2]) / 1e9))
    return found
