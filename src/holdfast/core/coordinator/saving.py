"""Before a node leaves a round, all workers of the round save, at one and the same step.

Rules
1. Whoever has to leave says how long it can wait. All members are told at once, not only the one
   that was asked to leave: workers talk to each other while they save, and those of one node alone
   would wait for the others.
2. Workers that say which step they are at (`holdfast.draining(step)`) wait there. One that asked
   just before the news counts as waiting at the next step: it is on its way there, and may need
   those who wait for it, so nobody waits to hear of it. When every node has said how far its
   furthest is, the furthest of all is the step at which all of them save. Nobody is beyond it; and
   whoever is behind gets there, since nobody waits any longer.
3. A step stays as it was decided. A coordinator that takes over and asks again hears of it from
   those who were told, as the furthest.
4. The wait is over when nobody has anything left to save, or the time of whoever can wait least
   has passed. Whatever else ends a round ends it at once.

5. Whoever was to leave may be gone with the coordinator that knew of it. Members whose workers have
   saved and ended would then wait for an end that nobody brings: where nobody saves or wants to
   leave any more, the round ends for them (`core.coordinator.ending.left_by_workers`).

Nobody waits for a program that does not ask: its nodes answer that nobody listens.
"""

from __future__ import annotations

from holdfast.core.coordinator.io import CoordinatorEffect, Tell
from holdfast.core.coordinator.round import AnyRound, InheritedRound, RunningRound, Saving
from holdfast.core.coordinator.state import CoordinatorState, told_round
from holdfast.core.protocol.bounds import cut
from holdfast.core.protocol.messages import SaveHeard, SaveNow, WorkersSaved

GoingRound = RunningRound | InheritedRound


def begin(
    state: CoordinatorState, current: GoingRound, what: tuple[str, str], until: float, now: float
) -> list[CoordinatorEffect]:
    """Have everybody save until then, or sooner than was said before.

    `what` is the name of a node, and what is with it.
    """
    before = current.saving
    if before is not None and before.until <= until:
        return []
    if before is None:
        present = set(_present(current))
        current.saving = before = Saving(" ".join(what), until, present, about=what[0])
    before.until = until
    state.looks["save"] = until
    return _tell_all(current, before, now)


def tell_again(current: AnyRound | None, node: str, now: float) -> list[CoordinatorEffect]:
    """A member has a new connection: what it was told, or told us, may be lost with the old one."""
    if not isinstance(current, RunningRound | InheritedRound) or current.saving is None:
        return []
    current.saving.unheard.add(node)
    return [Tell(node, _save_now(current, current.saving, now))]


def heard(
    state: CoordinatorState, node: str, message: SaveHeard, now: float
) -> list[CoordinatorEffect]:
    """Once all have said how far they are, say where they save."""
    current = told_round(state, message.round, node)
    if not isinstance(current, RunningRound | InheritedRound) or current.saving is None:
        return []
    saving = current.saving
    saving.unheard.discard(node)
    if message.listening:
        saving.unsaved.add(node)
    if saving.step is not None:
        return []
    if message.step is not None:
        saving.furthest = max(message.step, saving.furthest or 0)
    if saving.furthest is None or not _all_have_heard(current, saving):
        return []
    saving.step = saving.furthest
    return _tell_all(current, saving, now)


def saved(state: CoordinatorState, node: str, message: WorkersSaved) -> list[CoordinatorEffect]:
    current = told_round(state, message.round, node)
    if isinstance(current, RunningRound | InheritedRound):
        if current.saving is not None:
            current.saving.unsaved.discard(node)
        if message.left:
            current.course.left[node] = None
    return []


def without(current: GoingRound, node: str) -> None:
    """A member is gone, or has left: it is not waited for."""
    if current.saving is not None:
        current.saving.unheard.discard(node)
        current.saving.unsaved.discard(node)


def is_over(current: GoingRound, now: float) -> bool:
    """Whether nothing is left to wait for (rule 4)."""
    saving = current.saving
    if saving is None or now >= saving.until:
        return True
    return _all_have_heard(current, saving) and not saving.unsaved


def _all_have_heard(current: GoingRound, saving: Saving) -> bool:
    """Members whom a new coordinator has not met yet have not."""
    return not saving.unheard and not current.seats.unreported


def _tell_all(current: GoingRound, saving: Saving, now: float) -> list[CoordinatorEffect]:
    word = _save_now(current, saving, now)
    return [Tell(node, word) for node in _present(current)]


def _save_now(current: GoingRound, saving: Saving, now: float) -> SaveNow:
    left_s = max(saving.until - now, 0.0)
    return SaveNow(current.number, cut(saving.reason), left_s, saving.step, saving.about)


def _present(current: GoingRound) -> list[str]:
    """The members that are known and still there."""
    return [node for node in current.seats.nodes() if node not in current.gone]
