"""How a node gets ready: its zygote, its endpoint, its word to the coordinator.

Rules
1. A node joins, or says that its old round is over, only when it holds an endpoint for the
   next master and knows how its workers will start (`agent_warming`).
2. Whatever happens to a zygote, workers are started: cold, if need be.
"""

from __future__ import annotations

from holdfast.core.node import contact
from holdfast.core.node import warming as warming
from holdfast.core.node.io import (
    DropZygote,
    EndedFound,
    EndpointReserved,
    ImportLeft,
    ImportsLearned,
    KnowEnded,
    LivenessLockTaken,
    ModuleRejected,
    ModulesUnfit,
    NodeEffect,
    NodeEvent,
    NodeStarted,
    Report,
    ReserveEndpoint,
    Say,
    SpawnerReady,
    StartWorkers,
    StoreFailed,
    WakeNode,
    ZygoteLost,
    ZygoteReady,
)
from holdfast.core.node.reports import in_brief
from holdfast.core.node.state import (
    LOCK_TIMER,
    LOCK_WAIT_S,
    PRELOAD_NOTICE_S,
    PRELOAD_NOTICE_TIMER,
    PRELOAD_TIMER,
    UNFIT_TIMER,
    NodeState,
    Phase,
    alive,
)
from holdfast.core.node.stopping import kill
from holdfast.core.protocol.messages import ENDED_TOLD, MembersEnded, NodeJoined, RoundStopped


def prepare(state: NodeState, event: NodeEvent) -> list[NodeEffect]:
    effects: list[NodeEffect] = []
    if state.phase is Phase.CLOSING:
        # Nothing is prepared any more; but who will never be born is not waited for.
        return _forget_unborn(state) if isinstance(event, ZygoteLost) else []
    match event:
        case NodeStarted():
            effects += _started(state, event)
        case SpawnerReady():
            if not event.subreaper:
                missing = "this kernel has no subreaper"
                effects.append(Say(f"{missing}: processes that workers detach may outlive the job"))
        case EndpointReserved():
            state.endpoint = event.endpoint
        case LivenessLockTaken():
            state.lock_pending, state.mark = False, event.mark
        case EndedFound():
            effects += _ended_found(state, event)
        case StoreFailed():
            effects += _store_failed(state, event.reason)
        case ZygoteReady() if state.warm_pending or event.beside:
            effects += warming.came_ready(state, event)
            if state.warm_pending and not event.beside:
                state.warm_pending, state.warm = False, True
                effects += reserve(state)
        case ModuleRejected():
            effects += _module_rejected(state, event)
        case ModulesUnfit():
            warming.unfit(state, event)
            effects += _try_again(state, event.beside)
        case ImportsLearned():
            effects += warming.learned(state, event)
        case ImportLeft():
            effects += warming.import_left(state, event)
        case ZygoteLost(beside=True):
            state.improving = False
        case ZygoteLost():
            effects += zygote_lost(state, event.reason)
    return effects + ready(state)


def _started(state: NodeState, event: NodeStarted) -> list[NodeEffect]:
    state.preload, state.late = event.preload, event.late
    state.avoid, state.under = dict(event.avoid), dict(event.under)
    state.recalled, state.foreign = frozenset(event.avoid), event.foreign
    state.lock_pending = event.notes
    if event.unfit:
        state.unfit, state.warm_pending, state.lock_pending = event.unfit, False, False
        wait = WakeNode(UNFIT_TIMER, state.config.timeouts.seek_s)
        return [Say(f"this node stays out: {event.unfit}"), *contact.dial(state), wait]
    note = [WakeNode(LOCK_TIMER, LOCK_WAIT_S)] if event.notes else []
    if event.cold:
        state.warm_pending = False
        return [*note, *contact.dial(state), *reserve(state)]
    timeout_s = state.config.timeouts.preload_s
    return [
        *note,
        *contact.dial(state),
        warming.start_zygote(state),
        WakeNode(PRELOAD_TIMER, timeout_s),
        WakeNode(PRELOAD_NOTICE_TIMER, PRELOAD_NOTICE_S),
    ]


def _ended_found(state: NodeState, event: EndedFound) -> list[NodeEffect]:
    """Tell who has to know: the coordinator, and whoever may become it."""
    known = {one.node for one in state.ended}
    new = tuple(one for one in event.members if one.node not in known)
    state.ended = (*state.ended, *new)[-ENDED_TOLD:]
    told: list[NodeEffect] = [KnowEnded(event.nodes)]
    return [*told, Report(MembersEnded(new[-ENDED_TOLD:]))] if new and state.connected else told


def lock_late(state: NodeState) -> list[NodeEffect]:
    """The disk does not answer: the node goes without a note."""
    state.lock_pending = False
    return ready(state)


def _module_rejected(state: NodeState, event: ModuleRejected) -> list[NodeEffect]:
    said = warming.rejected(state, event)
    if said is None and event.beside:
        state.improving = False
        return []
    if said is None:
        reason = f"{event.module}: {event.reason}"
        return zygote_lost(state, f"it cannot be left out: {reason}")
    return [*said, *_try_again(state, event.beside)]


def _try_again(state: NodeState, beside: bool) -> list[NodeEffect]:
    """With what is known now, another zygote may do."""
    if beside:
        return warming.failed_beside(state)
    return [warming.start_zygote(state)] if state.warm_pending else []


def zygote_lost(state: NodeState, reason: str) -> list[NodeEffect]:
    if not (state.warm or state.warm_pending):
        return []  # Told twice: a request had crossed the news.
    was_pending = state.warm_pending
    state.warm_pending, state.warm = False, False
    effects: list[NodeEffect] = [DropZygote()]
    if state.draining_by is None:  # Else none will start here, and it got the same signal.
        effects.append(Say(f"workers start cold: {reason}"))
    if was_pending:
        return effects + reserve(state)
    if state.phase is not Phase.RUNNING or state.assignment is None:
        return effects + _forget_unborn(state)
    missing = unborn(state)
    return [*effects, StartWorkers(state.assignment, missing, warm=False)] if missing else effects


def unborn(state: NodeState) -> tuple[int, ...]:
    """Local ranks that were asked for and have no process yet."""
    waiting = (rank for rank in alive(state) if state.workers[rank].pid is None)
    return tuple(waiting)


def _forget_unborn(state: NodeState) -> list[NodeEffect]:
    """The zygote is gone, so they will never be born into the round that is being stopped."""
    missing = unborn(state)
    for local_rank in missing:
        del state.workers[local_rank]
    return kill(state) if missing and not alive(state) else []


def reserve(state: NodeState) -> list[NodeEffect]:
    """Ask for the next round's endpoint; with a store where PyTorch is loaded already."""
    store = (
        state.warm
        and state.has_torch
        and state.config.master_port is None
        and not state.config.worker_store
        and not state.store_failed
    )
    return [ReserveEndpoint(store)]


def _store_failed(state: NodeState, reason: str) -> list[NodeEffect]:
    """A round that uses it fails on its own; in the next one rank 0 serves the store."""
    state.store_failed = True
    return [Say(f"the process that serves the store {reason}; rank 0 will serve the next one")]


def ready(state: NodeState) -> list[NodeEffect]:
    """Join, or say that the old round is over, once nothing is missing any more."""
    if state.endpoint is None or state.warm_pending or state.lock_pending:
        return []
    if state.phase is Phase.PREPARING:
        state.phase = Phase.WAITING
        return [Report(NodeJoined(contact.node_info(state), state.endpoint))]
    if state.phase is Phase.STOPPING and state.assignment is not None and not state.workers:
        state.phase = Phase.WAITING
        failures = in_brief(state, state.failures.values())
        known = (state.assignment.round, failures, state.endpoint)
        return [Report(RoundStopped(*known, lease_ended=state.lease_ended))]
    return []
