"""The content of `/metrics`: the present state of this node's machines, and its counters."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable

from holdfast import __version__
from holdfast.core import health
from holdfast.core.coordinator import CoordinatorState
from holdfast.core.membership import Member
from holdfast.core.node import NodeState, Phase, alive
from holdfast.core.policy.worker_progress import WorkerProgress
from holdfast.core.rounds import ENDINGS
from holdfast.engine.coordinating import Coordinating
from holdfast.engine.engine import Engine
from holdfast.observe.exposition import Histogram, Samples, exposition
from holdfast.observe.history import EndedBy, LiveHistory
from holdfast.observe.journal import CoordinatorStep, Step
from holdfast.observe.metrics import LAG_BOUNDS_S, METRICS, job_samples, node_samples

ENDS: tuple[EndedBy, ...] = (*ENDINGS, "hang")
NODE_STATES = ("in_round", "standing_by", "preparing", "leaving", "suspected")


class NodeMetrics:
    """The metrics of one node, and of the coordinator while that is here."""

    def __init__(
        self, engine: Engine, workers: Callable[[], list[WorkerProgress]], live: LiveHistory
    ) -> None:
        self._engine, self._worker_progress, self._live = engine, workers, live
        self.lag = Histogram(LAG_BOUNDS_S)
        self._started = time.time()
        self._decisions = 0

    def take(self, step: Step) -> None:
        """Of the journal, as it happens."""
        if isinstance(step, CoordinatorStep):
            self._decisions += 1

    def page(self) -> str:
        """All of them, as text."""
        state, now = self._engine.state, self._engine.clock.now()
        everywhere = {"run_id": state.config.run_id, "node": state.name}
        samples = node_samples(self._live) | self._node(state, now) | self._workers()
        samples |= _process()
        samples["holdfast_loop_lag_seconds"] = {(): self.lag}
        coordinating = self._engine.link.coordinating
        if coordinating is not None:
            samples |= self._coordinator(coordinating, now)
        return exposition(METRICS, samples, everywhere)

    def _node(self, state: NodeState, now: float) -> Samples:
        current = state.assignment if state.phase is Phase.RUNNING else None
        lease = state.link.lease
        samples: Samples = {
            "holdfast_info": {(__version__, state.config.role): 1},
            "holdfast_start_time_seconds": {(): round(self._started, 3)},
            "holdfast_phase": {(phase.value,): phase is state.phase for phase in Phase},
            "holdfast_ready": {(): health.readiness(state).is_well},
            "holdfast_coordinator_reached": {(): state.link.is_up},
            "holdfast_coordinator_here": {(): self._engine.link.coordinating is not None},
            "holdfast_round": {(): state.last_round},
            "holdfast_round_nodes": {(): current.group_size if current else 0},
            "holdfast_round_ranks": {(): current.world_size if current else 0},
            "holdfast_workers": {(): len(alive(state))},
        }
        if lease is not None and lease.good_from is not None:
            samples["holdfast_heartbeat_age_seconds"] = {(): now - lease.good_from}
            samples["holdfast_lease_remaining_seconds"] = {(): max(0.0, lease.kill_at - now)}
        return samples

    def _workers(self) -> Samples:
        workers = self._worker_progress()
        steps = {(str(one.rank),): one.step for one in workers}
        ages = {(str(one.rank),): one.step_age_s for one in workers}
        paces = {(str(one.rank),): one.steps_a_second for one in workers}
        return {
            "holdfast_worker_step": {rank: n for rank, n in steps.items() if n is not None},
            "holdfast_worker_step_age_seconds": {
                rank: seconds for rank, seconds in ages.items() if seconds is not None
            },
            "holdfast_worker_steps_per_second": {
                rank: pace for rank, pace in paces.items() if pace is not None
            },
        }

    def _coordinator(self, coordinating: Coordinating, now: float) -> Samples:
        state, config = coordinating.state, coordinating.state.config
        counted = Counter(_state_of(member) for member in state.members.values())
        samples: Samples = {
            **job_samples(self._live, now),
            "holdfast_coordinator_nodes": {(name,): counted[name] for name in NODE_STATES},
            "holdfast_coordinator_nodes_min": {(): state.min_nodes},
            "holdfast_coordinator_nodes_max": {(): state.max_nodes},
            "holdfast_coordinator_ranks": {(): _ranks(state)},
            "holdfast_coordinator_rounds_total": {(): state.group.formed},
            "holdfast_coordinator_round_ends_total": {
                (kind,): self._live.history.ends[kind] for kind in ENDS
            },
            "holdfast_coordinator_restarts": {(): state.group.budget.charges},
            "holdfast_coordinator_restarts_max": {(): config.restarts.max_restarts},
            "holdfast_coordinator_messages_total": {(): coordinating.messages},
            "holdfast_coordinator_decisions_total": {(): self._decisions},
        }
        furthest = _furthest_step(state)
        if furthest is not None:
            samples["holdfast_coordinator_step"] = {(): furthest}
        # The node heard of longest ago comes first.
        longest = next(iter(coordinating.liveness.leases.watches.values()), None)
        if longest is not None:
            name = "holdfast_coordinator_heartbeat_age_max_seconds"
            samples[name] = {(): max(0.0, now - longest.heard_at)}
        return samples


def _state_of(member: Member) -> str:
    if member.suspected or member.revoked:
        return "suspected"
    if member.draining:
        return "leaving"
    if member.round:
        return "in_round"
    return "standing_by" if member.ready else "preparing"


def _ranks(state: CoordinatorState) -> int:
    current = state.group.round
    if current is None or not current.is_whole:
        return 0
    members = (state.members.get(node) for node in current.seats.by_node)
    return sum(member.info.slots for member in members if member is not None)


def _furthest_step(state: CoordinatorState) -> int | None:
    before = state.group.budget.furthest_step
    current = state.group.round
    present = current.furthest_step if current is not None else None
    known = [step for step in (before, present) if step is not None]
    return max(known, default=None)


def _process() -> Samples:
    used = os.times()
    with open("/proc/self/statm", "rb", buffering=0) as file:
        pages = int(file.read(64).split()[1])
    return {
        "process_cpu_seconds_total": {(): used.user + used.system},
        "process_resident_memory_bytes": {(): pages * os.sysconf("SC_PAGE_SIZE")},
    }
