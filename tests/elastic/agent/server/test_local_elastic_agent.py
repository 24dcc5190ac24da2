"""`LocalElasticAgent` and the launcher: real processes, and agents that meet in memory.

What agents and workers do on every backend is in `cases`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.elastic import launcher, metrics
from holdfast.elastic.agent import server
from holdfast.elastic.agent.server import api, local_elastic_agent
from holdfast.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from holdfast.elastic.launcher import LaunchConfig, elastic_launch
from holdfast.elastic.multiprocessing import DefaultLogsSpecs, RunProcsResult, SignalException, Std
from holdfast.elastic.multiprocessing.errors import ChildFailedError
from holdfast.elastic.rendezvous import RendezvousGracefulExitError, rendezvous_handler_registry
from holdfast.elastic.utils import process_state

from .... import torch_versions
from ....free_ports import free_port
from ....waiting import DEADLINE_S, until
from ...agents_of_threads import OURS, THEIRS, Meeting, handler, library
from ...starting import METHODS

LONG_S = 3600.0
State = api.WorkerState


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """An agent in the main thread sets what signals do; the next test has it as before."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, action in before.items():
        signal.signal(number, action)


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher leaves a variable behind, for whatever waits for signals."""
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")


def agent(
    entrypoint: Callable[..., Any] | str,
    tmp_path: Path,
    args: tuple[Any, ...] = (),
    meeting: Meeting | None = None,
    made_of: type[LocalElasticAgent] = LocalElasticAgent,
    settings: dict[str, Any] | None = None,
    **spec: Any,
) -> LocalElasticAgent:
    values = {"role": "trainer", "local_world_size": 2, "max_restarts": 0, **spec}
    values.setdefault("rdzv_handler", handler(library(OURS), meeting or Meeting()))
    worker_spec = api.WorkerSpec(entrypoint=entrypoint, args=args, **values)
    given = {"start_method": "fork", **(settings or {})}
    logs = given.pop("logs_specs", None) or DefaultLogsSpecs(str(tmp_path / "logs"))
    return made_of(worker_spec, logs, **given)


def python(program: str) -> tuple[str, tuple[str, ...]]:
    """A command that runs this program."""
    return sys.executable, ("-c", textwrap.dedent(program))


def echo(word: str) -> str:
    return word


def environment() -> dict[str, str]:
    return dict(os.environ)


def failing() -> None:
    raise ValueError("it cannot be done")


# --- what comes back ----------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_values_of_functions_come_back_by_global_rank(tmp_path: Path, method: str) -> None:
    one = agent(lambda word: word, tmp_path, ("foo",), settings={"start_method": method})
    result = one.run()
    assert result == api.RunResult(State.SUCCEEDED, {0: "foo", 1: "foo"})


def test_a_command_has_no_values(tmp_path: Path) -> None:
    command, args = python("pass")
    assert agent(command, tmp_path, args).run().return_values == {0: None, 1: None}


def test_an_exit_is_heard_of_before_the_interval_is_over(tmp_path: Path) -> None:
    one = agent(echo, tmp_path, ("foo",), monitor_interval=LONG_S)
    assert not one.run().is_failed()


def test_a_change_of_the_group_is_heard_of_before_the_interval_is_over(tmp_path: Path) -> None:
    class Telling(type(handler(library(OURS), Meeting()))):  # type: ignore[misc]
        waiting = 0

        def num_nodes_waiting(self) -> int:
            return self.waiting

        def next_rendezvous(self) -> Any:
            self.waiting = 0
            return super().next_rendezvous()

        def call_on_change(self, callback: Callable[[], None]) -> None:
            self.changed = callback

    started, again = tmp_path / "started", tmp_path / "again"
    command, args = python(f"""
        import pathlib, time
        pathlib.Path({str(started)!r}).touch()
        while not pathlib.Path({str(again)!r}).exists():
            time.sleep(3600)
        """)

    def change() -> None:
        until(lambda: started.exists() and hasattr(telling, "changed"))
        again.touch()
        telling.waiting = 1
        telling.changed()

    telling = Telling()
    spec: dict[str, Any] = {"local_world_size": 1, "monitor_interval": LONG_S}
    one = agent(command, tmp_path, args, rdzv_handler=telling, **spec)
    changing = threading.Thread(target=change)
    changing.start()
    assert not one.run().is_failed()
    changing.join()


def test_failures_say_what_the_worker_left(tmp_path: Path) -> None:
    one = agent(failing, tmp_path, local_world_size=1)
    result = one.run()
    assert result.is_failed()
    failure = result.failures[0]
    assert failure.exitcode == 1
    assert failure.message["message"] == "ValueError: it cannot be done"
    assert json.loads(Path(failure.error_file).read_text())["message"] == failure.message
    assert one._worker_group.state == State.FAILED
    assert one._remaining_restarts == 0
    assert one._total_execution_time > 0


def test_an_agent_runs_in_any_thread(tmp_path: Path) -> None:
    one = agent(echo, tmp_path, ("foo",))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(one.run).result(DEADLINE_S).return_values == {0: "foo", 1: "foo"}


def test_an_agent_runs_where_an_event_loop_does(tmp_path: Path) -> None:
    async def main() -> api.RunResult:
        return agent(echo, tmp_path, ("foo",)).run()

    assert asyncio.run(main()).return_values == {0: "foo", 1: "foo"}


def test_a_newcomer_is_admitted(tmp_path: Path) -> None:
    def work() -> int:
        if os.environ["WORLD_SIZE"] == "1":
            time.sleep(LONG_S)
        return int(os.environ["WORLD_SIZE"])

    meeting = Meeting(1)
    agents = [agent(work, tmp_path, meeting=meeting, local_world_size=1) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(agents[0].run)
        until(lambda: agents[0]._worker_group.state == State.HEALTHY)
        meeting.size = 2
        second = pool.submit(agents[1].run)
        values = [*first.result(DEADLINE_S).return_values.values()]
        values += second.result(DEADLINE_S).return_values.values()
    assert values == [2, 2]
    assert agents[0]._remaining_restarts == 0


# --- what workers get ---------------------------------------------------------------------


def test_workers_have_all_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    one = agent(environment, tmp_path, master_addr="1.2.3.4", master_port=567, max_restarts=4)
    found = one.run().return_values[1]
    logs = one._pcontext.error_files if one._pcontext else {}
    expected = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "0",
        "ROLE_RANK": "1",
        "ROLE_NAME": "trainer",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": "2",
        "MASTER_ADDR": "1.2.3.4",
        "MASTER_PORT": "567",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "4",
        "TORCHELASTIC_RUN_ID": "run",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": logs[1],
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert "OMP_NUM_THREADS" not in found
    assert "TORCHELASTIC_TIMER_FILE" not in found
    assert "HOLDFAST_ROUND" not in found


def test_a_rendezvous_may_tell_the_number_of_the_round(tmp_path: Path) -> None:
    own = handler(library(OURS), Meeting())
    meet = own.next_rendezvous

    def numbered() -> Any:
        info = meet()
        info.round = 42
        return info

    own.next_rendezvous = numbered
    found = agent(environment, tmp_path, rdzv_handler=own).run().return_values[0]
    assert found["HOLDFAST_ROUND"] == "42"


def test_a_virtual_local_rank_sees_one_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 7")
    values = agent(environment, tmp_path, virtual_local_rank=True).run().return_values
    assert [value["LOCAL_RANK"] for value in values.values()] == ["0", "0"]
    assert [value["CUDA_VISIBLE_DEVICES"] for value in values.values()] == ["4", "7"]
    with pytest.raises(ValueError, match="no device for local rank 2"):
        agent(environment, tmp_path, virtual_local_rank=True, local_world_size=3).run()


@pytest.mark.parametrize("of_cuda", [None, "0,1", "1,0"])
def test_the_list_of_devices_of_hip_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_cuda: str | None
) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "4,5")
    if of_cuda:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", of_cuda)
    values = agent(environment, tmp_path, virtual_local_rank=True).run().return_values
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        assert [value[name] for value in values.values()] == ["4", "5"]
    with pytest.raises(ValueError, match="rank 2: HIP_VISIBLE_DEVICES is 4,5"):
        agent(environment, tmp_path, virtual_local_rank=True, local_world_size=3).run()


def test_the_local_rank_is_filled_into_arguments(tmp_path: Path) -> None:
    result = agent(echo, tmp_path, ("worker ${local_rank}",)).run()
    assert result.return_values == {0: "worker 0", 1: "worker 1"}


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_lines_have_the_prefix_of_the_template(
    tmp_path: Path, by: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "[${role_name}-${local_rank}-${rank}] ${hostname}: "
    settings: dict[str, Any] = {"logs_specs": DefaultLogsSpecs(str(tmp_path), tee=Std.OUT)}
    if by == "argument":
        settings["log_line_prefix_template"] = template
    else:
        monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", template)
    command, args = python("print('hello')")
    agent(command, tmp_path, args, settings=settings).run()
    lines = capfd.readouterr().out.splitlines()
    host = socket.gethostname()
    assert sorted(lines) == [f"[trainer-{n}-{n}] {host}: hello" for n in (0, 1)]


# --- the watchdog -------------------------------------------------------------------------


def test_a_path_for_the_watchdog_reaches_workers_even_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", "/somewhere")
    found = agent(environment, tmp_path).run().return_values[0]
    assert found["TORCHELASTIC_TIMER_FILE"] == "/somewhere"


def test_a_worker_that_takes_too_long_is_ended_and_the_group_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> str:
        from holdfast.elastic import timer

        timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
        with timer.expires(after=0.1 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 60):
            while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                time.sleep(LONG_S)
        return os.environ["TORCHELASTIC_TIMER_FILE"]

    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    told: list[str] = []
    monkeypatch.setattr(
        f"{local_elastic_agent.__name__}.events.record", lambda event, to: told.append(event.name)
    )
    one = agent(work, tmp_path, max_restarts=1)
    result = one.run()
    assert not result.is_failed()
    assert one._worker_watchdog is None
    assert not any(os.path.exists(path) for path in result.return_values.values())
    assert told[0] == "watchdog started"
    assert {"timer expired", "kill worker process"} <= set(told)
    assert told[-1] == "watchdog stopped"


# --- health -------------------------------------------------------------------------------


def health(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=DEADLINE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return int(error.code)
    except urllib.error.URLError:
        return 0


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    number = free_port()
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", str(number))
    return number


def test_health_is_told_from_before_the_first_rendezvous_to_the_end(
    tmp_path: Path, port: int
) -> None:
    found: dict[str, int] = {}

    class Asking(LocalElasticAgent):
        def _rendezvous(self, worker_group: Any) -> None:
            found[f"rendezvous {self._remaining_restarts}"] = health(port)
            super()._rendezvous(worker_group)

        def _exit_barrier(self) -> None:
            found["barrier"] = health(port)
            super()._exit_barrier()

    def work() -> int:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError
        return health(port)

    one = agent(work, tmp_path, max_restarts=1, local_world_size=1, made_of=Asking)
    assert one.run().return_values == {0: 200}
    assert found == {"rendezvous 1": 200, "rendezvous 0": 200, "barrier": 200}
    assert health(port) == 0


def test_an_agent_that_is_stuck_is_not_alive(tmp_path: Path, port: int) -> None:
    one = agent(echo, tmp_path)
    one._setup_healthcheck()
    try:
        assert health(port) == 200
        one._looking_since = time.time() - 61
        assert health(port) == 503
        one._looking_since = None
        assert health(port) == 200
    finally:
        one._shutdown()


@pytest.mark.parametrize("wrong", ["no number", "99999999", "occupied"])
def test_without_a_port_for_health_the_workers_still_run(
    tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("", 0)) as listening:
        taken = str(listening.getsockname()[1])
        monkeypatch.setenv(
            "TORCHELASTIC_HEALTH_CHECK_PORT", taken if wrong == "occupied" else wrong
        )
        assert not agent(echo, tmp_path, ("foo",)).run().is_failed()


# --- seams --------------------------------------------------------------------------------


class Context:
    """What somebody else's `start_processes` may return."""

    def __init__(self, *results: RunProcsResult | None) -> None:
        self.results = list(results)
        self.closed: list[tuple[Any, ...]] = []

    def pids(self) -> dict[int, int]:
        return {0: 123}

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        return self.results.pop(0) if len(self.results) > 1 else self.results[0]

    def close(self, death_sig: Any = None, timeout: float = 30) -> None:
        self.closed.append((death_sig, timeout))


def test_start_processes_can_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context(None, None, RunProcsResult(return_values={0: "value"}))
    asked: dict[str, Any] = {}

    def replaced(**settings: Any) -> Context:
        asked.update(settings)
        return context

    monkeypatch.setattr(local_elastic_agent, "start_processes", replaced)
    one = agent(
        echo,
        tmp_path,
        ("${local_rank}",),
        local_world_size=1,
        duplicate_stdout_filters=["a"],
        duplicate_stderr_filters=["b"],
        settings={"shutdown_timeout": 5},
    )
    assert one.run().return_values == {0: "value"}
    assert context.closed == [(signal.SIGTERM, 5)]
    assert one._pcontext is context  # type: ignore[comparison-overlap]
    assert asked.pop("envs")[0]["RANK"] == "0"
    assert asked == {
        "name": "trainer",
        "entrypoint": echo,
        "args": {0: ("0",)},
        "logs_specs": one._logs_specs,
        "log_line_prefixes": None,
        "start_method": "fork",
        "numa_options": None,
        "duplicate_stdout_filters": ["a"],
        "duplicate_stderr_filters": ["b"],
    }


def asked_by(
    prefix: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """What an agent asks of `start_processes` in a run with one restart."""
    of = library(prefix)
    module = importlib.import_module(f"{prefix}.agent.server.local_elastic_agent")
    asked: list[dict[str, Any]] = []
    failure = of.errors.ProcessFailure(0, 123, 1, "")
    results = [RunProcsResult(failures={0: failure}), RunProcsResult(return_values={0: 1, 1: 2})]

    def replaced(**settings: Any) -> Context:
        asked.append(settings)
        context = Context(results[len(asked) - 1])
        context.pids = lambda: {0: 1, 1: 2}  # type: ignore[method-assign]
        return context

    monkeypatch.setattr(module, "start_processes", replaced)
    spec = of.agent.WorkerSpec(
        "trainer", 2, handler(of, Meeting()), entrypoint=echo, max_restarts=5, **settings
    )
    one = module.LocalElasticAgent(spec, "the logs specs", log_line_prefix_template="${rank}$$")
    assert not one.run().is_failed()
    return asked


@pytest.mark.torch
@pytest.mark.parametrize(
    "settings",
    [
        {"args": ("${local_rank}", 5)},
        {"virtual_local_rank": True},
        {"master_addr": "there", "master_port": 9, "local_addr": "here"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
        {"CUDA_VISIBLE_DEVICES": "6,7", "TORCHELASTIC_TIMER_FILE": "/pipe"},
    ],
    ids=str,
)
def test_the_same_is_asked_of_start_processes_as_pytorch_asks(
    settings: dict[str, Any], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    asked = asked_by(OURS, settings, monkeypatch)
    assert len(asked) == 2
    assert asked == asked_by(THEIRS, settings, monkeypatch)


def failed_context() -> Context:
    failure = api.RunResult(State.FAILED)  # any object: it is handed on as it is
    return Context(RunProcsResult(failures={0: failure}))  # type: ignore[dict-item]


def test_what_was_started_is_closed_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = [failed_context(), failed_context()]
    started = iter(contexts)
    monkeypatch.setattr(local_elastic_agent, "start_processes", lambda **settings: next(started))
    one = agent(echo, tmp_path, local_world_size=1, max_restarts=1)
    one._record_worker_events = lambda result: None  # type: ignore[method-assign]
    assert one.run().is_failed()
    assert [len(context.closed) for context in contexts] == [1, 1]


def test_closing_that_a_signal_interrupted_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = failed_context()
    close = context.close

    def interrupted(death_sig: Any = None, timeout: float = 30) -> None:
        close(death_sig, timeout)
        if len(context.closed) == 1:
            raise SignalException("sent", signal.SIGINT)

    context.close = interrupted  # type: ignore[method-assign]
    monkeypatch.setattr(local_elastic_agent, "start_processes", lambda **settings: context)
    with pytest.raises(SignalException):
        agent(echo, tmp_path, local_world_size=1).run()
    assert context.closed == [(signal.SIGTERM, 30), (signal.SIGINT, 30)]


def test_workers_that_are_not_those_that_were_started_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context(None)
    pids = iter([{0: 123}])
    context.pids = lambda: next(pids, {0: 124})  # type: ignore[method-assign]
    monkeypatch.setattr(local_elastic_agent, "start_processes", lambda **settings: context)
    with pytest.raises(RuntimeError, match="UNKNOWN"):
        agent(echo, tmp_path, local_world_size=1).run()


def test_a_worker_that_no_signal_reaches_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_state, "read_proc_state", lambda pid: "D")
    one = agent(
        time.sleep,
        tmp_path,
        (LONG_S,),
        local_world_size=1,
        max_restarts=3,
        monitor_interval=0.01,
        settings={"uninterruptible_state_timeout": 0.05},
    )
    starts = []
    start = one._start_workers

    def counted(worker_group: Any) -> dict[int, Any]:
        starts.append(worker_group)
        return start(worker_group)

    one._start_workers = counted  # type: ignore[method-assign]
    result = one.run()
    assert result.is_failed()
    assert "uninterruptible sleep" in result.failures[0].message
    assert len(starts) == 1  # What it holds cannot be had by another.


@pytest.mark.parametrize(
    ("given", "variable", "expected"),
    [(None, None, 0), (None, "2.5", 2.5), (1, "2.5", 1), (None, "soon", 0), (-1, None, 0)],
)
def test_the_time_that_a_worker_may_be_stuck(
    tmp_path: Path,
    given: float | None,
    variable: str | None,
    expected: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if variable is not None:
        monkeypatch.setenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", variable)
    one = agent(echo, tmp_path, settings={"uninterruptible_state_timeout": given})
    assert one._uninterruptible_state_timeout == expected


# --- the launcher -------------------------------------------------------------------------


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Handlers of the backend `memory`, as they were made."""
    made: list[Any] = []

    def create(parameters: Any) -> Any:
        one = handler(library(OURS), Meeting())
        one.parameters = parameters
        made.append(one)
        return one

    monkeypatch.setitem(rendezvous_handler_registry._registry, "memory", create)
    return made


def config(tmp_path: Path, **settings: Any) -> LaunchConfig:
    values = {"run_id": "run", "rdzv_backend": "memory", "max_restarts": 0, "start_method": "fork"}
    logs = DefaultLogsSpecs(str(tmp_path / "logs"))
    return LaunchConfig(1, 1, 2, logs_specs=logs, **{**values, **settings})


def test_a_function_is_launched_and_its_values_come_back(
    tmp_path: Path, backend: list[Any]
) -> None:
    launched = elastic_launch(config(tmp_path, rdzv_configs={"key": "value"}), echo)
    assert launched("foo") == {0: "foo", 1: "foo"}
    (one,) = backend
    assert one.is_shut_down == 1
    assert one.parameters.config == {"timeout": 900, "key": "value"}
    assert (one.parameters.min_nodes, one.parameters.max_nodes) == (1, 1)


def test_a_command_is_launched(tmp_path: Path, backend: list[Any]) -> None:
    command, args = python("pass")
    assert elastic_launch(config(tmp_path), command)(*args) == {0: None, 1: None}


def test_failed_workers_are_raised_with_the_first_of_them(
    tmp_path: Path, backend: list[Any]
) -> None:
    with pytest.raises(ChildFailedError, match="it cannot be done") as raised:
        elastic_launch(config(tmp_path), failing)()
    assert raised.value.name == "failing"
    _, first = raised.value.get_first_failure()
    assert first.exitcode == 1
    assert backend[0].is_shut_down == 1


def test_a_signal_leaves_the_rendezvous_to_the_others(
    tmp_path: Path, backend: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Any, role: str) -> None:
        raise SignalException("sent", signal.SIGTERM)

    monkeypatch.setattr(LocalElasticAgent, "_invoke_run", interrupted)
    with pytest.raises(SignalException):
        elastic_launch(config(tmp_path), echo)("foo")
    assert backend[0].is_shut_down == 0


def test_any_other_error_closes_the_rendezvous(
    tmp_path: Path, backend: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, role: str) -> None:
        raise KeyError("broken")

    monkeypatch.setattr(LocalElasticAgent, "_invoke_run", broken)
    with pytest.raises(KeyError):
        elastic_launch(config(tmp_path), echo)("foo")
    assert backend[0].is_shut_down == 1


def test_a_node_that_is_not_needed_returns_nothing(
    tmp_path: Path, backend: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_needed(self: Any, role: str) -> None:
        raise RendezvousGracefulExitError("not needed")

    monkeypatch.setattr(LocalElasticAgent, "_invoke_run", not_needed)
    assert elastic_launch(config(tmp_path), echo)("foo") == {}


def test_a_run_without_an_id_gets_one(tmp_path: Path, backend: list[Any]) -> None:
    configs = [config(tmp_path, run_id="") for _ in range(2)]
    for one in configs:
        elastic_launch(one, echo)("foo")
    assert configs[0].run_id
    assert configs[0].run_id != configs[1].run_id
    assert backend[0].parameters.run_id == configs[0].run_id


@pytest.mark.parametrize(
    "prefix", ["holdfast.elastic", pytest.param("torch.distributed", marks=pytest.mark.torch)]
)
class TestBoth:
    """The same calls on PyTorch's launcher."""

    def test_a_configuration_has_the_same_fields(self, prefix: str, tmp_path: Path) -> None:
        api = importlib.import_module(f"{prefix}.launcher.api")
        torch_versions.needs((2, 11), api)
        made = vars(api.LaunchConfig(1, 2, 3))
        assert made.pop("logs_specs") is not None
        assert made == {
            "min_nodes": 1,
            "max_nodes": 2,
            "nproc_per_node": 3,
            "run_id": "",
            "role": "default_role",
            "rdzv_endpoint": "",
            "rdzv_backend": "etcd",
            "rdzv_configs": {"timeout": 900},
            "rdzv_timeout": -1,
            "max_restarts": 3,
            "monitor_interval": 0.1,
            "start_method": "spawn",
            "log_line_prefix_template": None,
            "metrics_cfg": {},
            "local_addr": None,
            "event_log_handler": "null",
            "numa_options": None,
            "signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
            "duplicate_stdout_filters": None,
            "duplicate_stderr_filters": None,
            "virtual_local_rank": False,
            "shutdown_timeout": 30,
        }

    def test_timeouts(self, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
        api = importlib.import_module(f"{prefix}.launcher.api")
        torch_versions.needs((2, 11), api)
        assert api.LaunchConfig(1, 1, 1, rdzv_timeout=5).rdzv_configs == {"timeout": 5}
        kept = api.LaunchConfig(1, 1, 1, rdzv_configs={"timeout": 6})
        assert kept.rdzv_configs == {"timeout": 6}
        monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "8")
        assert api.LaunchConfig(1, 1, 1).shutdown_timeout == 8
        assert api.LaunchConfig(1, 1, 1, shutdown_timeout=9).shutdown_timeout == 9
        with pytest.raises(ValueError, match="-1"):
            api.LaunchConfig(1, 1, 1, shutdown_timeout=-1)

    def test_names_of_entrypoints(self, prefix: str) -> None:
        name = importlib.import_module(f"{prefix}.launcher.api")._get_entrypoint_name
        assert name(echo, []) == "echo"
        assert name(None, []) == ""
        assert name("/bin/program", ["x"]) == "/bin/program"
        assert name(sys.executable, ["-u", "script.py"]) == "script.py"
        assert name(sys.executable, ["-u"]) == ""

    def test_a_static_endpoint_is_the_master(self, prefix: str) -> None:
        master = importlib.import_module(f"{prefix}.launcher.api")._get_addr_and_port
        rendezvous = importlib.import_module(
            f"{prefix}.elastic.rendezvous" if prefix.startswith("torch") else f"{prefix}.rendezvous"
        )

        def of(backend: str, endpoint: str) -> Any:
            return master(rendezvous.RendezvousParameters(backend, endpoint, "run", 1, 1))

        assert of("static", " host:99 ") == ("host", 99)
        assert of("c10d", "host:99") == (None, None)
        for wrong in ("", "host"):
            with pytest.raises(ValueError, match="endpoint"):
                of("static", wrong)


def test_the_names_of_this_package_are_there() -> None:
    assert server.TORCHELASTIC_ENABLE_FILE_TIMER == "TORCHELASTIC_ENABLE_FILE_TIMER"
    assert server.TORCHELASTIC_TIMER_FILE == "TORCHELASTIC_TIMER_FILE"
    assert launcher.launch_agent is launcher.api.launch_agent
    for module in (server, api, local_elastic_agent, launcher, launcher.api):
        for name in module.__all__:
            assert getattr(module, name) is not None


# --- a real signal ------------------------------------------------------------------------

LAUNCHER = """
    import sys
    sys.path[:0] = {path!r}
    from holdfast.elastic.launcher import LaunchConfig, elastic_launch
    from holdfast.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from holdfast.elastic.rendezvous import rendezvous_handler_registry
    from tests.elastic.agents_of_threads import OURS, Meeting, handler, library

    rendezvous_handler_registry.register(
        "memory", lambda parameters: handler(library(OURS), Meeting())
    )
    logs = DefaultLogsSpecs({logs!r})
    config = LaunchConfig(
        1, 1, 2, logs, "run", rdzv_backend="memory", monitor_interval=3600, shutdown_timeout=30
    )
    try:
        elastic_launch(config, sys.executable)("-c", {worker!r})
    except SignalException as error:
        sys.exit(128 + error.sigval)
"""
WORKER = """
import os, pathlib, signal, sys, time

def on_signal(number, frame):
    pathlib.Path({folder!r}, "got." + os.environ["RANK"]).write_text(str(number))
    sys.exit(0)

signal.signal(signal.SIGTERM, on_signal)
pathlib.Path({folder!r}, "ready." + os.environ["RANK"]).touch()
time.sleep(3600)
"""


def test_a_signal_to_the_agent_reaches_the_workers_and_is_its_end(tmp_path: Path) -> None:
    root = Path(__file__).parents[4]
    worker = WORKER.format(folder=str(tmp_path))
    program = textwrap.dedent(LAUNCHER).format(
        path=[str(root), str(root / "src")], logs=str(tmp_path / "logs"), worker=worker
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        until(lambda: all((tmp_path / f"ready.{rank}").exists() for rank in range(2)))
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    got = {(tmp_path / f"got.{rank}").read_text() for rank in range(2)}
    assert got == {str(int(signal.SIGTERM))}


def test_steps_are_measured(tmp_path: Path) -> None:
    put: set[str] = set()

    class Noting(metrics.MetricHandler):
        def emit(self, metric_data: metrics.MetricData) -> None:
            put.add(metric_data.name)

    metrics.configure(Noting(), "torchelastic")
    try:
        agent(failing, tmp_path).run()
    finally:
        metrics.configure(metrics.NullMetricHandler(), "torchelastic")
    for step in ("_start_workers", "_monitor_workers", "_stop_workers"):
        assert f"LocalElasticAgent.{step}.duration.ms" in put


def test_no_thread_is_left(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    agent(echo, tmp_path, ("foo",)).run()
    until(lambda: set(threading.enumerate()) <= before)
