"""`multiprocessing`: processes on their own, without an agent.

A test that takes `multiprocessing` runs against PyTorch's as well: the same calls, the same
results. The others are about ours alone.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing as standard
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from holdfast.elastic import multiprocessing as ours
from holdfast.elastic.multiprocessing import (
    DefaultLogsSpecs,
    SignalException,
    Std,
    SubprocessContext,
    start_processes,
)

sys.path.append(str(Path(__file__).parents[1]))
import entrypoints
from starting import (
    DEADLINE_S,
    METHODS,
    SHELL,
    Module,
    envs,
    functions,
    leaves_nothing,
    shell,
    signals_as_before,
)
from tests.waiting import until

__all__ = ["leaves_nothing", "signals_as_before"]


PYTORCH = pytest.param(
    "torch.distributed.elastic",
    marks=[
        pytest.mark.torch,
        pytest.mark.timeout(300),  # Fresh interpreters import it, several at once.
        # It leaves log files open, and waits for them to be collected.
        pytest.mark.filterwarnings("ignore::ResourceWarning"),
        pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    ],
)


@pytest.fixture(params=["holdfast.elastic", PYTORCH])
def multiprocessing(request: pytest.FixtureRequest) -> Iterator[Module]:
    yield import_module(f"{request.param}.multiprocessing")
    gc.collect()  # Here, where what it warns of is ignored.


# --- values ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0", "3", "0:3,1:0", "1:2"])
def test_std_is_read_from_a_text(multiprocessing: Module, text: str) -> None:
    expected = Std(int(text)) if len(text) == 1 else None
    read = multiprocessing.Std.from_str(text)
    assert read == Std.from_str(text)
    assert expected is None or read == expected


@pytest.mark.parametrize("text", ["", "4", "0:4", "0:1,", "a:1", "0:1;1:1", "10"])
def test_std_refuses_other_texts(multiprocessing: Module, text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        multiprocessing.Std.from_str(text)


def test_std_is_read_for_ranks_of_two_digits() -> None:
    assert Std.from_str("0:3,12:1") == {0: Std.ALL, 12: Std.OUT}


def test_a_map_names_every_rank(multiprocessing: Module) -> None:
    kind = multiprocessing.Std
    assert multiprocessing.to_map(kind.OUT, 2) == {0: Std.OUT, 1: Std.OUT}
    assert multiprocessing.to_map({1: kind.ERR, 7: kind.ALL}, 2) == {0: Std.NONE, 1: Std.ERR}


def test_a_signal_exception_says_which(multiprocessing: Module) -> None:
    error = multiprocessing.SignalException("why", signal.SIGTERM)
    assert (str(error), error.sigval) == ("why", signal.SIGTERM)


# --- where output goes -------------------------------------------------------------------


def reified(module: Module, log_dir: str, wishes: dict[str, Any]) -> tuple[Any, Any]:
    """What `reify` says and what it sets, without the part of paths that is unique."""
    logs = module.DefaultLogsSpecs(log_dir=log_dir, **wishes)
    variables = {
        rank: {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "2"} for rank in (0, 1)
    }
    said = asdict(logs.reify(variables))
    return _without_unique((said, variables)), _without_unique(_tree(log_dir))


def _without_unique(value: Any) -> str:
    return re.sub(r"job_\w+", "job_unique", repr(value))


def _tree(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).rglob("*"))


@pytest.mark.torch
@pytest.mark.parametrize(
    "wishes",
    [
        {},
        {"redirects": Std.ALL},
        {"tee": Std.OUT},
        {"redirects": {0: Std.ERR}, "tee": {1: Std.ALL}},
        {"tee": Std.ALL, "local_ranks_filter": {1}},
        {"redirects": Std.OUT, "local_ranks_filter": {0}},
    ],
)
def test_logs_lie_where_pytorch_has_them(tmp_path: Path, wishes: dict[str, Any]) -> None:
    theirs = import_module("torch.distributed.elastic.multiprocessing")

    def translated(value: Any) -> Any:
        if isinstance(value, dict):
            return {rank: theirs.Std(streams.value) for rank, streams in value.items()}
        return theirs.Std(value.value) if isinstance(value, Std) else value

    folder = tmp_path / "logs"
    own = reified(ours, str(folder), wishes)
    folder.rename(tmp_path / "own")
    assert own == reified(
        theirs, str(folder), {name: translated(value) for name, value in wishes.items()}
    )


@pytest.mark.torch
def test_no_log_dir_at_all_is_the_same() -> None:
    theirs = import_module("torch.distributed.elastic.multiprocessing")
    assert reified(ours, os.devnull, {}) == reified(theirs, os.devnull, {})


def test_an_attempt_starts_with_empty_folders(tmp_path: Path, multiprocessing: Module) -> None:
    logs = multiprocessing.DefaultLogsSpecs(log_dir=str(tmp_path))
    first = logs.reify(envs(1)).error_files[0]
    Path(first).write_text("old")
    assert logs.reify(envs(1)).error_files[0] == first
    assert not os.path.exists(first)
    next_one = logs.reify({0: {"TORCHELASTIC_RESTART_COUNT": "1"}}).error_files[0]
    assert Path(next_one).parents[2] == Path(first).parents[2]


def test_logs_specs_compare_by_what_they_wish(tmp_path: Path, multiprocessing: Module) -> None:
    make, kind = multiprocessing.DefaultLogsSpecs, multiprocessing.Std
    assert make(str(tmp_path), tee=kind.OUT) == make(str(tmp_path), tee=kind.OUT)
    assert make(str(tmp_path), tee=kind.OUT) != make(str(tmp_path))


def test_a_log_dir_that_is_a_file_is_refused(tmp_path: Path, multiprocessing: Module) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        multiprocessing.DefaultLogsSpecs(log_dir=str(tmp_path / "file"))


# --- functions ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_both_return_what_a_function_returns(
    tmp_path: Path, multiprocessing: Module, method: str
) -> None:
    logs = multiprocessing.DefaultLogsSpecs(log_dir=str(tmp_path))
    context = multiprocessing.start_processes(
        "fn", entrypoints.twice, {0: (1,), 1: ("a",)}, envs(2), logs, start_method=method
    )
    result = context.wait(period=0.1)
    assert result.return_values == {0: 2, 1: "aa"}
    assert not result.failures
    assert not result.is_failed()
    assert result.stdouts == result.stderrs == {0: "", 1: ""}


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("method", METHODS)
def test_a_function_returns_its_value(tmp_path: Path, method: str) -> None:
    context = functions(tmp_path, entrypoints.twice, (1,), ("a",), start_method=method)
    assert isinstance(context, ours.MultiprocessContext)
    result = context.wait()
    assert result is not None
    assert result.return_values == {0: 2, 1: "aa"}
    assert context.wait(0) is result


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_large_value_comes_back_whole(tmp_path: Path, method: str) -> None:
    context = functions(tmp_path, entrypoints.twice, (b"x" * 10_000_000,), start_method=method)
    result = context.wait()
    assert result is not None
    assert len(result.return_values[0]) == 20_000_000


def test_a_function_that_returns_nothing_returns_none(tmp_path: Path) -> None:
    result = functions(tmp_path, entrypoints.nothing, (), ()).wait()
    assert result is not None
    assert result.return_values == {0: None, 1: None}


@pytest.mark.parametrize("method", METHODS)
def test_a_closure_can_be_a_process(tmp_path: Path, method: str) -> None:
    """And what it starts itself is started in the same way."""
    hidden = {"value": 7}

    def look() -> tuple[int, str | None, str]:
        process = standard.current_process()
        return hidden["value"], standard.get_start_method(), type(process).__name__

    context = functions(tmp_path, look, (), start_method=method)
    result = context.wait()
    assert result is not None
    kinds = {"spawn": "SpawnProcess", "fork": "ForkProcess", "forkserver": "ForkServerProcess"}
    assert result.return_values == {0: (7, method, kinds[method])}


def test_a_forked_function_has_what_no_pickle_could_carry(tmp_path: Path) -> None:
    lock = threading.Lock()
    context = functions(tmp_path, lambda: (lock.locked(),), (), start_method="fork")
    result = context.wait()
    assert result is not None
    assert result.return_values == {0: (False,)}


@pytest.mark.parametrize("method", METHODS)
def test_a_queue_can_be_an_argument(tmp_path: Path, method: str) -> None:
    queue = standard.get_context("fork" if method == "fork" else "spawn").SimpleQueue()
    context = functions(tmp_path, entrypoints.puts, (queue, "word"), start_method=method)
    result = context.wait()
    assert result is not None
    assert not result.failures
    assert queue.get() == "word"
    queue.close()


@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_tensor_goes_there_and_comes_back(tmp_path: Path, method: str) -> None:
    torch = import_module("torch")
    import_module("torch.multiprocessing")  # From here on tensors are pickled by their memory.
    given = torch.rand(100, 100)
    context = functions(tmp_path, entrypoints.twice, (given,), (given,), start_method=method)
    result = context.wait()
    assert result is not None
    assert not result.failures
    assert all(torch.equal(value, given * 2) for value in result.return_values.values())


@pytest.fixture(scope="module")
def counter() -> Any:
    """In shared memory, which Python keeps for as long as this process lives."""
    return standard.get_context("spawn").Value("i", 0)


def test_locks_and_shared_memory_can_be_arguments(tmp_path: Path, counter: Any) -> None:
    result = functions(tmp_path, entrypoints.count, (counter, 100), (counter, 100)).wait()
    assert result is not None
    assert not result.failures
    assert counter.value == 200


@pytest.mark.parametrize("method", METHODS)
def test_each_rank_has_its_own_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setenv("OURS", "inherited")
    names = ("OURS", "RANK", "TORCHELASTIC_ERROR_FILE")
    context = start_processes(
        "fn",
        entrypoints.variables,
        {0: names, 1: names},
        {0: {"RANK": "0"}, 1: {"RANK": "1", "OURS": "changed"}},
        DefaultLogsSpecs(log_dir=str(tmp_path)),
        start_method=method,
    )
    result = context.wait()
    assert result is not None
    assert result.return_values == {
        0: ("inherited", "0", context.error_files[0]),
        1: ("changed", "1", context.error_files[1]),
    }


@pytest.mark.parametrize("method", ["fork"])
def test_both_say_what_a_function_raised(
    tmp_path: Path, multiprocessing: Module, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    logs = multiprocessing.DefaultLogsSpecs(log_dir=str(tmp_path))
    context = multiprocessing.start_processes(
        "fn", entrypoints.raises, {0: ("",), 1: ("boo",)}, envs(2), logs, start_method=method
    )
    result = context.wait(period=0.1)
    assert result.is_failed()
    assert result.return_values == {}
    assert set(result.failures) == {1}
    failure = result.failures[1]
    assert (failure.local_rank, failure.pid, failure.exitcode) == (1, context.pids()[1], 1)
    assert failure.message["message"] == "ValueError: boo"
    assert failure.error_file == context.error_files[1]
    assert failure.signal_name() == "<N/A>"
    caplog.clear()  # PyTorch logs its exception, and with it, by its frames, all that it opened.


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("method", METHODS)
def test_a_function_that_raises_ends_the_others(
    tmp_path: Path, is_running: Callable[[int], bool], method: str
) -> None:
    context = functions(tmp_path, entrypoints.raises, ("",), ("boo",), start_method=method)
    result = context.wait()
    assert result is not None
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {1: 1}
    assert "in raises" in result.failures[1].message["extraInfo"]["py_callstack"]
    assert not any(map(is_running, context.pids().values()))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_function_that_is_killed_fails_with_its_signal(tmp_path: Path, method: str) -> None:
    context = functions(tmp_path, entrypoints.dies, (0,), (signal.SIGKILL,), start_method=method)
    result = context.wait()
    assert result is not None
    assert result.failures[1].exitcode == -signal.SIGKILL
    assert result.failures[1].signal_name() == "SIGKILL"


@pytest.mark.parametrize(("code", "failed"), [(0, False), (3, True)])
def test_a_function_may_exit(tmp_path: Path, code: int, failed: bool) -> None:
    result = functions(tmp_path, entrypoints.leaves, (code,), start_method="fork").wait()
    assert result is not None
    assert [failure.exitcode for failure in result.failures.values()] == ([code] if failed else [])
    assert result.return_values == ({} if failed else {0: None})


def test_a_function_that_leaves_without_a_word_returned_nothing(tmp_path: Path) -> None:
    result = functions(tmp_path, entrypoints.leaves_without_a_word, (), start_method="fork").wait()
    assert result is not None
    assert result.return_values == {0: None}


def test_what_a_function_serves_is_there_until_all_have_returned(
    tmp_path: Path, is_running: Callable[[int], bool]
) -> None:
    gate = str(tmp_path / "gate")
    context = functions(tmp_path, entrypoints.returns_when, ("",), (gate,), start_method="fork")
    until(lambda: 0 in context._started.values)
    assert context.wait(0) is None
    assert is_running(context.pids()[0])
    Path(gate).touch()
    result = context.wait()
    assert result is not None
    assert result.return_values == {0: "", 1: gate}


@pytest.mark.usefixtures("leaves_nothing")
def test_what_cannot_be_pickled_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        functions(tmp_path, entrypoints.twice, (1,), (threading.Lock(),))


def test_an_unknown_start_method_is_refused(tmp_path: Path, multiprocessing: Module) -> None:
    with pytest.raises(ValueError, match="magic"):
        multiprocessing.start_processes(
            "fn",
            entrypoints.nothing,
            {0: ()},
            envs(1),
            multiprocessing.DefaultLogsSpecs(log_dir=str(tmp_path)),
            start_method="magic",
        )


# --- commands ----------------------------------------------------------------------------


def test_a_command_gets_its_arguments_as_texts(tmp_path: Path, multiprocessing: Module) -> None:
    logs = multiprocessing.DefaultLogsSpecs(
        log_dir=str(tmp_path), redirects=multiprocessing.Std.OUT
    )
    context = multiprocessing.start_processes(
        "echo", "/bin/echo", {0: (1, [2, 3]), 1: ("a b",)}, envs(2), logs
    )
    assert isinstance(context, multiprocessing.SubprocessContext)
    result = context.wait(period=0.1)
    assert result.return_values == {0: None, 1: None}
    assert [Path(result.stdouts[rank]).read_text() for rank in (0, 1)] == ["1 [2, 3]\n", "a b\n"]
    assert result.stderrs == {0: "", 1: ""}


def test_a_command_that_fails_ends_the_others(tmp_path: Path, multiprocessing: Module) -> None:
    context = shell(tmp_path, "exit 3", "exec sleep 1000", module=multiprocessing)
    result = context.wait(period=0.1)
    codes = {rank: failure.exitcode for rank, failure in result.failures.items()}
    assert codes == {0: 3, 1: -signal.SIGTERM}
    assert result.failures[0].error_file == "<N/A>"
    assert result.failures[1].signal_name() == "SIGTERM"
    assert result.return_values == {}
    assert {failure.pid for failure in result.failures.values()} <= set(context.pids().values())


def test_a_command_that_is_not_there_is_said_at_once(
    tmp_path: Path, multiprocessing: Module
) -> None:
    logs = multiprocessing.DefaultLogsSpecs(log_dir=str(tmp_path))
    with pytest.raises(FileNotFoundError):
        multiprocessing.start_processes("no", "no-such-command", {0: ()}, envs(1), logs)
    (tmp_path / "plain").touch()
    with pytest.raises(PermissionError):
        multiprocessing.start_processes("no", str(tmp_path / "plain"), {0: ()}, envs(1), logs)


@pytest.mark.parametrize(("ranks", "others"), [({0}, {1}), ({0, 1}, {0}), ({1, 2}, {1, 2})])
def test_ranks_that_do_not_match_are_refused(
    tmp_path: Path, multiprocessing: Module, ranks: set[int], others: set[int]
) -> None:
    logs = multiprocessing.DefaultLogsSpecs(log_dir=str(tmp_path))
    arguments: dict[int, tuple[Any, ...]] = dict.fromkeys(ranks, ())
    variables: dict[int, dict[str, str]] = {rank: {} for rank in others}
    with pytest.raises(RuntimeError):
        multiprocessing.start_processes("sh", SHELL, arguments, variables, logs)


# --- waiting and closing -----------------------------------------------------------------


def test_there_is_no_result_while_they_run(
    tmp_path: Path, multiprocessing: Module, is_running: Callable[[int], bool]
) -> None:
    context = shell(tmp_path, "exec sleep 1000", "exit 0", module=multiprocessing)
    assert context.wait(0) is None
    assert context.wait(timeout=0.05, period=0.01) is None
    until(lambda: not is_running(context.pids()[1]))  # Else the close would end it.
    context.close()
    context.close()
    result = context.wait(0)
    assert result.failures[0].exitcode == -signal.SIGTERM
    assert set(result.failures) == {0}


def test_only_those_that_failed_by_themselves_are_said_to_have_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        result = shell(tmp_path, "exit 3", "exec sleep 1000").wait()
    assert set(result.failures) == {0, 1}
    (failed,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert failed.getMessage().endswith("failed with exit code 3")
    assert "told to end, and did with exit code -15" in caplog.text


@pytest.mark.parametrize("hook", ["_start", "_poll", "_close"])
def test_a_context_that_would_never_be_asked_is_refused(hook: str) -> None:
    with pytest.raises(TypeError, match=f"Theirs.{hook} would never be called"):
        type("Theirs", (SubprocessContext,), {hook: lambda self: None})


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("kind", ["spawn", "fork", "command"])
def test_closing_kills_whole_trees(
    tmp_path: Path, is_running: Callable[[int], bool], kind: str
) -> None:
    path = str(tmp_path / "daemon")
    if kind == "command":
        context = shell(tmp_path, f"trap '' TERM; setsid sleep 1000 & echo $! > {path}; wait")
        until(lambda: os.path.exists(path) and bool(Path(path).read_text()))
    else:
        context = functions(tmp_path, entrypoints.ignores_sigterm, (path,), start_method=kind)
        until(lambda: os.path.exists(path))
    daemon = int(Path(path).read_text())
    assert is_running(daemon)
    context.close(signal.SIGTERM, timeout=0.05)
    assert not is_running(daemon)
    assert not is_running(context.pids()[0])


def test_all_of_a_command_has_the_signal_and_the_grace(
    tmp_path: Path, multiprocessing: Module
) -> None:
    ready, noted = tmp_path / "ready", tmp_path / "noted"
    trap = f"sleep 0.3; echo yes > {noted}.part; mv {noted}.part {noted}; exit"
    child = f"trap '{trap}' TERM; echo > {ready}; while :; do sleep 0.02; done"
    context = shell(tmp_path, f"({child}) & wait", module=multiprocessing)
    until(ready.exists)
    context.close()
    until(noted.exists)


@pytest.mark.usefixtures("leaves_nothing")
def test_what_they_leave_running_is_killed_when_all_have_ended(
    tmp_path: Path, is_running: Callable[[int], bool]
) -> None:
    path = tmp_path / "daemon"
    result = shell(tmp_path, f"setsid sleep 1000 & echo $! > {path}").wait()
    assert not result.failures
    assert not is_running(int(path.read_text()))


@pytest.mark.usefixtures("leaves_nothing")
def test_nothing_is_left_of_processes_that_nobody_waits_for(tmp_path: Path) -> None:
    shell(tmp_path, "exit 0", "exit 1")


@pytest.mark.usefixtures("leaves_nothing")
def test_several_threads_may_wait_and_close_at_once(tmp_path: Path) -> None:
    context = shell(tmp_path, "exec sleep 1000")
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(context.wait())) for _ in range(3)]
    threads += [threading.Thread(target=context.close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(results) == 3
    assert all(result is results[0] for result in results)


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_it_works_in_a_thread_while_a_loop_runs(tmp_path: Path, method: str) -> None:
    def run() -> Any:
        return functions(tmp_path, entrypoints.twice, (1,), start_method=method).wait()

    async def both() -> tuple[Any, Any]:
        in_a_thread = asyncio.get_running_loop().run_in_executor(None, run)
        context = functions(tmp_path, entrypoints.twice, (2,), start_method=method)
        result = await asyncio.to_thread(context.wait)
        return result, await in_a_thread

    here, there = asyncio.run(both())
    assert (here.return_values, there.return_values) == ({0: 4}, {0: 2})


@pytest.mark.usefixtures("leaves_nothing")
def test_a_signal_to_the_caller_interrupts_waiting_and_can_be_passed_on(tmp_path: Path) -> None:
    arguments = [(str(tmp_path), rank) for rank in (0, 1)]
    context = functions(tmp_path, entrypoints.notes_the_signal, *arguments, start_method="fork")
    until(lambda: all((tmp_path / f"ready_{rank}").exists() for rank in (0, 1)))

    def wait() -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGHUP)).start()
        context.wait()

    with pytest.raises(SignalException) as caught:
        wait()
    context.close(caught.value.sigval)
    noted = [(tmp_path / f"signal_{rank}").read_text() for rank in (0, 1)]
    assert noted == [str(int(signal.SIGHUP))] * 2


def test_only_the_named_signals_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, multiprocessing: Module
) -> None:
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGHUP")
    before = signal.getsignal(signal.SIGTERM)
    context = shell(tmp_path, "exit 0", module=multiprocessing)
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(multiprocessing.SignalException):
        os.kill(os.getpid(), signal.SIGHUP)
    context.wait(period=0.1)


@pytest.mark.parametrize("ending", ["kill", "exit"])
@pytest.mark.parametrize("kind", ["spawn", "fork", "command"])
def test_nothing_outlives_the_caller(
    tmp_path: Path, is_running: Callable[[int], bool], kind: str, ending: str
) -> None:
    folder = tmp_path / ending
    folder.mkdir()
    script = str(Path(entrypoints.__file__))
    caller = subprocess.Popen([sys.executable, script, kind, str(folder)])
    names = ("worker", "child", "fork")
    until(lambda: all((folder / name).exists() for name in names))
    worker, child, fork = (int((folder / name).read_text()) for name in names)
    try:
        if ending == "kill":
            caller.kill()
        caller.wait(DEADLINE_S)
        until(lambda: not is_running(worker) and not is_running(child))
        assert is_running(fork)
    finally:
        os.kill(fork, signal.SIGKILL)


# --- output ------------------------------------------------------------------------------


def test_both_show_and_keep_what_is_teed(
    tmp_path: Path, multiprocessing: Module, capfd: pytest.CaptureFixture[str]
) -> None:
    logs = multiprocessing.DefaultLogsSpecs(log_dir=str(tmp_path), tee=multiprocessing.Std.ALL)
    context = multiprocessing.start_processes(
        "sh",
        SHELL,
        {0: ("-c", "echo a; echo b >&2"), 1: ("-c", "echo c; echo d >&2")},
        envs(2),
        logs,
        log_line_prefixes={1: "<$one>"},
        duplicate_stdout_filters=["c", "x"],
    )
    result = context.wait(period=0.1)
    shown = capfd.readouterr()
    assert sorted(shown.out.splitlines()) == ["<$one>c", "[sh0]:a"]
    assert {"<$one>d", "[sh0]:b"} <= set(shown.err.splitlines())
    kept = [Path(result.stdouts[rank]).read_text() for rank in (0, 1)]
    kept += [Path(result.stderrs[rank]).read_text() for rank in (0, 1)]
    assert kept == ["a\n", "c\n", "b\n", "d\n"]
    attempt = Path(result.stdouts[0]).parents[1]
    assert (attempt / "filtered_stdout.log").read_text() == "<$one>c\n"
    assert not (attempt / "filtered_stderr.log").exists()


def test_what_has_no_newline_yet_is_shown_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logs = DefaultLogsSpecs(log_dir=str(tmp_path), tee=Std.ALL)
    seen = tmp_path / "seen"
    line = f"printf '\\r10%%'; while [ ! -e {seen} ]; do sleep 0.01; done; printf '\\r20%%\\n'"
    context = shell(tmp_path, line, logs_specs=logs)
    shown = ""

    def is_shown() -> bool:
        nonlocal shown
        shown += capfd.readouterr().out
        return "10%" in shown

    until(is_shown)
    seen.touch()
    context.wait()
    assert shown + capfd.readouterr().out == "[sh0]:10%\r[sh0]:20%\n"


def test_what_is_redirected_is_not_shown(
    tmp_path: Path, multiprocessing: Module, capfd: pytest.CaptureFixture[str]
) -> None:
    kind = multiprocessing.Std
    logs = multiprocessing.DefaultLogsSpecs(
        log_dir=str(tmp_path), redirects={0: kind.ALL}, local_ranks_filter={0, 1}
    )
    lines = ("echo a; echo b >&2", "echo c; echo d >&2", "echo e; echo f >&2")
    result = shell(tmp_path, *lines, module=multiprocessing, logs_specs=logs).wait(period=0.1)
    shown = capfd.readouterr()
    assert shown.out == "c\n"
    assert "d" in shown.err.splitlines()
    assert "f" not in shown.err.splitlines()
    assert Path(result.stdouts[0]).read_text() == "a\n"
    assert Path(result.stderrs[0]).read_text() == "b\n"
    assert (result.stdouts[1], result.stdouts[2]) == ("", os.devnull)


@pytest.mark.parametrize("method", METHODS)
def test_the_output_of_functions_is_kept_too(tmp_path: Path, method: str) -> None:
    logs = DefaultLogsSpecs(log_dir=str(tmp_path), redirects=Std.ALL)
    context = functions(
        tmp_path, entrypoints.writes, ("a",), ("b",), start_method=method, logs_specs=logs
    )
    result = context.wait()
    assert result is not None
    assert [Path(path).read_text() for path in result.stdouts.values()] == [
        "a to stdout\n",
        "b to stdout\n",
    ]
    assert [Path(path).read_text() for path in result.stderrs.values()] == [
        "a to stderr\n",
        "b to stderr\n",
    ]


def test_nothing_is_written_without_a_log_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    logs = DefaultLogsSpecs(log_dir=os.devnull, tee=Std.ALL)
    result = shell(
        tmp_path, "echo a; exit 1", logs_specs=logs, duplicate_stdout_filters=["a"]
    ).wait()
    assert result.failures[0].error_file == "<N/A>"
    assert capfd.readouterr().out == "a\n"
    assert list(tmp_path.iterdir()) == []
