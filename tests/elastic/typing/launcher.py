"""A program as a user writes it, for the type checker: it is never run.

`assert_type` says what the checker has to find; an ignored error, that it has to refuse a
mistake (an ignore that nothing needs is an error too).
"""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import Any, assert_type

from holdfast.elastic import events, metrics, timer
from holdfast.elastic.agent.server import RunResult, SimpleElasticAgent, WorkerGroup, WorkerSpec
from holdfast.elastic.agent.server.api import DEFAULT_ROLE, Worker, WorkerState
from holdfast.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from holdfast.elastic.launcher import LaunchConfig, elastic_launch, launch_agent
from holdfast.elastic.multiprocessing import (
    DefaultLogsSpecs,
    PContext,
    ProcessFailure,
    RunProcsResult,
    SignalException,
    Std,
    start_processes,
)
from holdfast.elastic.multiprocessing.errors import ChildFailedError, GlobalRank, record
from holdfast.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from holdfast.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    RendezvousTimeout,
)
from holdfast.elastic.rendezvous.registry import get_rendezvous_handler, handler_registry
from holdfast.elastic.utils import macros
from holdfast.elastic.utils.data import CyclingIterator
from holdfast.elastic.utils.store import synchronize


@record
def train(steps: int) -> float:
    with timer.expires(after=60):
        return steps * 0.5


class Own(RendezvousHandler):
    def get_backend(self) -> str:
        return "own"

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(object(), 0, 1, RendezvousStoreInfo("localhost", 29500))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return "run"

    def shutdown(self) -> bool:
        return True


class Kept(RendezvousBackend):
    @property
    def name(self) -> str:
        return "kept"

    def get_state(self) -> tuple[bytes, Any] | None:
        return None

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        return state, 1, True


class Threads(SimpleElasticAgent):
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        return {worker.local_rank: worker for worker in worker_group.workers}

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        assert_type(worker_group.workers, list[Worker])

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        return RunResult(WorkerState.SUCCEEDED, return_values={0: None})

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        assert_type(self._remaining_restarts, int)


class Counting(metrics.MetricHandler):
    def emit(self, metric_data: metrics.MetricData) -> None:
        assert_type(metric_data.name, str)


def launched() -> None:
    config = LaunchConfig(1, 2, 4, rdzv_backend="c10d", rdzv_configs={"is_host": True})
    assert_type(elastic_launch(config, train)(10), dict[int, Any])
    assert_type(launch_agent(config, "python", ["train.py"]), dict[int, Any])
    assert_type(train(3), float | None)
    train("3")  # type: ignore[arg-type]
    LaunchConfig(1, 2)  # type: ignore[call-arg]


def with_an_agent() -> None:
    rendezvous_handler_registry.register("own", lambda params: Own())
    parameters = RendezvousParameters("own", "", "run", 1, 1, timeout=30)
    assert_type(parameters.get_as_int("timeout"), int | None)
    handler = get_rendezvous_handler(parameters)
    assert_type(handler, RendezvousHandler)
    assert_type(handler_registry.create_handler(parameters).next_rendezvous(), RendezvousInfo)
    spec = WorkerSpec(role="trainer", local_world_size=2, rdzv_handler=handler, entrypoint=train)
    result = LocalElasticAgent(spec, DefaultLogsSpecs(tee=Std.ALL)).run(DEFAULT_ROLE)
    assert_type(result, RunResult)
    assert_type(result.failures, dict[int, ProcessFailure])
    Threads(spec, exit_barrier_timeout=1.0).run()
    spec.max_restart = 3  # type: ignore[attr-defined]
    Own.next_rendezvous()  # type: ignore[call-arg]


def over_a_backend() -> DynamicRendezvousHandler:
    patience = RendezvousTimeout(join=timedelta(minutes=1))
    return DynamicRendezvousHandler.from_backend("run", None, Kept(), 1, 2, timeout=patience)


def on_their_own() -> None:
    context = start_processes("t", train, {0: (1,)}, {0: {}}, DefaultLogsSpecs())
    assert_type(context, PContext)
    assert_type(context.wait(timeout=1.0), RunProcsResult | None)
    assert_type(context.pids(), dict[int, int])
    metrics.configure(Counting())
    metrics.put_metric("steps", 1)
    events.record(events.Event("started", events.EventSource.AGENT))
    assert_type(macros.substitute(["${local_rank}"], "0"), list[Any])
    assert_type(next(CyclingIterator(2, lambda epoch: [epoch])), int)
    assert_type(synchronize(object(), b"", 0, 1, "key"), list[bytes])
    metrics.configure(print)  # type: ignore[arg-type]


def failed(error: ChildFailedError | SignalException) -> GlobalRank | signal.Signals:
    if isinstance(error, SignalException):
        assert_type(error.sigval, signal.Signals)
        return error.sigval
    rank, failure = error.get_first_failure()
    assert_type(failure.signal_name(), str)
    return rank
