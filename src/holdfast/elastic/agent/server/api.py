"""The agents of the elastic API, and the steps that others replace.

Rules
1. A subclass of `SimpleElasticAgent` with `_start_workers`, `_stop_workers`, `_monitor_workers`
   and `_shutdown` is a working agent, over any handler with the methods of a
   `RendezvousHandler` and any store that has `set`, `get` and `add` (and `wait`, for the exit
   barrier).
2. One thing after the other, in the thread that called `run`:

       run
       ├── _invoke_run
       │   ├── _initialize_workers ── _rendezvous ── _assign_worker_ranks
       │   │                       └─ _start_workers
       │   ├── _await_news, _monitor_workers       again and again
       │   ├── _restart_workers ── _stop_workers, _initialize_workers
       │   ├── _stop_workers                       when they failed for good
       │   └── _exit_barrier                       when they succeeded
       └── _shutdown                               always, once

   Each is a seam: it may be replaced, and is called through the object at these moments.
3. Workers that failed are restarted while `_remaining_restarts` lasts, which counts what this
   very agent asked for; a change of the group is free. (`holdfast run` counts restarts once for
   the whole job instead; here the decision is the agent's own, as in PyTorch.)
4. After a failure for good nobody is waited for. What goes wrong in the exit barrier is logged
   and changes nothing: the workers have succeeded.
5. Workers, and whether the group has changed, are looked at every `monitor_interval`, sooner where
   an agent hears of its workers. A handler may have calls besides those of a `RendezvousHandler`,
   by which the other agents need not find out what became of this one; nothing depends on them:
   `call_on_change(callback)`, by which a change of the group is heard of at once;
   `workers_succeeded()`, before the exit barrier; `workers_failed(reason)`, for good, and they are
   gone; `leave()`, a signal ended workers and agent, and the others may go on.
"""

from __future__ import annotations

import functools
import json
import math
import signal
import socket
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import holdfast.elastic.utils.store as store_util
from holdfast.elastic.agent.server.worker_group import (
    RoleInstanceInfo,
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
    assigned_workers,
)
from holdfast.elastic.events import Event, EventMetadataValue, EventSource, record
from holdfast.elastic.metrics import prof, put_metric
from holdfast.elastic.multiprocessing import SignalException
from holdfast.elastic.multiprocessing.errors import ProcessFailure
from holdfast.elastic.rendezvous import RendezvousGracefulExitError, RendezvousStoreInfo
from holdfast.elastic.rendezvous.store import StoreError, StoreOverError, StoreTimeoutError
from holdfast.elastic.utils.logging import get_logger

__all__ = [
    "ElasticAgent",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
]

DEFAULT_ROLE = "default"
EXIT_BARRIER = "torchelastic/agent/terminal_state"
STORE_LOSSES_MAX = 3
"""Losses of the store in a row, at most, before all have their ranks."""

# The names by which agents of others hold on to them.
_TERMINAL_STATE_SYNC_ID = EXIT_BARRIER
_RoleInstanceInfo = RoleInstanceInfo

logger = get_logger(__name__)


class ElasticAgent(ABC):
    """Runs workers and answers for them."""

    @abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers to their end, with as many restarts as they may have.

        Workers that fail are a result; what is raised is about anything else.
        """

    @abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """The workers of a role. It changes while the agent runs."""


class SimpleElasticAgent(ElasticAgent):
    """An agent for the workers of one specification, but for how they are started and stopped.

    `exit_barrier_timeout` is how many seconds one that succeeded waits for the others to
    finish, and `shutdown_timeout` the grace that workers have to end in.
    """

    def __init__(
        self, spec: WorkerSpec, exit_barrier_timeout: float = 300, shutdown_timeout: int = 30
    ) -> None:
        self._worker_group = WorkerGroup(spec)
        self._remaining_restarts = spec.max_restarts
        self._store: Any = None
        self._exit_barrier_timeout = exit_barrier_timeout
        self._shutdown_timeout = shutdown_timeout
        self._total_execution_time = 0
        self._in_exit_barrier = False
        self._news = threading.Event()
        """Set where there is something to look at before the interval is over."""
        self._looking_since: float | None = None
        """Since when workers and group are being looked at, which should take no time."""
        self._store_info: Any = None
        """The address of the workers' store: as long as it is kept, its port may be held."""
        self._round: int | None = None
        """The number of the round, where the rendezvous tells it."""

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        return self._worker_group

    # What a subclass adds.

    @abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start all workers of the group; their ids, by local rank."""

    @abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Stop all workers, in whatever state they are, also where there are none."""

    @abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """The state of the workers, without waiting."""

    @abstractmethod
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """Let go of everything; workers get the signal, and that many seconds to heed it."""

    # The steps to running workers.

    @prof
    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Meet the other agents, and give the workers their ranks."""
        spec = worker_group.spec
        with self.record_duration("RENDEZVOUS"):
            info = spec.rdzv_handler.next_rendezvous()
        self._store = info.store
        self._round = getattr(info, "round", None)
        with self.record_duration("ASSIGN_WORKER_RANKS"):
            workers = self._assign_worker_ranks(info.store, info.rank, info.world_size, spec)
        worker_group.workers = workers
        worker_group.store = info.store
        worker_group.group_rank = info.rank
        worker_group.group_world_size = info.world_size
        worker_group.master_addr, worker_group.master_port = self._master(spec, info)
        first, last = workers[0], workers[-1]
        ranks = f"ranks {first.global_rank} to {last.global_rank} of {first.world_size}"
        master = f"{worker_group.master_addr}:{worker_group.master_port}"
        agent = f"agent {info.rank} of {info.world_size}"
        logger.info("[%s] %s has %s, with the master at %s", spec.role, agent, ranks, master)

    def _master(self, spec: WorkerSpec, info: Any) -> tuple[str, int]:
        """The address of the workers' store: the user's, else the rendezvous's."""
        if spec.master_addr and spec.master_port:
            return spec.master_addr, spec.master_port
        told = info.bootstrap_store_info
        if told is None:
            told = RendezvousStoreInfo.build(info.rank, info.store, spec.local_addr)
        self._store_info = told
        return spec.master_addr or told.master_addr, spec.master_port or told.master_port

    @prof
    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """Agree with the other agents on who has which ranks (see `worker_group`)."""
        return assigned_workers(store, group_rank, group_world_size, spec)

    @prof
    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """Meet the others and start the workers. None of ours may be running."""
        spec = worker_group.spec
        logger.info("[%s] meeting the other agents", spec.role)
        losses = 0
        while True:
            try:
                self._rendezvous(worker_group)
                break
            except StoreTimeoutError:
                raise
            except StoreOverError:
                logger.info("[%s] the round ended before all had their ranks", spec.role)
            except StoreError as error:
                losses += 1  # Of the node that kept the keys: the next round has them elsewhere.
                if losses > STORE_LOSSES_MAX:
                    raise
                logger.warning("[%s] meeting again, since %s", spec.role, error)
        logger.info("[%s] starting the workers", spec.role)
        for local_rank, worker_id in self._start_workers(worker_group).items():
            worker = worker_group.workers[local_rank]
            worker.id = worker_id
            event = self._construct_event("START", EventSource.WORKER, worker)
            record(event, spec.event_log_handler)
        worker_group.state = WorkerState.HEALTHY
        tell(spec.rdzv_handler, "call_on_change", self._wake)

    @prof
    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        """Stop the workers, meet the others again and start new ones."""
        logger.info("[%s] stopping the workers, to start them again", worker_group.spec.role)
        self._stop_workers(worker_group)
        worker_group.state = WorkerState.STOPPED
        self._initialize_workers(worker_group)

    # The run.

    @prof
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers to their end; a node that is not needed returns a `STOPPED` result.

        A `SignalException` goes on to the caller, after the workers had that signal.
        """
        start_s = time.monotonic()
        death_sig: signal.Signals | None = None
        try:
            result = self._invoke_run(role)
            self._total_execution_time = _whole_seconds_since(start_s)
            self._record_metrics(result)
            self._record_worker_events(result)
            return result
        except SignalException as error:
            logger.warning("%s was received, and is passed on to the workers", error.sigval.name)
            death_sig = error.sigval
            raise
        except Exception as error:
            if not _says_that_the_node_may_go(error):
                raise
            logger.info("this node is not needed: %s", error)
            return RunResult(WorkerState.STOPPED)
        finally:
            tell(self._worker_group.spec.rdzv_handler, "call_on_change", _ignore)
            if death_sig is None:
                self._shutdown(timeout=self._shutdown_timeout)
            else:
                self._shutdown(death_sig, timeout=self._shutdown_timeout)
            self._total_execution_time = _whole_seconds_since(start_s)

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers to their end, and leave it to the caller to clean up."""
        group = self._worker_group
        spec = group.spec
        logger.info("[%s] the workers will run %s", spec.role, spec.get_entrypoint_name())
        self._initialize_workers(group)
        while True:
            self._await_news(spec.monitor_interval)
            result, is_wanted_again = self._look()
            if result.state == WorkerState.SUCCEEDED:
                tell(spec.rdzv_handler, "workers_succeeded")
                self._exit_barrier()
                return result
            if result.state in {WorkerState.UNHEALTHY, WorkerState.FAILED}:
                if self._remaining_restarts <= 0:
                    return self._give_up(result)
                left = f"{self._remaining_restarts} of {spec.max_restarts} restarts are left"
                logger.info("[%s] the workers are %s; %s", spec.role, result.state.name, left)
                self._remaining_restarts -= 1
                self._restart_workers(group)
            elif result.state != WorkerState.HEALTHY:
                raise RuntimeError(f"[{spec.role}] the state of the workers is {result.state.name}")
            elif is_wanted_again:
                self._restart_workers(group)

    def _await_news(self, timeout_s: float) -> None:
        """Return when there may be something new, at the latest after that many seconds."""
        self._news.wait(timeout_s)
        self._news.clear()

    def _wake(self) -> None:
        """End `_await_news`, from any thread."""
        self._news.set()

    def _look(self) -> tuple[RunResult, bool]:
        """The state of the workers, and whether the group wants to meet again."""
        group = self._worker_group
        self._looking_since = time.time()
        result = self._monitor_workers(group)
        group.state = result.state
        role = group.spec.role
        put_metric(f"workers.{role}.remaining_restarts", self._remaining_restarts)
        put_metric(f"workers.{role}.{result.state.name.lower()}", 1)
        waiting = 0
        if result.state == WorkerState.HEALTHY:
            waiting = group.spec.rdzv_handler.num_nodes_waiting()
        self._looking_since = None
        if waiting > 0:
            logger.info("[%s] %s nodes wait for the next rendezvous", role, waiting)
        return result, waiting > 0

    def _give_up(self, result: RunResult) -> RunResult:
        """The workers are stopped for good, and failed, even if they only did not feel well."""
        group = self._worker_group
        self._stop_workers(group)
        group.state = WorkerState.FAILED
        tell(group.spec.rdzv_handler, "workers_failed", _reason_of_failure(result))
        return replace(result, state=WorkerState.FAILED)

    def _exit_barrier(self) -> None:
        """Wait for the other agents to finish, at most `_exit_barrier_timeout` seconds.

        Raises only what a signal raised.
        """
        timeout_s = self._exit_barrier_timeout
        logger.info("the workers succeeded; waiting up to %s s for other agents", timeout_s)
        self._in_exit_barrier = True
        try:
            store_util.barrier(
                store=self._store,
                world_size=self._worker_group.group_world_size or 1,
                key_prefix=EXIT_BARRIER,
                barrier_timeout=timeout_s,
            )
        except SignalException:
            raise
        except StoreOverError:
            pass  # The others were done as well: the job is over, and its keys are gone with it.
        except Exception as error:  # noqa: BLE001 - the store is anybody's code
            logger.warning("no longer waiting for the other agents: %s", error)
        finally:
            self._in_exit_barrier = False

    # What is told of it.

    def get_event_failed(self) -> Event:
        """The agent itself failed, with the exception that is being handled."""
        trace = traceback.format_exc()
        return self._construct_event("FAILED", EventSource.AGENT, raw_error=trace)

    def get_event_succeeded(self) -> Event:
        """The agent did its work, whether or not the workers succeeded."""
        return self._construct_event("SUCCEEDED", EventSource.AGENT)

    @contextmanager
    def record_duration(self, state: str) -> Iterator[None]:
        """Record, as an event of that state, how long the block took."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            duration_ms = (time.perf_counter() - start_s) * 1000
            event = self._construct_event(state, EventSource.AGENT, duration_ms=duration_ms)
            record(event, self._worker_group.spec.event_log_handler)

    def _record_worker_events(self, result: RunResult) -> None:
        for worker in self._worker_group.workers:
            failure = result.failures.get(worker.global_rank)
            event = self._construct_event(
                self._get_worker_state(worker, result),
                EventSource.WORKER,
                worker,
                raw_error=json.dumps(failure.error_file_data) if failure else None,
                exit_code=failure.exitcode if failure else None,
                worker_pid=failure.pid if failure else None,
            )
            record(event, self._worker_group.spec.event_log_handler)

    def _get_worker_state(self, worker: Worker, result: RunResult) -> str:
        """The state of one worker; `TERMINATED` if it was stopped because others failed."""
        did_not_end_well = result.state in {WorkerState.UNHEALTHY, WorkerState.FAILED}
        if did_not_end_well and worker.global_rank not in result.failures:
            return "TERMINATED"
        return result.state.value

    def _construct_event(
        self,
        state: str,
        source: EventSource,
        worker: Worker | None = None,
        raw_error: str | None = None,
        duration_ms: float | None = None,
        exit_code: int | None = None,
        worker_pid: int | None = None,
    ) -> Event:
        group = self._worker_group
        details: dict[str, Any] = {
            "group_world_size": group.group_world_size,
            "entry_point": group.spec.get_entrypoint_name(),
        }
        if worker is not None:
            # Lists of one, since that is what those who read these events know.
            details["local_rank"] = [worker.local_rank]
            details["role_rank"] = [worker.role_rank]
            details["role_world_size"] = [worker.role_world_size]
            details["exit_code"] = [exit_code]
            details["worker_pid"] = [worker_pid]
        return self._event(
            f"torchelastic.worker.status.{state}",
            source,
            global_rank=None if worker is None else worker.global_rank,
            worker_id=None if worker is None else str(worker.id),
            state=state,
            raw_error=raw_error,
            duration_ms=duration_ms,
            metadata=json.dumps(details),
        )

    def _event(self, name: str, source: EventSource, **said: EventMetadataValue) -> Event:
        """An event with what all events of an agent have, and what is said besides."""
        group = self._worker_group
        handler = group.spec.rdzv_handler
        metadata: dict[str, EventMetadataValue] = {
            "run_id": handler.get_run_id(),
            "group_rank": group.group_rank,
            "role": group.spec.role,
            "hostname": _get_fq_hostname(),
            "total_run_time": self._total_execution_time,
            "rdzv_backend": handler.get_backend(),
            "agent_restarts": group.spec.max_restarts - self._remaining_restarts,
            **said,
        }
        return Event(name, source, timestamp=int(time.time() * 1000), metadata=metadata)

    def _record_metrics(self, group_results: RunResult) -> None:
        """Counters for the end of a run, with and without restarts: 1 for the one that it was."""
        spec = self._worker_group.spec
        self._record_flakiness_metric(group_results.is_failed())
        was_restarted = self._remaining_restarts != spec.max_restarts
        put_metric(f"workers.{spec.role}.run_total", 1)
        for failed, outcome in ((False, "success"), (True, "failed")):
            for restarted, retries in ((True, "with"), (False, "no")):
                is_it = (failed, restarted) == (group_results.is_failed(), was_restarted)
                put_metric(f"workers.{spec.role}.run_{outcome}_{retries}_retries", int(is_it))

    def _record_flakiness_metric(self, is_failed: bool = False) -> None:
        """Put the flakiness in percent: 100 for a failed run, else the share of restarts used."""
        spec = self._worker_group.spec
        left = 0.0 if is_failed else 100.0 * (self._remaining_restarts + 1)
        flakiness = int(100.0 - left / (spec.max_restarts + 1))
        put_metric(f"workers.{spec.role}.flakiness", flakiness)


def tell(handler: Any, what: str, *args: object) -> None:
    """Call this of a handler that has it. Raises only what a signal raised."""
    # Of the class: an object that pretends to have every attribute tells of nothing.
    if not callable(getattr(type(handler), what, None)):
        return
    try:
        getattr(handler, what)(*args)
    except SignalException:
        raise
    except Exception as error:  # noqa: BLE001 - the handler is anybody's code
        logger.warning("the handler could not be told of %s: %s", what, error)


def _ignore() -> None:
    """Be told of a change when nothing runs any more."""


def _says_that_the_node_may_go(error: Exception) -> bool:
    """Whether that is what a handler means by this; one that was written for PyTorch's too."""
    theirs = sys.modules.get("torch.distributed.elastic.rendezvous.api")
    kinds = (RendezvousGracefulExitError, getattr(theirs, "RendezvousGracefulExitError", None))
    return isinstance(error, tuple(kind for kind in kinds if kind is not None))


def _reason_of_failure(result: RunResult) -> str:
    """One line for the other agents: which worker failed first, and what it left."""
    found: Mapping[int, object] = result.failures  # Somebody else's processes may leave anything.
    known = {rank: one for rank, one in found.items() if isinstance(one, ProcessFailure)}
    if not known:
        return "its workers failed"
    rank, first = min(known.items(), key=lambda item: item[1].timestamp)
    message: Any = first.message
    if isinstance(message, dict):
        message = message.get("message", "")
    return f"rank {rank} failed with exit code {first.exitcode}: {message}".partition("\n")[0]


@functools.cache
def _get_fq_hostname() -> str:
    return socket.getfqdn(socket.gethostname())


def _whole_seconds_since(start_s: float) -> int:
    """Rounded up: a run takes time, however short it is."""
    return math.ceil(time.monotonic() - start_s)
