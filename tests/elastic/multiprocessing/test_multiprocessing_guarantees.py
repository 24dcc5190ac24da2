"""What holds for processes whatever happens to those around them: nothing of them is left."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.elastic.multiprocessing import (
    DefaultLogsSpecs,
    MultiprocessContext,
    PContext,
    SignalException,
    calls,
    start_processes,
)
from holdfast.elastic.multiprocessing.started_processes import StartedProcesses
from holdfast.processes.stdlib_only import linux

sys.path.append(str(Path(__file__).parents[1]))
import entrypoints
from starting import (
    DEADLINE_S,
    envs,
    functions,
    held,
    leaves_nothing,
    shell,
    signals_as_before,
)
from tests.waiting import until

__all__ = ["leaves_nothing", "signals_as_before"]

KINDS = ["spawn", "fork", "forkserver", "command"]
pytestmark = pytest.mark.usefixtures("leaves_nothing")


def one_that_stays(tmp_path: Path, kind: str) -> PContext:
    context: PContext
    if kind == "command":
        context = shell(tmp_path, "exec sleep 1000")
    else:
        context = functions(tmp_path, entrypoints.stay, (), start_method=kind)
    return context


def started_with_a_daemon(tmp_path: Path, kind: str) -> tuple[PContext, int]:
    """A process that ignores SIGTERM, with a child that has left its session."""
    path = str(tmp_path / "daemon")
    if kind == "command":
        lines = f"trap '' TERM; setsid sleep 1000 & echo $! > {path}.part; mv {path}.part {path}"
        context = shell(tmp_path, f"{lines}; wait")
    else:
        context = functions(tmp_path, entrypoints.ignores_sigterm, (path,), start_method=kind)
    until(lambda: os.path.exists(path))
    return context, int(Path(path).read_text())


def spawner_of(context: PContext) -> int:
    worker = linux.read_process(context.pids()[0])
    assert worker is not None
    return worker.parent


# --- deaths ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("killed", ["spawner", "guardian"])
def test_nothing_outlives_a_spawner_that_is_killed(
    tmp_path: Path, is_running: Callable[[int], bool], kind: str, killed: str
) -> None:
    context, daemon = started_with_a_daemon(tmp_path, kind)
    spawner = spawner_of(context)
    guardian = context._started._group.spawner_pid
    assert guardian != spawner
    os.kill(spawner if killed == "spawner" else guardian, signal.SIGKILL)
    result = context.wait()
    assert result is not None
    assert result.failures[0].exitcode == -signal.SIGKILL
    assert not any(map(is_running, (guardian, daemon, context.pids()[0])))
    if killed == "guardian":
        os.waitpid(spawner, 0)  # The test process takes in orphans.
    assert not is_running(spawner)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_outlives_a_worker_that_is_killed(
    tmp_path: Path, is_running: Callable[[int], bool], kind: str
) -> None:
    context, daemon = started_with_a_daemon(tmp_path, kind)
    os.kill(context.pids()[0], signal.SIGKILL)
    result = context.wait()
    assert result is not None
    assert result.failures[0].signal_name() == "SIGKILL"
    assert not is_running(daemon)


def run_script(tmp_path: Path, text: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program, in which `context` is a shell that would stay, below a `tmp_path`."""
    opening = f"""
        import atexit, os, signal, sys, threading
        from holdfast.elastic.multiprocessing import *
        def started():
            logs = DefaultLogsSpecs(log_dir={str(tmp_path)!r})
            return start_processes("sh", "/bin/sh", {{0: ("-c", "exec sleep 1000")}}, {{0: {{}}}},
                                   logs)
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(opening) + textwrap.dedent(text))
    command = [sys.executable, str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **more)


@pytest.mark.parametrize("kind", ["spawn", "fork"])
@pytest.mark.parametrize("then", [0, int(signal.SIGKILL)])
def test_no_shared_memory_outlives_those_who_made_it(tmp_path: Path, kind: str, then: int) -> None:
    """In a process that has none itself; else it lives as long as that one."""
    path = str(tmp_path / "name")
    ended = run_script(
        tmp_path,
        f"""
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        import entrypoints
        if __name__ == "__main__":
            logs = DefaultLogsSpecs(log_dir={str(tmp_path)!r})
            arguments = {{0: ({path!r}, {then})}}
            start_processes("fn", entrypoints.makes_shared_memory, arguments, {{0: {{}}}}, logs,
                            start_method={kind!r}).wait()
            print(os.path.exists("/dev/shm/" + open({path!r}).read()))
        """,
    )
    assert (ended.stdout, ended.returncode) == ("False\n", 0), ended.stderr


def test_it_can_be_closed_when_the_interpreter_ends(tmp_path: Path) -> None:
    ended = run_script(
        tmp_path,
        """
        context = started()
        atexit.register(lambda: print(context.wait(0).failures[0].exitcode))
        atexit.register(context.close)
        """,
    )
    assert (ended.stdout, ended.returncode) == ("-15\n", 0), ended.stderr


def test_it_can_be_closed_by_a_signal_handler_wherever_that_comes(tmp_path: Path) -> None:
    """The handler comes between any two lines of whatever the main thread does with it."""
    ended = run_script(
        tmp_path,
        """
        def ring_everywhere(frame, event, argument):
            # As if a signal came at every line of ours that the main thread runs.
            if "holdfast" in frame.f_code.co_filename and event == "line":
                global lines
                lines += 1
                if lines == at:
                    sys.settrace(None)
                    context.close(timeout=5)
            return ring_everywhere

        at = 0
        while True:
            at, lines, context = at + 5, 0, started()
            sys.settrace(ring_everywhere)
            context.wait(0.0)
            context.close()
            context.wait()
            sys.settrace(None)
            if lines < at:
                break
        print(at > 20, threading.active_count())
        """,
    )
    assert (ended.stdout, ended.returncode) == ("True 1\n", 0), ended.stderr


@pytest.mark.thorough
def test_an_interrupt_wherever_it_comes_leaves_what_can_be_closed(tmp_path: Path) -> None:
    ended = run_script(
        tmp_path,
        """
        def interrupt(frame, event, argument):
            if "holdfast" in frame.f_code.co_filename and event == "line":
                global lines
                lines += 1
                if lines == at:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return interrupt

        at = 0
        while True:
            at, lines, context = at + 5, 0, started()
            sys.settrace(interrupt)
            try:
                context.wait(0.0)
                context.close()
                context.wait()
            except KeyboardInterrupt:
                pass
            sys.settrace(None)
            context.close()
            assert context.wait(0).failures[0].exitcode == -15
            if lines < at:
                break
        print(at > 20, threading.active_count(), len(os.listdir("/proc/self/fd")) < 10)
        """,
    )
    assert (ended.stdout, ended.returncode) == ("True 1 True\n", 0), ended.stderr


# --- starts that fail --------------------------------------------------------------------


class Unwilling:
    """An argument that does something when it is pickled."""

    def __init__(self, what: Callable[[], None]) -> None:
        self.what = what

    def __reduce__(self) -> Any:
        self.what()
        return int, ()


def interrupted() -> None:
    raise KeyboardInterrupt


def test_nothing_is_left_when_an_argument_cannot_be_pickled(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        functions(tmp_path, entrypoints.twice, (1,), (Unwilling(interrupted),))


@pytest.mark.parametrize("kind", ["spawn", "fork", "command"])
def test_a_signal_while_they_are_being_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    name = "fork_spawner" if kind == "fork" else "new_spawner"
    make = getattr(calls, name)

    def made(*arguments: Any) -> Any:
        try:
            return make(*arguments)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(calls, name, made)
    with pytest.raises(SignalException):
        one_that_stays(tmp_path, kind)


@pytest.mark.parametrize("kind", ["spawn", "fork", "command"])
def test_nothing_is_left_when_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("no more threads")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="no more threads"):
        one_that_stays(tmp_path, kind)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whoever_waits_is_told_of_the_end_though_the_clean_up_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = StartedProcesses._let_spawner_go

    def fail(processes: StartedProcesses) -> None:
        let_go(processes)
        raise LookupError("planted")

    monkeypatch.setattr(StartedProcesses, "_let_spawner_go", fail)
    context = one_that_stays(tmp_path, "command")
    closing = threading.Thread(target=context.close, daemon=True)
    closing.start()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()
    assert context._processes is None or context._processes._is_over


@contextlib.contextmanager
def descriptors_left(number: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir("/proc/self/fd")))
    free = (descriptor for descriptor in range(before[0]) if descriptor not in used)
    limit = next(itertools.islice(free, number, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.thorough(but=("spawn",))
@pytest.mark.parametrize("kind", ["spawn", "fork", "command"])
def test_nothing_is_left_when_descriptors_run_out(tmp_path: Path, kind: str) -> None:
    before = held()
    worked = 0
    for number in range(1, 60):
        with descriptors_left(number), contextlib.suppress(OSError):
            if kind == "command":
                context = shell(tmp_path, "exit 0", "exit 0")
            else:
                context = functions(tmp_path, entrypoints.nothing, (), (), start_method=kind)
            context.close()
            worked += 1
        until(lambda: held() <= before, lambda: str(held() - before))
        if worked == 3:
            break
    assert worked == 3


def test_closed_while_it_is_started_it_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread closes it as early as it can."""
    make = calls.new_spawner
    in_the_middle, closing = threading.Event(), threading.Event()

    def made() -> Any:
        in_the_middle.set()
        assert closing.wait(DEADLINE_S)
        return make()

    monkeypatch.setattr(calls, "new_spawner", made)
    logs = DefaultLogsSpecs(log_dir=str(tmp_path))
    context = MultiprocessContext("fn", entrypoints.stay, {0: ()}, envs(1), "spawn", logs)
    thread = threading.Thread(target=context.start)
    thread.start()
    assert in_the_middle.wait(DEADLINE_S)
    threading.Timer(0.05, closing.set).start()
    context.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    result = context.wait(0)
    assert result is not None
    assert result.failures[0].exitcode == -signal.SIGTERM


def test_closed_by_a_signal_handler_while_it_is_started_it_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = DefaultLogsSpecs(log_dir=str(tmp_path))
    context = MultiprocessContext("fn", entrypoints.stay, {0: ()}, envs(1), "spawn", logs)
    make = calls.new_spawner

    def made() -> Any:
        context.close()  # As the handler would, in this very thread.
        return make()

    monkeypatch.setattr(calls, "new_spawner", made)
    context.start()
    assert context.wait(0) is not None


@pytest.mark.parametrize("kind", ["spawn", "fork", "command"])
def test_no_processes_at_all_are_done_at_once(tmp_path: Path, kind: str) -> None:
    if kind == "command":
        context = shell(tmp_path)
    else:
        context = functions(tmp_path, entrypoints.stay, start_method=kind)
    context.close_timeout = 10 * DEADLINE_S
    finished = threading.Thread(target=context.wait, daemon=True)
    finished.start()
    finished.join(DEADLINE_S)  # Less than the grace.
    assert not finished.is_alive()


def test_closed_before_it_is_started_it_cannot_be(tmp_path: Path) -> None:
    logs = DefaultLogsSpecs(log_dir=str(tmp_path))
    context = MultiprocessContext("fn", entrypoints.stay, {0: ()}, envs(1), "spawn", logs)
    context.close()
    with pytest.raises(ValueError, match="closed"):
        context.start()


def test_started_twice_it_goes_on(tmp_path: Path) -> None:
    context = functions(tmp_path, entrypoints.stay, ())
    with pytest.raises(ValueError, match="started"):
        context.start()
    assert context.wait(0) is None
    context.close()


# --- others in the same process ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["spawn", "fork", "command"])
def test_a_fork_that_another_thread_makes_meanwhile_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It is made at the worst moment: when all that the spawner is to have is open here."""
    forks: list[int] = []

    def fork() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # That there are threads.
            pid = os.fork()
        if pid == 0:
            try:
                entrypoints.stay()
            finally:
                os._exit(0)
        forks.append(pid)

    name = "fork" if kind == "fork" else "posix_spawn"
    make = getattr(os, name)

    def made(*arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(os, name, make)
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        return make(*arguments, **more)

    monkeypatch.setattr(os, name, made)
    try:
        if kind == "command":
            context = shell(tmp_path, "exit 0")
        else:
            context = functions(tmp_path, entrypoints.nothing, (), start_method=kind)
        assert len(forks) == 1
        finished = threading.Thread(target=context.wait, daemon=True)
        finished.start()
        finished.join(DEADLINE_S)
        assert not finished.is_alive()
    finally:
        for pid in forks:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.mark.parametrize("kind", ["spawn", "command"])
def test_what_is_inheritable_here_is_not_inherited_there(tmp_path: Path, kind: str) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        context = one_that_stays(tmp_path, kind)
        os.close(writing)
        assert os.read(reading, 1) == b""  # Nobody else has it.
        context.close()
    finally:
        os.close(reading)


@pytest.mark.parametrize("outer", ["spawn", "fork"])
@pytest.mark.parametrize("inner", ["spawn", "fork"])
def test_a_process_can_start_others(tmp_path: Path, outer: str, inner: str) -> None:
    arguments = (str(tmp_path / "inner"), inner)
    result = functions(tmp_path, entrypoints.starts_others, arguments, start_method=outer).wait()
    assert result is not None
    assert result.return_values == {0: {0: 2, 1: 4}}


def test_closing_ends_what_processes_have_started(
    tmp_path: Path, is_running: Callable[[int], bool]
) -> None:
    path = tmp_path / "pid"
    context = functions(tmp_path, entrypoints.starts_one_that_stays, (str(path),))
    until(path.exists)
    context.close(timeout=0.05)
    assert not is_running(int(path.read_text()))


@pytest.mark.thorough
def test_they_can_be_forked_from_a_process_with_many_threads(tmp_path: Path) -> None:
    done = threading.Event()

    def busy() -> None:
        while not done.wait(0.001):
            sorted(range(1000))

    threads = [threading.Thread(target=busy) for _ in range(20)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            arguments = [(rank,) for rank in range(4)]
            context = functions(tmp_path, entrypoints.twice, *arguments, start_method="fork")
            result = context.wait()
            assert result is not None
            assert result.return_values == {rank: 2 * rank for rank in range(4)}
    finally:
        done.set()
        for thread in threads:
            thread.join()


@pytest.mark.thorough(but=("command",))
@pytest.mark.parametrize("kind", ["fork", "command"])
def test_many_can_run_at_once(tmp_path: Path, kind: str) -> None:
    if kind == "command":
        result = shell(tmp_path, *["exit 0"] * 64).wait()
    else:
        arguments = [(rank,) for rank in range(64)]
        result = functions(tmp_path, entrypoints.twice, *arguments, start_method="fork").wait()
    assert result is not None
    assert not result.failures
    assert len(result.return_values) == 64


# --- waiting -----------------------------------------------------------------------------


def test_waiting_for_the_end_ends_and_judges_nothing(
    tmp_path: Path, is_running: Callable[[int], bool]
) -> None:
    go = tmp_path / "go"
    context = shell(
        tmp_path, "exec sleep 1000", f"while ! test -e {go}; do sleep 0.02; done; exit 3"
    )
    assert not context.wait_for_end(0)
    assert not context.wait_for_end(0.05)
    go.touch()
    assert context.wait_for_end(None)
    assert is_running(context.pids()[0])
    assert context.wait(0).failures[1].exitcode == 3
    assert not is_running(context.pids()[0])


def test_waiting_for_the_end_of_what_was_never_started_is_refused(tmp_path: Path) -> None:
    logs = DefaultLogsSpecs(log_dir=str(tmp_path))
    context = MultiprocessContext("fn", entrypoints.stay, {0: ()}, envs(1), "spawn", logs)
    with pytest.raises(RuntimeError, match="started"):
        context.wait_for_end(0)


# --- secrets -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_secrets_of_the_launcher_are_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    names = ("HOLDFAST_TOKEN", "HOLDFAST_REGISTER_PASSWORD", "PLAIN")
    for name in names:
        monkeypatch.setenv(name, "inherited")
    path = tmp_path / "variables"
    if kind == "command":
        line = f'echo "${names[0]}|${names[1]}|${names[2]}" > {path}'
        assert not shell(tmp_path, line).wait().failures
        assert path.read_text() == "||inherited\n"
    else:
        result = functions(tmp_path, entrypoints.variables, names, start_method=kind).wait()
        assert result is not None
        assert result.return_values == {0: (None, None, "inherited")}


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_what_is_given_to_a_process_by_name_is_its_own(tmp_path: Path, method: str) -> None:
    context = start_processes(
        "fn",
        entrypoints.variables,
        {0: ("HOLDFAST_TOKEN",)},
        {0: {"HOLDFAST_TOKEN": "its own"}},
        DefaultLogsSpecs(log_dir=str(tmp_path)),
        start_method=method,
    )
    result = context.wait()
    assert result is not None
    assert result.return_values == {0: ("its own",)}


def test_a_fork_beside_threads_is_made_where_warnings_are_errors(tmp_path: Path) -> None:
    """Python 3.12 and later warns of it; 3.15 raises, with the fork made and its number lost."""

    def filters() -> list[str]:
        return [repr(each[:3]) for each in warnings.filters]

    done = threading.Event()
    beside = threading.Thread(target=done.wait)
    beside.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            expected = filters()
            context = functions(tmp_path, filters, (), start_method="fork")
            result = context.wait(DEADLINE_S)
            assert result is not None
            assert result.return_values == {0: expected}
            assert filters() == expected
    finally:
        done.set()
        beside.join()
