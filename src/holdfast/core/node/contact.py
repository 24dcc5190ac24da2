"""How a node keeps in touch with the coordinator, and what it may do without.

Rules
1. A node obeys only the highest term it has heard of.
2. Its lease counts from when it sent the last heartbeat that was answered; the spawner holds
   the deadline, so that it is kept whether or not the agent is awake.
3. A connection that breaks, or on which nothing is answered, is dialled again, soon at first
   and then less often; workers go on meanwhile, as long as the lease lasts. Every dial ends, by
   reaching somebody, by a loss, or when it has taken too long.
4. On every new connection the node tells all that it stands for, so that nothing that was
   lost with the old one is missed.
5. Without contact for `join_timeout` the node gives up, and names whom it could not reach.

Dialling is spread by a hash of the node's name and the attempt: the core draws no random
numbers, and a thousand nodes that lost the same coordinator do not come back at once.
"""

from __future__ import annotations

import zlib

from holdfast.core.node.io import Dial, HangUp, NodeEffect, Report, Say, SetDeadlines, WakeNode
from holdfast.core.node.reports import in_full
from holdfast.core.node.saving import can_save
from holdfast.core.node.state import (
    HEARTBEAT_TIMER,
    REDIAL_TIMER,
    SEEK_TIMER,
    NodeState,
    Phase,
    alive,
    has_left,
    has_succeeded,
)
from holdfast.core.node.stopping import close, leave, leave_unfit
from holdfast.core.policy import timing
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.bounds import cut
from holdfast.core.protocol.messages import (
    Condition,
    Heartbeat,
    HeartbeatAnswered,
    NodeGreeted,
    RoundReport,
    SavingReport,
    Seen,
    Welcomed,
)
from holdfast.core.protocol.model import NodeInfo, Outcome, Term, signal_name
from holdfast.core.protocol.settings import of_job

REDIAL_FIRST_S = 0.1
REDIAL_MAX_S = 2.0
UNANSWERED = timing.HANGS_UP_AT - 1.5
"""How many heartbeats ago the oldest without an answer was sent; half of one is for timers."""


def reached(state: NodeState, hosting: bool, now: float) -> list[NodeEffect]:
    """Greet, and begin to renew the lease."""
    state.connected, state.hosting, state.dialling = True, hosting, False
    effects: list[NodeEffect] = []
    if state.attempts and state.lease is not None and not hosting:
        effects.append(Say("reached the coordinator"))
    state.without_contact_since, state.attempts = None, 0
    if state.lease is None:
        return [*effects, Report(greeting(state, now))]
    state.lease.forget()  # What was sent on another connection is answered by nobody any more.
    number = state.lease.heartbeat(now)
    again = WakeNode(HEARTBEAT_TIMER, state.config.leases.heartbeat_s)
    return [*effects, Report(greeting(state, now, number)), again]


def lost(state: NodeState, reason: str, permanent: bool, now: float) -> list[NodeEffect]:
    """Dial again in a moment, or give up."""
    if not (state.connected or state.dialling):
        return []  # It is known already, or was never wanted.
    state.connected = state.dialling = False
    if state.phase in (Phase.CLOSING, Phase.FINISHED):
        return []
    in_vain = state.phase is Phase.RUNNING and (permanent or not can_save(state))
    if state.draining_by is not None and in_vain:
        return leave(state, state.draining_by)  # Nobody is there to let us out.
    if state.without_contact_since is None:
        state.without_contact_since = now
    limit_s = state.config.timeouts.join_s
    without_s = now - state.without_contact_since
    if state.unfit and permanent:
        return leave_unfit(state)
    if permanent or without_s >= limit_s:
        tried = "" if permanent else f" for {limit_s:g} s (--join-timeout)"
        why = f"no coordinator could be reached{tried}: {reason}"
        return close(state, Outcome("not_formed", why, exit_status.NOT_FORMED))
    said: list[NodeEffect] = []
    if state.attempts == 0 and not state.unfit:
        again = "reconnecting" if state.term.instance else "trying until it answers"
        if state.term.instance and state.phase is not Phase.RUNNING:
            again += f", for up to {limit_s:g} s (--join-timeout)"
        if has_succeeded(state):
            again = "all workers of this node are done; waiting for that to be recorded"
        said.append(Say(f"no contact with the coordinator: {reason}; {again}"))
    delay_s = min(_redial_delay(state), limit_s - without_s)
    state.attempts += 1
    return [*said, WakeNode(REDIAL_TIMER, delay_s)]


def _redial_delay(state: NodeState) -> float:
    longest_s = min(REDIAL_FIRST_S * 2.0 ** min(state.attempts, 10), REDIAL_MAX_S)
    spread = zlib.crc32(f"{state.node}/{state.attempts}".encode()) / 2**32
    return longest_s * (0.5 + 0.5 * spread)


def dial(state: NodeState) -> list[NodeEffect]:
    """Look for the coordinator, for a while: whoever knows where it is may not answer."""
    state.dialling = True
    if state.config.max_nodes == 1:
        return [Dial()]
    return [Dial(), WakeNode(SEEK_TIMER, state.config.timeouts.seek_s)]


def redial(state: NodeState) -> list[NodeEffect]:
    return [] if state.connected or state.phase is Phase.CLOSING else dial(state)


def sought_in_vain(state: NodeState, now: float) -> list[NodeEffect]:
    return lost(state, "no node is the coordinator yet", False, now) if state.dialling else []


def send_heartbeat(state: NodeState, now: float) -> list[NodeEffect]:
    if state.lease is None:
        return []
    number = state.lease.heartbeat(now)
    again = WakeNode(HEARTBEAT_TIMER, state.config.leases.heartbeat_s)
    return [Report(Heartbeat(number)), again]


def heartbeat_due(state: NodeState, now: float) -> list[NodeEffect]:
    """Send the next one; hang up if nothing has been answered for too long."""
    if not state.connected or state.lease is None:
        return []
    oldest = min(state.lease.sent.values(), default=now)
    if now - oldest < UNANSWERED * state.config.leases.heartbeat_s:
        return send_heartbeat(state, now)
    state.lease.forget()
    return [HangUp(), *lost(state, "it has stopped answering", False, now)]


def answered(state: NodeState, message: HeartbeatAnswered) -> list[NodeEffect]:
    """The lease is renewed: the spawner keeps the new deadline, if there is anything to stop.

    While the round runs there is, even where all workers have succeeded: its store may be here.
    """
    if state.lease is None or not state.lease.answered(message.number):
        return []
    return set_deadlines(state) if state.phase is Phase.RUNNING or alive(state) else []


def set_deadlines(state: NodeState) -> list[NodeEffect]:
    if state.lease is None:
        return []
    return [SetDeadlines(state.lease.stop_at, state.lease.kill_at)]


def heed(state: NodeState, term: Term) -> bool:
    """Whether a word under this term counts. A higher one than ever before is remembered."""
    if term < state.term:
        return False
    if term > state.term:
        state.term = term
    return True


def welcomed(state: NodeState, message: Welcomed) -> list[NodeEffect]:
    state.name = message.name or state.name
    said: list[NodeEffect] = []
    if message.warning and message.warning != state.warned:
        state.warned = message.warning
        said.append(Say(message.warning))
    quiet = state.hosting or state.lease is None or not message.waiting
    return said if quiet else [*said, Say(message.waiting)]


# What a node tells about itself.


def node_info(state: NodeState) -> NodeInfo:
    return NodeInfo(
        node=state.node,
        host=state.host,
        slots=state.config.slots,
        role=state.config.role,
        rank_hint=state.config.node_rank,
        topology=state.config.topology_key,
        name=state.name if state.term.instance else "",
        mark=state.mark,
    )


def greeting(state: NodeState, now: float, heartbeat: int = 0) -> NodeGreeted:
    assignment = state.assignment
    draining, within_s = "", 0.0
    if state.draining_by is not None:
        within_s = max(0.0, state.save_until - now)
        sent = f"{signal_name(state.draining_by)} was sent to its agent"
        draining = cut(state.leave_asked) or sent
    return NodeGreeted(
        node_info(state),
        seen=Seen(state.term, state.last_round, assignment.restart_count if assignment else 0),
        standing=_standing(state, now),
        endpoint=state.endpoint if state.phase is Phase.WAITING else None,
        draining=draining,
        within_s=within_s,
        heartbeat=heartbeat,
        closing=state.closing,
        settings={} if state.lease is None else of_job(state.config),
        ended=state.ended,
    )


def _standing(state: NodeState, now: float) -> RoundReport | None:
    assignment = state.assignment
    if assignment is None:
        return None
    condition: Condition
    if state.phase is Phase.RUNNING:
        condition = "succeeded" if has_succeeded(state) else "running"
        condition = "left" if has_left(state) else condition
        condition = "failed" if state.failures else condition
    else:
        condition = "stopped" if state.phase is Phase.WAITING else "stopping"
    return RoundReport(
        round=assignment.round,
        group_rank=assignment.group_rank,
        group_size=assignment.group_size,
        condition=condition,
        failures=in_full(state, state.failures.values()),
        instance=state.instance,
        saving=_saving(state, now),
        saved=state.saved,
        lease_ended=state.lease_ended,
    )


def _saving(state: NodeState, now: float) -> SavingReport | None:
    """What its workers are to save: whoever takes over goes on with it."""
    saving = state.saving
    if saving is None or state.phase is not Phase.RUNNING:
        return None
    left_s = max(0.0, saving.until - now)
    return SavingReport(saving.number, saving.reason, left_s, saving.step)
