"""How a node can be spoken for after its end, and by nobody else.

Rules
1. Each node draws a secret at its start, which only a file of its user on its own machine holds
   (`core.policy.liveness_locks`). Its *mark*, a hash of that, is told when it greets.
2. The marks of all members of a round, by their seats, make one short text, which is written down
   with the round. A member is told, with its seat, the few texts that lead from its own mark to
   that one (its *path*): as many as the number of members has digits in binary.
3. Whoever shows a secret, a seat and a path that lead to the text that is written down has read the
   file of that member. It is shown only after that member's end, of which it then is the word.
4. A member without a mark can be spoken for by nobody.

So a coordinator that knows nothing but what is written down can check what it is told of each
member by itself, and nothing that is written down, told or journalled is a secret of the living.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

SECRET_BYTES = 16
_HASH_BYTES = 16
_HEX = rf"\A[0-9a-f]{{{2 * _HASH_BYTES}}}\Z"

MarkSecret = Annotated[str, Meta(pattern=_HEX)]
MarkOrNone = Annotated[str, Meta(pattern=rf"\A([0-9a-f]{{{2 * _HASH_BYTES}}})?\Z")]
MarkPath = Annotated[tuple[Annotated[str, Meta(pattern=_HEX)], ...], Meta(max_length=24)]
MarkTree = tuple[tuple[str, ...], ...]
"""The hashes of all marks, then those of pairs of them, and so on up to the only one."""


def mark_of(secret: str) -> str:
    """What is told of a secret while its node lives."""
    return _hash(b"mark", secret)


def grow(marks: Sequence[str]) -> MarkTree:
    """All that leads from the marks of a round, by seat, to the one text for all of them."""
    levels = [tuple(_hash(b"leaf", mark) for mark in marks)]
    while len(levels[-1]) > 1:
        last = levels[-1]
        pairs = [last[at : at + 2] for at in range(0, len(last), 2)]
        levels.append(tuple(_hash(b"pair", *pair) if len(pair) == 2 else pair[0] for pair in pairs))
    return tuple(levels)


def top(tree: MarkTree) -> str:
    """The one text for all of them; empty where there are none."""
    return tree[-1][0] if tree and tree[-1] else ""


def path_of(tree: MarkTree, seat: int) -> tuple[str, ...]:
    """What leads from the mark on this seat to the top."""
    path = []
    for level in tree[:-1]:
        other = seat ^ 1
        if other < len(level):
            path.append(level[other])
        seat //= 2
    return tuple(path)


def leads_to(secret: str, seat: int, size: int, path: Sequence[str]) -> str:
    """The top that this secret has, on that seat of so many; empty where the path does not fit."""
    if not 0 <= seat < size:
        return ""
    found, left = _hash(b"leaf", mark_of(secret)), list(path)
    while size > 1:
        other = seat ^ 1
        if other < size:
            if not left:
                return ""
            pair = (left.pop(0), found) if other < seat else (found, left.pop(0))
            found = _hash(b"pair", *pair)
        seat, size = seat // 2, (size + 1) // 2
    return "" if left else found


def _hash(kind: bytes, *texts: str) -> str:
    from hashlib import blake2b  # Here, because a job of one node does without.

    return blake2b("/".join(texts).encode(), digest_size=_HASH_BYTES, person=kind).hexdigest()
