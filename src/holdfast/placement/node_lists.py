"""The lists of nodes that schedulers write in short, written out.

Slurm's: `n[01-03,7],gpu-[1-2]x`. Commas between names; in brackets, numbers and ranges of numbers,
with as many digits as the first of a range has. A name with several brackets means every
combination, the last one changing fastest.

Open MPI's (4.x): `host[1:5,1-2],login@0(4)`. The number before the colon is how many digits each
number has; what follows the `@` is about something else. The order of the names has a meaning.
"""

from __future__ import annotations

import re
from itertools import product

from holdfast.core.protocol.bounds import COUNT_MOST, HOST_MOST
from holdfast.core.protocol.errors import UsageError

_OUTSIDE_BRACKETS = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_NUMBERS = re.compile(r"(\d+)(?:-(\d+))?")
_HINT = "a list looks like n[01-03,7],gpu-[1-2]"


def expand(text: str) -> list[str]:
    """The names of Slurm's list, in its order. Raises `UsageError` for what is none."""
    return [name for word in _words(text) for name in _combinations(word)]


def daemons(text: str) -> list[str]:
    """The hosts of Open MPI's list, in its order. Raises `UsageError` for what is none."""
    return expand(_MEASURED.sub(_with_all_digits, text.partition("@")[0]))


_MEASURED = re.compile(r"\[(\d{1,2}):([^\[\]]*)\]")


def _with_all_digits(found: re.Match[str]) -> str:
    width = int(found[1])
    return "[" + re.sub(r"\d+", lambda number: number[0].zfill(width), found[2]) + "]"


def _words(text: str) -> list[str]:
    """The parts between commas that are in no brackets."""
    words = _OUTSIDE_BRACKETS.findall(text)
    if ",".join(words) != text.strip(",") or not words:
        raise UsageError(f"{text[:80]!r} is not a list of nodes", _HINT)
    return words


def _combinations(word: str) -> list[str]:
    pieces = re.split(r"\[([^\[\]]*)\]", word)
    choices = [_numbers(piece) if at % 2 else [piece] for at, piece in enumerate(pieces)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > COUNT_MOST or len(word) > HOST_MOST * 100:
        raise UsageError(f"{word[:80]!r} names more than {COUNT_MOST} nodes", _HINT)
    return ["".join(parts) for parts in product(*choices)]


def _numbers(text: str) -> list[str]:
    """The entries in one pair of brackets, one by one."""
    found: list[str] = []
    for part in text.split(","):
        matched = _NUMBERS.fullmatch(part)
        if not matched:
            raise UsageError(f"[{text[:80]}] is not a range of numbers", _HINT)
        first, last = matched[1], matched[2] or matched[1]
        if not 0 <= int(last) - int(first) < COUNT_MOST:
            raise UsageError(f"[{part[:80]}] is not a range of numbers", _HINT)
        found += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return found
