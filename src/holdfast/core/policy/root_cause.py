"""Which failure came first, and which only followed from it.

Rules
1. A worker that we stopped is *stopped*, however it ended.
2. A worker that ended with the symptom of a lost peer is a *victim*, of a failure without
   that symptom if there is one, else of the only one that has it from elsewhere than a collective,
   else of the first that was observed.
3. Of the rest, the one that was observed first is named. It is "first observed", not
   "guilty": an observer cannot know more.
4. Where all that failed lost a peer, or waited for one until the time was over or the whole job
   stalled, and a rank had ended well before, that rank is the missing one; unless most had
   ended: then the one that went on is named.
5. The certainty comes with its reason: *certain* if no other failed on its own, or all in
   the same way; *likely* if one was first of several, or was the only one with an error of
   its own; *unclear* if only symptoms are known.
6. For a collective that timed out, another rank is to blame than those that failed
   (`core.policy.collectives`).

The symptom is read from the text that the worker left, because there is no other source:
libraries report a peer's death as a connection error of their own.
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
"""Texts of a worker, and of ours, which may end with the path of a file."""
TOGETHER_S = 0.5
"""Messages of two nodes this close together may have been sent in the other order."""


class Cause(Struct, frozen=True):
    """The failures of one round, told apart."""

    first: Failure
    also_failed: tuple[Failure, ...]
    victims: tuple[Failure, ...]
    stopped: tuple[Failure, ...]

    @property
    def failed(self) -> tuple[Failure, ...]:
        """All failures except those of stopped workers, the first in front."""
        return (self.first, *self.also_failed, *self.victims)

    @property
    def everybody(self) -> tuple[Failure, ...]:
        """All workers that did not succeed."""
        return (*self.failed, *self.stopped)


def name(failures: Iterable[Failure]) -> Cause | None:
    """Split the failures of a round; None if none failed on its own."""
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


def _in_no_collective(lost: Iterable[Failure]) -> Failure | None:
    """Of those that lost a connection, the only one that did so outside a collective."""
    from holdfast.core.policy.stacks import location_of_error

    locations = [(one, location_of_error(one.error.traceback)) for one in lost]
    known = [(one, location) for one, location in locations if location is not None]
    outside = [one for one, location in known if not location.in_collective]
    return outside[0] if len(outside) == 1 < len(known) else None


def lost_a_peer(failure: Failure) -> bool:
    """Whether a worker's own message says that it ended because another one did."""
    text = failure.error.message or failure.stderr_tail
    if not re.search(LOST_PEER, text, re.IGNORECASE):
        return False
    from holdfast.core.policy.kinds import own_cause

    return not own_cause(text)


def summary(cause: Cause) -> str:
    """The end of a round in a few words: the failure that came first, and its cause."""
    first = cause.first
    if _missed_somebody(first) or lost_a_peer(first) or not waited_in_vain(first):
        return describe(first)
    from holdfast.core.policy import collectives

    return collectives.summary(cause) or describe(first)


def describe(failure: Failure) -> str:
    """One failure in a few words: rank, node, kind."""
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
    """The ranks that had ended well before a worker failed: its lost peer may be one of them."""
    return f"{' and '.join(map(_early_end, failure.ended_before))} had ended with exit code 0"


def _early_end(end: EarlyEnd) -> str:
    at = "" if end.step is None else f" (at step {end.step})"
    return f"rank {end.rank}{f' on {end.host}' if end.host else ''}{at}"


def _missed_somebody(failure: Failure) -> bool:
    """Rule 4."""
    from holdfast.core.policy.kinds import STALL

    waited = lost_a_peer(failure) or waited_in_vain(failure) or failure.ended_for == STALL
    return bool(failure.ended_before) and waited


# Certainty.


def blame(cause: Cause) -> Blame:
    """The cause: its kind, its origin, how certain it is, and why (rule 5)."""
    from holdfast.core.policy import kinds

    first = cause.first
    if not first.status.is_known:
        return Blame(
            kinds.EXCEPTION, first.host, "unclear", "the caller, which runs the workers, says so"
        )
    if _missed_somebody(first):
        return _blame_early_end(cause)
    if lost_a_peer(first):
        return _blame_lost_peer(cause)
    kind = kinds.kind_of(first)
    if kind == kinds.RUN_TIME:
        return Blame(kind, "the whole job", "certain", "it was given no more time than that")
    if kind in (kinds.COLLECTIVES, kinds.TIMED_OUT):
        from holdfast.core.policy import collectives

        timed_out = kind == kinds.TIMED_OUT
        return collectives.blame(cause) if timed_out else collectives.blame_for_calls(cause)
    certainty, why = _certainty(cause)
    if kind in (kinds.EXCEPTION, kinds.MISSING_MODULE) or kind in kinds.NATIVE:
        from holdfast.core.policy.versions import odd_one

        odd = odd_one(cause)
        if odd is not None:
            return Blame(kinds.VERSIONS, origin(odd[0]), "likely", cut(f"{odd[1]}; {why}"))
    return Blame(kind, origin(first), certainty, cut(why))


def origin(failure: Failure) -> str:
    return f"rank {failure.rank} on {failure.host}"


def _blame_early_end(cause: Cause) -> Blame:
    """Rule 4."""
    from holdfast.core.policy import kinds

    first = cause.first
    if len(first.ended_before) > len(cause.everybody):
        why = f"{early_ends(first)}, and it went on alone"
        return Blame(kinds.EXTRA_STEP, origin(first), "likely", cut(why))
    end = first.ended_before[0]
    missed = [first, *(one for one in cause.also_failed if _missed_somebody(one))]
    others = ranks_in_words([*missed, *cause.victims])
    why = f"{early_ends(first)}, and {others} waited for it in vain"
    who = f"rank {end.rank}{f' on {end.host}' if end.host else ''}"
    return Blame(kinds.ENDED_EARLY, who, "likely", cut(why))


def _blame_lost_peer(cause: Cause) -> Blame:
    """Rule 2, where all that failed lost a peer."""
    from holdfast.core.policy import kinds

    who = origin(cause.first)
    if _in_no_collective(cause.failed) is cause.first:
        others = ranks_in_words(cause.victims)
        why = f"it was in no collective, in which {others} lost a connection"
        return Blame(kinds.EXCEPTION, who, "likely", cut(why))
    lost = f"all that failed only lost a connection{_to_whom(cause)}"
    why = cut(f"{lost}; it was the first that was seen")
    return Blame(kinds.LOST_PEER, who, "unclear", why)


_PEER = re.compile(r"peer \[?([0-9a-fA-F.:]{2,45}[0-9a-fA-F])\]?(?::\d+)?")


def _to_whom(cause: Cause) -> str:
    """The peer's address, where all that name one name the same."""
    texts = (one.error.message or one.stderr_tail for one in cause.failed)
    named = {found[1] for text in texts for found in _PEER.finditer(text)}
    return f" to {named.pop()}" if len(named) == 1 else ""


def culprit(cause: Cause) -> Failure | None:
    """The failure that the cause names; None if it may be any of several."""
    if lost_a_peer(cause.first) or _missed_somebody(cause.first):
        return None
    if not waited_in_vain(cause.first):
        return cause.first
    from holdfast.core.policy.collectives import absence

    return absence(cause).culprit


def waited_in_vain(failure: Failure) -> bool:
    """Whether it ended because another rank did not enter a collective in time."""
    if not (failure.error.message or failure.stderr_tail):
        return False
    from holdfast.core.policy.kinds import is_timed_out

    return is_timed_out(failure)


def _certainty(cause: Cause) -> tuple[Certainty, str]:
    from holdfast.core.policy import kinds

    first, others = cause.first, cause.also_failed
    if first.ended_for == kinds.HANG:
        return "likely", "all ranks were stalled, and it in another place than the others"
    if first.ended_for == kinds.STALL:
        return "unclear", "all ranks were stalled in the same place, and one had to be ended"
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
        return "certain", f"{ranks_in_words(others)} failed in the same way"
    last = max(one.observed_at for one in others)
    nearest = min(one.observed_at for one in others) - first.observed_at
    several = f"{len(others) + 1} ranks failed within {max(last - first.observed_at, 0.1):.1f} s"
    if nearest < TOGETHER_S and any(one.node != first.node for one in others):
        return "unclear", f"{several}, on several nodes and almost at once: it was seen first"
    return "likely", f"{several}, each in its own way, and it was the first"


def _what_then(cause: Cause) -> str:
    """The fate of the others."""
    parts = []
    if cause.victims:
        parts.append(f"{ranks_in_words(cause.victims)} lost a connection")
    if cause.stopped:
        parts.append(f"{ranks_in_words(cause.stopped)} ran until stopped")
    return f"; {' and '.join(parts)}" if parts else ""


def _likeness(failure: Failure) -> tuple[object, ...]:
    """Equal for failures of the same kind. One that was stopped after it had raised is alike."""
    line = next(iter(failure.error.message.splitlines()), "")
    return (re.sub(r"\d+", "#", line),) if line else (failure.status,)


def ranks_in_words(failures: Iterable[Failure]) -> str:
    ranks = sorted(one.rank for one in failures)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > RANKS_NAMED:
        return f"{len(ranks)} others"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def shortened(text: str, limit: int) -> str:
    """As much as fits, up to the end of a word, and a sign that text was cut."""
    if len(text) <= limit:
        return text
    kept = text[: limit - 1]
    return f"{kept[: kept.rfind(' ', limit // 2)] if ' ' in kept[limit // 2 :] else kept}…"
