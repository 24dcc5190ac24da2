"""When a round forms, and with whom.

Rules, in this order
1. A closed job forms nothing.
2. No round forms while a member of the previous one is not back: every process of the
   old round must be reaped before one of the new round starts.
3. After a failure the restart policy may ask for a pause; nothing forms before it is over.
4. As many candidates as the job may have: form at once.
5. Fewer than it needs: wait, and say for how many more.
6. Between the two: the first round waits for latecomers (`last_call`), a later one does not.

`decide` returns what to do *and the reason*, so that every wait can be explained.
"""

from __future__ import annotations

from msgspec import Struct


class View(Struct, frozen=True):
    """What the decision rests on."""

    candidates: tuple[str, ...]
    """Nodes with no process of an old round left, in the order they are to be ranked."""
    minimum: int
    maximum: int
    closed: str = ""
    """The outcome in words, when the job has closed."""
    not_back: tuple[str, ...] = ()
    """Members of the last round that still have processes."""
    first_round: bool = True
    enough_since: float | None = None
    """When the number of candidates reached `minimum`."""
    not_before: float = 0.0
    last_call_s: float = 0.0


class Form(Struct, frozen=True):
    """Form the round with these nodes, in this order."""

    members: tuple[str, ...]


class Wait(Struct, frozen=True):
    """Not yet, and why; look again at `wake_at`, or when something changes."""

    reason: str
    wake_at: float | None = None


class Refuse(Struct, frozen=True):
    """Never, and why."""

    reason: str


def decide(view: View, now: float) -> Form | Wait | Refuse:
    """Apply the rules above to what is known now."""
    if view.closed:
        return Refuse(f"the job is closed: {view.closed}")
    if view.not_back:
        return Wait(f"waiting until {_names(view.not_back)} has stopped its workers")
    if now < view.not_before:
        return Wait(f"pausing {view.not_before - now:.1f} s before the restart", view.not_before)
    present = len(view.candidates)
    if present >= view.maximum:
        return Form(view.candidates[: view.maximum])
    if present < view.minimum:
        missing = view.minimum - present
        return Wait(f"{present} of at least {view.minimum} nodes; waiting for {missing} more")
    if view.first_round:
        closes_at = (now if view.enough_since is None else view.enough_since) + view.last_call_s
        if now < closes_at:
            room = view.maximum - present
            return Wait(f"{present} nodes are enough; last call for up to {room} more", closes_at)
    return Form(view.candidates)


def _names(nodes: tuple[str, ...], shown: int = 3) -> str:
    listed = ", ".join(nodes[:shown])
    return listed if len(nodes) <= shown else f"{listed} and {len(nodes) - shown} more"
