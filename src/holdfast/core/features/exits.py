"""Workers that have not exited while others finished well.

Rules
1. Once a worker of the round has exited with status 0, the others should exit soon. The node knows
   that of its own; the coordinator tells it when at least half of all nodes have finished. Each of
   these restarts the wait. An exit after a request to save does not count: the worker left.
2. After `Oversight.exit_notice_s` the remaining workers are named, once in a round, with where they
   are: most often a hang at exit, which would otherwise go unnoticed.
3. With `--exit-timeout` they are ended when that is over: SIGTERM, then SIGKILL.
4. A worker whose main thread was past the end of its program then counts as finished, whatever
   ended it: its work was done. Any other has failed.
5. A worker that ends by itself meanwhile keeps its own exit status.
"""

from __future__ import annotations

import signal
from typing import ClassVar

from msgspec import Struct, field

from holdfast.core.coordinator_hooks import CoordinatorFeature
from holdfast.core.coordinator_hooks import Effects as CoordinatorEffects
from holdfast.core.coordinator_io import Tell
from holdfast.core.node import KilledFor, NodeState, WorkerHere, alive, running_round
from holdfast.core.node_hooks import Effects, NodeFeature
from holdfast.core.node_io import (
    LookAtUnexited,
    NodeEvent,
    NodeTimerFired,
    Say,
    SignalWorkers,
    Unexited,
    UnexitedFound,
    WakeNode,
)
from holdfast.core.policy import sentences
from holdfast.core.protocol.messages import ExpectExits, ToNode

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.coordinator import CoordinatorState
    from holdfast.core.rounds import Round

EXIT_TIMER = "exit"


class ExitWait(Struct):
    """The wait of one round for its last workers to exit."""

    named: bool = False
    ending: tuple[int, ...] = ()
    """Local ranks that were sent SIGTERM."""


class Exits(CoordinatorFeature):
    """Tells nodes when half of all nodes have finished well: they should soon.

    A node that misses this, or comes back later, is not told, and does not report.
    """

    def member_succeeded(self, state: CoordinatorState, current: Round) -> CoordinatorEffects:
        seats = current.seats
        if seats.succeeded != (len(seats.by_node) + 1) // 2 or current.stop is not None:
            return []
        left = [node for node in seats.nodes() if not seats.has_succeeded(node)]
        return [Tell(node, ExpectExits(current.number)) for node in left]


class NodeExits(NodeFeature):
    TAKES: ClassVar = (UnexitedFound, ExpectExits, EXIT_TIMER)
    wait: ExitWait = field(default_factory=ExitWait)

    def round_started(self, state: NodeState) -> Effects:
        self.wait = ExitWait()
        return []

    def take(self, state: NodeState, event: NodeEvent | ToNode, now: float) -> Effects:
        match event:
            case ExpectExits():
                return self._expect(state, event.round)
            case NodeTimerFired():
                return self._waited(state)
            case UnexitedFound():
                return self._found(state, event)
        raise AssertionError(f"not about exits: {event}")

    def worker_exited(self, state: NodeState, worker: WorkerHere) -> Effects:
        if worker.status is None or not worker.status.succeeded or worker.was_asked:
            return []
        return self._expect(state, state.last_round)

    def _expect(self, state: NodeState, number: int) -> Effects:
        """Others have finished well: wait for the remaining workers (rule 1)."""
        round, oversight = running_round(state, number), state.config.oversight
        is_over = round is None or round.failures or not alive(state)
        if is_over or state.foreign or self.wait.ending:
            return []
        if not self.wait.named and oversight.exit_notice_s is not None:
            return [WakeNode(EXIT_TIMER, oversight.exit_notice_s)]
        return [] if oversight.exit_s is None else [WakeNode(EXIT_TIMER, oversight.exit_s)]

    def _waited(self, state: NodeState) -> Effects:
        """The time is over: locate the workers, or end what SIGTERM has not."""
        round, running = running_round(state, state.last_round), alive(state)
        if round is None or round.failures or not running:
            return []
        if self.wait.ending:
            left = tuple(rank for rank in self.wait.ending if rank in running)
            return [SignalWorkers(signal.SIGKILL, left)] if left else []
        notices = not self.wait.named and state.config.oversight.exit_notice_s is not None
        return [LookAtUnexited(state.last_round, ends=not notices)]

    def _found(self, state: NodeState, event: UnexitedFound) -> Effects:
        """The workers are located, and their stacks kept (rules 2 to 4)."""
        round, running = running_round(state, event.round), alive(state)
        left = [one for one in event.workers if one.local_rank in running]
        if round is None or round.failures or not left:
            return []
        return self._end(state, event, left) if event.ends else self._name(state, event, left)

    def _name(self, state: NodeState, event: UnexitedFound, left: list[Unexited]) -> Effects:
        self.wait.named, oversight = True, state.config.oversight
        since_s = oversight.exit_notice_s or 0.0
        effects: Effects = [
            Say(sentences.not_exited(_named(state, one), since_s, _where(event, one)))
            for one in left
        ]
        if oversight.exit_s is not None:
            effects.append(WakeNode(EXIT_TIMER, max(0.0, oversight.exit_s - since_s)))
        return effects

    def _end(self, state: NodeState, event: UnexitedFound, left: list[Unexited]) -> Effects:
        self.wait.ending = tuple(one.local_rank for one in left)
        limit_s = state.config.oversight.exit_s or 0.0
        effects: Effects = []
        from holdfast.core.policy.kinds import NO_EXIT

        for one in left:
            worker, where = state.workers[one.local_rank], _where(event, one)
            worker.counts_as_done = one.is_finalizing
            if not one.is_finalizing:
                words = sentences.ended_unexited(limit_s, where)
                worker.killed_for = KilledFor(words, NO_EXIT)
            named = _named(state, one)
            effects.append(Say(sentences.ending_unexited(named, limit_s, where, one.is_finalizing)))
        grace = WakeNode(EXIT_TIMER, state.config.timeouts.shutdown_s)
        return [*effects, SignalWorkers(signal.SIGTERM, self.wait.ending), grace]


def _named(state: NodeState, one: Unexited) -> str:
    worker = state.workers[one.local_rank]
    return f"rank {worker.rank} on {state.name} (pid {worker.pid})"


def _where(event: UnexitedFound, one: Unexited) -> str:
    return sentences.at_exit(one.location, one.is_finalizing) + sentences.its_stack(event.file)
