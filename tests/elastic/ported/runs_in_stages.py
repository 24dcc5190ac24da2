"""An agent that runs something before and after the training, each as a group of its own.

Like one that a server steers: it swaps `_worker_group` and the folder of the logs from stage to
stage, forgets its processes when it has stopped them, and shuts the handler down itself.
"""

import os
import signal
import sys
import tempfile
import time
from typing import Any

import meeting
from torch.distributed.elastic.agent.server.api import (
    DEFAULT_ROLE,
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.metrics.api import prof
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import PContext, SubprocessContext
from torch.distributed.elastic.utils import macros


class GentleContext(SubprocessContext):
    """Has its own ideas of the signal that ends processes, and of the grace."""

    def __init__(self, name, entrypoint, args, envs, logs_specs, death_sig, log_line_prefixes=None):
        super().__init__(name, entrypoint, args, envs, logs_specs, log_line_prefixes)
        self._death_sig = death_sig

    def close(self, death_sig=None, timeout=None) -> None:
        super().close(death_sig or self._death_sig, timeout or 5)


def start_gently(**settings) -> PContext:
    context = GentleContext(**settings, death_sig=signal.SIGINT)
    try:
        context.start()
    except Exception:
        context.close()
        raise
    return context


class StagedAgent(LocalElasticAgent):
    def __init__(self, spec: WorkerSpec, logs_specs: LogsSpecs, before: str, after: str):
        super().__init__(spec, logs_specs, "spawn", 300, None)
        self._run_result = RunResult(state=self._worker_group.state)
        self._stages = [
            (self._group_of(before), self._folder("before_")),
            (self._worker_group, self._folder("")),
            (self._group_of(after), self._folder("after_")),
        ]

    def _group_of(self, script: str) -> WorkerGroup:
        spec = self._worker_group.spec
        return WorkerGroup(
            WorkerSpec(
                role=spec.role,
                local_world_size=1,
                entrypoint="sh",
                args=("-c", script),
                rdzv_handler=spec.rdzv_handler,
                monitor_interval=spec.monitor_interval,
                master_addr=spec.master_addr,
                master_port=spec.master_port,
                local_addr=spec.local_addr,
            )
        )

    def _folder(self, prefix: str) -> str:
        run_id = self._rdzv_handler.get_run_id()
        return tempfile.mkdtemp(prefix=f"{prefix}{run_id}_", dir=self._logs_specs.root_log_dir)

    @prof
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        count = spec.max_restarts - self._remaining_restarts
        envs, args = {}, {}
        for worker in worker_group.workers:
            rank = worker.local_rank
            envs[rank] = {
                "RANK": str(worker.global_rank),
                "JOB_RESTART_COUNT": str(count),
                "TORCHELASTIC_RESTART_COUNT": str(count),
                "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
            }
            args[rank] = tuple(macros.substitute(list(spec.args), str(rank)))
        self._setup_local_watchdog(envs=envs)
        self._setup_healthcheck()
        self._pcontext = start_gently(
            name=spec.role,
            entrypoint=spec.entrypoint,
            args=args,
            envs=envs,
            logs_specs=self._logs_specs,
        )
        return self._pcontext.pids()

    def _stop_workers(self, worker_group: WorkerGroup, is_restart: bool = False) -> None:
        self._shutdown(death_sig=signal.SIGTERM, is_restart=True, timeout=5)

    def _shutdown(self, death_sig=signal.SIGTERM, timeout=30, is_restart=False) -> None:
        if self._worker_watchdog is not None:
            self._worker_watchdog.stop()
            self._worker_watchdog = None
        if self._health_check_server is not None:
            self._health_check_server.stop()
            self._health_check_server = None
        if self._pcontext:
            print("attempt", self._pcontext.envs[0]["TORCHELASTIC_RESTART_COUNT"], "is closed")
            self._pcontext.close(death_sig=death_sig, timeout=timeout)
            self._pcontext = None
        if not is_restart and self._rdzv_handler:
            self._rdzv_handler.shutdown()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._pcontext is None:
            return RunResult(state=worker_group.state)
        return super()._monitor_workers(worker_group)

    def _get_worker_state(self, worker: Worker, result: RunResult) -> str:
        print("worker", worker.global_rank, super()._get_worker_state(worker, result))
        return result.state.value

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        for group, folder in self._stages:
            self._logs_specs._run_log_dir = folder
            self._worker_group = group
            self._initialize_workers(group)
            self._run_result = self._until_it_ends(group)
            if self._run_result.state != WorkerState.SUCCEEDED:
                break
        return self._run_result

    def _until_it_ends(self, group: WorkerGroup) -> RunResult:
        while True:
            time.sleep(group.spec.monitor_interval)
            result = self._monitor_workers(group)
            group.state = result.state
            if result.state == WorkerState.FAILED and self._remaining_restarts > 0:
                self._remaining_restarts -= 1
                self._restart_workers(group)
            elif result.state != WorkerState.HEALTHY:
                self._stop_workers(group)
                return result


def main(folder):
    fails_once = "echo rank $RANK of attempt $JOB_RESTART_COUNT; test $JOB_RESTART_COUNT = 1"
    spec = WorkerSpec(
        role="staged",
        local_world_size=2,
        rdzv_handler=meeting.OneNode(),
        entrypoint="sh",
        args=("-c", fails_once),
        monitor_interval=0.05,
    )
    logs = DefaultLogsSpecs(log_dir=folder, redirects=Std.OUT)
    agent = StagedAgent(spec, logs, before="echo before", after="echo after")
    result = agent.run()
    print(result.state.name, result.return_values, agent._rdzv_handler.told)
    for path, _, files in sorted(os.walk(folder)):
        if "stdout.log" in files and "attempt_0" not in path:
            stage, attempt, rank = path.split(os.sep)[-3:]
            with open(os.path.join(path, "stdout.log"), encoding="utf-8") as file:
                print(stage.partition("_")[0], attempt, rank, file.read().split())


if __name__ == "__main__":
    main(sys.argv[1])
