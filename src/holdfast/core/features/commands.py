"""Operators' commands for the whole job: `holdfast restart`, `stop`, `scale` and `save`.

Rules
1. An operator was let in like a node (`admin.sessions`): it may do what any node could bring about.
2. A command that makes no sense now is refused, with the reason, before it becomes an event.
3. A restart ends the round once all workers that ask have saved (`core.features.saving`), and is
   not counted against `--max-restarts`. The next one forms by the usual rules. The command is
   written down, so that a coordinator that takes over meanwhile ends the round, too.
4. A stop closes the job as if it had been interrupted: workers get SIGTERM and their grace.
5. Other limits hold in place of `--nnodes` for every round that is formed from then on, by whatever
   coordinator: they are written down. A round with more nodes than that ends like that, and the
   surplus stands by; one with fewer than the new minimum goes on, since nothing is won by its end.
   A round that comes to its end is left alone.
6. All can be asked to save while the round goes on (`core.features.saving`), one time after the
   other, and not while a node leaves: then they save anyway.
"""

from __future__ import annotations

import signal

from holdfast.core.coordinator_hooks import CoordinatorFeature
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    CoordinatorEvent,
    Explain,
    OperatorAsked,
    OperatorWish,
)
from holdfast.core.features.saving import coordinator as saving
from holdfast.core.policy import rounds
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.document import NodeLimits
from holdfast.core.protocol.model import Outcome
from holdfast.core.rounds import StopCause, end

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.coordinator import CoordinatorState

Effects = list[CoordinatorEffect]
NO_ROUND = "no round is running: a restart is under way, or the job waits for nodes"


class Commands(CoordinatorFeature):
    """Attaches operators' commands to the coordinator."""

    events = (OperatorAsked,)

    def take(self, state: CoordinatorState, event: CoordinatorEvent, now: float) -> Effects:
        assert isinstance(event, OperatorAsked), "it has no other"
        return asked(state, event, now)


def refusal(state: CoordinatorState, wish: OperatorWish, limits: NodeLimits | None = None) -> str:
    """Why this cannot be done now; empty where it can (rule 2)."""
    if state.outcome is not None:
        return "the job is over"
    if wish == "restart":
        current = state.group.round
        return NO_ROUND if current is None or not current.is_running or current.restart else ""
    if wish == "scale":
        return _unscalable(state, limits)
    return _unsavable(state) if wish == "save" else ""


def _unsavable(state: CoordinatorState) -> str:
    current = state.group.round
    if current is None or not current.is_whole:
        return NO_ROUND
    save = saving.save_under_way(current)
    if save is not None:
        return f"workers are saving already: {save.reason}"
    if current.leaving or current.has_success or state.group.closing is not None:
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
    if state.group.closing is not None:
        return "the job is coming to its end: no further round will form"
    return ""


def asked(state: CoordinatorState, event: OperatorAsked, now: float) -> Effects:
    if refusal(state, event.wish, event.limits):
        return []  # It was true a moment ago.
    if event.wish == "stop":
        status = exit_status.BY_SIGNAL + signal.SIGTERM
        return state.close(Outcome("interrupted", f"stopped by {event.by}", status))
    if event.limits is not None:
        return _scale(state, event.limits, now)
    current = state.group.round
    assert current is not None, "that is refused"
    if event.wish == "save":
        return saving.request(state, current, event, now)
    current.restart = event.by
    return []  # `core.rounds` sees to it, after every event.


def _scale(state: CoordinatorState, limits: NodeLimits, now: float) -> Effects:
    """Note it; a round that runs with too many nodes is seen to in `core.rounds`, after every
    event."""
    state.group.limits = limits
    wanted = f"{limits.by} asked for {rounds.between(limits.least, limits.most)}"
    current = state.group.round
    if current is None or current.stop is not None:
        return [Explain(wanted)]
    if not current.announced and len(current.seats) > limits.most:
        return [Explain(wanted), *end(state, current, StopCause("asked", wanted), now)]
    if current.announced and len(current.seats) < limits.least:
        wanted += f"; round {current.number} goes on with {len(current.seats)}"
    return [Explain(wanted)]
