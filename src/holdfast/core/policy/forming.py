"""When a round forms, when a running one makes room for more, and with how many.

Rules for forming, in this order
1. A job that is over forms nothing. The coordinator ensures that: it does not ask.
2. No round forms while a member of the previous one is neither back nor gone: every process
   of the old round must be dead before one of the new round starts, and the seat of a slow
   survivor is its own. The coordinator does not ask before (`core.rounds.advance`).
3. After a failure the restart policy may require a pause; nothing forms before it is over.
4. As many candidates as the job may have: form at once. The surplus stands by.
5. Fewer than it needs: wait, and say for how many more. The wait counts from the moment the
   number fell below the minimum, regardless of arrivals; past `join_timeout` the job fails.
6. Between the two: the first round waits for latecomers (`last_call`), counted from the moment
   there were enough; a later one does not, since no node is missing.

Rules for making room
7. A newcomer at a running round below the maximum ends it, `scale_up_delay` after the first
   newcomer came (so that many who come together cost one restart) or as soon as they fill it,
   never before the round has lasted `min_round`, and never once a member has succeeded.

`decide` returns what to do *and the reason*, so that every wait can be explained.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.policy import sentences
from holdfast.core.policy.config import Timeouts


class View(Struct, frozen=True):
    """The inputs of the decision to form."""

    candidates: int
    """Live nodes that are ready, without a process of an old round."""
    minimum: int
    maximum: int
    timeouts: Timeouts
    first_round: bool = True
    enough_since: float | None = None
    """When the number of candidates reached `minimum`."""
    short_since: float | None = None
    """When it fell below `minimum`, or the job started."""
    not_before: float = 0.0


class Form(Struct, frozen=True):
    """Form the round now."""


class WaitLonger(Struct, frozen=True):
    """Not yet, and why; check again at `wake_at`, or when something changes."""

    reason: str
    wake_at: float | None = None


class Fail(Struct, frozen=True):
    """The job cannot go on, and why."""

    reason: str


def decide(view: View, now: float) -> Form | WaitLonger | Fail:
    """Apply the rules for forming."""
    if now < view.not_before:
        return WaitLonger(sentences.PAUSING, view.not_before)
    if view.candidates >= view.maximum:
        return Form()
    if view.candidates < view.minimum:
        return _too_few(view, now)
    if view.first_round:
        since = now if view.enough_since is None else view.enough_since
        closes_at = since + view.timeouts.last_call_s
        if now < closes_at:
            return WaitLonger(sentences.last_call(view.candidates, view.maximum), closes_at)
    return Form()


def _too_few(view: View, now: float) -> WaitLonger | Fail:
    since = now if view.short_since is None else view.short_since
    fails_at = since + view.timeouts.join_s
    if now >= fails_at:
        return Fail(sentences.too_few_came(view.candidates, view.minimum, view.timeouts.join_s))
    within_s = None if view.first_round else view.timeouts.join_s
    return WaitLonger(sentences.too_few_yet(view.candidates, view.minimum, within_s), fails_at)


def makes_room_at(
    newcomer_since: float, started_at: float, timeouts: Timeouts, *, fills: bool, fruitless: int
) -> float:
    """When a running round ends for newcomers that wait (rule 7).

    They fill it if no other node could be taken in: then there is nothing to wait for.
    `fruitless` rounds before this one ended without progress.
    """
    delay_s = 0.0 if fills else timeouts.scale_up_delay_s
    return max(newcomer_since + delay_s, started_at + min_round_s(timeouts, fruitless))


def min_round_s(timeouts: Timeouts, fruitless: int) -> float:
    """How long a round lasts before newcomers may end it: longer after fruitless ones."""
    return min(timeouts.min_round_s * 2.0 ** min(fruitless, 30), timeouts.min_round_max_s)
