"""Functions as processes that do what functions rarely do."""

from __future__ import annotations

import multiprocessing as standard
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.elastic.multiprocessing import DefaultLogsSpecs, Std, calls

sys.path.append(str(Path(__file__).parents[1]))
import entrypoints
from starting import functions, held, leaves_nothing, shell, signals_as_before

__all__ = ["leaves_nothing", "signals_as_before"]


@pytest.fixture(scope="module", autouse=True)
def tracker() -> None:
    """What `multiprocessing` itself starts for a process that makes queues, and keeps."""
    resource_tracker.ensure_running()


BOTH = pytest.mark.parametrize("method", ["spawn", "fork"])
pytestmark = pytest.mark.usefixtures("leaves_nothing")


# --- values ------------------------------------------------------------------------------


@BOTH
def test_one_that_leaves_without_a_word_does_not_hold_up_the_others(
    tmp_path: Path, method: str
) -> None:
    arguments = [(rank,) for rank in (0, 1, 2)]
    result = functions(
        tmp_path, entrypoints.first_leaves_without_a_word, *arguments, start_method=method
    ).wait(timeout=60)
    assert result is not None
    assert result.return_values == {0: None, 1: 1, 2: 2}


@BOTH
def test_a_value_that_cannot_be_sent_is_a_failure(tmp_path: Path, method: str) -> None:
    result = functions(tmp_path, entrypoints.closes_everything, (), start_method=method).wait()
    assert result is not None
    assert set(result.failures) == {0}


@BOTH
def test_a_value_that_cannot_be_pickled_is_a_failure_that_says_so(
    tmp_path: Path, method: str
) -> None:
    result = functions(tmp_path, entrypoints.returns_a_lock, (), start_method=method).wait()
    assert result is not None
    assert "cannot pickle" in result.failures[0].message["message"]


@BOTH
def test_an_error_that_cannot_be_pickled_is_told_all_the_same(tmp_path: Path, method: str) -> None:
    result = functions(tmp_path, entrypoints.raises_the_unpicklable, (), start_method=method).wait()
    assert result is not None
    assert result.failures[0].message["message"] == "Unpicklable: words"


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (entrypoints.leaves_with_words, 1),
        (entrypoints.aborts, -signal.SIGABRT),
        (entrypoints.interrupts, 1),
    ],
)
@BOTH
def test_it_may_end_in_any_way(
    tmp_path: Path, method: str, function: Callable[[], None], code: int
) -> None:
    result = functions(tmp_path, function, (), start_method=method).wait()
    assert result is not None
    assert result.failures[0].exitcode == code


def test_what_was_shipped_and_returned_is_not_kept(tmp_path: Path) -> None:
    """Neither the pickled arguments nor the pickled values, once they are where they belong."""
    context = functions(tmp_path, entrypoints.twice, (b"x" * 1_000_000,))
    result = context.wait()
    assert result is not None
    assert len(result.return_values[0]) == 2_000_000
    processes = context._started
    assert not processes.values
    assert not any(start.cargo for start in processes._by_name.values())
    assert not any(reply._outgoing or reply._incoming for reply in processes._replies)
    assert all(len(reply._outgoing.obj) == 0 for reply in processes._replies)


# --- arguments ---------------------------------------------------------------------------


def test_a_closure_can_have_and_be_given_a_queue(tmp_path: Path) -> None:
    spawning = standard.get_context("spawn")
    had, given = spawning.SimpleQueue(), spawning.SimpleQueue()

    def puts(queue: Any) -> None:
        had.put("had")
        queue.put("given")

    result = functions(tmp_path, puts, (given,)).wait()
    assert result is not None
    assert not result.failures
    assert (had.get(), given.get()) == ("had", "given")
    had.close()
    given.close()


TYPED_IN = """
from holdfast.elastic.multiprocessing import DefaultLogsSpecs, start_processes
factor = 3
def times(number):
    return number * factor
context = start_processes("fn", times, {0: (2,)}, {0: {}}, DefaultLogsSpecs(log_dir="."))
print(context.wait().return_values)
"""


def test_a_function_that_was_typed_into_a_terminal_can_be_spawned(tmp_path: Path) -> None:
    """There is no file that the process could import it from, as there is none in a notebook."""
    command = [sys.executable, "-c", TYPED_IN]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.returncode) == ("{0: 6}\n", 0), ended.stderr


def test_any_number_of_descriptors_can_be_given(tmp_path: Path) -> None:
    """More than one message to the spawner carries."""
    pairs = [standard.Pipe(duplex=False) for _ in range(270)]
    result = functions(tmp_path, entrypoints.writes_through, ([end for _, end in pairs],)).wait()
    assert result is not None
    assert result.return_values == {0: 270}
    assert [reading.recv() for reading, _ in pairs] == list(range(270))
    for end in [end for pair in pairs for end in pair]:
        end.close()


@pytest.mark.thorough
@pytest.mark.torch
def test_many_tensors_can_be_given(tmp_path: Path) -> None:
    torch = import_module("torch")
    import_module("torch.multiprocessing")
    given = [torch.full((2,), float(number)) for number in range(300)]
    result = functions(tmp_path, entrypoints.sum_of_sums, (given,)).wait()
    assert result is not None
    assert result.return_values == {0: 2.0 * sum(range(300))}


def test_nothing_is_opened_for_shipping_but_the_line_itself(tmp_path: Path) -> None:
    reading, writing = standard.Pipe(duplex=False)
    before = held()
    ours, theirs = standard.get_context("spawn").Pipe()
    with socket.socket(fileno=os.dup(theirs.fileno())) as reply:
        call = calls.FunctionCall(entrypoints.puts, (reading, writing), {})
        _, given, _ = calls.ship("fn0", call, reply)
        assert given.keys() >= {reading.fileno(), writing.fileno(), reply.fileno()}
    for end in (ours, theirs):
        end.close()
    assert held() <= before
    reading.close()
    writing.close()


# --- output ------------------------------------------------------------------------------


def test_what_is_written_before_anybody_reads_is_all_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logs = DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), tee=Std.OUT)
    lines = 400_000
    context = shell(tmp_path, f"yes 0123456789 | head -{lines}", logs_specs=logs)
    result = context.wait()
    assert not result.failures
    assert os.path.getsize(result.stdouts[0]) == lines * 11
    assert capfd.readouterr().out.count("[sh0]:0123456789\n") == lines


@BOTH
def test_a_child_that_keeps_the_output_open_is_not_waited_for(
    tmp_path: Path, method: str, is_running: Callable[[int], bool]
) -> None:
    logs = DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), tee=Std.ALL)
    context = functions(
        tmp_path, entrypoints.leaves_a_child, (), start_method=method, logs_specs=logs
    )
    result = context.wait()
    assert result is not None
    assert Path(result.stdouts[0]).read_text() == "said\n"
    assert not is_running(result.return_values[0])


# --- processors --------------------------------------------------------------------------


class NumaOptions(NamedTuple):
    """As PyTorch has them."""

    affinity_mode: str
    should_fall_back_if_binding_fails: bool = False


def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_a_binding_that_cannot_be_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_gpus(monkeypatch)
    with pytest.raises(RuntimeError, match=r"numa_options node: .*leave numa_options out"):
        shell(tmp_path, "exit 0", numa_options=NumaOptions("node"))
    with pytest.raises(RuntimeError, match="numa_options"):
        functions(tmp_path, entrypoints.nothing, (), numa_options="node", start_method="fork")


def test_a_binding_that_cannot_be_may_be_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_gpus(monkeypatch)
    options = NumaOptions("node", should_fall_back_if_binding_fails=True)
    assert not shell(tmp_path, "exit 0", numa_options=options).wait().failures


@pytest.mark.torch
def test_the_options_of_pytorch_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_gpus(monkeypatch)
    binding = import_module("torch.numa.binding")
    options = binding.NumaOptions(affinity_mode=binding.AffinityMode.CORE_COMPLEX)
    with pytest.raises(RuntimeError, match="numa_options core-complex"):
        shell(tmp_path, "exit 0", numa_options=options)


@BOTH
def test_a_process_is_bound_to_its_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    from holdfast.processes.host import numa

    own = sorted(os.sched_getaffinity(0))
    sets = ((own[0],), (own[-1],))
    monkeypatch.setattr(numa, "plan", lambda *_, **__: sets)
    monkeypatch.setattr(numa, "cuda_devices", lambda *_: ())
    context = functions(
        tmp_path, entrypoints.processors, (), (), start_method=method, numa_options="node"
    )
    result = context.wait()
    assert result is not None
    assert result.return_values == {0: [own[0]], 1: [own[-1]]}
