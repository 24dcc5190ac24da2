"""A launcher with an agent of its own over `SimpleElasticAgent`, in the place of `c10d`'s.

Like those that watch each rank besides: it builds the workers' variables itself, asks for the
state without ending the healthy ones, and maps the end of the rendezvous to its own errors.
"""

import contextlib
import os
import signal
import tempfile
import time
import uuid
from string import Template
from typing import Any, ClassVar

import meeting
from torch.distributed.elastic import events, metrics, timer
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.events.api import EventMetadataValue
from torch.distributed.elastic.metrics.api import prof, put_metric
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    LogsSpecs,
    PContext,
    SignalException,
    start_processes,
)
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.elastic.rendezvous import (
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous import registry as rdzv_registry
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
)
from torch.distributed.elastic.rendezvous.utils import (
    _matches_machine_hostname,
    _parse_rendezvous_config,
    parse_rendezvous_endpoint,
)
from torch.distributed.elastic.utils import macros


class SpareHandler(meeting.OneNode):
    """Of one that is told, after some rounds, that it is not needed or that all is over."""

    ends_after: ClassVar = {}

    def next_rendezvous(self):
        error = self.ends_after.get(self.rounds)
        if error is not None:
            raise error("so it ends")
        return super().next_rendezvous()


def register():
    del rendezvous_handler_registry._registry["c10d"]
    rendezvous_handler_registry.register("c10d", SpareHandler)


@contextlib.contextmanager
def replaced(target, name, by):
    setattr(target, name, by)
    try:
        yield
    finally:
        delattr(target, name)


class WatchingAgent(SimpleElasticAgent):
    def __init__(self, spec: WorkerSpec, logs_specs: LogsSpecs, template=None):
        super().__init__(spec, 300)
        self._start_method = "spawn"
        self._pcontext: PContext | None = None
        self._rdzv_handler = spec.rdzv_handler
        self._log_line_prefix_template = template
        self._worker_watchdog: timer.FileTimerServer | None = None
        self._logs_specs = logs_specs

    DEFAULT_ROLE = "default"

    def run(self, role: str = DEFAULT_ROLE):
        start = time.monotonic()
        is_shut_down = False
        try:
            result = self._invoke_run(role)
            self._total_execution_time = int(time.monotonic() - start)
            self._record_metrics(result)
            self._record_worker_events(result)
            return result
        except RendezvousGracefulExitError as error:
            print("not needed:", error)
            return None
        except SignalException as error:
            self._shutdown(error.sigval, timeout=5)
            is_shut_down = True
            raise
        finally:
            if not is_shut_down:
                self._shutdown()

    @prof
    def _stop_workers(self, worker_group: WorkerGroup, *args, **kwargs) -> None:
        self._shutdown(timeout=5)

    def _setup_local_watchdog(self, envs) -> None:
        path = os.path.join(tempfile.gettempdir(), f"watchdog_{uuid.uuid4()}")
        run_id = self._rdzv_handler.get_run_id()
        self._worker_watchdog = timer.FileTimerServer(
            file_path=path, run_id=run_id, max_interval=0.1, daemon=True, log_event=self._log
        )
        self._worker_watchdog.start()
        for variables in envs.values():
            variables["TORCHELASTIC_TIMER_FILE"] = path

    def _log(self, name: str, request: timer.FileTimerRequest | None) -> None:
        metadata: dict[str, EventMetadataValue] = {"run_id": self._rdzv_handler.get_run_id()}
        events.record(events.Event(name, events.EventSource.AGENT, metadata=metadata))

    @prof
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        assert worker_group.store is not None
        envs, args, prefixes = {}, {}, {} if self._log_line_prefix_template else None
        for worker in worker_group.workers:
            rank = worker.local_rank
            envs[rank] = {
                "LOCAL_RANK": str(rank),
                "RANK": str(worker.global_rank),
                "GROUP_RANK": str(worker_group.group_rank),
                "WORLD_SIZE": str(worker.world_size),
                "MASTER_ADDR": worker_group.master_addr,
                "MASTER_PORT": str(worker_group.master_port),
                "TORCHELASTIC_RESTART_COUNT": str(spec.max_restarts - self._remaining_restarts),
                "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
                "TORCHELASTIC_USE_AGENT_STORE": str(spec.rdzv_handler.use_agent_store),
            }
            if prefixes is not None:
                named = {"role_name": spec.role, "rank": worker.global_rank, "local_rank": rank}
                template = Template(self._log_line_prefix_template)
                prefixes[rank] = template.safe_substitute(**named)
            args[rank] = tuple(macros.substitute(list(spec.args), str(rank)))
        self._setup_local_watchdog(envs=envs)
        self._pcontext = start_processes(
            name=spec.role,
            entrypoint=spec.entrypoint,
            args=args,
            envs=envs,
            logs_specs=self._logs_specs,
            log_line_prefixes=prefixes,
            start_method=self._start_method,
        )
        self._groups = set()
        for pid in self._pcontext.pids().values():
            with contextlib.suppress(ProcessLookupError):
                self._groups.add(os.getpgid(pid))
        return self._pcontext.pids()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        if self._worker_watchdog is not None:
            self._worker_watchdog.stop()
            self._worker_watchdog = None
        if self._pcontext:
            self._pcontext.close(death_sig, timeout=timeout)

    @prof
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        pids = {worker.id for worker in worker_group.workers}
        assert pids == set(self._pcontext.pids().values())
        # The healthy ones are left alone, and stopped when the group meets again.
        with replaced(self._pcontext, "close", lambda *args, **kwargs: None):
            result = self._pcontext.wait(0)
        if not result:
            return RunResult(state=WorkerState.HEALTHY)
        ranks = [worker.global_rank for worker in worker_group.workers]
        if not result.is_failed():
            values = {ranks[local]: value for local, value in result.return_values.items()}
            return RunResult(state=WorkerState.SUCCEEDED, return_values=values)
        failures = {ranks[local]: failure for local, failure in result.failures.items()}
        is_all = len(failures) == len(pids)
        state = WorkerState.FAILED if is_all else WorkerState.UNHEALTHY
        return RunResult(state=state, failures=failures)

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        super()._rendezvous(worker_group)
        print("round", worker_group.spec.rdzv_handler.rounds, worker_group.group_rank)


def launched(args, **settings):
    config = _parse_rendezvous_config("timeout=30,own=x")
    parameters = RendezvousParameters("c10d", "localhost:1234", "job", 1, 1, None, **config)
    host, port = parse_rendezvous_endpoint(parameters.endpoint, default_port=0)
    assert (port, _matches_machine_hostname(host)) == (1234, True)
    spec = WorkerSpec(
        role="trainer",
        local_world_size=2,
        entrypoint="sh",
        args=args,
        rdzv_handler=rdzv_registry.get_rendezvous_handler(parameters),
        monitor_interval=0.05,
        **settings,
    )
    return WatchingAgent(spec, DefaultLogsSpecs(), template="[${role_name}${local_rank}]:")


@record
def main():
    register()
    agent = launched(("-c", "test $RANK = $LOCAL_RANK && test ${local_rank} = $RANK"))
    put_metric("launched", 1)
    print(agent.run().return_values, agent._rdzv_handler.rounds, agent._remaining_restarts)

    # Twice the same failure, and the second restart is for a node that is not needed any more.
    SpareHandler.ends_after = {2: RendezvousGracefulExitError}
    print(launched(("-c", "exit 1"), max_restarts=3).run())
    SpareHandler.ends_after = {1: RendezvousClosedError}
    try:
        launched(("-c", "exit 1"), max_restarts=3).run()
    except RendezvousClosedError as error:
        print("closed:", error)
    SpareHandler.ends_after = {}
    result = launched(("-c", "exit 6"), max_restarts=1).run()
    if result.failures:  # When it looked, one of the two may still have been well.
        raise ChildFailedError(name="sh", failures=result.failures)


if __name__ == "__main__":
    metrics.configure(metrics.NullMetricHandler())
    try:
        main()
    except ChildFailedError as error:
        print(error.name, {failure.exitcode for failure in error.failures.values()} & {6})
