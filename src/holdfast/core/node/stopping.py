"""How a node stops what runs, and how its own life ends.

Rules
1. Stopping is always the same: the signal, the grace, then SIGKILL to everything below the
   spawner; it is over when nothing is left.
2. Every wait has a timer. What does not die, or does not answer, is named and left behind.
3. Every way to the end has an outcome, and ends in exactly one `Finish`.
"""

from __future__ import annotations

import signal
from typing import Literal

from msgspec.structs import replace

from holdfast.core.node import warming as agent_warming
from holdfast.core.node.io import (
    EndSpawner,
    Finish,
    KillEverything,
    KillSpawner,
    ListStuck,
    NodeEffect,
    Report,
    Say,
    SignalWorkers,
    WakeNode,
)
from holdfast.core.node.reports import in_full
from holdfast.core.node.state import (
    GRACE_TIMER,
    UNKILLABLE_TIMER,
    NodeState,
    Phase,
    alive,
    has_succeeded,
)
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.bounds import cut
from holdfast.core.protocol.messages import ClosingWanted, NodeDraining, NodeLeft
from holdfast.core.protocol.model import Blame, Outcome, signal_name

DRAIN_MARGIN_S = 2.0
"""How much longer than the coordinator's patience a node waits to be let out."""


def stop_workers(state: NodeState, with_signal: int) -> list[NodeEffect]:
    state.stopped_by_us, state.locating = True, False
    running = alive(state)
    if not running:
        return kill(state)
    grace = WakeNode(GRACE_TIMER, state.config.timeouts.shutdown_s)
    return [SignalWorkers(with_signal, running), grace]


def kill(state: NodeState) -> list[NodeEffect]:
    """The grace is over, or nobody is left to need it: nothing below us survives this."""
    if state.killing:
        return []
    state.killing = True
    state.unanswered = 0
    wait = WakeNode(UNKILLABLE_TIMER, state.config.timeouts.unkillable_s)
    is_closing = state.phase is Phase.CLOSING
    return [EndSpawner() if is_closing else KillEverything(state.last_round), wait]


def not_gone(state: NodeState) -> list[NodeEffect]:
    """Ask what is still there; a spawner that does not answer is killed; then go on without."""
    state.unanswered += 1
    again = WakeNode(UNKILLABLE_TIMER, state.config.timeouts.unkillable_s)
    if state.unanswered == 1:
        return [ListStuck(), again]
    if state.unanswered == 2:
        return [
            Say("the spawner, the parent of all workers here, does not answer: killing it"),
            KillSpawner(),
            again,
        ]
    return stuck(state, ("the spawner",))


def stuck(
    state: NodeState, processes: tuple[str, ...], forbidden: tuple[str, ...] = ()
) -> list[NodeEffect]:
    """SIGKILL was sent, so they execute nothing more; but what they hold is not free.

    Those that are `forbidden` to us may well go on.
    """
    if not state.killing or state.given_up:
        return []
    said = _left_behind(processes, forbidden)
    if state.phase is Phase.CLOSING:
        return [*said, *finish(state)]
    state.phase = Phase.CLOSING
    state.given_up = True
    named = ", ".join((*processes, *forbidden)) or "a process"
    reason = f"{named} on {state.name} cannot be killed, so what it holds cannot be reused"
    from holdfast.core.policy.kinds import FORBIDDEN, STUCK

    kind = FORBIDDEN if forbidden else STUCK
    failures = in_full(state, state.failures.values())
    left = Report(NodeLeft(cut(reason), failures=failures, kind=kind))
    if state.lease is None:
        return [*said, left]
    # The others go on; nobody will tell us of an end that is ours alone.
    found = Blame(kind, state.name, "certain", cut(reason))
    state.outcome = Outcome("failed", reason, 1, blame=found)
    return [*said, left, *finish(state)]


def _left_behind(processes: tuple[str, ...], forbidden: tuple[str, ...]) -> list[NodeEffect]:
    """Name what outlives us."""
    said: list[NodeEffect] = []
    if processes or not forbidden:
        named = ", ".join(processes) or "a process"
        words = "did not die from SIGKILL (stuck in the kernel?)"
        said.append(Say(f"{named} {words}; going on without it"))
    if forbidden:
        words = "belongs to another user: it could not be ended, and may still run"
        said.append(Say(f"{', '.join(forbidden)} {words}; going on without it"))
    return said


# Ending.


def close(state: NodeState, outcome: Outcome) -> list[NodeEffect]:
    if state.outcome is None:
        state.outcome = outcome
    if state.phase is Phase.CLOSING:
        return finish(state) if state.given_up else []
    state.phase = Phase.CLOSING
    if alive(state):
        return stop_workers(state, signal.SIGTERM)
    return kill(state)


def leave_unfit(state: NodeState) -> list[NodeEffect]:
    """The node did not pass its check: it goes, and the coordinator, if it was reached, is told.

    A job that can do without it goes on; where it cannot, whoever placed this node should know.
    """
    reason = f"{state.name} stays out: {state.unfit}"
    elastic = state.config.min_nodes < state.config.max_nodes
    asked: Literal["", "node"] = "node" if elastic else ""
    return close(state, Outcome("failed", reason, exit_status.UNFIT, asked=asked))


def closing_asked(state: NodeState, outcome: Outcome) -> list[NodeEffect]:
    """Pass it on; until the job is over it is told again on every new connection."""
    if state.closing is not None or state.phase is Phase.CLOSING:
        return []
    state.closing = replace(outcome, reason=cut(outcome.reason))
    return [Report(ClosingWanted(state.closing))]


def released(state: NodeState) -> list[NodeEffect]:
    """Go, and let the others go on; whoever carries the coordinator stays until all are done."""
    if state.phase is Phase.CLOSING:
        return []
    if not has_succeeded(state):
        return leave(state, signal.SIGINT, "it takes no further part")
    return [] if state.hosting else depart(state)


def depart(state: NodeState) -> list[NodeEffect]:
    """The node's part is done, whatever becomes of the others."""
    state.outcome = Outcome("succeeded", f"all workers on {state.name} succeeded", 0)
    return finish(state)


def leave(state: NodeState, number: int, why: str = "") -> list[NodeEffect]:
    """Pass the signal on, give the workers their grace, and go; `why` if none was received."""
    state.interrupted_by = number
    why = why or state.leave_asked
    sent = f"{signal_name(number)} was sent to"
    reason = f"{state.name}: {why}" if why else f"{sent} the agent on {state.name}"
    status = exit_status.BY_SIGNAL + number
    asked = _who_was_asked(state, number)
    state.outcome = Outcome("interrupted", reason, status, asked=asked)
    said: list[NodeEffect] = [Say(f"{reason}{_passed_on(state, number)}")]
    if number == signal.SIGINT and not why:
        said += _others_wait(state)
    already_stopping = state.phase is Phase.STOPPING
    state.phase = Phase.CLOSING
    if state.lease is not None and not state.let_out:
        said.append(Report(NodeDraining(cut(why) or f"{sent} its agent", at_once=True)))
    if already_stopping and state.killing:
        return [*said, EndSpawner()]
    return said + stop_workers(state, number)


def asks_to_leave(state: NodeState, number: int) -> bool:
    """Whether this signal is one by which a node is asked to leave."""
    return signal_name(number) in state.config.drain_signals


def note_job_continues(state: NodeState, goes_on: bool) -> None:
    """Others stay when this node goes, or all of them have to. It may be on its way already.

    Told to a node that has not asked, it is about the leaving of another, and this node is one of
    those who stay: asked to leave a moment later, it cannot say that anybody does.
    """
    has_asked = state.draining_by is not None or state.interrupted_by is not None
    state.goes_on = goes_on and has_asked
    if state.outcome is not None and state.outcome.asked and state.interrupted_by is not None:
        asked = _who_was_asked(state, state.interrupted_by)
        state.outcome = replace(state.outcome, asked=asked)


def _who_was_asked(state: NodeState, number: int) -> Literal["", "node", "job"]:
    if not asks_to_leave(state, number):
        return ""
    return "node" if state.goes_on else "job"


def _passed_on(state: NodeState, number: int) -> str:
    running = alive(state)
    if not running:
        return ""
    workers = "1 worker" if len(running) == 1 else f"{len(running)} workers"
    grace = f"{state.config.timeouts.shutdown_s:g} s"
    again = "; Ctrl-C again ends at once" if number == signal.SIGINT else ""
    return f"; passing it on to {workers}, {grace} of grace{again}"


def _others_wait(state: NodeState) -> list[NodeEffect]:
    """Who ends one node of a job that needs all of its nodes may believe to have ended the job."""
    others = state.assignment.group_size - 1 if state.assignment is not None else 0
    is_member = state.lease is not None and state.phase is Phase.RUNNING
    if not is_member or not 0 < others < state.config.min_nodes:
        return []
    nodes = "the other node waits" if others == 1 else f"the other {others} nodes wait"
    limit = f"{state.config.timeouts.join_s:g} s (--join-timeout)"
    there = "there" if others == 1 else "on each of them"
    return [
        Say(f"{nodes} up to {limit} for another node in place of this one; Ctrl-C {there} ends it")
    ]


def launcher_lost(state: NodeState) -> list[NodeEffect]:
    """Nobody waits for the results any more: no grace, the end."""
    if state.outcome is None:
        state.outcome = Outcome("interrupted", "the process that launched the job is gone", 1)
    state.phase = Phase.CLOSING
    state.killing = False
    return kill(state)


def spawner_lost(state: NodeState, reason: str, left: tuple[str, ...] = ()) -> list[NodeEffect]:
    if state.outcome is None:
        text = f"the spawner on {state.name} {reason}; its workers were killed with it"
        if left:
            text += f", but {', '.join(left)} could not be ended"
        from holdfast.core.policy.kinds import SPAWNER_ENDED

        found = Blame(SPAWNER_ENDED, state.name, "certain", cut(text))
        state.outcome = Outcome("failed", text, 1, blame=found)
    return finish(state)


def finish(state: NodeState) -> list[NodeEffect]:
    """The last effect of every life. Every way here has an outcome."""
    assert state.outcome is not None, "an agent finished without an outcome"
    state.phase = Phase.FINISHED
    effects = agent_warming.untold(state)
    if state.interrupted_by is not None or (state.lease is not None and not state.given_up):
        kind = state.outcome.blame.kind if state.outcome.blame is not None else ""
        reason, out = cut(state.unfit or state.outcome.reason), bool(state.unfit)
        left = NodeLeft(reason, signal=state.interrupted_by, kind=kind, unfit=out)
        effects.append(Report(left))
    return [*effects, Finish(state.outcome)]
