"""Which rank did not enter a collective that timed out.

Rules
1. Ranks whose collective timed out had entered it. To blame is one that did not: the rank that a
   monitored barrier names, else the one that was found in no collective when the round ended, else
   the one whose key in the store was missing, else one of which nothing is known but that it had
   not failed by then, else the only one that was in another collective than the rest.
2. Running ranks are located before they are stopped. The location of a failed rank is in its
   traceback.
3. If no rank was absent, the only one that failed by itself, after others had given up, was late.
4. If several are left, none is named.

It runs once for a failed round, over as many workers as there are: each fact is read once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from holdfast.core.policy import stacks
from holdfast.core.policy.collectives import absent_ranks, ranks_in_keys
from holdfast.core.policy.kinds import COLLECTIVES, TIMED_OUT, kind_of, sounds_timed_out
from holdfast.core.policy.root_cause import (
    LOST_PEER,
    Cause,
    describe,
    lost_a_peer,
    ranks_in_words,
    waited_in_vain,
)
from holdfast.core.protocol.bounds import cut
from holdfast.core.protocol.model import Blame, Failure

_WAITED = re.compile(r"(?:waiting|after|ran for) (\d{1,9}) ?(ms|milliseconds|s|seconds)\b")


class _Located(Struct, frozen=True):
    """A rank, and its location when a collective timed out."""

    failure: Failure
    location: str
    in_collective: bool


class Absence(Struct, frozen=True):
    """The ranks that may have been absent, and the evidence."""

    suspects: tuple[Failure, ...]
    late: Failure | None
    located: dict[int, _Located]
    """By rank."""
    odd: int | None
    """The only rank at its location."""

    @property
    def culprit(self) -> Failure | None:
        if self.late is not None:
            return self.late
        return self.suspects[0] if len(self.suspects) == 1 else None

    def is_elsewhere(self, one: _Located) -> bool:
        """Whether it was in another collective than all others."""
        return one.in_collective and one.failure.rank == self.odd


def absence(cause: Cause) -> Absence:
    """The ranks that may have been absent, by the best evidence."""
    found = [one for one in map(_located, cause.everybody) if one is not None]
    located = {one.failure.rank: one for one in found}
    odd = _odd(found)
    suspects = _suspects(cause, located, odd)
    return Absence(suspects, None if suspects else _late(cause), located, odd)


def _located(failure: Failure) -> _Located | None:
    if failure.location:
        return _Located(failure, failure.location, failure.in_collective)
    if failure.stopped_by_us or not (waited_in_vain(failure) or lost_a_peer(failure)):
        return None
    location = stacks.location_of_error(failure.error.traceback)
    return None if location is None else _Located(failure, location.shortly(), in_collective=True)


def _odd(located: Sequence[_Located]) -> int | None:
    locations = Counter(one.location for one in located)
    alone = [one.failure.rank for one in located if locations[one.location] == 1]
    return alone[0] if len(alone) == 1 < len(located) else None


def _suspects(cause: Cause, located: dict[int, _Located], odd: int | None) -> tuple[Failure, ...]:
    """By rule 1."""
    named = absent_ranks(cause.failed)
    in_keys = [
        rank
        for rank in ranks_in_keys(cause.failed)
        if not (rank in located and located[rank].in_collective)
    ]
    return (
        tuple(one for one in cause.everybody if one.rank in named)
        or tuple(one.failure for one in located.values() if not one.in_collective)
        or tuple(one for one in cause.everybody if one.rank in in_keys)
        or tuple(one for one in cause.stopped if not one.location)
        or (cause.stopped if odd is None else (located[odd].failure,))
    )


def _late(cause: Cause) -> Failure | None:
    """By rule 3."""
    own = [one for one in cause.also_failed if one.error.message and not _follows(one)]
    return own[0] if len(own) == 1 else None


def _follows(failure: Failure) -> bool:
    """Whether its error is that of a lost or absent peer, or was raised while it handled that."""
    text = failure.error
    return (
        sounds_timed_out(text.message)
        or sounds_timed_out(text.traceback)
        or bool(re.search(LOST_PEER, text.traceback, re.IGNORECASE))
    )


def summary(cause: Cause) -> str:
    """The absent rank, in a few words; empty if not known."""
    found = absence(cause)
    if found.late is not None:
        return describe(found.late)
    if found.culprit is None:
        return ""
    rank = found.culprit.rank
    who = f"rank {rank} on {found.culprit.host}"
    its = found.located.get(rank)
    if its is None:
        return f"{who} did not come to a collective"
    if found.is_elsewhere(its):
        return f"{who} waited {its.location}, where no other rank was"
    return f"{who} did not come to a collective: it was {its.location}"


def blame(cause: Cause) -> Blame:
    """The rank to blame for it, and why."""
    found = absence(cause)
    came = _came(cause, found) or [cause.first]
    if found.late is not None:
        rank = found.late.rank
        why = f"{_waited(came, f'rank {rank}')}, which then failed by itself"
        who = f"rank {rank} on {found.late.host}"
        return Blame(kind_of(found.late), who, "likely", cut(why))
    if len(found.suspects) == 1:
        return _blame_one(found, found.suspects[0], came)
    who = f"rank {cause.first.rank} on {cause.first.host}"
    waited = _waited(came, "others")
    if not found.suspects:
        why = f"{waited}; nothing tells which rank did not come"
        return Blame(TIMED_OUT, who, "unclear", cut(why))
    who = f"one of {ranks_in_words(found.suspects)}"
    return Blame(TIMED_OUT, who, "unclear", cut(f"{waited}; these had not failed"))


def _came(cause: Cause, found: Absence) -> list[Failure]:
    """The ranks that waited: all that failed or were found waiting, except the one to blame."""
    absent = {one.rank for one in found.suspects}
    if found.late is not None:
        absent.add(found.late.rank)
    waiting = {rank for rank, one in found.located.items() if one.in_collective}
    waiting.update(one.rank for one in cause.failed)
    return [one for one in cause.everybody if one.rank in waiting - absent]


def _blame_one(found: Absence, absent: Failure, came: Sequence[Failure]) -> Blame:
    who = f"rank {absent.rank} on {absent.host}"
    waited = _waited(came, f"rank {absent.rank}")
    its = found.located.get(absent.rank)
    if its is None:
        why = f"{waited}, and nobody knows where that one was"
        return Blame(TIMED_OUT, who, "likely", cut(why))
    if not found.is_elsewhere(its):
        return Blame(TIMED_OUT, who, "likely", cut(f"{waited}, which was {its.location}"))
    locations = {one.location for one in found.located.values() if one is not its}
    theirs = next(iter(locations)) if len(locations) == 1 else "elsewhere"
    why = f"it waited {its.location}, and {ranks_in_words(came)} {theirs}"
    return Blame(COLLECTIVES, who, "likely", cut(why))


def _waited(failures: Sequence[Failure], whom: str) -> str:
    """Which ranks waited, and for how long, by the messages of those that gave up."""
    texts = (one.error.message or one.stderr_tail for one in failures)
    found = [match for text in texts if (match := _WAITED.search(text))]
    seconds = [float(one[1]) / (1000 if one[2].startswith("m") else 1) for one in found]
    how_long = f"{max(seconds):.0f} s" if seconds else "until the time was over"
    return f"{ranks_in_words(failures)} waited {how_long} for {whom}"
