"""Which rank is to blame for a failed collective: one that did not enter it, or made another call.

Rules for a collective that timed out
1. Ranks whose collective timed out had entered it. To blame is one that did not: the rank that a
   monitored barrier names, else the one that was found in no collective when the round ended, else
   the one whose key in the store was missing, else one of which nothing is known but that it had
   not failed by then, else the only one that was in another collective than the rest.
2. Running ranks are located before they are stopped. The location of a failed rank is in its
   traceback.
3. If no rank was absent, the only one that failed by itself, after others had given up, was late.
4. If several are left, none is named.

Rule for calls that differ
5. With TORCH_DISTRIBUTED_DEBUG=DETAIL each rank compares its call with those of others, and fails
   with both. The outlier is the rank whose call no other made. Where as many made the one call as
   the other, there is none.

PyTorch's messages are read, since there is no other source. It runs once for a failed round, over
as many workers as there are: each fact is read once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from holdfast.core.policy import stacks
from holdfast.core.policy.kinds import COLLECTIVES, TIMED_OUT, kind_of, sounds_timed_out
from holdfast.core.policy.root_cause import (
    LOST_PEER,
    Cause,
    describe,
    lost_a_peer,
    origin,
    ranks_in_words,
    waited_in_vain,
)
from holdfast.core.protocol.bounds import cut
from holdfast.core.protocol.model import Blame, Failure

_WAITED = re.compile(r"(?:waiting|after|ran for) (\d{1,9}) ?(ms|milliseconds|s|seconds)\b")
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
    who = origin(found.culprit)
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
    who = origin(cause.first)
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
    who = origin(absent)
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


# Calls that differ, and PyTorch's messages.


def blame_for_calls(cause: Cause) -> Blame:
    """All of them failed, each with its own call (rule 5)."""
    odd = odd_call(cause.everybody)
    if odd is None:
        why = "ranks called different collectives; which of them is wrong cannot be told"
        who = origin(cause.first)
        return Blame(COLLECTIVES, who, "unclear", why)
    host = next((f" on {one.host}" for one in cause.everybody if one.rank == odd.rank), "")
    why = f"it called {odd.its}, and all others {odd.others}"
    return Blame(COLLECTIVES, f"rank {odd.rank}{host}", "likely", why)


class OddCall(Struct, frozen=True):
    """The rank whose call differs from that of all others, and both calls."""

    rank: int
    its: str
    others: str


def odd_call(failures: Iterable[Failure]) -> OddCall | None:
    """The outlier of the ranks whose calls are known, if there is one."""
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
    """Ranks that did not enter a monitored barrier, by the messages of those that did."""
    named = (found["ranks"].split(",") for found in _found(ABSENT, failures))
    return tuple(sorted({int(rank) for ranks in named for rank in ranks}))


def ranks_in_keys(failures: Iterable[Failure]) -> tuple[int, ...]:
    """Ranks whose key in the store may be the one that others waited for in vain."""
    return tuple(sorted({int(found["rank"]) for found in _found(KEY, failures)}))


def _found(pattern: re.Pattern[str], failures: Iterable[Failure]) -> Iterator[re.Match[str]]:
    for failure in failures:
        for text in (failure.error.message[:TEXT_READ], failure.stderr_tail[-TEXT_READ:]):
            yield from pattern.finditer(text)
