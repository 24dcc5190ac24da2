"""All workers of a round save, at one and the same step: before it ends in order, or on request.

Rules of the coordinator
1. A round ends in order when a node has to leave, when there is room for nodes that wait, or when
   an operator asks for fewer nodes or a restart. A leaving node says how long it can wait; the
   others wait for `--save-timeout`. All members are told at once: workers talk to each other while
   they save, and those of one node alone would wait for the others.
2. Workers that report their step (`holdfast.draining(step)`) wait there. One that asked
   just before the news counts as waiting at the next step: it is on its way there, and may need
   the waiting workers, so none waits to hear of it. When every node has reported its furthest
   step, all save at the furthest of these. No worker is beyond it, and those behind get there,
   since none waits any longer.
3. A step stays as decided. A coordinator that takes over and asks again hears of it from
   the nodes that were told, as the furthest.
4. The wait is over when no worker has anything left to save, or when the node that can wait least
   is out of time. A failure or a loss ends the round at once.
5. The leaving node may be gone with the coordinator that knew of it, or leave with its own work
   done. Members whose workers have saved and ended would then wait for an end that never comes:
   where no node saves or wants to leave any more, the round ends for them (`after_drain`).

Programs that do not ask are not waited for: their nodes answer that no worker listens.

Where the round goes on (`holdfast save`)
6. The round goes on, so no worker may pass that others expect: until the step is decided, the
   wait can be given up, for all at once (`SaveOver`); from then on it cannot, and is over when all
   have saved. Where workers report their steps, all of them are expected, also those that have
   never asked yet. A worker waits for either, however long, and its node reports to a new
   coordinator what it knows.
7. A save that was given up or is over is not begun again by a node that has not heard so.
8. If the round has to end meanwhile, the same save serves for that: workers are not asked twice. If
   it need not end any more (the node that waited for room is gone), the save goes on under rule 6.
9. Each save of a round has a number of its own, also when another coordinator begins it: answers to
   an earlier one do not count for this one.

Rules of a node
10. Only workers that listen are waited for: those that have called `holdfast.draining`, and all
    where `--drain-worker-signal` sends them one. The others are stopped as ever.
11. A worker that reports its step waits there until it is told where all save; one that does
    not is told at once, and its program has to agree with the others.
12. The node sends `SaveHeard` when every listener that still runs has heard, and `WorkersSaved`
    when none of them has anything left to save: it said so, or it has ended. Both are sent again
    whenever the coordinator asks again, which may be another one.
13. A worker that exits well after it was told to save has left, not finished: that is no success.
    The node also reports when all have: the leaving node may be gone by then, and its
    coordinator with it. Where the round goes on, such a worker has left all the same, unless it
    said that it goes on.
14. A worker may have saved before, on request: each save has a serial, and answers to an older
    one do not count for this one.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from msgspec import Struct, field

from holdfast.core.coordinator_hooks import CoordinatorFeature, Effects
from holdfast.core.coordinator_io import Explain, OperatorAsked, Tell
from holdfast.core.node import (
    NodeState,
    WorkerHere,
    alive,
    has_left,
    running_round,
    wait_to_leave,
    worker_of,
)
from holdfast.core.node_hooks import Effects as NodeEffects
from holdfast.core.node_hooks import NodeFeature
from holdfast.core.node_io import (
    HideSaving,
    NodeEvent,
    Report,
    SaveAnswered,
    Say,
    ShowSaving,
    SignalWorkers,
)
from holdfast.core.policy import sentences
from holdfast.core.protocol.bounds import NUMBER_MOST, cut
from holdfast.core.protocol.messages import (
    FromNode,
    RoundReport,
    SaveHeard,
    SaveNow,
    SaveOver,
    SavingReport,
    ToNode,
    WorkersSaved,
)
from holdfast.core.protocol.model import Failure
from holdfast.core.protocol.naming import on_itself

if TYPE_CHECKING:
    from holdfast.core.coordinator import CoordinatorState
    from holdfast.core.rounds import Round

SaveResult = Literal["saved", "nobody looks", "given up"]
EPOCH_BITS = 16
"""A coordinator numbers fewer saves of one round than this many bits can count."""


# The coordinator's part.


class Save(Struct):
    """Workers of a round are to save."""

    reason: str
    until: float
    unheard: set[str]
    """Members that have not passed it on yet."""
    unsaved: set[str] = field(default_factory=set)
    """Members with workers that have something left to save."""
    furthest: int | None = None
    """The furthest step at which any worker waits, if reported."""
    step: int | None = None
    """The step at which all of them save, once decided."""
    about: str = ""
    """The name of the node with which the reason begins."""
    number: int = 0
    """Which save of this round it is."""
    leaves: bool = True
    """The round ends when all have saved."""
    requested: bool = False
    """It was requested by `holdfast save`, as far as is known."""
    listened: bool = False
    """Some workers ask."""
    unasked: set[str] = field(default_factory=set)
    """Members with workers that have never asked."""
    is_late: bool = False
    """The user was told that it takes long."""


class SaveEnd(Struct, frozen=True):
    """The result of a save after which the round went on."""

    number: int
    result: SaveResult
    step: int | None = None


class RoundSaves(Struct):
    """The saves of one round."""

    current: Save | None = None
    count: int = 0
    """The number of the last save."""
    ended: SaveEnd | None = None
    """The result of the last save after which the round went on."""
    left: dict[str, None] = field(default_factory=dict)
    """Members all of whose workers have ended after they were told to save."""


def of_round(current: Round) -> RoundSaves:
    if current.saves is None:
        current.saves = RoundSaves()
    return current.saves


def save_under_way(current: Round) -> Save | None:
    return current.saves.current if current.saves is not None else None


class Saving(CoordinatorFeature):
    """Attaches saving to the coordinator."""

    messages = (SaveHeard, WorkersSaved)

    def heard(self, state: CoordinatorState, node: str, message: FromNode, now: float) -> Effects:
        assert isinstance(message, SaveHeard | WorkersSaved), "it has no other"
        current = state.group.told_round(message.round, node)
        if current is None or not current.is_running:
            return []
        if isinstance(message, WorkersSaved) and message.left:
            of_round(current).left[node] = None
        save = save_under_way(current)
        if save is None or message.number != save.number:
            return []
        if isinstance(message, SaveHeard):
            return _steps_known(current, save, node, message, now)
        save.unsaved.discard(node)
        return []

    def check(self, state: CoordinatorState, now: float) -> Effects:
        """Where the round goes on: whether the save is over (rule 6)."""
        current = state.group.round
        if current is None or not current.is_running:
            return []
        save = save_under_way(current)
        if save is None or save.leaves:
            return []
        if _all_have_heard(current, save) and not save.unsaved:
            return _conclude(current, save, "saved" if save.listened else "nobody looks")
        if now < save.until or save.is_late or current.seats.unreported:
            return []
        if save.step is None:
            return _conclude(current, save, "given up")
        save.is_late = True
        return [Explain(sentences.late_save(len(save.unsaved), len(current.seats)))]

    def reported(
        self, state: CoordinatorState, node: str, report: RoundReport, now: float
    ) -> Effects:
        current = state.group.round
        if current is None:
            return []
        if report.condition == "left":
            of_round(current).left[node] = None
        if not current.is_running:
            return []
        effects = _saves_reported(state, current, report, now)
        save = save_under_way(current)
        if save is not None:
            # Messages on the old connection may be lost in either direction.
            save.unheard.add(node)
            effects.append(Tell(node, _save_now(current, save, now)))
        return effects

    def member_gone(self, current: Round, node: str) -> None:
        save = save_under_way(current)
        if save is not None:
            save.unheard.discard(node)
            save.unasked.discard(node)
            save.unsaved.discard(node)

    def end_coming(
        self,
        state: CoordinatorState,
        current: Round,
        what: tuple[str, str],
        until: float | None,
        now: float,
    ) -> Effects:
        save = save_under_way(current)
        if until is None:
            if save is not None and save.leaves:
                return []
            until = now + state.config.timeouts.save_s
        return begin(state, current, what, until, now)

    def end_not_needed(self, state: CoordinatorState, current: Round, now: float) -> Effects:
        """The round goes on after the save (rule 8)."""
        save = save_under_way(current)
        if save is None or not save.leaves or current.leaving:
            return []
        save.leaves = False
        if save.step is None:
            save.until = now
        return self.check(state, now)

    def may_end(self, current: Round, now: float) -> bool:
        return is_over(current, now)

    def keeps_round(self, current: Round, now: float) -> bool:
        save = save_under_way(current)
        return save is not None and not save.leaves and not is_over(current, now)

    def after_drain(self, state: CoordinatorState, now: float) -> Effects:
        """End a round in which workers have ended to let a node leave that is now gone."""
        current = state.group.round
        if current is None or not current.is_whole or current.leaving or _holds_up(current, now):
            return []
        left = of_round(current).left if current.saves is not None else {}
        node = next((node for node in left if current.seats.is_present(node)), None)
        if node is None:
            return []
        from holdfast.core.rounds import end_for

        return end_for(state, current, "drain", (state.name_of(node), sentences.ALL_LEFT), now)


def begin(
    state: CoordinatorState, current: Round, what: tuple[str, str], until: float, now: float
) -> Effects:
    """Have all workers save before the round ends: until then, or sooner than announced before.

    `what` is the name of a node, if it is about one, and what is with it.
    """
    saves = of_round(current)
    save = saves.current
    if save is not None and save.leaves and save.until <= until:
        return []
    reason, about = " ".join(filter(None, what)), what[0]
    if save is None:
        number = saves.count = _next_number(state, current)
        present = set(current.seats.present())
        saves.current = save = Save(reason, until, present, about=about, number=number)
    elif not save.leaves:  # Rule 8.
        save.leaves, save.reason, save.about = True, reason, about
        save.unheard = set(current.seats.present())  # Told again, they report their steps again.
    save.until = until
    state.deadlines["save"] = until
    return _tell_all(current, save, now)


def _next_number(state: CoordinatorState, current: Round) -> int:
    """A number that no member knows (rule 9), though not all may have reported here."""
    known = of_round(current).count
    if current.missing is not None:
        known = max(known, state.term.epoch << EPOCH_BITS)
    return known + 1


def request(state: CoordinatorState, current: Round, event: OperatorAsked, now: float) -> Effects:
    """Have all workers save, while the round goes on."""
    saves = of_round(current)
    number = saves.count = _next_number(state, current)
    until = state.deadlines["save"] = now + event.within_s
    reason, present = sentences.save_asked(event.by), set(current.seats.present())
    saves.current = Save(reason, until, present, number=number, leaves=False, requested=True)
    return _tell_all(current, saves.current, now)


def _conclude(current: Round, save: Save, result: SaveResult) -> Effects:
    saves = of_round(current)
    saves.current, saves.ended = None, SaveEnd(save.number, result, save.step)
    over = SaveOver(current.number, save.number, result == "saved")
    told: Effects = [Tell(node, over) for node in current.seats.present()]
    return [*told, Explain(sentences.save_over(result, save.step))]


def _saves_reported(
    state: CoordinatorState, current: Round, report: RoundReport, now: float
) -> Effects:
    """A node of the round reports its saves."""
    saves, told = of_round(current), report.saving
    saves.count = max(saves.count, report.saved, told.number if told is not None else 0)
    effects: Effects = []
    save = saves.current
    if save is not None and save.number <= report.saved:
        effects += _known_to_be_over(state, current, save, now)
    ended = saves.ended
    if report.saved and (ended is None or ended.number < report.saved):
        saves.ended = ended = SaveEnd(report.saved, "saved")
    if told is None:
        return effects
    if ended is not None and told.number <= ended.number:
        over = SaveOver(current.number, told.number, ended.result == "saved")
        return [*effects, *(Tell(node, over) for node in current.seats.present())]
    return effects + _take_up(current, told, now)


def _known_to_be_over(state: CoordinatorState, current: Round, save: Save, now: float) -> Effects:
    """An earlier coordinator has told others so; if the round ends, all save once more."""
    if not save.leaves:
        return _conclude(current, save, "saved")
    of_round(current).current = None
    reason = save.reason.removeprefix(save.about).strip()
    return begin(state, current, (save.about, reason), save.until, now)


def _take_up(current: Round, told: SavingReport, now: float) -> Effects:
    """Continue a save of an earlier coordinator, with its decision."""
    save, step = save_under_way(current), told.step
    if save is None:
        save = Save(told.reason, now + told.within_s, set(current.seats.present()))
        save.number, save.leaves, save.requested = told.number, False, True
        save.furthest = save.step = step
        of_round(current).current = save
        return _tell_all(current, save, now)
    if save.number == told.number and save.step is None and step is not None:
        save.step = save.furthest = step
        return _tell_all(current, save, now)
    return []


def _steps_known(current: Round, save: Save, node: str, message: SaveHeard, now: float) -> Effects:
    """Once all have reported their steps, announce the step at which they save."""
    save.unheard.discard(node)
    (save.unasked.add if message.unasked else save.unasked.discard)(node)
    if message.listening:
        save.listened = True
        save.unsaved.add(node)
    if save.step is not None:
        return []
    if message.step is not None:
        save.furthest = max(message.step, save.furthest or 0)
    if save.furthest is None or not _all_have_heard(current, save):
        return []
    if save.unasked and not save.leaves:
        return []  # Rule 6: they are about to ask, for the others are in step with them.
    save.step = save.furthest
    return _tell_all(current, save, now)


def is_over(current: Round, now: float) -> bool:
    """Whether the wait is over (rule 4)."""
    save = save_under_way(current)
    if save is None or now >= save.until:
        return True
    return _all_have_heard(current, save) and not save.unsaved


def _holds_up(current: Round, now: float) -> bool:
    """Whether members that have saved and ended still wait for others (rule 5)."""
    save = save_under_way(current)
    if save is None:
        return False
    goes_on = save.requested and not save.leaves
    return goes_on or not is_over(current, now)


def _all_have_heard(current: Round, save: Save) -> bool:
    """Not for members that a new coordinator has not met yet."""
    return not save.unheard and not current.seats.unreported


def _tell_all(current: Round, save: Save, now: float) -> Effects:
    message = _save_now(current, save, now)
    return [Tell(node, message) for node in current.seats.present()]


def _save_now(current: Round, save: Save, now: float) -> SaveNow:
    left_s = max(save.until - now, 0.0)
    what = (cut(save.reason), left_s, save.step, save.about)
    return SaveNow(current.number, *what, save.number, save.leaves)


# A node's part.


class WorkerSaving(Struct):
    """One worker of the round, and its save."""

    listens: bool = False
    """It asks whether it is to save."""
    waits_at: int | None = None
    """The step at which it waits to be told where all save."""
    told: bool = False
    """It was told to save. Cleared when it goes on."""
    signalled: bool = False
    """It was sent the signal to save."""
    heard: bool = False
    """It knows of the present save."""
    saved: bool = False


class SavingHere(Struct):
    """The present save of this node's workers."""

    reason: str
    until: float
    number: int
    serial: int
    leaves: bool = False
    step: int | None = None
    heard_reported: bool = False
    unasked_reported: bool = False
    saved_reported: bool = False
    left_reported: bool = False


class NodeSaving(NodeFeature):
    TAKES: ClassVar = (SaveNow, SaveOver, SaveAnswered)
    now: SavingHere | None = None
    workers: dict[int, WorkerSaving] = field(default_factory=dict)
    """Of this round, by local rank."""
    saved: int = 0
    """The last save of this round after which it went on."""
    serial: int = 0
    """How many times workers of this node were asked to save."""

    def round_started(self, state: NodeState) -> NodeEffects:
        self.now, self.saved = None, 0
        self.workers = {local_rank: WorkerSaving() for local_rank in state.workers}
        return []

    def take(self, state: NodeState, event: NodeEvent | ToNode, now: float) -> NodeEffects:
        match event:
            case SaveNow():
                return self._save_now(state, event, now)
            case SaveOver():
                return self._save_over(state, event)
            case SaveAnswered():
                return self._answered(state, event)
        raise AssertionError(f"not about saving: {event}")

    def worker_exited(self, state: NodeState, worker: WorkerHere) -> NodeEffects:
        return self._reports(state)

    def in_report(self, state: NodeState, now: float) -> dict[str, Any]:
        """The present save: a coordinator that takes over continues it."""
        saving, report = self.now, None
        if saving is not None and running_round(state, state.last_round) is not None:
            left_s = max(0.0, saving.until - now)
            report = SavingReport(saving.number, saving.reason, left_s, saving.step)
        return {"saving": report, "saved": self.saved}

    def may_leave_now(self, state: NodeState) -> bool:
        """Whether the node may leave at once: no worker listens or gets the signal."""
        listens = any(self.workers[local].listens for local in alive(state))
        return not listens and state.config.drain_worker_signal is None

    def is_excused(self, state: NodeState, failure: Failure) -> bool:
        """It died of the signal to save: it has no handler for it."""
        name, number = state.config.drain_worker_signal, failure.status.signal
        sent = self.workers[failure.local_rank].signalled
        return sent and name is not None and number == signal.Signals[name]

    def _save_now(self, state: NodeState, message: SaveNow, now: float) -> NodeEffects:
        """Tell the workers, and report their answers."""
        if running_round(state, message.round) is None:
            return []
        until = now + message.within_s
        effects: NodeEffects = []
        saving = self.now
        is_new = saving is None or saving.number != message.number
        if saving is None or is_new:
            saving = self._begin(message, until)
        if message.leaves and not saving.leaves:
            saving.leaves = True
            effects += self._signal(state)
        if is_new:
            effects += self._say(state, message)
        saving.until = until
        saving.step = message.step if saving.step is None else saving.step
        saving.heard_reported = saving.saved_reported = saving.left_reported = False
        shown = (saving.until, saving.reason, saving.step, saving.serial, saving.leaves)
        effects.append(ShowSaving(*shown))
        if state.leaving.draining_by is not None:
            # The coordinator lives, so it is waited for as long as it waits for others.
            effects.append(wait_to_leave(state, message.within_s))
        return effects + self._reports(state)

    def _begin(self, message: SaveNow, until: float) -> SavingHere:
        """A new save: workers' answers to an earlier one do not count."""
        self.serial += 1
        self.now = SavingHere(message.reason, until, message.number, self.serial)
        for worker in self.workers.values():
            worker.waits_at, worker.heard, worker.saved = None, False, False
        return self.now

    def _save_over(self, state: NodeState, message: SaveOver) -> NodeEffects:
        """All have saved, or could not agree on a step; and the round goes on."""
        if running_round(state, message.round) is None:
            return []
        if message.saved:
            self.saved = max(self.saved, message.number)
        if self.now is None or self.now.number != message.number:
            return []
        self.now = None
        return [HideSaving()]

    def _signal(self, state: NodeState) -> NodeEffects:
        name, running = state.config.drain_worker_signal, alive(state)
        if name is None or not running:
            return []
        for local_rank in running:
            self.workers[local_rank].signalled = state.workers[local_rank].was_asked = True
        return [SignalWorkers(signal.Signals[name], running, stops=False)]

    def _say(self, state: NodeState, message: SaveNow) -> NodeEffects:
        listeners = len(self._listeners(state))
        if not listeners:
            return []
        reason = on_itself(message.reason, message.about, state.name)
        return [Say(sentences.can_save(reason, listeners, message.within_s))]

    def _answered(self, state: NodeState, event: SaveAnswered) -> NodeEffects:
        """A worker listens, waits, was told, has saved or goes on."""
        here = worker_of(state, event.round, event.local_rank)
        if here is None:
            return []
        worker = self.workers[event.local_rank]
        is_about_now = self.now is not None and event.serial == self.now.serial
        match event.answer:
            case "listens":
                worker.listens = True
                if self.now is not None:
                    self.now.heard_reported = self.now.saved_reported = False
            case "waits":
                if is_about_now and 0 <= event.step <= NUMBER_MOST:
                    worker.waits_at = event.step
            case "told":
                worker.told, worker.heard = True, worker.heard or is_about_now
            case "saved":
                worker.told = True
                if is_about_now:
                    worker.heard = worker.saved = True
            case "goes on":
                worker.told = False
        here.was_asked = worker.told or worker.signalled
        return self._reports(state)

    def _reports(self, state: NodeState) -> NodeEffects:
        """The reports owed to the coordinator, after any change of a worker (rule 12)."""
        saving, number = self.now, state.last_round
        if running_round(state, number) is None:
            return []
        left = has_left(state)
        if saving is None:
            return [Report(WorkersSaved(number, left=True))] if left else []
        effects: NodeEffects = []
        listeners = self._listeners(state)
        # Where the round goes on, those who have never asked are expected, too.
        unasked = any(not self.workers[local].listens for local in alive(state))
        unasked = unasked and not saving.leaves
        is_news = not saving.heard_reported or saving.unasked_reported != unasked
        if is_news and all(_has_heard(saving, one) for one in listeners):
            saving.heard_reported, saving.unasked_reported = True, unasked
            steps = [one.waits_at for one in listeners if one.waits_at is not None]
            steps += [] if saving.step is None else [saving.step]
            furthest = max(steps, default=None)
            heard = (number, bool(listeners), furthest, saving.number, unasked)
            effects.append(Report(SaveHeard(*heard)))
        is_news = not saving.saved_reported or (left and not saving.left_reported)
        if saving.heard_reported and is_news and all(one.saved for one in listeners):
            saving.saved_reported, saving.left_reported = True, left
            effects.append(Report(WorkersSaved(number, left, saving.number)))
        return effects

    def _listeners(self, state: NodeState) -> list[WorkerSaving]:
        """The local ranks that still run."""
        running = [self.workers[local_rank] for local_rank in alive(state)]
        return [one for one in running if one.listens or one.signalled]


def _has_heard(saving: SavingHere, worker: WorkerSaving) -> bool:
    if not worker.listens or worker.heard or saving.step is not None:
        return True
    return worker.waits_at is not None
