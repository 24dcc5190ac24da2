"""`LocalElasticAgent`: workers as processes of this machine.

Rules
1. Workers are started through the name `start_processes` of this module, so that replacing it
   takes effect. What it returns is `_pcontext`, and is closed once.
2. An exit is heard of at once, since `_pcontext` can be waited for; so is a change of the group,
   where the handler has `call_on_change`. Other handlers are asked at `monitor_interval`.
3. Every stop has the grace of `shutdown_timeout`: for a restart, after a failure, on a signal.
4. The watchdog runs as long as the workers do. The health endpoint is there for the whole run:
   before the first rendezvous, between two attempts and in the exit barrier.
5. An agent is alive unless looking at its workers takes too long, or its watchdog is stuck. All
   other waits are for somebody else.
6. A worker is stuck in the kernel, where no signal reaches it, not even SIGKILL, when it was in an
   uninterruptible sleep at every look for as long as is allowed.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
import uuid
from collections.abc import Sequence
from string import Template
from typing import TYPE_CHECKING, Any

import holdfast.elastic.timer as timer
from holdfast.elastic import events
from holdfast.elastic.agent.server.api import (
    DEFAULT_ROLE,
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from holdfast.elastic.agent.server.health_check_server import (
    HealthCheckServer,
    create_healthcheck_server,
)
from holdfast.elastic.agent.server.worker_group import variables_of
from holdfast.elastic.metrics import prof
from holdfast.elastic.multiprocessing import PContext, start_processes
from holdfast.elastic.multiprocessing.api import held_back
from holdfast.elastic.multiprocessing.errors import ProcessFailure
from holdfast.elastic.utils import macros, process_state
from holdfast.elastic.utils.logging import get_logger

if TYPE_CHECKING:
    from holdfast.elastic.multiprocessing import LogsSpecs

__all__ = [
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_HEALTH_CHECK_PORT",
    "TORCHELASTIC_TIMER_FILE",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
    "LocalElasticAgent",
]

TORCHELASTIC_ENABLE_FILE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
TORCHELASTIC_HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"
TORCHELASTIC_TIMER_FILE = "TORCHELASTIC_TIMER_FILE"
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"

HEALTH_TIMEOUT_S = 60
WATCHDOG_INTERVAL_S = 0.1
PID_TO_COME = "${pid}"
"""In a prefix: filled in where the process is started."""

logger = get_logger(__name__)


class LocalElasticAgent(SimpleElasticAgent):
    """An agent whose workers are processes of this machine: of a function or a command.

    `log_line_prefix_template` may hold `${role_name}`, `${local_rank}`, `${rank}`, `${hostname}`
    and `${pid}`; without it the variable `TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE` counts. A
    `health_check_server` has been started by the caller, and is stopped at the end of the run. A
    worker that no signal can reach for `uninterruptible_state_timeout` seconds, or those of the
    variable `TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT`, ends the run; 0 is for ever.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: int = 30,
        health_check_server: HealthCheckServer | None = None,
        uninterruptible_state_timeout: float | None = None,
    ) -> None:
        super().__init__(spec, exit_barrier_timeout, shutdown_timeout)
        self._start_method = start_method
        self._pcontext: PContext | None = None
        self._ended_pcontext: PContext | None = None
        """The context whose end was waited for already."""
        self._closed_pcontext: PContext | None = None
        self._rdzv_handler = spec.rdzv_handler
        self._logs_specs = logs_specs
        self._log_line_prefix_template = log_line_prefix_template or os.environ.get(
            TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE
        )
        self._worker_watchdog: timer.FileTimerServer | None = None
        self._health_check_server = health_check_server
        self._is_stopping_workers = False
        self._uninterruptible_state_timeout = _stuck_timeout_s(uninterruptible_state_timeout)
        self._asleep_since: dict[int, float] = {}
        """Since when which process has been in an uninterruptible sleep, as far as seen."""

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        self._setup_healthcheck()
        return super().run(role)

    # The four hooks.

    @prof
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        restart_count = spec.max_restarts - self._remaining_restarts
        envs = variables_of(worker_group, restart_count, self._round)
        ranks = [worker.local_rank for worker in worker_group.workers]
        with held_back():  # `Thread.start` makes a KeyError of what a signal raises in it.
            self._setup_local_watchdog(envs)
            self._setup_healthcheck()
        assert spec.entrypoint is not None, "a WorkerSpec has an entrypoint"
        self._pcontext = start_processes(
            name=spec.role,
            entrypoint=spec.entrypoint,
            args={rank: tuple(macros.substitute(spec.args, str(rank))) for rank in ranks},
            envs=envs,
            logs_specs=self._logs_specs,
            log_line_prefixes=self._log_line_prefixes(worker_group),
            start_method=self._start_method,
            numa_options=spec.numa_options,
            duplicate_stdout_filters=spec.duplicate_stdout_filters,
            duplicate_stderr_filters=spec.duplicate_stderr_filters,
        )
        if isinstance(self._pcontext, PContext):
            self._pcontext.close_timeout = self._shutdown_timeout
        return dict(self._pcontext.pids())

    @prof
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._is_stopping_workers = True
        try:
            self._shutdown(timeout=self._shutdown_timeout)
        finally:
            self._is_stopping_workers = False

    @prof
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self._pcontext is not None, "workers have been started"
        expected = {worker.id for worker in worker_group.workers}
        found = set(self._pcontext.pids().values())
        if expected != found:
            role = worker_group.spec.role
            logger.error("[%s] workers %s run, but %s were started", role, found, expected)
            return RunResult(WorkerState.UNKNOWN)
        ended = self._pcontext.wait(0)
        if ended is None:
            return self._still_running(worker_group)
        ranks = [worker.global_rank for worker in worker_group.workers]
        if ended.is_failed():
            failures = {ranks[local]: failure for local, failure in ended.failures.items()}
            return RunResult(WorkerState.FAILED, failures=failures)
        values = {ranks[local]: value for local, value in ended.return_values.items()}
        return RunResult(WorkerState.SUCCEEDED, return_values=values)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        if self._worker_watchdog is not None:
            self._worker_watchdog.stop()
            self._worker_watchdog = None
        if self._health_check_server is not None and not self._is_stopping_workers:
            self._health_check_server.stop()
            self._health_check_server = None
        if self._pcontext is not None and self._pcontext is not self._closed_pcontext:
            self._pcontext.close(death_sig, timeout)
            # Only now: a signal that interrupted it is a reason to do it again.
            self._closed_pcontext = self._pcontext

    # What they are made of.

    def _await_news(self, timeout_s: float) -> None:
        context: Any = self._pcontext
        if context is None or context is self._ended_pcontext:
            super()._await_news(timeout_s)
        elif not isinstance(context, PContext):  # Somebody else's.
            context.wait(timeout_s, timeout_s)
        elif context.wait_for_end(timeout_s, self._is_wanted_again):
            # Not `wait`, which ends what still runs and judges: that is for `_monitor_workers`.
            self._ended_pcontext = context

    def _wake(self) -> None:
        super()._wake()
        if isinstance(self._pcontext, PContext):
            self._pcontext.wake()

    def _is_wanted_again(self) -> bool:
        handler = self._worker_group.spec.rdzv_handler
        return callable(getattr(type(handler), "call_on_change", None)) and bool(
            handler.num_nodes_waiting()
        )

    def _still_running(self, worker_group: WorkerGroup) -> RunResult:
        failures = self._stuck(worker_group.workers)
        if not failures:
            return RunResult(WorkerState.HEALTHY)
        # What a stuck process holds cannot be had by another: there is nothing to restart with.
        self._remaining_restarts = 0
        return RunResult(WorkerState.UNHEALTHY, failures=failures)

    def _stuck(self, workers: Sequence[Worker]) -> dict[int, ProcessFailure]:
        """The workers that are stuck for too long, as failures by global rank."""
        limit_s = self._uninterruptible_state_timeout
        if limit_s <= 0:
            return {}
        now = time.monotonic()
        asleep = [worker for worker in workers if _is_asleep(worker.id)]
        since = {worker.id: self._asleep_since.get(worker.id, now) for worker in asleep}
        self._asleep_since = since
        failures = {}
        for worker in asleep:
            if now - since[worker.id] >= limit_s:
                failure = ProcessFailure(worker.local_rank, worker.id, -signal.SIGKILL, "")
                failure.message = (
                    f"Process {worker.id} has been in uninterruptible sleep for "
                    f"{now - since[worker.id]:.1f} s, and {limit_s:g} s are allowed; "
                    "no signal can end it"
                )
                logger.error("%s", failure.message)
                failures[worker.global_rank] = failure
        return failures

    def _log_line_prefixes(self, worker_group: WorkerGroup) -> dict[int, str] | None:
        if not self._log_line_prefix_template:
            return None
        template = Template(self._log_line_prefix_template)
        return {
            worker.local_rank: template.safe_substitute(
                role_name=worker_group.spec.role,
                rank=worker.global_rank,
                local_rank=worker.local_rank,
                hostname=os.uname().nodename,
                pid=PID_TO_COME,
            )
            for worker in worker_group.workers
        }

    # Watchdog and health.

    def _setup_local_watchdog(self, envs: dict[int, dict[str, str]]) -> None:
        """Start the watchdog if it is asked for, and tell workers of its pipe wherever it is."""
        path = os.environ.get(TORCHELASTIC_TIMER_FILE)
        if os.environ.get(TORCHELASTIC_ENABLE_FILE_TIMER) == "1":
            path = path or os.path.join(tempfile.gettempdir(), f"watchdog_timer_{uuid.uuid4()}")
            run_id = self._worker_group.spec.rdzv_handler.get_run_id()
            self._worker_watchdog = timer.FileTimerServer(
                file_path=path,
                run_id=run_id,
                max_interval=WATCHDOG_INTERVAL_S,
                daemon=True,
                log_event=self._log_watchdog_event,
            )
            self._worker_watchdog.start()
            logger.info("the watchdog reads %s", path)
        if path is not None:
            for variables in envs.values():
                variables[TORCHELASTIC_TIMER_FILE] = path

    def _log_watchdog_event(self, name: str, request: timer.FileTimerRequest | None) -> None:
        details = {"watchdog_event": name}
        if request is not None:
            details["worker_pid"] = str(request.worker_pid)
            details["scope_id"] = request.scope_id
            details["expiration_time"] = str(request.expiration_time)
            details["signal"] = str(request.signal)
        event = self._event(
            name,
            events.EventSource.AGENT,
            global_rank=None,
            worker_id=None,
            state="RUNNING",
            raw_error=None,
            metadata=json.dumps(details),
        )
        events.record(event, self._worker_group.spec.event_log_handler)

    def _setup_healthcheck(self) -> None:
        """Answer probes on the port that the environment names, unless somebody does already."""
        port = os.environ.get(TORCHELASTIC_HEALTH_CHECK_PORT)
        if port is None or self._health_check_server is not None:
            return
        try:
            server = create_healthcheck_server(self._get_alive_time, int(port), HEALTH_TIMEOUT_S)
            server.start()
        except (OSError, OverflowError, ValueError) as error:  # The workers can run without it.
            logger.warning("there is no health endpoint: port %s: %s", port, error)
        else:
            self._health_check_server = server

    def _get_alive_time(self) -> int:
        """The last sign of life, in seconds since 1970."""
        signs = [time.time()]
        if self._looking_since is not None:
            signs.append(self._looking_since)
        watchdog = self._worker_watchdog
        if watchdog is not None and not self._in_exit_barrier:
            signs.append(watchdog.get_last_progress_time())
        return int(min(signs))


def _is_asleep(pid: int) -> bool:
    return process_state.is_uninterruptible_state(process_state.read_proc_state(pid))


def _stuck_timeout_s(given: float | None) -> float:
    """The time-out; without a sensible value workers may be stuck for ever."""
    try:
        said = os.environ.get(TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT, "0")
        return max(0.0, float(said if given is None else given))
    except ValueError:
        return 0.0
