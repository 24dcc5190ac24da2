"""Which rank called another collective than the others, or did not come to one, by PyTorch's words.

With TORCH_DISTRIBUTED_DEBUG=DETAIL each rank compares its call with those of others, and fails with
what both were. So a rank's words tell of two ranks, and the words of several of all: the one whose
call nobody else made is the odd one. Where as many made the one call as the other, nobody is.

A monitored barrier that times out names the ranks that did not come. Any other collective that
times out names nobody: those that fail are the ones that came. A wait for a key of the store may
name one, where each rank sets a key that ends in its number (`/default_pg/0//cpu//0/2`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from holdfast.core.protocol.model import Failure

CALL = re.compile(
    r"Rank (?P<rank>\d{1,9}) is running collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=\d+, )?OpType=(?P<type>\w+)(?:, TensorShape=(?P<shape>\[[\d, ]*\]))?"
)
ABSENT = re.compile(r"Ranks? (?P<ranks>\d{1,9}(?:, ?\d{1,9})*) failed to pass monitoredBarrier")
KEY = re.compile(
    r"wait timeout after \d+ ?ms, keys: /default_pg/\d+//(?:\w+//\d+|\w+)/"
    r"(?P<rank>\d{1,9})(?![\w/])"
)
"""Of the group of all ranks only: in the keys of other groups ranks are counted anew."""
TEXT_READ = 8192


class OddCall(Struct, frozen=True):
    """The rank whose call differs from that of all others, and both calls."""

    rank: int
    its: str
    others: str


def odd_call(failures: Iterable[Failure]) -> OddCall | None:
    """The odd one of those whose calls are known, if there is one."""
    calls: dict[int, str] = {}
    for found in _found(CALL, failures):
        calls[int(found["rank"])] = f"{found['type']} {found['shape'] or ''}".strip()
    made = {call: [rank for rank in calls if calls[rank] == call] for call in calls.values()}
    alone = [ranks[0] for ranks in made.values() if len(ranks) == 1]
    if len(made) != 2 or len(alone) != 1:
        return None
    (others,) = (call for call in made if call != calls[alone[0]])
    return OddCall(alone[0], calls[alone[0]], others)


def absent_ranks(failures: Iterable[Failure]) -> tuple[int, ...]:
    """Ranks that did not come to a monitored barrier, by the words of those that did."""
    named = (found["ranks"].split(",") for found in _found(ABSENT, failures))
    return tuple(sorted({int(rank) for ranks in named for rank in ranks}))


def ranks_in_keys(failures: Iterable[Failure]) -> tuple[int, ...]:
    """Ranks whose key in the store may be the one that others waited for in vain."""
    return tuple(sorted({int(found["rank"]) for found in _found(KEY, failures)}))


def _found(pattern: re.Pattern[str], failures: Iterable[Failure]) -> Iterator[re.Match[str]]:
    for failure in failures:
        for text in (failure.error.message[:TEXT_READ], failure.stderr_tail[-TEXT_READ:]):
            yield from pattern.finditer(text)
