"""Ranks as people write them. The page's own reading is in `frontend/src/words.ts`."""

from __future__ import annotations

import re

RANKS_MOST = 10_000
_PART = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


def parse_ranks(text: str) -> frozenset[int] | None:
    """`3`, `0-7` or `1,4,8-11`; empty are all; None where it is none of these."""
    found: set[int] = set()
    for part in re.split(r"[\s,]+", text.strip()):
        if not part:
            continue
        match = _PART.fullmatch(part.replace("–", "-"))
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= RANKS_MOST:
            return None
        found.update(range(first, last + 1))
    return frozenset(found) if len(found) <= RANKS_MOST else None
