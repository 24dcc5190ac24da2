"""A launcher whose agent has its own rendezvous, ranks, loop and restarts.

Like those that let a master of their own hand out the world: the handler's answer is of its own
kind, so `_rendezvous` and `_assign_worker_ranks` are replaced, and `_invoke_run` with them.
"""

import functools
import os
import signal
import sys
import time
from dataclasses import dataclass

import meeting
import torch.distributed.elastic.timer as timer
from torch.distributed.elastic import events, metrics
from torch.distributed.elastic.agent.server.api import (
    DEFAULT_ROLE,
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
    _get_fq_hostname,
    _RoleInstanceInfo,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.metrics import put_metric
from torch.distributed.elastic.metrics.api import prof
from torch.distributed.elastic.multiprocessing import PContext, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousHandler
from torch.distributed.launcher.api import LaunchConfig, _get_entrypoint_name

FAILS_ONCE = "test $TORCHELASTIC_RESTART_COUNT -gt 0 || test $RANK = 0"


class NotInStep(Exception):
    pass


@dataclass
class OwnConfig(LaunchConfig):
    checks_nodes: bool = False
    tee: Std = Std.NONE


class MasterHandler(RendezvousHandler):
    """Learns from a master who is in the world: here, this node with 2 workers and one with 3."""

    def __init__(self, params: RendezvousParameters):
        self.params = params
        self.worlds = [None, {7: 2, 9: 3}, {7: 2}, {7: 2}]

    def get_backend(self):
        return "master"

    def next_rendezvous(self):
        world = self.worlds.pop(0)
        if world is None:
            raise NotInStep
        return meeting.MemoryStore(), world

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def num_nodes_waiting(self):
        return int(len(self.worlds) == 1)  # Somebody comes in the last round but one.

    def get_run_id(self):
        return self.params.run_id

    def shutdown(self):
        print("handler is shut down")
        return True


class OwnAgent(LocalElasticAgent):
    def __init__(self, node, config, spec, start_method="spawn", exit_barrier_timeout=300):
        super().__init__(
            spec=spec, logs_specs=config.logs_specs, exit_barrier_timeout=exit_barrier_timeout
        )
        self._node = node
        self._start_method = start_method
        self._pcontext: PContext | None = None
        self._worker_watchdog: timer.FileTimerServer | None = None
        self._restart_count = 0
        self._remaining_failovers = self._remaining_restarts

    @prof
    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        spec = worker_group.spec
        store, world = spec.rdzv_handler.next_rendezvous()
        self._store = store
        worker_group.workers = self._assign_worker_ranks(self._node, world, spec)
        worker_group.store = store
        worker_group.group_rank = list(world).index(self._node)
        worker_group.group_world_size = len(world)
        worker_group.master_addr, worker_group.master_port = "localhost", 20000
        print("world", world, [worker.global_rank for worker in worker_group.workers])

    @prof
    def _assign_worker_ranks(self, node, world, spec) -> list[Worker]:
        infos = [_RoleInstanceInfo(spec.role, at, n) for at, n in enumerate(world.values())]
        infos.sort(key=functools.cmp_to_key(_RoleInstanceInfo.compare))
        first, last = _RoleInstanceInfo.find_role_boundaries(infos, spec.role)
        own = next(i for i in infos if i.rank == list(world).index(node))
        assert _RoleInstanceInfo.deserialize(own.serialize()).role == own.role
        size = sum(info.local_world_size for info in infos[first : last + 1])
        start = sum(info.local_world_size for info in infos if info.rank < own.rank)
        return [
            Worker(
                local_rank=rank,
                global_rank=start + rank,
                role_rank=start + rank,
                world_size=size,
                role_world_size=size,
            )
            for rank in range(spec.local_world_size)
        ]

    def _initialize_workers(self, worker_group):
        while True:
            try:
                super()._initialize_workers(worker_group)
            except NotInStep:
                print("not in step, once more")
            else:
                return

    @prof
    def _stop_workers(self, worker_group: WorkerGroup, timeout=30) -> None:
        signal.signal(signal.SIGALRM, self._took_too_long)
        signal.alarm(timeout)
        try:
            super()._stop_workers(worker_group)
        finally:
            signal.alarm(0)

    def _took_too_long(self, signum, frame):
        raise TimeoutError

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        spec = self._worker_group.spec
        self._initialize_workers(self._worker_group)
        while True:
            assert self._worker_group.state != WorkerState.INIT
            time.sleep(spec.monitor_interval)
            result: RunResult = self._monitor_workers(self._worker_group)
            self._worker_group.state = result.state
            put_metric(f"workers.{spec.role}.remaining_restarts", self._remaining_failovers)
            if result.state == WorkerState.SUCCEEDED:
                self._exit_barrier()
                return result
            if result.state in {WorkerState.UNHEALTHY, WorkerState.FAILED}:
                failed: dict[int, ProcessFailure] = result.failures
                # The other one may have ended by itself, or been ended for it.
                print("failed", 1 in failed, max(one.exitcode for one in failed.values()))
                if not self._remaining_failovers:
                    self._stop_workers(self._worker_group)
                    self._worker_group.state = WorkerState.FAILED
                    return result
                self._remaining_failovers -= 1
                self._restart_workers(self._worker_group)
            elif self._membership_changed(spec.role, spec.rdzv_handler):
                self._restart_workers(self._worker_group)

    def _restart_workers(self, worker_group: WorkerGroup):
        self._restart_count += 1
        self._remaining_restarts -= 1
        super()._restart_workers(worker_group)

    def _membership_changed(self, role, handler: RendezvousHandler):
        return handler.num_nodes_waiting() > 0


class CheckingAgent(OwnAgent):
    """Runs something short on the node first, twice with one agent, and says how it went."""

    def run(self, role: str = DEFAULT_ROLE) -> bool:
        return all(list(map(self._check, range(2))))

    def _check(self, turn):
        self._initialize_workers(self._worker_group)
        state = WorkerState.HEALTHY
        while state == WorkerState.HEALTHY:
            time.sleep(0.05)
            state = self._monitor_workers(self._worker_group).state
            self._worker_group.state = state
        self._stop_workers(self._worker_group)
        return state == WorkerState.SUCCEEDED


def launch(config, entrypoint, args, kind=OwnAgent):
    parameters = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        **config.rdzv_configs,
    )
    spec = WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=entrypoint,
        args=tuple(args),
        rdzv_handler=MasterHandler(parameters),
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        master_addr=_get_fq_hostname(),
    )
    agent = kind(7, config, spec, config.start_method)
    closes = True
    try:
        metrics.initialize_metrics(metrics.MetricsConfig(config.metrics_cfg))
        result = agent.run()
        events.record(agent.get_event_succeeded())
        if kind is CheckingAgent:
            return result
        if result.is_failed():
            name = _get_entrypoint_name(entrypoint, args)
            raise ChildFailedError(name=name, failures=result.failures)
        return result.return_values
    except SignalException:
        closes = False
        raise
    finally:
        print("restarts", agent._restart_count, agent._worker_group.state.name)
        if closes:
            spec.rdzv_handler.shutdown()


class Noting(metrics.MetricHandler):
    def __init__(self):
        self.seen = set()

    def emit(self, metric_data):
        if "remaining" in metric_data.name or "success" in metric_data.name:
            self.seen.add(metric_data.name)


if __name__ == "__main__":
    noting = Noting()
    metrics.configure(noting, "torchelastic")
    config = OwnConfig(1, 2, 2, run_id="job", role="r", max_restarts=3, monitor_interval=0.05)
    slow = f"if test $TORCHELASTIC_RESTART_COUNT = 1; then exec sleep 60; fi; {FAILS_ONCE}"
    print(launch(config, "sh", ["-c", slow]))
    print(sorted(noting.seen))
    print("checked", launch(config, "sh", ["-c", "exit 0"], CheckingAgent))
    script = os.path.join(sys.argv[1], "fails.sh")
    with open(script, "w", encoding="utf-8") as file:
        file.write("exit 5")
    config = OwnConfig(1, 2, 2, run_id="job", role="r", max_restarts=0, monitor_interval=0.05)
    try:
        launch(config, "sh", [script])
    except ChildFailedError as error:
        print(error.name, error.get_first_failure()[1].exitcode)
