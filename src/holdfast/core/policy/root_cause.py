"""Which failure came first, and which only followed from it.

Rules
1. A worker that we stopped is *stopped*, however it ended.
2. A worker that ended with the symptom of a lost peer is a *victim*, of a failure without
   that symptom if there is one, else of the only one that has it from elsewhere than a collective,
   else of the first that was observed.
3. Of what remains, the one that was observed first is named. It is "first observed", not
   "guilty": that is all that an observer can know.
4. Where all that failed lost a peer, or waited for one until the time was over or the whole job
   stood still, and a rank had ended well before, it is that rank that they missed; unless most had
   ended: then the one that went on is named.
5. The certainty is told with its reason: *certain* where nobody else failed on its own, or all in
   the same way; *likely* where one was first of several, or was the only one with an error of
   its own; *unclear* where all that is known are symptoms.
6. Ranks whose collective timed out came to it. To blame is one that did not come: the one that a
   monitored barrier names, else the one that was found in no collective when the round ended, else
   the one whose key in the store was missing, else one that had not failed by then, else the only
   one at another place. The place of one that failed is in
   its traceback. One that failed with an error of its own after that time was late for that reason.

The symptom is read from the text that the worker left, because there is no other place
to read it from: libraries report a peer's death as a connection error of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from holdfast.core.protocol.bounds import cut
from holdfast.core.protocol.model import Blame, Certainty, EarlyEnd, Failure, signal_name

LOST_PEER = (
    r"connection (?:was )?(?:reset|closed|refused|aborted|lost)"
    r"|connection\w*error|broken ?pipe|closed by (?:the )?(?:peer|remote)"
    r"|socket (?:was )?closed|remote process (?:has )?exited|peer (?:is )?(?:gone|lost|closed)"
    r"|nccl.*(?:remote error|system error)|failed to recv, got 0 bytes|distnetworkerror"
)

EARLY_ENDS_TOLD = 3
RANKS_NAMED = 4
WORDS_MOST, OWN_WORDS_MOST = 200, 1000
"""Of what a worker says, and of what we say, which may end with the path of a file."""
TOGETHER_S = 0.5
"""Words of two nodes that come so close together may have been sent in the other order."""


class Cause(Struct, frozen=True):
    """The failures of one round, told apart."""

    first: Failure
    also_failed: tuple[Failure, ...]
    victims: tuple[Failure, ...]
    stopped: tuple[Failure, ...]

    @property
    def failed(self) -> tuple[Failure, ...]:
        """All that failed on their own, the first before all others."""
        return (self.first, *self.also_failed, *self.victims)

    @property
    def everybody(self) -> tuple[Failure, ...]:
        """All that did not succeed."""
        return (*self.failed, *self.stopped)


def name(failures: Iterable[Failure]) -> Cause | None:
    """Tell the failures of a round apart; None where nothing failed on its own."""
    in_order = sorted(failures, key=lambda failure: failure.observed_at)
    stopped = tuple(failure for failure in in_order if failure.stopped_by_us)
    own = [failure for failure in in_order if not failure.stopped_by_us]
    if not own:
        return None
    clean = [failure for failure in own if not lost_a_peer(failure)]
    first = clean[0] if clean else _in_no_collective(own) or own[0]
    victims = tuple(f for f in own if f is not first and lost_a_peer(f))
    also_failed = tuple(f for f in own if f is not first and not lost_a_peer(f))
    return Cause(first, also_failed, victims, stopped)


def _in_no_collective(lost: list[Failure]) -> Failure | None:
    """Of those that lost a connection, the only one that did so elsewhere than in a collective."""
    from holdfast.core.policy import stacks

    frames = [(one, stacks.read_traceback(one.error.traceback)) for one in lost]
    places = [
        (one, stacks.place_of(stacks.WorkerStack(one.rank, frames=found)))
        for one, found in frames
        if found
    ]
    outside = [one for one, place in places if not place.in_collective]
    return outside[0] if len(outside) == 1 < len(places) else None


def lost_a_peer(failure: Failure) -> bool:
    """Whether a worker's own words say that it ended because another one did."""
    text = failure.error.message or failure.stderr_tail
    if not re.search(LOST_PEER, text, re.IGNORECASE):
        return False
    from holdfast.core.policy.kinds import own_cause

    return not own_cause(text)


def summary(cause: Cause) -> str:
    """What ended a round, in a few words: the failure that came first, and whose doing it was."""
    first, absent = cause.first, culprit(cause)
    if absent is None or absent is first:
        return describe(first)
    place = f": it was {absent.place}" if absent.place else ""
    return f"rank {absent.rank} on {absent.host} did not come to a collective{place}"


def describe(failure: Failure) -> str:
    """One failure in a few words: who, where, how."""
    from holdfast.core.policy.kinds import STUCK, telling_line

    most = OWN_WORDS_MOST if failure.ended_for else WORDS_MOST
    words = shortened(telling_line(failure), most)
    if not failure.status.is_known:
        return f"{failure.host}: {words}"
    if failure.ended_for == STUCK:
        return f"rank {failure.rank} on {failure.host} {words}"
    said = f"rank {failure.rank} on {failure.host} {_how(failure, words)}"
    if _missed_somebody(failure):
        return f"{early_ends(failure)}, while others still ran; then {said}"
    return said


def _how(failure: Failure, words: str) -> str:
    number = failure.status.signal
    if number is None:
        return f"ended with exit code {failure.status.code}" + (f" ({words})" if words else "")
    if failure.error.message and not failure.ended_for:
        return f"failed ({words})"  # It was stopped, or fell, while it ended.
    memory = "out of memory" if failure.out_of_memory else ""
    return f"was killed ({': '.join(one for one in (signal_name(number), memory, words) if one)})"


def early_ends(failure: Failure) -> str:
    """Who had ended well before a worker failed: the peer that it missed may be one of them."""
    return f"{' and '.join(map(_early_end, failure.ended_before))} had ended with exit code 0"


def _early_end(end: EarlyEnd) -> str:
    at = "" if end.step is None else f" (at step {end.step})"
    return f"rank {end.rank}{f' on {end.host}' if end.host else ''}{at}"


def _missed_somebody(failure: Failure) -> bool:
    """Rule 4."""
    from holdfast.core.policy.kinds import STANDSTILL

    waited = lost_a_peer(failure) or waited_in_vain(failure) or failure.ended_for == STANDSTILL
    return bool(failure.ended_before) and waited


# How certain it is.


def blame(cause: Cause) -> Blame:
    """What it was, whose doing, how sure that is, and why (rule 5)."""
    from holdfast.core.policy import kinds

    first = cause.first
    who = f"rank {first.rank} on {first.host}"
    if not first.status.is_known:
        return Blame(kinds.EXCEPTION, first.host, "unclear", "whoever runs the workers says so")
    if _missed_somebody(first):
        if len(first.ended_before) > len(cause.everybody):
            why = f"{early_ends(first)}, and it went on alone"
            return Blame(kinds.EXTRA_STEP, who, "likely", cut(why))
        end = first.ended_before[0]
        missed = [first, *(one for one in cause.also_failed if _missed_somebody(one))]
        why = f"{early_ends(first)}, and {_ranks([*missed, *cause.victims])} waited for it in vain"
        who = f"rank {end.rank}{f' on {end.host}' if end.host else ''}"
        return Blame(kinds.ENDED_EARLY, who, "likely", cut(why))
    if lost_a_peer(first):
        if _in_no_collective(list(cause.failed)) is first:
            why = (
                f"its connection was to none of the others: {_ranks(list(cause.victims))} lost one"
            )
            return Blame(kinds.EXCEPTION, who, "likely", cut(f"{why} in a collective"))
        lost = f"all that failed only lost a connection{_to_whom(cause)}"
        why = cut(f"{lost}; it was the first that was seen")
        return Blame(kinds.LOST_PEER, who, "unclear", why)
    kind = kinds.kind_of(first)
    if kind == kinds.RUN_TIME:
        return Blame(kind, "the whole job", "certain", "it was given no more time than that")
    if kind == kinds.COLLECTIVES:
        return _blame_for_collectives(cause)
    if kind == kinds.TIMED_OUT:
        late = _late(cause)
        return _blame_for_absence(cause) if late is None else _blame_for_lateness(cause, late)
    certainty, why = _certainty(cause)
    may_differ = kind in (kinds.EXCEPTION, kinds.MISSING_MODULE) or kind in kinds.NATIVE
    if may_differ:
        from holdfast.core.policy.versions import difference, odd_host

        if not cause.also_failed:
            differs = difference(first, cause.everybody)
            if differs:
                return Blame(kinds.VERSIONS, who, "likely", cut(f"{differs}; {why}"))
        elif (odd := odd_host(cause.everybody)) is not None:
            who = f"rank {odd[0].rank} on {odd[0].host}"
            return Blame(kinds.VERSIONS, who, "likely", cut(f"{odd[1]}; {why}"))
    return Blame(kind, who, certainty, cut(why))


_PEER = re.compile(r"peer \[?([0-9a-fA-F.:]{2,45}[0-9a-fA-F])\]?(?::\d+)?")


def _to_whom(cause: Cause) -> str:
    """The peer's address, where all that name one name the same."""
    texts = (one.error.message or one.stderr_tail for one in cause.failed)
    named = {found[1] for text in texts for found in _PEER.finditer(text)}
    return f" to {named.pop()}" if len(named) == 1 else ""


def _blame_for_collectives(cause: Cause) -> Blame:
    """All of them fail, with what each of them called (`core.policy.collectives`)."""
    from holdfast.core.policy import kinds
    from holdfast.core.policy.collectives import odd_call

    odd = odd_call(cause.everybody)
    if odd is None:
        why = "ranks called different collectives; which of them is wrong cannot be told"
        who = f"rank {cause.first.rank} on {cause.first.host}"
        return Blame(kinds.COLLECTIVES, who, "unclear", why)
    host = next((f" on {one.host}" for one in cause.everybody if one.rank == odd.rank), "")
    why = f"it called {odd.its}, and all others {odd.others}"
    return Blame(kinds.COLLECTIVES, f"rank {odd.rank}{host}", "likely", why)


def culprit(cause: Cause) -> Failure | None:
    """The failure that the cause singles out; None where it may be any of several."""
    if lost_a_peer(cause.first):
        return None
    if not waited_in_vain(cause.first):
        return cause.first
    late, absent = _late(cause), _absent(cause)
    return late or (absent[0] if len(absent) == 1 else None)


def waited_in_vain(failure: Failure) -> bool:
    """Whether it ended because another rank did not come to a collective in time."""
    if not (failure.error.message or failure.stderr_tail):
        return False
    from holdfast.core.policy.kinds import is_timed_out

    return is_timed_out(failure)


class _Located(Struct, frozen=True):
    """A rank, and where it was when a collective timed out."""

    failure: Failure
    place: str
    in_collective: bool


def _located(cause: Cause) -> list[_Located]:
    """Those of which that is known: they were asked, or failed while they waited."""
    found = [_place_of(one) for one in cause.everybody]
    return [one for one in found if one is not None]


def _place_of(failure: Failure) -> _Located | None:
    if failure.place:
        return _Located(failure, failure.place, failure.in_collective)
    if not (lost_a_peer(failure) or waited_in_vain(failure)):
        return None
    from holdfast.core.policy import stacks

    frames = stacks.read_traceback(failure.error.traceback)
    if not frames:
        return None
    place = stacks.where(stacks.WorkerStack(failure.rank, frames=frames))
    return _Located(failure, place, in_collective=True)


def _absent(cause: Cause) -> tuple[Failure, ...]:
    """Ranks that may not have come to a collective, by what is known best (rule 6)."""
    from holdfast.core.policy.collectives import absent_ranks, ranks_in_keys

    named, in_keys = absent_ranks(cause.failed), ranks_in_keys(cause.failed)
    located = _located(cause)
    odd = _alone(located)
    came = {one.failure.rank for one in located if one.in_collective}
    return (
        tuple(one for one in cause.everybody if one.rank in named)
        or tuple(one.failure for one in located if not one.in_collective)
        or tuple(one for one in cause.everybody if one.rank in in_keys and one.rank not in came)
        or tuple(one for one in cause.stopped if not one.place)
        or (cause.stopped if odd is None else (odd.failure,))
    )


def _alone(located: list[_Located]) -> _Located | None:
    """The only one that nobody else was with."""
    places = [one.place for one in located]
    alone = [one for one in located if places.count(one.place) == 1]
    return alone[0] if len(alone) == 1 and len(located) > 1 else None


def _late(cause: Cause) -> Failure | None:
    """The only one that failed for itself, though others had given up waiting before."""
    own = [
        one
        for one in cause.also_failed
        if one.error.message and not waited_in_vain(one) and not _follows(one)
    ]
    return own[0] if len(own) == 1 and not _absent(cause) else None


def _follows(failure: Failure) -> bool:
    """Whether its error was raised while it handled that of a lost or absent peer."""
    from holdfast.core.policy.kinds import sounds_timed_out

    text = failure.error.traceback
    return bool(re.search(LOST_PEER, text, re.IGNORECASE)) or sounds_timed_out(text)


def _blame_for_lateness(cause: Cause, late: Failure) -> Blame:
    from holdfast.core.policy.kinds import kind_of

    missed = [one for one in cause.failed if one is not late]
    why = f"{_waited(missed, f'rank {late.rank}')}, which then failed by itself"
    return Blame(kind_of(late), f"rank {late.rank} on {late.host}", "likely", cut(why))


def _blame_for_absence(cause: Cause) -> Blame:
    """A collective timed out: those that failed came to it, so another rank is to blame."""
    from holdfast.core.policy.kinds import COLLECTIVES, TIMED_OUT

    first, absent = cause.first, _absent(cause)
    located = _located(cause)
    waiting = [one.failure for one in located if one.in_collective]
    came = [
        one
        for one in cause.everybody
        if one not in absent and (one in waiting or one not in cause.stopped)
    ]
    who = f"rank {first.rank} on {first.host}"
    if not absent:
        why = f"{_waited(came or [first], 'others')}; nothing tells which rank did not come"
        return Blame(TIMED_OUT, who, "unclear", cut(why))
    if len(absent) > 1:
        who = f"one of {_ranks(list(absent))}"
        why = f"{_waited(came or [first], 'others')}; these had not failed"
        return Blame(TIMED_OUT, who, "unclear", cut(why))
    who = f"rank {absent[0].rank} on {absent[0].host}"
    its = next((one for one in located if one.failure is absent[0]), None)
    waited = _waited(came or [first], f"rank {absent[0].rank}")
    if its is None:
        return Blame(
            TIMED_OUT, who, "likely", cut(f"{waited}, and nobody knows where that one was")
        )
    if not its.in_collective or its is not _alone(located):
        return Blame(TIMED_OUT, who, "likely", cut(f"{waited}, which was {its.place}"))
    places = {one.place for one in located if one is not its}
    theirs = next(iter(places)) if len(places) == 1 else "elsewhere"
    why = f"it waited {its.place}, and {_ranks(came)} {theirs}"
    return Blame(COLLECTIVES, who, "likely", cut(why))


_WAITED = re.compile(r"(?:waiting|after|ran for) (\d{1,9}) ?(ms|milliseconds|s|seconds)\b")


def _waited(failures: list[Failure], whom: str) -> str:
    """Who waited, and for how long, by the words of those that gave up."""
    texts = (one.error.message or one.stderr_tail for one in failures)
    found = [match for text in texts if (match := _WAITED.search(text))]
    seconds = [float(one[1]) / (1000 if one[2].startswith("m") else 1) for one in found]
    how_long = f"{max(seconds):.0f} s" if seconds else "until the time was over"
    return f"{_ranks(failures)} waited {how_long} for {whom}"


def _certainty(cause: Cause) -> tuple[Certainty, str]:
    from holdfast.core.policy import kinds

    first, others = cause.first, cause.also_failed
    if first.ended_for == kinds.HANG:
        return "likely", "all ranks stood still, and it at another place than the others"
    if first.ended_for == kinds.STANDSTILL:
        return "unclear", "all ranks stood still at the same place, and one had to be ended"
    if first.ended_for == kinds.STUCK:
        return "certain", "the kernel says so"
    if first.ended_for:
        return "certain", "Holdfast ended it for this"
    if others:
        return _first_of_several(first, others)
    then = _what_then(cause)
    was_first = all(first.observed_at <= one.observed_at for one in cause.victims)
    if was_first:
        return "certain", f"nobody else failed before it{then}"
    return "likely", f"it is the only one that failed by itself{then}"


def _first_of_several(first: Failure, others: tuple[Failure, ...]) -> tuple[Certainty, str]:
    if all(_likeness(one) == _likeness(first) for one in others):
        return "certain", f"{_ranks(list(others))} failed in the same way"
    last = max(one.observed_at for one in others)
    nearest = min(one.observed_at for one in others) - first.observed_at
    several = f"{len(others) + 1} ranks failed within {max(last - first.observed_at, 0.1):.1f} s"
    if nearest < TOGETHER_S and any(one.node != first.node for one in others):
        return "unclear", f"{several}, on several nodes and almost at once: it was seen first"
    return "likely", f"{several}, each in its own way, and it was the first"


def _what_then(cause: Cause) -> str:
    """What became of the others."""
    parts = []
    if cause.victims:
        parts.append(f"{_ranks(list(cause.victims))} lost a connection")
    if cause.stopped:
        parts.append(f"{_ranks(list(cause.stopped))} ran until stopped")
    return f"; {' and '.join(parts)}" if parts else ""


def _likeness(failure: Failure) -> tuple[object, ...]:
    """Equal for failures of the same kind. One that was stopped after it had raised is alike."""
    line = next(iter(failure.error.message.splitlines()), "")
    return (re.sub(r"\d+", "#", line),) if line else (failure.status,)


def _ranks(failures: list[Failure]) -> str:
    ranks = sorted(one.rank for one in failures)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > RANKS_NAMED:
        return f"{len(ranks)} others"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def shortened(text: str, limit: int) -> str:
    """As much as fits, up to the end of a word, and a sign that there was more."""
    if len(text) <= limit:
        return text
    kept = text[: limit - 1]
    return f"{kept[: kept.rfind(' ', limit // 2)] if ' ' in kept[limit // 2 :] else kept}…"
