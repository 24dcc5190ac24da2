"""How the workers of one node come to save, when somebody has to leave their round.

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
   coordinator with it.

`core.coordinator.saving` has the other half.
"""

from __future__ import annotations

import signal

from holdfast.core.node.io import (
    AgentEffect,
    Report,
    SaveAnswered,
    Say,
    ShowSaving,
    SignalWorkers,
    WakeAgent,
)
from holdfast.core.node.state import (
    DRAIN_TIMER,
    AgentState,
    Phase,
    SavingHere,
    WorkerLife,
    alive,
    has_left,
    worker_of,
)
from holdfast.core.node.stopping import DRAIN_MARGIN_S
from holdfast.core.protocol.bounds import NUMBER_MOST
from holdfast.core.protocol.messages import SaveHeard, SaveNow, WorkersSaved
from holdfast.core.protocol.naming import on_itself


def save_now(state: AgentState, message: SaveNow, now: float) -> list[AgentEffect]:
    """Pass it on to the workers, and say what comes of it."""
    if state.phase is not Phase.RUNNING or message.round != state.last_round:
        return []
    until = now + message.within_s
    effects: list[AgentEffect] = []
    if state.saving is None:
        state.saving = SavingHere(message.reason, until)
        effects += _signal(state) + _say(state, message)
    saving = state.saving
    saving.until = min(saving.until, until)
    saving.step = message.step if saving.step is None else saving.step
    saving.heard_told = saving.saved_told = saving.left_told = False
    effects.append(ShowSaving(saving.until, saving.reason, saving.step))
    if state.draining_by is not None:
        # It lives, so it is waited for as long as it waits for others.
        patience_s = max(message.within_s, state.config.timeouts.drain_s) + DRAIN_MARGIN_S
        effects.append(WakeAgent(DRAIN_TIMER, patience_s))
    return effects + answers(state)


def _signal(state: AgentState) -> list[AgentEffect]:
    name, running = state.config.drain_worker_signal, alive(state)
    if name is None or not running:
        return []
    for local_rank in running:
        state.workers[local_rank].signalled = True
    return [SignalWorkers(signal.Signals[name], running, stops=False)]


def _say(state: AgentState, message: SaveNow) -> list[AgentEffect]:
    listeners = len(_listeners(state))
    if not listeners:
        return []
    whom = "1 worker" if listeners == 1 else f"{listeners} workers"
    reason = on_itself(message.reason, message.about, state.name)
    return [Say(f"{reason}; {whom} of this node can save, for up to {message.within_s:.3g} s")]


def answered(state: AgentState, event: SaveAnswered) -> list[AgentEffect]:
    """A worker listens, waits, was told or has saved."""
    worker = worker_of(state, event.round, event.local_rank)
    if worker is None:
        return []
    match event.answer:
        case "listens":
            worker.listens = True
            if state.saving is not None:
                state.saving.heard_told = state.saving.saved_told = False
        case "waits":
            if 0 <= event.step <= NUMBER_MOST:
                worker.waits_at = event.step
        case "told":
            worker.told_to_save = True
        case "saved":
            worker.told_to_save = worker.saved = True
    return answers(state)


def answers(state: AgentState) -> list[AgentEffect]:
    """What the coordinator is owed, after whatever has happened to a worker (rule 3)."""
    saving = state.saving
    if saving is None or state.phase is not Phase.RUNNING:
        return []
    effects: list[AgentEffect] = []
    listeners = _listeners(state)
    if not saving.heard_told and all(_has_heard(saving, one) for one in listeners):
        saving.heard_told = True
        steps = [one.waits_at for one in listeners if one.waits_at is not None]
        steps += [] if saving.step is None else [saving.step]
        heard = SaveHeard(state.last_round, bool(listeners), max(steps, default=None))
        effects.append(Report(heard))
    left = has_left(state)
    is_news = not saving.saved_told or (left and not saving.left_told)
    if saving.heard_told and is_news and all(one.saved for one in listeners):
        saving.saved_told, saving.left_told = True, left
        effects.append(Report(WorkersSaved(state.last_round, left)))
    return effects


def _listeners(state: AgentState) -> list[WorkerLife]:
    """Those that still run."""
    workers = state.workers.values()
    return [one for one in workers if one.status is None and (one.listens or one.signalled)]


def _has_heard(saving: SavingHere, worker: WorkerLife) -> bool:
    if not worker.listens or worker.told_to_save or saving.step is not None:
        return True
    return worker.waits_at is not None
