"""What an operator wants of the whole job, through `holdfast restart` and `holdfast stop`.

Rules
1. Who asks was let in like a node (`node.visits`): it may do what any node could bring about.
2. A wish that makes no sense now is refused, with the reason, before it becomes an event.
3. A restart ends the round at once and is not counted against `--max-restarts`. The next one forms
   by the usual rules.
4. A stop closes the job as if it had been interrupted: workers get SIGTERM and their grace.
"""

from __future__ import annotations

import signal

from holdfast.core.coordinator import ending, judging
from holdfast.core.coordinator.io import CoordinatorEffect, OperatorAsked, OperatorWish
from holdfast.core.coordinator.round import InheritedRound, RunningRound, StopCause
from holdfast.core.coordinator.state import CoordinatorState
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.model import Outcome


def refusal(state: CoordinatorState, wish: OperatorWish) -> str:
    """Why this cannot be done now; empty where it can (rule 2)."""
    if state.outcome is not None:
        return "the job is over"
    if wish == "restart" and not isinstance(state.round, RunningRound | InheritedRound):
        return "no round is running: a restart is under way, or the job waits for nodes"
    return ""


def asked(state: CoordinatorState, event: OperatorAsked, now: float) -> list[CoordinatorEffect]:
    if refusal(state, event.wish):
        return []  # It was true a moment ago.
    if event.wish == "stop":
        status = exit_status.BY_SIGNAL + signal.SIGTERM
        return judging.close(state, Outcome("interrupted", f"{event.by} stopped the job", status))
    assert state.round is not None, "that is refused"
    cause = StopCause("asked", f"{event.by} asked for a restart")
    return ending.end(state, state.round, cause, now)
