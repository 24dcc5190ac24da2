"""What an operator wants of the whole job, through `holdfast restart`, `stop`, `scale` and `save`.

Rules
1. Who asks was let in like a node (`admin.sessions`): it may do what any node could bring about.
2. A wish that makes no sense now is refused, with the reason, before it becomes an event.
3. A restart ends the round once all workers that ask have saved (`core.coordinator.saving`), and
   is not counted against `--max-restarts`. The next one forms by the usual rules. The wish is
   written down, so that whoever takes over meanwhile ends the round, too.
4. A stop closes the job as if it had been interrupted: workers get SIGTERM and their grace.
5. Other limits hold in place of `--nnodes` for every round that is formed from then on, whoever
   forms it: they are written down. A round with more nodes than that ends like that, and the
   surplus stands by; one with fewer than the new minimum goes on, since nothing is won by its end.
   A round that comes to its end is left alone.
6. All can be asked to save while the round goes on (`core.coordinator.saving`), one time after the
   other, and not while somebody leaves: then they save anyway.
"""

from __future__ import annotations

import signal

from holdfast.core.coordinator import ending, judging, saving
from holdfast.core.coordinator.io import (
    CoordinatorEffect,
    Explain,
    OperatorAsked,
    OperatorWish,
)
from holdfast.core.coordinator.round import (
    FormingRound,
    InheritedRound,
    RunningRound,
    StopCause,
)
from holdfast.core.coordinator.state import CoordinatorState
from holdfast.core.policy import rounds
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.document import NodeLimits
from holdfast.core.protocol.model import Outcome


def refusal(state: CoordinatorState, wish: OperatorWish, limits: NodeLimits | None = None) -> str:
    """Why this cannot be done now; empty where it can (rule 2)."""
    if state.outcome is not None:
        return "the job is over"
    if wish == "restart":
        current = state.round
        if not isinstance(current, RunningRound | InheritedRound) or current.course.restart:
            return "no round is running: a restart is under way, or the job waits for nodes"
    if wish == "scale":
        return _unscalable(state, limits)
    return _unsavable(state) if wish == "save" else ""


def _unsavable(state: CoordinatorState) -> str:
    current = state.round
    if not isinstance(current, RunningRound):
        return "no round is running: a restart is under way, or the job waits for nodes"
    if current.saving is not None:
        return f"workers are saving already: {current.saving.reason}"
    if current.leaving or current.course.has_success or state.closing is not None:
        return "the round is coming to its end"
    return ""


def _unscalable(state: CoordinatorState, limits: NodeLimits | None) -> str:
    if limits is None or not 1 <= limits.least <= limits.most:
        return "a job has at least 1 node, and a maximum that is not below its minimum"
    if state.config.max_nodes == 1:
        alone = "this job was started for one node alone, and no other can join it"
        return f"{alone}: start it with --nnodes 1:{max(limits.most, 2)} and an --rdzv-endpoint"
    if state.config.has_fixed_ranks:
        return "the nodes of this job have fixed ranks (--node-rank), so their number is fixed, too"
    if state.closing is not None:
        return "the job is coming to its end: no further round will form"
    return ""


def asked(state: CoordinatorState, event: OperatorAsked, now: float) -> list[CoordinatorEffect]:
    if refusal(state, event.wish, event.limits):
        return []  # It was true a moment ago.
    if event.wish == "stop":
        status = exit_status.BY_SIGNAL + signal.SIGTERM
        return judging.close(state, Outcome("interrupted", f"stopped by {event.by}", status))
    if event.limits is not None:
        return _scale(state, event.limits, now)
    if event.wish == "save":
        assert isinstance(state.round, RunningRound), "that is refused"
        return saving.want(state, state.round, event, now)
    assert isinstance(state.round, RunningRound | InheritedRound), "that is refused"
    state.round.course.restart = event.by
    state.version += 1
    return []  # `forming` sees to it, after every event.


def _scale(state: CoordinatorState, limits: NodeLimits, now: float) -> list[CoordinatorEffect]:
    """Note it; a round that runs with too many nodes is seen to in `forming`, after every event."""
    state.limits = limits
    state.version += 1
    wanted = f"{limits.by} asked for {rounds.between(limits.least, limits.most)}"
    current = state.round
    if isinstance(current, FormingRound) and len(current.seats) > limits.most:
        return [Explain(wanted), *ending.end(state, current, StopCause("asked", wanted), now)]
    is_running = isinstance(current, RunningRound | InheritedRound)
    if is_running and current is not None and len(current.seats) < limits.least:
        wanted += f"; round {current.number} goes on with {len(current.seats)}"
    return [Explain(wanted)]
