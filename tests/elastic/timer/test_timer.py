"""Timers: what they end, what they leave alone, and what they leave behind."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.elastic import timer
from holdfast.elastic.timer import file_based_local_timer as file_timer
from holdfast.elastic.timer.local_timer import PinnedProcesses, is_endable
from holdfast.processes.monitoring.file_timer import TimerPipe

from ...waiting import DEADLINE_S, until

LONG_S = 3600.0


@pytest.fixture(
    params=["holdfast.elastic", pytest.param("torch.distributed.elastic", marks=pytest.mark.torch)]
)
def api(request: pytest.FixtureRequest) -> Any:
    """The timers of both: what is written for PyTorch's must work with ours."""
    return importlib.import_module(f"{request.param}.timer")


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No thread and no descriptor more than before."""
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    yield
    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors


@pytest.fixture(scope="module", autouse=True)
def resource_tracker() -> None:
    """Python's own, which is started with the first queue and stays: nothing that we leave."""
    ensure_running()


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    return str(tmp_path / "pipe")


# --- scopes -------------------------------------------------------------------------------


def recorder(api: Any) -> Any:
    """A client that writes down what is asked of it."""

    class Recorder(api.TimerClient):  # type: ignore[misc]
        def __init__(self) -> None:
            self.calls: list[tuple[Any, ...]] = []

        def acquire(self, scope_id: str, expiration_time: float) -> None:
            self.calls.append(("acquire", scope_id, expiration_time))

        def release(self, scope_id: str) -> None:
            self.calls.append(("release", scope_id))

    return Recorder()


def test_a_scope_takes_a_timer_and_gives_it_back(api: Any) -> None:
    client = recorder(api)
    before = time.time()
    with api.expires(after=5, scope="scope", client=client):
        (taken,) = client.calls
        assert taken[:2] == ("acquire", "scope")
        assert before + 5 <= taken[2] <= time.time() + 5
    assert client.calls[1:] == [("release", "scope")]


def test_a_scope_that_raises_gives_its_timer_back(api: Any) -> None:
    client = recorder(api)
    with pytest.raises(KeyError), api.expires(5, "scope", client):
        raise KeyError
    assert client.calls[-1] == ("release", "scope")


def test_the_configured_client_is_used_unless_another_is_given(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{api.__name__}.api._timer_client", None)
    configured, given = recorder(api), recorder(api)
    api.configure(configured)
    with api.expires(5):
        assert len(configured.calls) == 1
    with api.expires(5, client=given):
        assert len(given.calls) == 1
    assert len(configured.calls) == 2


def test_without_a_client_a_scope_cannot_be_entered(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{api.__name__}.api._timer_client", None)
    with pytest.raises(RuntimeError), api.expires(5):
        pass


def test_scopes_without_a_name_are_named_after_their_lines_and_nest() -> None:
    client = recorder(timer)
    with timer.expires(5, client=client):
        with timer.expires(5, client=client):
            pass
        outer, inner = client.calls[0][1], client.calls[1][1]
        assert client.calls[2] == ("release", inner)
    line = sys._getframe().f_lineno - 5
    assert (outer, inner) == (f"{__file__}#{line}", f"{__file__}#{line + 1}")


# --- what servers keep --------------------------------------------------------------------


def test_requests_are_equal_by_what_they_say(api: Any) -> None:
    assert api.TimerRequest(1, "a", 2.0) == api.TimerRequest(1, "a", 2.0)
    assert api.TimerRequest(1, "a", 2.0) != api.TimerRequest(1, "b", 2.0)
    assert api.FileTimerRequest(1, "a", 2.0, 9) == api.FileTimerRequest(1, "a", 2.0, 9)
    assert api.FileTimerRequest(1, "a", 2.0, 9) != api.FileTimerRequest(1, "a", 2.0, 15)
    assert api.FileTimerRequest(1, "a", 2.0) != api.TimerRequest(1, "a", 2.0)
    assert api.FileTimerRequest(worker_pid=3, scope_id="a", expiration_time=2.0).worker_pid == 3
    said = json.loads(api.FileTimerRequest(1, "ä", 2.5, signal.SIGTERM).to_json())
    expected = {"version": 1, "pid": 1, "scope_id": "ä", "expiration_time": 2.5, "signal": 15}
    assert said == expected


def keeping(api: Any, kind: str, pipe: str) -> tuple[Any, Callable[..., Any]]:
    """A server that is not started, and the type of its requests."""
    if kind == "file":
        return api.FileTimerServer(pipe, "run"), api.FileTimerRequest
    return api.LocalTimerServer(multiprocessing.get_context("spawn").Queue()), api.TimerRequest


@pytest.mark.parametrize("kind", ["queue", "file"])
def test_timers_are_kept_by_worker_and_scope(api: Any, kind: str, pipe: str) -> None:
    server, request = keeping(api, kind, pipe)
    me = os.getpid()
    one, two = request(me, "one", 10.0), request(me, "two", 20.0)
    server.register_timers([one, two, request(1, "one", 30.0)])
    assert server.get_expired_timers(9.9) == {}
    assert server.get_expired_timers(10.0) == {me: [one]}
    assert server.get_expired_timers(20.0) == {me: [one, two]}
    later = request(me, "one", 40.0)
    server.register_timers([later, request(me, "two", -1), request(me, "unknown", -1)])
    assert server.get_expired_timers(39.0) == {1: [request(1, "one", 30.0)]}
    server.clear_timers({1})
    assert server.get_expired_timers(100.0) == {me: [later]}


# --- servers of others --------------------------------------------------------------------


def own_server(api: Any, reap: Callable[[Any], bool], max_interval: float) -> Any:
    """A server with nothing but the abstract methods, over a queue of its own."""
    requests: list[Any] = []
    is_filled = threading.Condition()

    class OwnQueue(importlib.import_module(f"{api.__name__}.api").RequestQueue):  # type: ignore[misc]
        def size(self) -> int:
            return len(requests)

        def get(self, size: int, timeout: float) -> list[Any]:
            with is_filled:
                is_filled.wait_for(lambda: requests, timeout)
                taken = requests[:size]
                del requests[:size]
            return taken

    class OwnServer(api.TimerServer):  # type: ignore[misc]
        timers: dict[Any, Any] = {}  # noqa: RUF012 - one server per test

        def register_timers(self, timer_requests: list[Any]) -> None:
            self.timers.update({request.worker_id: request for request in timer_requests})

        def clear_timers(self, worker_ids: set[Any]) -> None:
            for worker in worker_ids:
                del self.timers[worker]

        def get_expired_timers(self, deadline: float) -> dict[Any, list[Any]]:
            due = (t for t in self.timers.values() if t.expiration_time <= deadline)
            return {request.worker_id: [request] for request in due}

        def _reap_worker(self, worker_id: Any) -> bool:
            return reap(worker_id)

    def put(request: Any) -> None:
        with is_filled:
            requests.append(request)
            is_filled.notify()

    server = OwnServer(OwnQueue(), max_interval)
    server.put = put
    return server


def noting(reaped: list[Any]) -> Callable[[Any], bool]:
    def reap(worker: Any) -> bool:
        reaped.append(worker)
        return True

    return reap


def test_a_server_of_somebody_else_reaps_who_is_due(api: Any) -> None:
    reaped: list[Any] = []
    server = own_server(api, noting(reaped), 0.05)
    server.start()
    server.put(api.TimerRequest("late", "scope", time.time()))
    server.put(api.TimerRequest("early", "scope", time.time() + LONG_S))
    until(lambda: reaped and "late" not in server.timers and "early" in server.timers)
    server.stop()
    assert reaped == ["late"]


@pytest.mark.parametrize("failure", [False, RuntimeError("no")])
def test_only_a_worker_whose_reaping_raised_is_not_tried_again(
    api: Any, failure: bool | Exception
) -> None:
    attempts: list[Any] = []

    def reap(worker: Any) -> bool:
        attempts.append(worker)
        if isinstance(failure, Exception):
            raise failure
        return len(attempts) > 1

    if api is not timer:
        importlib.import_module("torch._dynamo")  # PyTorch's logger does, for its first line.
    server = own_server(api, reap, 0.02)
    server.start()
    server.put(api.TimerRequest("worker", "scope", 0.0))
    until(lambda: attempts and "worker" not in server.timers)
    server.stop()
    assert len(attempts) == (1 if isinstance(failure, Exception) else 2)


def test_the_next_expiry_is_not_slept_through() -> None:
    reaped: list[Any] = []
    server = own_server(timer, noting(reaped), DEADLINE_S * 10)
    server.start()
    server.put(timer.TimerRequest("worker", "scope", time.time() + 0.1))
    until(lambda: reaped)
    server._stopping.set()
    server.put(timer.TimerRequest("waker", "scope", -1))
    server.stop()


# --- through a queue ----------------------------------------------------------------------

WORKER = """
import time
from holdfast.elastic.timer import LocalTimerClient, expires
with expires(after=after, client=LocalTimerClient(queue)):
    time.sleep(stay)
"""


def test_a_worker_that_stays_too_long_is_killed_and_the_others_live() -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    server = timer.LocalTimerServer(queue, max_interval=LONG_S)
    server.start()
    times = [{"after": 0.2, "stay": LONG_S}, {"after": LONG_S, "stay": 0.2}]
    workers = [
        context.Process(target=exec, args=(WORKER, {"queue": queue, **given})) for given in times
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(DEADLINE_S)
    server.stop()
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL, 0]
    queue.close()


def test_a_server_that_waits_for_long_stops_at_once(nothing_left: None) -> None:
    server = timer.LocalTimerServer(multiprocessing.get_context("spawn").Queue(), LONG_S)
    for _ in range(2):
        server.start()
        server.stop()
    server.stop()
    del server


def test_a_server_that_is_started_twice_goes_on_watching(nothing_left: None) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    server = timer.LocalTimerServer(queue, max_interval=LONG_S)
    server.start()
    thread = server._watchdog_thread
    server.start()
    assert server._watchdog_thread is thread
    given = {"queue": queue, "after": 0.1, "stay": LONG_S}
    worker = context.Process(target=exec, args=(WORKER, given))
    worker.start()
    worker.join(DEADLINE_S)
    assert worker.exitcode == -signal.SIGKILL
    worker.close()
    server.stop()
    queue.close()
    del server, queue


def test_a_queue_of_a_manager_works_too() -> None:
    with multiprocessing.get_context("spawn").Manager() as manager:
        queue: Any = manager.Queue()
        server = timer.LocalTimerServer(queue, max_interval=0.05)
        server.start()
        timer.LocalTimerClient(queue).acquire("scope", time.time() + LONG_S)
        until(lambda: server._timers)
        thread = server._watchdog_thread
        server.stop()
        assert thread is not None
        assert not thread.is_alive()


# --- through a named pipe -----------------------------------------------------------------

STAYS = """
import sys, time
from holdfast.elastic.timer import FileTimerClient, expires
pipe, signal_number, after, stay = sys.argv[1], *map(float, sys.argv[2:])
with expires(after, client=FileTimerClient(pipe, int(signal_number))):
    time.sleep(stay)
"""


READS = """
import sys
from holdfast.elastic.timer import FileTimerClient, expires
with expires(0.0, client=FileTimerClient(sys.argv[1], signal=0)):
    sys.stdin.read()
"""


def stay(pipe: str, signal_number: int, after: float, stay: float) -> int:
    """How a process ends that stays in a scope."""
    arguments = [str(value) for value in (pipe, signal_number, after, stay)]
    return subprocess.run(
        [sys.executable, "-c", STAYS, *arguments], timeout=DEADLINE_S, check=False
    ).returncode


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_stays_too_long_is_ended_and_its_watcher_is_not(
    pipe: str, signal_number: int, nothing_left: None
) -> None:
    told: list[tuple[str, int | None]] = []
    server = timer.FileTimerServer(
        pipe,
        "run",
        max_interval=LONG_S,
        log_event=lambda name, request: told.append((name, request.signal if request else None)),
    )
    server.start()
    assert stay(pipe, signal_number, 0.1, LONG_S) == -signal_number
    server.stop()
    assert told == [
        ("watchdog started", None),
        ("timer expired", signal_number),
        ("kill worker process", signal_number),
        ("watchdog stopped", None),
    ]
    assert not os.path.exists(pipe)


def test_a_server_of_a_pipe_that_is_started_twice_or_again_goes_on_watching(
    pipe: str, nothing_left: None
) -> None:
    told: list[str] = []
    server = timer.FileTimerServer(pipe, "run", log_event=lambda name, _: told.append(name))
    for _ in range(2):
        server.start()
        server.start()
        assert stay(pipe, signal.SIGKILL, 0.1, LONG_S) == -signal.SIGKILL
        server.stop()
        assert not os.path.exists(pipe)
    assert told.count("watchdog started") == 2
    assert told.count("kill worker process") == 2


def test_a_process_that_is_in_time_or_asks_for_no_signal_lives(pipe: str) -> None:
    told: list[str] = []
    server = timer.FileTimerServer(pipe, "run", log_event=lambda name, _: told.append(name))
    server.start()
    assert stay(pipe, signal.SIGKILL, LONG_S, 0) == 0
    assert "timer expired" not in told
    with subprocess.Popen([sys.executable, "-c", READS, pipe], stdin=subprocess.PIPE) as reader:
        until(lambda: "timer expired" in told)
        reader.communicate()
    assert reader.returncode == 0
    server.stop()
    assert "kill worker process" not in told


def test_a_listener_that_raises_saves_nobody(pipe: str) -> None:
    def listener(event: str, _: object) -> None:
        raise ValueError(event)

    server = timer.FileTimerServer(pipe, "run", log_event=listener)
    server.start()
    assert stay(pipe, signal.SIGKILL, 0.0, LONG_S) == -signal.SIGKILL
    server.stop()


def test_what_means_nothing_is_dropped(pipe: str) -> None:
    server = timer.FileTimerServer(pipe, "run")
    server.start()
    lines = [
        b"nonsense",
        b"\xff\xfe{}",
        b"[]",
        b"",
        b'{"pid": "1", "scope_id": "a", "expiration_time": 0, "signal": 9}',
        b'{"pid": 99999999999999999999, "scope_id": "a", "expiration_time": 0, "signal": 9}',
    ]
    with open(pipe, "wb", buffering=0) as writer:
        for line in lines:
            writer.write(line + b"\n")
    timer.FileTimerClient(pipe).acquire("good", time.time() + LONG_S)
    server.run_once()
    assert len(server._timers) == 1
    assert not os.path.exists(pipe)


def test_requests_that_come_in_pieces_are_put_together(pipe: str) -> None:
    os.mkfifo(pipe)
    reading = TimerPipe(pipe)
    with open(pipe, "wb", buffering=0) as writer:
        writer.write(b"first\nsec")
        assert reading.lines() == [b"first"]
        writer.write(b"o")
        assert reading.lines() == []
        writer.write(b"nd\n")
        assert reading.lines() == [b"second"]
    assert reading.lines() == []
    reading.close()


def test_the_process_that_watches_is_not_ended_by_a_timer_of_its_own(pipe: str) -> None:
    told: list[str] = []
    signalled: list[int] = []
    server = timer.FileTimerServer(pipe, "run", log_event=lambda name, _: told.append(name))
    before = signal.signal(signal.SIGUSR1, lambda number, _: signalled.append(number))
    try:
        server.start()
        timer.FileTimerClient(pipe, signal.SIGUSR1).acquire("scope", time.time())
        until(lambda: "timer expired" in told and not server._timers)
        server.stop()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert signalled == []
    assert "kill worker process" not in told


def test_numbers_that_are_nobody_are_never_signalled() -> None:
    assert [is_endable(pid) for pid in (-5, -1, 0, 1, os.getpid())] == [False] * 5
    assert is_endable(os.getppid()) or os.getppid() == 1


def test_the_pipe_is_for_its_owner_only(pipe: str) -> None:
    before = os.umask(0)
    try:
        server = timer.FileTimerServer(pipe, "run")
    finally:
        os.umask(before)
    assert os.stat(pipe).st_mode & 0o777 == 0o600
    server.stop()
    assert not os.path.exists(pipe)


def test_without_a_server_a_scope_cannot_be_entered(
    pipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_timer, "SERVER_WAIT_S", 0.05)
    client = timer.FileTimerClient(pipe)
    with pytest.raises(BrokenPipeError), timer.expires(5, client=client):
        pass
    server = timer.FileTimerServer(pipe, "run")  # The pipe is there, and nobody reads it.
    with pytest.raises(BrokenPipeError):
        client.acquire("scope", 0)
    server.stop()


def test_a_server_that_comes_a_little_later_is_waited_for(
    pipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_timer, "SERVER_WAIT_S", DEADLINE_S)
    errors: list[BaseException] = []

    def acquire() -> None:
        try:
            timer.FileTimerClient(pipe).acquire("scope", time.time() + LONG_S)
        except OSError as error:
            errors.append(error)

    asking = threading.Thread(target=acquire)
    asking.start()
    server = timer.FileTimerServer(pipe, "run")
    server.start()
    asking.join()
    server.run_once()
    assert errors == []
    assert len(server._timers) == 1


def test_a_server_that_comes_at_the_last_moment_is_waited_for(
    pipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that only pauses move: however long they are, none goes past the end."""
    server = timer.FileTimerServer(pipe, "run")
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now >= file_timer.SERVER_WAIT_S and server._watchdog_thread is None:
            server.start()

    clock = SimpleNamespace(monotonic=lambda: now, sleep=sleep, time=time.time)
    monkeypatch.setattr(file_timer, "time", clock)
    timer.FileTimerClient(pipe).acquire("scope", time.time() + LONG_S)
    server.run_once()
    assert len(server._timers) == 1
    assert now == file_timer.SERVER_WAIT_S


def test_a_scope_with_too_long_a_name_is_refused(pipe: str) -> None:
    server = timer.FileTimerServer(pipe, "run")
    server.start()
    with pytest.raises(RuntimeError, match=str(select.PIPE_BUF)):
        timer.FileTimerClient(pipe).acquire("s" * select.PIPE_BUF, 0)
    server.stop()
    assert len(server._timers) == 0


def test_a_server_that_idles_makes_progress_and_one_that_hangs_does_not(pipe: str) -> None:
    hanging, going_on = threading.Event(), threading.Event()

    def listener(event: str, _: object) -> None:
        if event == "timer expired":
            hanging.set()
            going_on.wait(DEADLINE_S)

    server = timer.FileTimerServer(pipe, "run", max_interval=LONG_S, log_event=listener)
    before = int(time.time())
    assert server.get_last_progress_time() >= before
    server.start()
    timer.FileTimerClient(pipe, signal=0).acquire("scope", 0.0)
    assert hanging.wait(DEADLINE_S)
    stalled = server.get_last_progress_time()
    until(lambda: time.time() > stalled + 1)
    assert server.get_last_progress_time() == stalled
    going_on.set()
    until(lambda: server.get_last_progress_time() > stalled)
    server.stop()
    stopped = server.get_last_progress_time()
    until(lambda: time.time() > stopped + 1)
    assert server.get_last_progress_time() == stopped


@pytest.mark.torch
def test_a_client_of_pytorch_can_ask_our_server(pipe: str) -> None:
    theirs = importlib.import_module("torch.distributed.elastic.timer")
    server = timer.FileTimerServer(pipe, "run")
    server.start()
    client = theirs.FileTimerClient(pipe)
    client.acquire("kept", 4e9)
    client.acquire("given back", 4e9)
    client.release("given back")
    server.run_once()
    request = timer.FileTimerRequest(os.getpid(), "kept", 4e9, signal.SIGKILL)
    assert server._timers == {(os.getpid(), "kept"): request}


# --- who is ended -------------------------------------------------------------------------


def test_a_process_that_has_ended_is_known_and_its_number_is_not_signalled() -> None:
    processes = PinnedProcesses()
    with subprocess.Popen(["sleep", "100"]) as sleeper:
        processes.keep_only({sleeper.pid})
        assert processes.ended() == set()
        assert processes.send(sleeper.pid, signal.SIGKILL)
        sleeper.wait()
        assert processes.ended() == {sleeper.pid}
        assert processes.send(sleeper.pid, signal.SIGKILL)
    processes.keep_only(set())
    processes.keep_only({sleeper.pid})
    assert processes.ended() == {sleeper.pid}
    processes.close()
    assert processes.ended() == set()
