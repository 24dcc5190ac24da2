"""Workers that have not exited while others finished well.

Rules
1. Once a worker of the round has exited with status 0, the others should exit soon. Which have is
   known of this node's own; that at least half of all nodes have is told by the coordinator.
   With each the time begins anew. An exit after a request to save says nothing: it was to leave.
2. After `Oversight.exit_notice_s` those that are left are told of, once in a round, with where they
   are: a hang at exit, most often, which nobody else would notice.
3. With `--exit-timeout` they are ended when that is over: SIGTERM, then SIGKILL.
4. One whose main thread was past the end of its program when it was looked at counts as finished,
   whatever ended it: it had done its work. Any other, and one of which nobody can tell, has failed.
5. One that ends by itself meanwhile has ended as it says.
"""

from __future__ import annotations

import signal

from holdfast.core.node import (
    EXIT_TIMER,
    ExitWait,
    NodeState,
    Phase,
    WorkerLife,
    alive,
)
from holdfast.core.node_io import (
    LookAtUnexited,
    NodeEffect,
    Say,
    SignalWorkers,
    Unexited,
    UnexitedFound,
    WakeNode,
)


def expect(state: NodeState, round: int) -> list[NodeEffect]:
    """Others have finished well: wait for those that are left (rule 1)."""
    oversight, wait = state.config.oversight, _wait(state)
    is_over = state.phase is not Phase.RUNNING or round != state.last_round or not alive(state)
    if is_over or state.foreign or state.failures or wait.ending:
        return []
    if not wait.told and oversight.exit_notice_s is not None:
        return [WakeNode(EXIT_TIMER, oversight.exit_notice_s)]
    return [] if oversight.exit_s is None else [WakeNode(EXIT_TIMER, oversight.exit_s)]


def exited(state: NodeState, worker: WorkerLife) -> list[NodeEffect]:
    """A worker of this node has ended."""
    was_asked = worker.told_to_save or worker.signalled
    if worker.status is None or not worker.status.succeeded or was_asked:
        return []
    return expect(state, state.last_round)


def waited(state: NodeState) -> list[NodeEffect]:
    """The time is over: find out where they are, or end what SIGTERM has not."""
    wait, running = _wait(state), alive(state)
    if state.phase is not Phase.RUNNING or state.failures or not running:
        return []
    if wait.ending:
        left = tuple(rank for rank in wait.ending if rank in running)
        return [SignalWorkers(signal.SIGKILL, left)] if left else []
    notices = not wait.told and state.config.oversight.exit_notice_s is not None
    return [LookAtUnexited(state.last_round, ends=not notices)]


def found(state: NodeState, event: UnexitedFound) -> list[NodeEffect]:
    """Where they are is known, and kept (rules 2 to 4)."""
    running = alive(state)
    left = [one for one in event.workers if one.local_rank in running]
    is_current = state.phase is Phase.RUNNING and event.round == state.last_round
    if not is_current or state.failures or not left:
        return []
    return _end(state, event, left) if event.ends else _tell(state, event, left)


def _tell(state: NodeState, event: UnexitedFound, left: list[Unexited]) -> list[NodeEffect]:
    wait, oversight = _wait(state), state.config.oversight
    wait.told = True
    since_s, kept = oversight.exit_notice_s or 0.0, _kept(event)
    effects: list[NodeEffect] = []
    for one in left:
        words = f"has not exited, {since_s:.3g} s after others finished{_where(one)}"
        effects.append(Say(f"{_named(state, one)} {words}{kept}"))
    if oversight.exit_s is not None:
        effects.append(WakeNode(EXIT_TIMER, max(0.0, oversight.exit_s - since_s)))
    return effects


def _end(state: NodeState, event: UnexitedFound, left: list[Unexited]) -> list[NodeEffect]:
    wait, limit_s = _wait(state), state.config.oversight.exit_s
    wait.ending = tuple(one.local_rank for one in left)
    late, effects = f"{limit_s:g} s after others finished (--exit-timeout)", list[NodeEffect]()
    from holdfast.core.policy.kinds import NO_EXIT

    for one in left:
        worker = state.workers[one.local_rank]
        worker.is_done = one.is_finalizing
        if not worker.is_done:
            worker.ended_for = f"it had not exited {late}, and was ended{_where(one)}{_kept(event)}"
            worker.ended_kind = NO_EXIT
        counts = "it had finished" if worker.is_done else "it counts as failed"
        words = f"has not exited, {late}{_where(one)}: ending it; {counts}"
        effects.append(Say(f"{_named(state, one)} {words}{_kept(event)}"))
    grace = WakeNode(EXIT_TIMER, state.config.timeouts.shutdown_s)
    return [*effects, SignalWorkers(signal.SIGTERM, wait.ending), grace]


def _wait(state: NodeState) -> ExitWait:
    if state.exit_wait is None:
        state.exit_wait = ExitWait()
    return state.exit_wait


def _named(state: NodeState, one: Unexited) -> str:
    worker = state.workers[one.local_rank]
    return f"rank {worker.rank} on {state.name} (pid {worker.pid})"


def _where(one: Unexited) -> str:
    past = "past the end of its program" if one.is_finalizing else ""
    words = ", ".join(each for each in (past, one.place) if each)
    return f"; it is {words}" if words else ""


def _kept(event: UnexitedFound) -> str:
    return f"; its stack: {event.file}" if event.file else ""
