"""Which failure came first, and which only followed from it.

Rules
1. A worker that we stopped is *stopped*, however it ended.
2. A worker that ended with the symptom of a lost peer is a *victim*, of a failure without
   that symptom if there is one, else of the first that was observed.
3. Of what remains, the one that was observed first is named. It is "first observed", not
   "guilty": that is all that an observer can know.

The symptom is read from the text that the worker left, because there is no other place
to read it from: libraries report a peer's death as a connection error of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from holdfast.core.protocol.model import Failure

LOST_PEER = (
    r"connection (?:was )?(?:reset|closed|refused|aborted|lost)"
    r"|connection\w*error|broken ?pipe|closed by (?:the )?(?:peer|remote)"
    r"|socket (?:was )?closed|remote process (?:has )?exited|peer (?:is )?(?:gone|lost|closed)"
    r"|nccl.*(?:remote error|system error)|failed to recv, got 0 bytes|distnetworkerror"
)

EARLY_ENDS_TOLD = 3


class Cause(Struct, frozen=True):
    """The failures of one round, told apart."""

    first: Failure
    also_failed: tuple[Failure, ...]
    victims: tuple[Failure, ...]
    stopped: tuple[Failure, ...]


def name(failures: Iterable[Failure]) -> Cause | None:
    """Tell the failures of a round apart; None where nothing failed on its own."""
    in_order = sorted(failures, key=lambda failure: failure.observed_at)
    stopped = tuple(failure for failure in in_order if failure.stopped_by_us)
    own = [failure for failure in in_order if not failure.stopped_by_us]
    if not own:
        return None
    clean = [failure for failure in own if not lost_a_peer(failure)]
    first = clean[0] if clean else own[0]
    victims = tuple(f for f in own if f is not first and lost_a_peer(f))
    also_failed = tuple(f for f in own if f is not first and not lost_a_peer(f))
    return Cause(first, also_failed, victims, stopped)


def lost_a_peer(failure: Failure) -> bool:
    """Whether a worker's own words say that it ended because another one did."""
    text = failure.error.message or failure.stderr_tail
    return bool(re.search(LOST_PEER, text, re.IGNORECASE))


def describe(failure: Failure) -> str:
    """One failure in a few words: who, where, how."""
    words = shortened(next(iter(failure.error.message.splitlines()), ""), 200)
    if not failure.status.is_known:
        return f"{failure.host}: {words}"
    how = f"was killed by {_signal_words(failure)}"
    if failure.status.signal is None:
        how = f"ended with exit code {failure.status.code}"
    if words:
        how += f" ({words})"
    if failure.ended_before and lost_a_peer(failure):
        how += f", after {early_ends(failure)}"
    return f"rank {failure.rank} on {failure.host} {how}"


def early_ends(failure: Failure) -> str:
    """Who had ended well before a worker failed: the peer that it missed may be one of them."""
    ends = [
        f"rank {end.rank}" + ("" if end.step is None else f" (at step {end.step})")
        for end in failure.ended_before
    ]
    return f"{' and '.join(ends)} had already ended with exit code 0"


def shortened(text: str, limit: int) -> str:
    """As much as fits, up to the end of a word, and a sign that there was more."""
    if len(text) <= limit:
        return text
    kept = text[: limit - 1]
    return f"{kept[: kept.rfind(' ', limit // 2)] if ' ' in kept[limit // 2 :] else kept}…"


def _signal_words(failure: Failure) -> str:
    words = str(failure.status)
    return f"{words}: out of memory" if failure.out_of_memory else words
