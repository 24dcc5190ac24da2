"""What others write against the elastic API: handlers, backends, stores, logs, packages, agents.

Each has no more than it must have, and is made three ways: on our base class, on PyTorch's, and
on none at all.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.elastic.agent.server.api import WorkerSpec
from holdfast.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from holdfast.elastic.multiprocessing import DefaultLogsSpecs, start_processes
from holdfast.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
)

from ..waiting import DEADLINE_S, until
from . import agents_of_threads as threads

BASES = [
    pytest.param(threads.OURS, id="on our base"),
    pytest.param(threads.THEIRS, id="on PyTorch's", marks=pytest.mark.torch),
    pytest.param(None, id="on none"),
]
IMPORT_DEADLINE_S = 110.0
"""On a busy machine that reads it for the first time, PyTorch alone takes half a minute."""
PATIENCE = RendezvousTimeout(join=timedelta(seconds=30), last_call=timedelta(seconds=1))


@pytest.fixture
def ours() -> Any:
    return threads.library(threads.OURS)


# --- handlers -----------------------------------------------------------------------------


class Alike:
    """A handler that only looks like one, and what it answers too."""

    def __init__(self, meeting: threads.Meeting) -> None:
        self._meeting = meeting

    def get_backend(self) -> str:
        return "alike"

    def next_rendezvous(self) -> Any:
        store, rank, size = self._meeting.join()
        place = SimpleNamespace(master_addr="host", master_port=1)
        return SimpleNamespace(store=store, rank=rank, world_size=size, bootstrap_store_info=place)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return self._meeting.waiting

    def get_run_id(self) -> str:
        return "run"

    def shutdown(self) -> bool:
        return True


def handler_on(base: str | None, meeting: threads.Meeting) -> Any:
    if base is None:
        return Alike(meeting)
    return threads.handler(threads.library(base), meeting)


def failing_once(place: Any) -> int:
    """The second of all fails at first; the others wait until they are stopped for it."""
    if place.attempt == 0:
        if place.rank == 1:
            raise ValueError
        assert place.is_to_stop.wait(DEADLINE_S)
    return int(place.world_size)


@pytest.mark.parametrize("base", BASES)
def test_a_handler_with_the_abstract_methods_drives_an_agent_of_threads(
    ours: Any, base: str | None
) -> None:
    meeting = threads.Meeting(size=2)
    agents = [
        threads.agent(ours, failing_once, meeting, rdzv_handler=handler_on(base, meeting))
        for _ in range(2)
    ]
    results = threads.run_all(agents)
    assert [result.state.name for result in results] == ["SUCCEEDED"] * 2
    assert sorted(rank for result in results for rank in result.return_values) == [0, 1, 2, 3]
    # One asked for a restart, and the other one had it for nothing.
    assert sorted(one._remaining_restarts for one in agents) == [2, 3]


FAILS_ONCE = """
test -e "$0/failed" && exit 0
if test $RANK = 0; then touch "$0/up"; exec sleep 60; fi
until test -e "$0/up"; do sleep 0.02; done
touch "$0/failed"; exit 3
"""


@pytest.mark.parametrize("base", BASES)
def test_a_handler_with_the_abstract_methods_drives_local_agents(
    base: str | None, tmp_path: Path
) -> None:
    meeting = threads.Meeting(size=2)
    agents = [local_agent(handler_on(base, meeting), FAILS_ONCE, tmp_path) for _ in range(2)]
    results = threads.run_all(agents)
    assert [result.state.name for result in results] == ["SUCCEEDED"] * 2
    assert sorted(rank for result in results for rank in result.return_values) == [0, 1]
    assert sorted(one._remaining_restarts for one in agents) == [2, 3]


def local_agent(handler: Any, script: str, folder: Path) -> LocalElasticAgent:
    spec = WorkerSpec(
        role="trainer",
        local_world_size=1,
        rdzv_handler=handler,
        entrypoint="sh",
        args=("-c", script, str(folder)),
        monitor_interval=0.02,
    )
    return LocalElasticAgent(spec, DefaultLogsSpecs(log_dir=str(folder / "logs")))


# --- backends -----------------------------------------------------------------------------


class InAFile:
    """One document in a file, for all processes of a machine; no base class."""

    name = "in a file"

    def __init__(self, path: str) -> None:
        self._path = path

    def get_state(self) -> tuple[bytes, int] | None:
        with open(self._path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return self._read(file)

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, int, bool] | None:
        with open(self._path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            now = self._read(file)
            if token != (now[1] if now else None):
                return None if now is None else (*now, False)
            number = (token or 0) + 1
            file.truncate(0)
            file.write(b"%d\n" % number + state)
            return state, number, True

    def _read(self, file: Any) -> tuple[bytes, int] | None:
        file.seek(0)
        number, _, state = file.read().partition(b"\n")
        return (state, int(number)) if number else None


def backend_on(base: str | None, path: str) -> Any:
    if base is None:
        return InAFile(path)
    theirs = import_module(f"{base}.rendezvous.dynamic_rendezvous").RendezvousBackend

    class Kept(theirs):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            self._file = InAFile(path)

        @property
        def name(self) -> str:
            return "kept"

        def get_state(self) -> Any:
            return self._file.get_state()

        def set_state(self, state: bytes, token: Any = None) -> Any:
            return self._file.set_state(state, token)

    return Kept()


def handler_over(backend: Any, run_id: str, store: Any = None) -> DynamicRendezvousHandler:
    return DynamicRendezvousHandler.from_backend(
        run_id, store, backend, 1, 2, local_addr="127.0.0.1", timeout=PATIENCE
    )


ANOTHER_NODE = """
import sys, time
from tests.elastic.test_third_party import InAFile, handler_over
handler = handler_over(InAFile(sys.argv[1]), sys.argv[2])
while True:
    info = handler.next_rendezvous()
    print(info.rank, info.world_size, flush=True)
    while not handler.num_nodes_waiting():
        time.sleep(0.01)
"""


@pytest.fixture
def place(tmp_path: Path) -> tuple[str, str]:
    """A file for the document, and an id for the job."""
    return str(tmp_path / "document"), uuid.uuid4().hex


@pytest.fixture
def another_node(place: tuple[str, str]) -> Iterator[subprocess.Popen[str]]:
    root = str(Path(__file__).parents[2])
    node = subprocess.Popen(
        [sys.executable, "-c", ANOTHER_NODE, *place],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    with node:
        yield node
        node.kill()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.mark.parametrize("base", BASES)
def test_a_backend_with_two_calls_carries_a_rendezvous(
    base: str | None,
    place: tuple[str, str],
    another_node: subprocess.Popen[str],
    pool: ThreadPoolExecutor,
) -> None:
    """Two nodes meet, one asks for another round, and then the other is killed."""
    path, run_id = place
    handler = handler_over(backend_on(base, path), run_id)
    try:
        while (info := soon(pool, handler.next_rendezvous)).world_size < 2:
            until(handler.num_nodes_waiting)
        assert sorted([info.rank, rank_of(another_node)]) == [0, 1]
        again = soon(pool, handler.next_rendezvous)
        assert sorted([again.rank, rank_of(another_node)]) == [0, 1]
        again.store.set("key", "value")
        assert handler.num_nodes_waiting() == 0
        another_node.send_signal(signal.SIGKILL)
        until(handler.num_nodes_waiting)
        alone = soon(pool, handler.next_rendezvous)
        assert (alone.rank, alone.world_size) == (0, 1)
        assert not alone.store.check(["key"])
    finally:
        handler.shutdown()


def soon(pool: ThreadPoolExecutor, call: Callable[[], Any]) -> Any:
    asked: Future[Any] = pool.submit(call)
    return asked.result(DEADLINE_S)


def rank_of(node: subprocess.Popen[str]) -> int:
    """The rank that a node has in the next round of two that it tells of."""
    assert node.stdout is not None
    while True:
        rank, size = map(int, node.stdout.readline().split())
        if size == 2:
            return rank


# --- places for logs ----------------------------------------------------------------------


class OneFolder:
    """All streams of all ranks side by side; no base class."""

    def __init__(self, folder: Path, destination: Callable[..., Any]) -> None:
        self.root_log_dir = str(folder)
        self._destination = destination

    def reify(self, envs: dict[int, dict[str, str]]) -> Any:
        def paths(kind: str) -> dict[int, str]:
            return {rank: f"{self.root_log_dir}/{rank}.{kind}" for rank in envs}

        return self._destination(
            stdouts=paths("out"),
            stderrs=paths("err"),
            tee_stdouts={},
            tee_stderrs={},
            error_files=paths("json"),
            filtered_stdout="",
            filtered_stderr="",
        )


def logs_on(base: str | None, folder: Path) -> Any:
    if base is None:
        return OneFolder(folder, SimpleNamespace)
    library = import_module(f"{base}.multiprocessing")

    class Own(library.LogsSpecs):  # type: ignore[misc, name-defined]
        def reify(self, envs: dict[int, dict[str, str]]) -> Any:
            return OneFolder(folder, library.LogsDest).reify(envs)

        @property
        def root_log_dir(self) -> str:
            return str(folder)

    return Own(log_dir=str(folder))


@pytest.mark.parametrize("base", BASES)
def test_the_places_for_logs_can_be_somebody_elses(base: str | None, tmp_path: Path) -> None:
    command = ("-c", "echo $RANK; echo $RANK >&2")
    envs = {rank: {"RANK": str(rank)} for rank in range(2)}
    context = start_processes(
        "sh", "sh", dict.fromkeys(envs, command), envs, logs_on(base, tmp_path)
    )
    result = context.wait(DEADLINE_S)
    assert result is not None
    assert not result.is_failed()
    assert result.stdouts == {rank: f"{tmp_path}/{rank}.out" for rank in envs}
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {"0.out": "0\n", "1.out": "1\n", "0.err": "0\n", "1.err": "1\n"}


# --- stores -------------------------------------------------------------------------------


class LeastStore:
    """What an agent needs, and nothing else."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes | str) -> None:
        with self._changed:
            self.values[key] = value.encode() if isinstance(value, str) else value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.values, DEADLINE_S)
            return self.values[key]

    def add(self, key: str, amount: int) -> int:
        with self._changed:
            total = int(self.values.get(key, b"0")) + amount
            self.set(key, str(total))
            return total


class WaitingStore(LeastStore):
    """With the call that the barrier at the end needs."""

    def wait(self, keys: list[str]) -> None:
        for key in keys:
            self.get(key)


@pytest.mark.parametrize("kind", [LeastStore, WaitingStore])
def test_the_least_of_stores_will_do_for_agents(ours: Any, kind: Callable[[], Any]) -> None:
    meeting = threads.Meeting(size=2, store=kind)
    agents = [threads.agent(ours, lambda place: place.rank, meeting) for _ in range(2)]
    results = threads.run_all(agents)
    values = {rank: value for result in results for rank, value in result.return_values.items()}
    assert values == {0: 0, 1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize("kind", [LeastStore, WaitingStore])
def test_the_least_of_stores_can_be_given_to_a_rendezvous(
    ours: Any, kind: Callable[[], Any], place: tuple[str, str]
) -> None:
    store = kind()
    handler = handler_over(InAFile(place[0]), place[1], store)
    meeting = threads.Meeting()
    agent = threads.agent(ours, lambda place: place.rank, meeting, rdzv_handler=handler)
    try:
        assert agent.run().return_values == {0: 0, 1: 1}
    finally:
        handler.shutdown()
    prefix = f"torch.rendezvous.{place[1]}."
    assert store.values
    assert all(key.startswith(prefix) for key in store.values)


# --- agents of threads over a handler of ours ---------------------------------------------


class FailsOnceAmongFour:
    """Workers that wait for four of them to run, of whom the last fails once."""

    def __init__(self) -> None:
        self._others = threading.Semaphore(0)
        self._has_failed = False

    def __call__(self, place: Any) -> int:
        if self._has_failed:
            return int(place.rank)
        if place.rank < 3:
            if place.world_size == 4:
                self._others.release()
            assert place.is_to_stop.wait(DEADLINE_S)
            return -1
        for _ in range(3):
            assert self._others.acquire(timeout=DEADLINE_S)
        self._has_failed = True
        raise ValueError


@pytest.fixture
def metrics(ours: Any) -> Iterator[list[tuple[str, Any]]]:
    put: list[tuple[str, Any]] = []

    class Noting(ours.metrics.MetricHandler):  # type: ignore[misc]
        def emit(self, metric_data: Any) -> None:
            put.append((metric_data.name, metric_data.value))

    ours.metrics.configure(Noting(), "torchelastic")
    yield put
    ours.metrics.configure(ours.metrics.NullMetricHandler(), "torchelastic")


def test_agents_of_threads_meet_newcomers_and_restart_over_a_real_rendezvous(
    ours: Any,
    place: tuple[str, str],
    metrics: list[tuple[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[Any] = []
    monkeypatch.setattr(ours.agent, "record", lambda event, to: events.append(event))
    program = FailsOnceAmongFour()
    handlers = [handler_over(InAFile(place[0]), place[1]) for _ in range(2)]
    agents = [threads.agent(ours, program, threads.Meeting(), rdzv_handler=h) for h in handlers]
    try:
        with ThreadPoolExecutor() as pool:
            first = pool.submit(agents[0].run)
            until(lambda: agents[0].attempts == 1)
            second = pool.submit(agents[1].run)
            results = [one.result(DEADLINE_S) for one in (first, second)]
    finally:
        for handler in handlers:
            handler.shutdown()
    assert sorted(rank for result in results for rank in result.return_values) == [0, 1, 2, 3]
    assert agents[0].attempts + agents[1].attempts == 5  # alone, two of two, two of two again
    assert sorted(one._remaining_restarts for one in agents) == [2, 3]
    assert metrics.count(("workers.trainer.run_success_no_retries", 1)) == 1
    assert metrics.count(("workers.trainer.run_success_with_retries", 1)) == 1
    named = [event.name.rpartition(".")[2] for event in events]
    assert named.count("START") == 10  # of each worker, in each attempt
    assert named.count("SUCCEEDED") == 4
    assert named.count("RENDEZVOUS") == named.count("ASSIGN_WORKER_RANKS") == 5
    assert {event.metadata["rdzv_backend"] for event in events} == {"in a file"}


# --- packages -----------------------------------------------------------------------------

PACKAGE = """
from types import SimpleNamespace

class Store:
    def __init__(self):
        self.values = {}
    def set(self, key, value):
        self.values[key] = value
    def get(self, key):
        return self.values[key]
    def add(self, key, amount):
        self.values[key] = self.values.get(key, 0) + amount
        return self.values[key]
    def wait(self, keys):
        assert set(keys) <= self.values.keys()
    def multi_get(self, keys):
        return [self.values[key] for key in keys]
    def multi_set(self, keys, values):
        self.values.update(zip(keys, values))

class Handler:
    use_agent_store = False
    def __init__(self, params):
        self.params = params
    def get_backend(self):
        return "pigeon"
    def next_rendezvous(self):
        place = SimpleNamespace(master_addr="127.0.0.1", master_port=1)
        return SimpleNamespace(store=Store(), rank=0, world_size=1, bootstrap_store_info=place)
    def is_closed(self):
        return False
    def num_nodes_waiting(self):
        return 0
    def get_run_id(self):
        return self.params.run_id
    def shutdown(self):
        print("shut down", self.params.get("speed"), self.params.endpoint)

def get_handler():
    return Handler

def broken():
    raise OSError("no pigeons")
"""
ENTRY_POINTS = """
[torchrun.handlers]
pigeon = pigeon_post:get_handler
broken = pigeon_post:broken
"""
LAUNCHES = """
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
config = LaunchConfig(1, 1, 2, run_id="job", rdzv_backend="pigeon", rdzv_endpoint="loft:7",
                      rdzv_configs={"speed": "90"}, monitor_interval=0.05)
print(elastic_launch(config, "true")())
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with an installed package that offers handlers to launchers."""
    metadata = tmp_path / "pigeon_post-1.0.dist-info"
    metadata.mkdir()
    (tmp_path / "pigeon_post.py").write_text(PACKAGE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon-post\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return tmp_path


@pytest.mark.thorough
@pytest.mark.parametrize(
    "prefix", [threads.OURS, pytest.param("torch.distributed", marks=pytest.mark.torch)]
)
def test_a_handler_of_an_installed_package_runs_a_job(prefix: str, installed: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LAUNCHES.replace("torch.distributed", prefix)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(installed)},
        timeout=IMPORT_DEADLINE_S,
        check=False,
    )
    assert ended.stdout == "shut down 90 loft:7\n{0: None, 1: None}\n", ended.stderr
