"""All workers of a round save, at one and the same step: before it ends in order, or on request.

Rules
1. A round ends in order when a node has to leave, when there is room for nodes that wait, or when
   somebody wants fewer nodes or a restart. A node that has to leave says how long it can wait; the
   others wait for `--save-timeout`. All members are told at once: workers talk to each other while
   they save, and those of one node alone would wait for the others.
2. Workers that say which step they are at (`holdfast.draining(step)`) wait there. One that asked
   just before the news counts as waiting at the next step: it is on its way there, and may need
   those who wait for it, so nobody waits to hear of it. When every node has said how far its
   furthest is, the furthest of all is the step at which all of them save. Nobody is beyond it; and
   whoever is behind gets there, since nobody waits any longer.
3. A step stays as it was decided. A coordinator that takes over and asks again hears of it from
   those who were told, as the furthest.
4. The wait is over when nobody has anything left to save, or the time of whoever can wait least
   has passed. A failure or a loss ends the round at once.
5. Whoever was to leave may be gone with the coordinator that knew of it, or go with its own work
   done. Members whose workers have saved and ended would then wait for an end that nobody brings:
   where nobody saves or wants to leave any more, the round ends for them
   (`core.coordinator.ending.left_by_workers`).

Nobody waits for a program that does not ask: its nodes answer that nobody listens.

Where the round goes on (`holdfast save`)
6. The round goes on, so nobody may be let go on who is expected: until the step is decided, the
   wait can be given up, for all at once (`SaveOver`); from then on it cannot, and is over when all
   have saved. Where workers say their steps, all of them are expected, also those that have never
   asked yet. A worker waits for one of both, however long, and its node tells whoever takes over
   what it knows.
7. What is given up or over is not begun again by a node that has not heard so.
8. If the round has to end meanwhile, the same save serves for that: workers are not asked twice. If
   it need not end any more (the node that waited for room is gone), the save goes on under rule 6.
9. Each save of a round has a number of its own, also when another coordinator begins it: what is
   said of an earlier one is not about this one.
"""

from __future__ import annotations

from holdfast.core.coordinator.io import CoordinatorEffect, Explain, OperatorAsked, Tell
from holdfast.core.coordinator.round import (
    AnyRound,
    InheritedRound,
    RunningRound,
    SaveEnd,
    SaveResult,
    Saving,
)
from holdfast.core.coordinator.state import CoordinatorState, told_round
from holdfast.core.protocol.bounds import cut
from holdfast.core.protocol.messages import (
    RoundReport,
    SaveHeard,
    SaveNow,
    SaveOver,
    SavingReport,
    WorkersSaved,
)

GoingRound = RunningRound | InheritedRound
EPOCH_BITS = 16
"""A coordinator numbers fewer saves of one round than this many bits can count."""


def begin(
    state: CoordinatorState, current: GoingRound, what: tuple[str, str], until: float, now: float
) -> list[CoordinatorEffect]:
    """Have everybody save before the round ends: until then, or sooner than was said before.

    `what` is the name of a node, if it is about one, and what is with it.
    """
    before = current.saving
    if before is not None and before.leaves and before.until <= until:
        return []
    reason, about = " ".join(filter(None, what)), what[0]
    if before is None:
        number = current.course.saves = _next_number(state, current)
        present = set(_present(current))
        current.saving = before = Saving(reason, until, present, about=about, number=number)
    elif not before.leaves:  # Rule 8.
        before.leaves, before.reason, before.about = True, reason, about
        before.unheard = set(_present(current))  # Told again, they say again where they are.
    before.until = until
    state.looks["save"] = until
    return _tell_all(current, before, now)


def _next_number(state: CoordinatorState, current: GoingRound) -> int:
    """One that no member knows (rule 9), though not all may have reported to this coordinator."""
    known = current.course.saves
    if isinstance(current, InheritedRound):
        known = max(known, state.term.epoch << EPOCH_BITS)
    return known + 1


def want(
    state: CoordinatorState, current: RunningRound, event: OperatorAsked, now: float
) -> list[CoordinatorEffect]:
    """Somebody wants all to save, and the round goes on."""
    number = current.course.saves = _next_number(state, current)
    until = state.looks["save"] = now + event.within_s
    reason, present = f"{event.by} asked all workers to save", set(_present(current))
    current.saving = Saving(reason, until, present, number=number, leaves=False, requested=True)
    return _tell_all(current, current.saving, now)


def call_off(state: CoordinatorState, current: GoingRound, now: float) -> list[CoordinatorEffect]:
    """The round need not end any more, so it goes on after the save (rule 8)."""
    saving = current.saving
    if saving is None or not saving.leaves or current.leaving:
        return []
    saving.leaves = False
    if saving.step is None:
        saving.until = now
    return look(state, now)


def look(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """Where the round goes on: whether the save is over (rule 6)."""
    current = state.round
    if not isinstance(current, RunningRound | InheritedRound):
        return []
    saving = current.saving
    if saving is None or saving.leaves:
        return []
    if _all_have_heard(current, saving) and not saving.unsaved:
        return _conclude(current, saving, "saved" if saving.listened else "nobody looks")
    if now < saving.until or saving.is_late or current.seats.unreported:
        return []
    if saving.step is None:
        return _conclude(current, saving, "given up")
    saving.is_late = True
    nodes = len(saving.unsaved)
    return [Explain(f"{nodes} of {len(current.seats)} nodes have not saved yet; they still may")]


ENDS: dict[SaveResult, str] = {
    "saved": "all workers that ask have saved",
    "nobody looks": "nobody saves: no worker of this job looks at holdfast.draining()",
    "given up": "nobody saves: not all workers asked, or came to a common step, in time",
}


def _conclude(current: GoingRound, saving: Saving, result: SaveResult) -> list[CoordinatorEffect]:
    current.saving = None
    current.course.save = SaveEnd(saving.number, result, saving.step)
    at = f", at step {saving.step}" if saving.step is not None else ""
    over = SaveOver(current.number, saving.number, result == "saved")
    told: list[CoordinatorEffect] = [Tell(node, over) for node in _present(current)]
    return [*told, Explain(ENDS[result] + at)]


def stands(state: CoordinatorState, standing: RoundReport, now: float) -> list[CoordinatorEffect]:
    """A node of the round says what it knows of its saves."""
    current = state.round
    if not isinstance(current, RunningRound | InheritedRound):
        return []
    course, told = current.course, standing.saving
    course.saves = max(course.saves, standing.saved, told.number if told is not None else 0)
    effects: list[CoordinatorEffect] = []
    saving = current.saving
    if saving is not None and saving.number <= standing.saved:
        effects += _known_to_be_over(state, current, saving, now)
    ended = course.save
    if standing.saved and (ended is None or ended.number < standing.saved):
        course.save = ended = SaveEnd(standing.saved, "saved")
    if told is None:
        return effects
    if ended is not None and told.number <= ended.number:
        over = SaveOver(current.number, told.number, ended.result == "saved")
        return [*effects, *(Tell(node, over) for node in _present(current))]
    return effects + _take_up(current, told, now)


def _known_to_be_over(
    state: CoordinatorState, current: GoingRound, saving: Saving, now: float
) -> list[CoordinatorEffect]:
    """An earlier coordinator has told others so; if the round ends, all save once more."""
    if not saving.leaves:
        return _conclude(current, saving, "saved")
    current.saving = None
    reason = saving.reason.removeprefix(saving.about).strip()
    return begin(state, current, (saving.about, reason), saving.until, now)


def _take_up(current: GoingRound, told: SavingReport, now: float) -> list[CoordinatorEffect]:
    """Go on with what an earlier coordinator began, and what it decided."""
    saving, step = current.saving, told.step
    if saving is None:
        saving = Saving(told.reason, now + told.within_s, set(_present(current)))
        saving.number, saving.leaves, saving.requested = told.number, False, True
        saving.furthest = saving.step = step
        current.saving = saving
        return _tell_all(current, saving, now)
    if saving.number == told.number and saving.step is None and step is not None:
        saving.step = saving.furthest = step
        return _tell_all(current, saving, now)
    return []


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
    if message.number != saving.number:
        return []
    saving.unheard.discard(node)
    (saving.unasked.add if message.unasked else saving.unasked.discard)(node)
    if message.listening:
        saving.listened = True
        saving.unsaved.add(node)
    if saving.step is not None:
        return []
    if message.step is not None:
        saving.furthest = max(message.step, saving.furthest or 0)
    if saving.furthest is None or not _all_have_heard(current, saving):
        return []
    if saving.unasked and not saving.leaves:
        return []  # Rule 6: they are about to ask, for the others are in step with them.
    saving.step = saving.furthest
    return _tell_all(current, saving, now)


def saved(state: CoordinatorState, node: str, message: WorkersSaved) -> list[CoordinatorEffect]:
    current = told_round(state, message.round, node)
    if isinstance(current, RunningRound | InheritedRound):
        if current.saving is not None and current.saving.number == message.number:
            current.saving.unsaved.discard(node)
        if message.left:
            current.course.left[node] = None
    return []


def without(current: GoingRound, node: str) -> None:
    """A member is gone, or has left: it is not waited for."""
    if current.saving is not None:
        current.saving.unheard.discard(node)
        current.saving.unasked.discard(node)
        current.saving.unsaved.discard(node)


def is_over(current: GoingRound, now: float) -> bool:
    """Whether nothing is left to wait for (rule 4)."""
    saving = current.saving
    if saving is None or now >= saving.until:
        return True
    return _all_have_heard(current, saving) and not saving.unsaved


def holds_up(current: GoingRound, now: float) -> bool:
    """Whether those that have saved and ended still wait for others (rule 5)."""
    saving = current.saving
    if saving is None:
        return False
    goes_on = saving.requested and not saving.leaves
    return goes_on or not is_over(current, now)


def _all_have_heard(current: GoingRound, saving: Saving) -> bool:
    """Members whom a new coordinator has not met yet have not."""
    return not saving.unheard and not current.seats.unreported


def _tell_all(current: GoingRound, saving: Saving, now: float) -> list[CoordinatorEffect]:
    word = _save_now(current, saving, now)
    return [Tell(node, word) for node in _present(current)]


def _save_now(current: GoingRound, saving: Saving, now: float) -> SaveNow:
    left_s = max(saving.until - now, 0.0)
    what = (cut(saving.reason), left_s, saving.step, saving.about)
    return SaveNow(current.number, *what, saving.number, saving.leaves)


def _present(current: GoingRound) -> list[str]:
    """The members that are known and still there."""
    return [node for node in current.seats.nodes() if node not in current.gone]
