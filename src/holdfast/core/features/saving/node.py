"""How the workers of one node save, before their round ends in order or on request.

Rules
1. Only workers that listen are waited for: those that have called `holdfast.draining`, and all
   where `--drain-worker-signal` sends them one. The others are stopped as ever.
2. A worker that reports its step waits there until it is told where all save; one that does
   not is told at once, and its program has to agree with the others.
3. The node sends `SaveHeard` when every listener that still runs has heard, and `WorkersSaved` when
   none of them has anything left to save: it said so, or it has ended. Both are sent again whenever
   the coordinator asks again, which may be another one.
4. A worker that exits well after it was told to save has left, not finished: that is no success.
   The node also reports when all have: the leaving node may be gone by then, and its
   coordinator with it. Where the round goes on, such a worker has left all the same, unless it
   said that it goes on.
5. A worker may have saved before, on request: each save has a serial, and answers to an older
   one do not count for this one.

`core.features.saving.coordinator` has the other half.
"""

from __future__ import annotations

import signal
from typing import Any, ClassVar

from msgspec import Struct, field

from holdfast.core.node import (
    NodeState,
    WorkerHere,
    alive,
    has_left,
    running_round,
    wait_to_leave,
    worker_of,
)
from holdfast.core.node_hooks import Effects, NodeFeature
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
from holdfast.core.protocol.bounds import NUMBER_MOST
from holdfast.core.protocol.messages import (
    SaveHeard,
    SaveNow,
    SaveOver,
    SavingReport,
    ToNode,
    WorkersSaved,
)
from holdfast.core.protocol.model import Failure
from holdfast.core.protocol.naming import on_itself


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

    def round_started(self, state: NodeState) -> Effects:
        self.now, self.saved = None, 0
        self.workers = {local_rank: WorkerSaving() for local_rank in state.workers}
        return []

    def take(self, state: NodeState, event: NodeEvent | ToNode, now: float) -> Effects:
        match event:
            case SaveNow():
                return self._save_now(state, event, now)
            case SaveOver():
                return self._save_over(state, event)
            case SaveAnswered():
                return self._answered(state, event)
        raise AssertionError(f"not about saving: {event}")

    def worker_exited(self, state: NodeState, worker: WorkerHere) -> Effects:
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

    def _save_now(self, state: NodeState, message: SaveNow, now: float) -> Effects:
        """Tell the workers, and report their answers."""
        if running_round(state, message.round) is None:
            return []
        until = now + message.within_s
        effects: Effects = []
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

    def _save_over(self, state: NodeState, message: SaveOver) -> Effects:
        """All have saved, or could not agree on a step; and the round goes on."""
        if running_round(state, message.round) is None:
            return []
        if message.saved:
            self.saved = max(self.saved, message.number)
        if self.now is None or self.now.number != message.number:
            return []
        self.now = None
        return [HideSaving()]

    def _signal(self, state: NodeState) -> Effects:
        name, running = state.config.drain_worker_signal, alive(state)
        if name is None or not running:
            return []
        for local_rank in running:
            self.workers[local_rank].signalled = state.workers[local_rank].was_asked = True
        return [SignalWorkers(signal.Signals[name], running, stops=False)]

    def _say(self, state: NodeState, message: SaveNow) -> Effects:
        listeners = len(self._listeners(state))
        if not listeners:
            return []
        reason = on_itself(message.reason, message.about, state.name)
        return [Say(sentences.can_save(reason, listeners, message.within_s))]

    def _answered(self, state: NodeState, event: SaveAnswered) -> Effects:
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

    def _reports(self, state: NodeState) -> Effects:
        """The reports owed to the coordinator, after any change of a worker (rule 3)."""
        saving, number = self.now, state.last_round
        if running_round(state, number) is None:
            return []
        left = has_left(state)
        if saving is None:
            return [Report(WorkersSaved(number, left=True))] if left else []
        effects: Effects = []
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
