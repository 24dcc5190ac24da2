"""Operators' commands for the whole job: `holdfast restart`, `stop`, `scale` and `save`.

Rules
1. An operator was admitted like a node (`admin.sessions`): it may do what any node could cause.
2. A command that makes no sense now is refused, with the reason, before it becomes an event.
3. A restart ends the round once all workers that ask have saved (`core.features.saving`), and is
   not counted against `--max-restarts`. The next one forms by the usual rules. The command is
   written down, so that a coordinator that takes over meanwhile ends the round, too.
4. A stop closes the job as if it had been interrupted: workers get SIGTERM and their grace.
5. New limits replace `--nnodes` for every round that is formed from then on, by any coordinator:
   they are written down. A round with more nodes than that ends like that, and the
   surplus stands by; one with fewer than the new minimum goes on, since its end would gain nothing.
   A round that is ending is left alone.
6. All workers can be asked to save while the round goes on (`core.features.saving`), one save after
   the other, and not while a node leaves: then they save anyway.
"""

from __future__ import annotations

import signal

from holdfast.core.coordinator_hooks import CoordinatorFeature
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    CoordinatorEvent,
    Explain,
    OperatorAsked,
    OperatorCommand,
)
from holdfast.core.features import saving
from holdfast.core.policy import sentences
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.document import NodeLimits
from holdfast.core.protocol.model import Outcome
from holdfast.core.rounds import Round, StopCause, end

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.coordinator import CoordinatorState

Effects = list[CoordinatorEffect]


class Commands(CoordinatorFeature):
    """Attaches operators' commands to the coordinator."""

    events = (OperatorAsked,)

    def take(self, state: CoordinatorState, event: CoordinatorEvent, now: float) -> Effects:
        assert isinstance(event, OperatorAsked), "it has no other"
        if refusal(state, event.command, event.limits):
            return []  # It was true a moment ago.
        if event.command == "stop":
            status = exit_status.BY_SIGNAL + signal.SIGTERM
            state.close(Outcome("interrupted", f"stopped by {event.by}", status))
            return []
        if event.limits is not None:
            return _scale(state, event.limits, now)
        current = state.group.round
        assert current is not None, "that is refused"
        if event.command == "save":
            return saving.request(state, current, event, now)
        current.restart = event.by
        return []  # `core.rounds` handles it, after every event.


def refusal(
    state: CoordinatorState, command: OperatorCommand, limits: NodeLimits | None = None
) -> str:
    """The reason why this cannot be done now; empty if it can (rule 2)."""
    if state.outcome is not None:
        return sentences.JOB_OVER
    current = state.group.round
    if command == "scale":
        return _unscalable(state, limits)
    if command == "restart":
        can_end = current is not None and current.is_running and not current.restart
        return "" if can_end else sentences.NO_ROUND
    return _unsavable(state, current) if command == "save" else ""


def _unsavable(state: CoordinatorState, current: Round | None) -> str:
    if current is None or not current.is_whole:
        return sentences.NO_ROUND
    save = saving.save_under_way(current)
    if save is not None:
        return sentences.saving_already(save.reason)
    is_closing = current.leaving or current.has_success or state.group.closing is not None
    return sentences.ROUND_CLOSING if is_closing else ""


def _unscalable(state: CoordinatorState, limits: NodeLimits | None) -> str:
    if limits is None or not 1 <= limits.least <= limits.most:
        return sentences.BAD_LIMITS
    if state.config.max_nodes == 1:
        return sentences.one_node_only(limits.most)
    if state.config.has_fixed_ranks:
        return sentences.FIXED_RANKS
    return sentences.JOB_CLOSING if state.group.closing is not None else ""


def _scale(state: CoordinatorState, limits: NodeLimits, now: float) -> Effects:
    """Note the new limits; `core.rounds` handles a round with too many nodes, after every
    event."""
    state.group.limits = limits
    wanted = sentences.scaled(limits.by, limits.least, limits.most)
    current = state.group.round
    if current is None or current.stop is not None:
        return [Explain(wanted)]
    if not current.announced and len(current.seats) > limits.most:
        return [Explain(wanted), *end(state, current, StopCause("asked", wanted), now)]
    if current.announced and len(current.seats) < limits.least:
        wanted += f"; round {current.number} goes on with {len(current.seats)}"
    return [Explain(wanted)]
