"""An agent whose workers are threads, and agents that meet in memory.

Everything is made for one of two libraries, ours or PyTorch's: what is written for one has to
work with the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from .. import torch_versions
from ..waiting import DEADLINE_S

"""PyTorch may load hundreds of modules meanwhile: its first line in a log takes them."""
OURS, THEIRS = "holdfast.elastic", "torch.distributed.elastic"
Library = Any


def library(prefix: str) -> Library:
    """The modules of one of the two, by short names."""
    names = {
        "agent": "agent.server.api",
        "rendezvous": "rendezvous",
        "multiprocessing": "multiprocessing",
        "errors": "multiprocessing.errors",
        "metrics": "metrics",
        "store": "utils.store",
    }
    modules = {short: import_module(f"{prefix}.{name}") for short, name in names.items()}
    return SimpleNamespace(prefix=prefix, is_ours=prefix == OURS, **modules)


class Store:
    """A store in memory, with no more than an agent needs."""

    def __init__(self, timeout_s: float = DEADLINE_S) -> None:
        self.values: dict[str, bytes] = {}
        self.timeout = timedelta(seconds=timeout_s)
        self._changed = threading.Condition()

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout

    def set(self, key: str, value: bytes | str) -> None:
        with self._changed:
            self.values[key] = value.encode() if isinstance(value, str) else value
            self._changed.notify_all()

    def add(self, key: str, amount: int) -> int:
        with self._changed:
            total = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(total).encode()
            self._changed.notify_all()
            return total

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        allowed_s = (timeout or self.timeout).total_seconds()
        with self._changed:
            if not self._changed.wait_for(lambda: all(k in self.values for k in keys), allowed_s):
                raise RuntimeError(f"{keys} did not come in {allowed_s} s")

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self.values[key]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]


class FullStore(Store):
    """What PyTorch's agent needs besides."""

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)


class Meeting:
    """Where the agents of a test meet: a round begins when `size` of them wait for it."""

    def __init__(self, size: int = 1, store: Callable[[], Store] = FullStore) -> None:
        self.size = size
        self.stores: list[Store] = []
        self.waiting = 0
        self.changed = threading.Condition()
        self._make_store = store

    def join(self) -> tuple[Store, int, int]:
        with self.changed:
            rank, size, round_ = self.waiting, self.size, len(self.stores)
            self.waiting += 1
            if self.waiting == self.size:
                self.stores.append(self._make_store())
                self.waiting = 0
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: len(self.stores) > round_, DEADLINE_S):
                raise RuntimeError("the others did not come")
            return self.stores[round_], rank, size


def handler(of: Library, meeting: Meeting, master: tuple[str, int] | None = ("host", 1)) -> Any:
    """A handler with the abstract methods only."""
    rendezvous = of.rendezvous

    class Handler(rendezvous.RendezvousHandler):  # type: ignore[misc, name-defined]
        is_shut_down = 0

        def get_backend(self) -> str:
            return "memory"

        def next_rendezvous(self) -> Any:
            store, rank, size = meeting.join()
            told = rendezvous.RendezvousStoreInfo(*master) if master else None
            return rendezvous.RendezvousInfo(store, rank, size, told)

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            pass

        def num_nodes_waiting(self) -> int:
            return meeting.waiting

        def get_run_id(self) -> str:
            return "run"

        def shutdown(self) -> bool:
            self.is_shut_down += 1
            return True

    return Handler()


class Place:
    """What a worker that is a thread knows of itself."""

    def __init__(self, worker: Any, attempt: int, is_to_stop: threading.Event) -> None:
        self.rank, self.local_rank = worker.global_rank, worker.local_rank
        self.world_size, self.role_rank = worker.world_size, worker.role_rank
        self.attempt = attempt
        self.is_to_stop = is_to_stop


def agent(of: Library, program: Callable[[Place], Any], meeting: Meeting, **settings: Any) -> Any:
    api = of.agent
    torch_versions.needs((2, 11), api)  # Which takes a time for the shutdown.
    api = of.agent

    class ThreadAgent(api.SimpleElasticAgent):  # type: ignore[misc, name-defined]
        def __init__(self, spec: Any, **settings: Any) -> None:
            super().__init__(spec, **settings)
            self.attempts = 0
            self.shutdowns: list[tuple[Any, ...]] = []
            self._pool = ThreadPoolExecutor()
            self._running: dict[int, Future[Any]] = {}
            self._is_to_stop = threading.Event()

        def _start_workers(self, worker_group: Any) -> dict[int, Any]:
            self._is_to_stop = threading.Event()
            self._running = {
                worker.local_rank: self._pool.submit(
                    program, Place(worker, self.attempts, self._is_to_stop)
                )
                for worker in worker_group.workers
            }
            self.attempts += 1
            return {local_rank: f"thread {local_rank}" for local_rank in self._running}

        def _stop_workers(self, worker_group: Any) -> None:
            self._is_to_stop.set()
            for future in self._running.values():
                future.exception(DEADLINE_S)

        def _monitor_workers(self, worker_group: Any) -> Any:
            ranks = [worker.global_rank for worker in worker_group.workers]
            done = {local: future for local, future in self._running.items() if future.done()}
            failures = {
                ranks[local]: of.errors.ProcessFailure(local, 0, 1, "")
                for local, future in done.items()
                if future.exception() is not None
            }
            if failures:
                return api.RunResult(api.WorkerState.FAILED, failures=failures)
            if len(done) < len(ranks):
                return api.RunResult(api.WorkerState.HEALTHY)
            values = {ranks[local]: future.result() for local, future in done.items()}
            return api.RunResult(api.WorkerState.SUCCEEDED, return_values=values)

        def _shutdown(self, *args: Any, **settings: Any) -> None:
            self.shutdowns.append((*args, settings))
            self._stop_workers(self._worker_group)
            self._pool.shutdown()

    barrier_timeout = settings.pop("exit_barrier_timeout", DEADLINE_S)
    own_handler = settings.pop("rdzv_handler", None) or handler(of, meeting)
    values = {"role": "trainer", "local_world_size": 2, "monitor_interval": 0.01, **settings}
    spec = api.WorkerSpec(rdzv_handler=own_handler, entrypoint=program, **values)
    return ThreadAgent(spec, exit_barrier_timeout=barrier_timeout, shutdown_timeout=7)


def run_all(agents: list[Any]) -> list[Any]:
    """Run them at once, each in a thread; what each returned."""
    with ThreadPoolExecutor(len(agents)) as pool:
        running = [pool.submit(one.run) for one in agents]
        return [one.result(DEADLINE_S) for one in running]
