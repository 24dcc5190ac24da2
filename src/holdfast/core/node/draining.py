"""How a node is asked to leave, and what a signal to its whole process tree means.

Rules
1. A signal that asks for it (`--drain-signals`) is a drain: the node asks to be let out of its
   round, once. If no worker listens, and the coordinator is out of reach or the job is this node's
   alone, it leaves at once; so it does on any other signal, and on a second one. What is only the
   first one again is said in `core.policy.signals`. Workers that listen may save for as long as
   there is time and the lease lasts.
2. Some schedulers send the signal to every process below the agent as well. A worker that dies of
   that very signal has not failed: its node was asked to leave. Such a round cannot go on, so the
   node then leaves at once.
3. An operator may ask as well (`holdfast drain`). That is the drain of rule 1, with its words.
4. The two may come in any order. So a worker's death of such a signal is held back for a moment,
   and everything that fails here after it; if the node is not asked within it, it was a failure.
"""

from __future__ import annotations

import signal

from msgspec.structs import replace

from holdfast.core.node.io import NodeEffect, Report, Say, WakeNode
from holdfast.core.node.reports import in_brief
from holdfast.core.node.saving import can_save
from holdfast.core.node.state import ASKED_TIMER, DRAIN_TIMER, NodeState, Phase
from holdfast.core.node.stopping import DRAIN_MARGIN_S, asks_to_leave, kill, leave
from holdfast.core.policy.signals import LastSignal, is_repeat
from holdfast.core.protocol.bounds import cut
from holdfast.core.protocol.messages import NodeDraining, WorkersFailed
from holdfast.core.protocol.model import Failure, signal_name

ASKED_TOO_S = 0.5
"""How much later than its worker an agent may be told: both are sent at once, but a busy machine
may not run them so."""


def signalled(state: NodeState, number: int, now: float) -> list[NodeEffect]:
    if is_repeat(number, now, state.last_signal):
        return []
    state.last_signal = LastSignal(number, now)
    if state.interrupted_by is not None or state.phase is Phase.CLOSING:
        if number == signal.SIGINT and not state.killing:
            return [Say("interrupted again: killing the workers at once"), *kill(state)]
        return []
    if _died_of(state, number):
        state.deaths_held = False
        state.draining_by = number
        return leave(state, number)
    if not (asks_to_leave(state, number) and _can_ask(state)):
        return leave(state, number)
    name = signal_name(number)
    return _ask(state, number, (name, f"{name} was sent to its agent"), now)


def asked(state: NodeState, by: str, now: float) -> list[NodeEffect]:
    """Somebody wants this node to leave, and sent no signal (rule 3)."""
    is_leaving = state.draining_by is not None or state.interrupted_by is not None
    if is_leaving or state.phase is Phase.CLOSING:
        return []
    state.leave_asked = f"{by} asked it to leave"
    if not _can_ask(state):
        return leave(state, signal.SIGTERM)
    what = f"{by} asked this node to leave"
    return _ask(state, signal.SIGTERM, (what, state.leave_asked), now)


def _ask(state: NodeState, number: int, words: tuple[str, str], now: float) -> list[NodeEffect]:
    """Ask the coordinator to be let out of the round, now or as soon as it can be reached."""
    what, reason = words
    times = state.config.timeouts
    state.draining_by, state.save_until = number, now + times.save_s
    patience_s = max(times.drain_s, times.save_s if can_save(state) else 0.0) + DRAIN_MARGIN_S
    leaving = "this node leaves the job as soon as the job can do without it"
    if state.lease is None:
        leaving = "the workers save, and the job ends"
    said = Say(f"{what}: {leaving}")
    ask = Report(NodeDraining(cut(reason), times.save_s))
    return [said, ask, WakeNode(DRAIN_TIMER, patience_s)]


def _can_ask(state: NodeState) -> bool:
    """Once, and where workers can save, or somebody can say when it suits."""
    if state.draining_by is not None or state.phase is not Phase.RUNNING:
        return False
    return can_save(state) or (state.lease is not None and state.connected)


# Workers that die of it.


def worker_failed(state: NodeState, failure: Failure) -> list[NodeEffect]:
    """A worker of a round that runs has ended badly: tell it, unless it was only asked to leave."""
    number = failure.status.signal
    if number is not None and number == state.draining_by:
        _excuse(state, number)
        return leave(state, number)
    if _was_sent_by_us(state, failure):
        _excuse(state, number)
        return []
    if state.told_failure or state.deaths_held:
        return []
    may_be_drain = state.draining_by is None and not failure.ended_for
    if number is not None and may_be_drain and asks_to_leave(state, number):
        state.deaths_held = True
        return [WakeNode(ASKED_TIMER, ASKED_TOO_S)]
    return _tell_failures(state)


def not_asked(state: NodeState) -> list[NodeEffect]:
    """The moment is over in which a signal to the whole node would have come here, too."""
    if not state.deaths_held:
        return []
    state.deaths_held = False
    return _tell_failures(state) if state.phase is Phase.RUNNING else []


def _tell_failures(state: NodeState) -> list[NodeEffect]:
    assert state.assignment is not None, "a worker failed of no round"
    state.told_failure = True
    told = in_brief(state, tuple(state.failures.values()))
    return [Report(WorkersFailed(state.assignment.round, told))]


def _died_of(state: NodeState, number: int) -> bool:
    """Whether workers have died of the signal that comes here just now."""
    if not state.deaths_held or not asks_to_leave(state, number):
        return False
    return _excuse(state, number)


def _was_sent_by_us(state: NodeState, failure: Failure) -> bool:
    """Whether it died of the signal that asks for saving: it has no handler for it."""
    name, number = state.config.drain_worker_signal, failure.status.signal
    worker = state.workers.get(failure.local_rank)
    sent = worker is not None and worker.signalled
    return sent and name is not None and number == signal.Signals[name]


def _excuse(state: NodeState, number: int | None) -> bool:
    """Note that whoever died of it was stopped; whether anybody did."""
    died = [rank for rank, one in state.failures.items() if one.status.signal == number]
    for rank in died:
        state.failures[rank] = replace(state.failures[rank], stopped_by_us=True)
    return bool(died)
