"""Who called another collective than the others, from what PyTorch says of it.

With TORCH_DISTRIBUTED_DEBUG=DETAIL each rank compares its call with those of others, and fails with
what both were. So a rank's words tell of two ranks, and the words of several of all: the one whose
call nobody else made is the odd one. Where as many made the one call as the other, nobody is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from holdfast.core.protocol.model import Failure

CALL = re.compile(
    r"Rank (?P<rank>\d{1,9}) is running collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=\d+, )?OpType=(?P<type>\w+)(?:, TensorShape=(?P<shape>\[[\d, ]*\]))?"
)
TEXT_READ = 8192


class OddCall(Struct, frozen=True):
    """The rank whose call differs from that of all others, and both calls."""

    rank: int
    its: str
    others: str


def odd_call(failures: Iterable[Failure]) -> OddCall | None:
    """The odd one of those whose calls are known, if there is one."""
    calls: dict[int, str] = {}
    for failure in failures:
        for text in (failure.error.message[:TEXT_READ], failure.stderr_tail[-TEXT_READ:]):
            for found in CALL.finditer(text):
                calls[int(found["rank"])] = f"{found['type']} {found['shape'] or ''}".strip()
    made = {call: [rank for rank in calls if calls[rank] == call] for call in calls.values()}
    alone = [ranks[0] for ranks in made.values() if len(ranks) == 1]
    if len(made) != 2 or len(alone) != 1:
        return None
    (others,) = (call for call in made if call != calls[alone[0]])
    return OddCall(alone[0], calls[alone[0]], others)
