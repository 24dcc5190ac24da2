"""How the workers of one node come to save, before their round ends in order or on request.

Rules
1. Only workers that listen are waited for: those that have called `holdfast.draining`, and all
   where `--drain-worker-signal` sends them one. The others are stopped as ever.
2. A worker that says which step it is at waits there until it is told where all save; one that does
   not is told at once, and it is its program's affair to agree with the others.
3. The node says `SaveHeard` when every listener that still runs has heard, and `WorkersSaved` when
   none of them has anything left to save: it said so, or it has ended. Both are said again whenever
   the coordinator asks again, which may be another one.
4. A worker that ends well after it was told to save has left, not finished: that is no success.
   That all of them have is told, too: whoever was to be let out may be gone by then, and its
   coordinator with it. Where the round goes on, it has left all the same, unless it was heard to go
   on.
5. A worker may have saved before, since somebody wanted it: each time has a serial, and what is
   said of an older one is not about this one.

`core.coordinator.saving` has the other half.
"""

from __future__ import annotations

import signal

from holdfast.core.node import (
    DRAIN_MARGIN_S,
    DRAIN_TIMER,
    NodeState,
    Phase,
    SavingHere,
    WorkerLife,
    alive,
    has_left,
    worker_of,
)
from holdfast.core.node_io import (
    HideSaving,
    NodeEffect,
    Report,
    SaveAnswered,
    Say,
    ShowSaving,
    SignalWorkers,
    WakeNode,
)
from holdfast.core.protocol.bounds import NUMBER_MOST
from holdfast.core.protocol.messages import SaveHeard, SaveNow, SaveOver, WorkersSaved
from holdfast.core.protocol.naming import on_itself


def save_now(state: NodeState, message: SaveNow, now: float) -> list[NodeEffect]:
    """Pass it on to the workers, and say what comes of it."""
    if state.phase is not Phase.RUNNING or message.round != state.last_round:
        return []
    until = now + message.within_s
    effects: list[NodeEffect] = []
    saving = state.saving
    is_new = saving is None or saving.number != message.number
    if saving is None or is_new:
        saving = _begin(state, message, until)
    if message.leaves and not saving.leaves:
        saving.leaves = True
        effects += _signal(state)
    if is_new:
        effects += _say(state, message)
    saving.until = until
    saving.step = message.step if saving.step is None else saving.step
    saving.heard_told = saving.saved_told = saving.left_told = False
    effects.append(_shown(saving))
    if state.draining_by is not None:
        # It lives, so it is waited for as long as it waits for others.
        patience_s = max(message.within_s, state.config.timeouts.drain_s) + DRAIN_MARGIN_S
        effects.append(WakeNode(DRAIN_TIMER, patience_s))
    return effects + answers(state)


def _begin(state: NodeState, message: SaveNow, until: float) -> SavingHere:
    """Another time to save: what workers said of an earlier one does not count."""
    state.saves += 1
    state.saving = SavingHere(message.reason, until, message.number, state.saves, leaves=False)
    for worker in state.workers.values():
        worker.waits_at, worker.heard, worker.saved = None, False, False
    return state.saving


def _shown(saving: SavingHere) -> ShowSaving:
    return ShowSaving(saving.until, saving.reason, saving.step, saving.serial, saving.leaves)


def save_over(state: NodeState, message: SaveOver) -> list[NodeEffect]:
    """All have saved, or could not agree where; and the round goes on."""
    if state.phase is not Phase.RUNNING or message.round != state.last_round:
        return []
    if message.saved:
        state.saved = max(state.saved, message.number)
    if state.saving is None or state.saving.number != message.number:
        return []
    state.saving = None
    return [HideSaving()]


def _signal(state: NodeState) -> list[NodeEffect]:
    name, running = state.config.drain_worker_signal, alive(state)
    if name is None or not running:
        return []
    for local_rank in running:
        state.workers[local_rank].signalled = True
    return [SignalWorkers(signal.Signals[name], running, stops=False)]


def _say(state: NodeState, message: SaveNow) -> list[NodeEffect]:
    listeners = len(_listeners(state))
    if not listeners:
        return []
    whom = "1 worker" if listeners == 1 else f"{listeners} workers"
    reason = on_itself(message.reason, message.about, state.name)
    return [Say(f"{reason}; {whom} of this node can save, for up to {message.within_s:.3g} s")]


def answered(state: NodeState, event: SaveAnswered) -> list[NodeEffect]:
    """A worker listens, waits, was told, has saved or goes on."""
    worker = worker_of(state, event.round, event.local_rank)
    if worker is None:
        return []
    is_about_now = state.saving is not None and event.serial == state.saving.serial
    match event.answer:
        case "listens":
            worker.listens = True
            if state.saving is not None:
                state.saving.heard_told = state.saving.saved_told = False
        case "waits":
            if is_about_now and 0 <= event.step <= NUMBER_MOST:
                worker.waits_at = event.step
        case "told":
            worker.told_to_save, worker.heard = True, worker.heard or is_about_now
        case "saved":
            worker.told_to_save = True
            if is_about_now:
                worker.heard = worker.saved = True
        case "goes on":
            worker.told_to_save = False
    return answers(state)


def answers(state: NodeState) -> list[NodeEffect]:
    """What the coordinator is owed, after whatever has happened to a worker (rule 3)."""
    saving = state.saving
    if state.phase is not Phase.RUNNING:
        return []
    if saving is None:
        return [Report(WorkersSaved(state.last_round, left=True))] if has_left(state) else []
    effects: list[NodeEffect] = []
    listeners = _listeners(state)
    unasked = not saving.leaves and _has_unasked(state)
    is_news = not saving.heard_told or saving.unasked_told != unasked
    if is_news and all(_has_heard(saving, one) for one in listeners):
        saving.heard_told, saving.unasked_told = True, unasked
        steps = [one.waits_at for one in listeners if one.waits_at is not None]
        steps += [] if saving.step is None else [saving.step]
        furthest = max(steps, default=None)
        where = (bool(listeners), furthest, saving.number)
        heard = SaveHeard(state.last_round, *where, unasked)
        effects.append(Report(heard))
    left = has_left(state)
    is_news = not saving.saved_told or (left and not saving.left_told)
    if saving.heard_told and is_news and all(one.saved for one in listeners):
        saving.saved_told, saving.left_told = True, left
        effects.append(Report(WorkersSaved(state.last_round, left, saving.number)))
    return effects


def can_save(state: NodeState) -> bool:
    """Whether a worker that runs listens, or is sent the signal that asks for it."""
    listens = any(one.listens and one.status is None for one in state.workers.values())
    return listens or state.config.drain_worker_signal is not None


def _listeners(state: NodeState) -> list[WorkerLife]:
    """Those that still run."""
    workers = state.workers.values()
    return [one for one in workers if one.status is None and (one.listens or one.signalled)]


def _has_unasked(state: NodeState) -> bool:
    """Where the round goes on, those who have never asked are expected, too."""
    return any(one.status is None and not one.listens for one in state.workers.values())


def _has_heard(saving: SavingHere, worker: WorkerLife) -> bool:
    if not worker.listens or worker.heard or saving.step is not None:
        return True
    return worker.waits_at is not None
