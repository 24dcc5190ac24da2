"""`holdfast.launch`: functions on several workers, called from Python."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast

from ..waiting import until
from .conftest import Job, StartJob


@pytest.mark.thorough
def test_each_rank_returns_its_value() -> None:
    def place() -> tuple[int, int]:
        import os

        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    assert holdfast.launch(place, nproc=3) == {0: (0, 3), 1: (1, 3), 2: (2, 3)}


def test_arguments_closures_and_lambdas_reach_the_workers() -> None:
    offset = 40

    def add(number: int, *, more: int = 0) -> int:
        return offset + number + more

    assert holdfast.launch(add, 2, nproc=2) == {0: 42, 1: 42}
    assert holdfast.launch(lambda word: word * 2, "ab") == {0: "abab"}
    assert holdfast.launch(lambda: None, nproc=2) == {0: None, 1: None}


def test_functions_of_installed_modules_and_values_of_local_classes_travel() -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    assert holdfast.launch(os.path.join, "a", "b") == {0: "a/b"}
    (value,) = holdfast.launch(lambda: Point(3)).values()
    assert value.x == 3


def test_a_functions_environment_has_what_was_added() -> None:
    def read() -> tuple[str, str]:
        import os

        return os.environ["COLOUR"], os.environ["LOCAL_RANK"]

    assert holdfast.launch(read, nproc=2, env={"COLOUR": "blue"}) == {
        0: ("blue", "0"),
        1: ("blue", "1"),
    }


def test_a_function_does_not_see_the_ranks_of_a_scheduler() -> None:
    placed = {"SLURM_PROCID": "3", "PMI_RANK": "3", "SLURM_JOB_ID": "4711"}

    def seen() -> list[str]:
        import os

        return sorted(placed.keys() & os.environ.keys())

    assert holdfast.launch(seen, env=placed) == {0: ["SLURM_JOB_ID"]}


def test_an_exception_becomes_a_failed_job_with_a_report() -> None:
    def fail() -> None:
        import os

        if os.environ["RANK"] == "1":
            raise ValueError("no such luck")
        import signal

        signal.pause()

    with pytest.raises(holdfast.JobFailed) as caught:
        holdfast.launch(fail, nproc=2)
    cause = caught.value.outcome.cause
    assert cause is not None
    assert cause.rank == 1
    assert cause.error is not None
    assert cause.error.message == "ValueError: no such luck"
    for words in ("rank 1", "ValueError: no such luck", "in fail"):
        assert words in str(caught.value)
    assert "function.py" not in str(caught.value), "a frame of ours is in the traceback"


def test_a_failed_function_is_tried_again_as_often_as_allowed(tmp_path: Path) -> None:
    place = str(tmp_path)

    def fail_twice() -> int:
        import os

        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        open(os.path.join(place, str(attempt)), "w").close()
        if attempt < 1:
            raise ValueError("not yet")
        return attempt

    assert holdfast.launch(fail_twice, max_restarts=1) == {0: 1}
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


def test_a_function_that_leaves_through_exit_has_no_value() -> None:
    def leave(status: int) -> None:
        import sys

        sys.exit(status)

    with pytest.raises(holdfast.JobFailed, match="exit code 3"):
        holdfast.launch(leave, 3)


def test_a_failure_names_its_journal(tmp_path: Path) -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(holdfast.JobFailed) as caught:
        holdfast.launch(leave, log_dir=str(tmp_path))
    journal = Path(caught.value.journal)
    assert journal.is_file()
    assert journal.is_relative_to(tmp_path)
    assert f"journal: {journal}" in str(caught.value)


def test_what_there_is_to_import_is_listed() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import holdfast; print(*dir(holdfast))"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert set(holdfast.__all__) <= set(ended.stdout.split())


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(holdfast.UsageError):
        holdfast.launch("train.py")  # type: ignore[arg-type]


def test_it_works_inside_a_running_event_loop() -> None:
    async def main() -> dict[int, int]:
        return holdfast.launch(lambda: 7, nproc=2)

    assert asyncio.run(main()) == {0: 7, 1: 7}


@pytest.mark.thorough
def test_it_works_from_threads_several_at_a_time() -> None:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda number: holdfast.launch(lambda: number, nproc=2), range(3)))
    assert found == [{0: number, 1: number} for number in range(3)]


def test_output_goes_where_python_prints() -> None:
    def speak() -> None:
        import sys

        print("said")
        print("complained", file=sys.stderr)

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        holdfast.launch(speak, nproc=2)
    assert out.getvalue() == "said\nsaid\n"
    assert err.getvalue().count("complained\n") == 2


def test_letters_of_several_bytes_are_whole_in_captured_output() -> None:
    def speak() -> None:
        import os

        os.write(1, ("x" + "é" * 300_000 + "\n").encode())

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        holdfast.launch(speak)
    assert out.getvalue() == "x" + "é" * 300_000 + "\n"


def test_the_callers_own_children_signals_and_folders_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = {number: signal.getsignal(number) for number in (2, 15, 17)}
    child = subprocess.Popen(["sleep", "100"])
    holdfast.launch(lambda: None)
    assert child.poll() is None
    child.kill()
    child.wait()
    assert {number: signal.getsignal(number) for number in before} == before
    assert list(tmp_path.iterdir()) == []


def test_a_worker_of_a_function_holds_no_descriptor_but_its_own_and_that_of_its_stacks() -> None:
    def look() -> list[str]:
        import os

        found = []
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}"):
                found.append(os.readlink(f"/proc/self/fd/{name}"))
        return found

    inherited = set()
    for name in os.listdir("/proc/self/fd"):
        if os.path.exists(f"/proc/self/fd/{name}") and os.get_inheritable(int(name)):
            inherited.add(os.readlink(f"/proc/self/fd/{name}"))
    for found in holdfast.launch(look, nproc=2).values():
        assert set(found) - inherited == {"/memfd:holdfast-stacks (deleted)"}


# A caller of its own, in a process that can be interrupted and killed.
CALLER = """
import os, sys
import holdfast

def work(then):
    import os, signal, sys, time
    if os.environ["RANK"] == "1" and os.fork() == 0:
        os.setsid()
        signal.pause()
    def hear(*_):
        open(f"heard.{os.environ['RANK']}", "w").close()
        sys.exit(1)
    signal.signal(signal.SIGINT, hear)
    open(f"ready.{os.environ['RANK']}", "w").close()
    while True:
        time.sleep(0.01)  # Not `pause`, which sleeps through a signal that comes just before it.

try:
    holdfast.launch(work, "stay", nproc=2)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture
def caller(start_program: StartJob) -> Job:
    """A program that has called `launch`, with both workers at work."""
    job = start_program(sys.executable, "caller.py", files={"caller.py": CALLER})
    job.until_files("ready.0", "ready.1")
    return job


def test_an_interrupt_gives_the_workers_their_grace_and_is_raised(caller: Job) -> None:
    caller.send(signal.SIGINT)
    assert caller.wait() == 0
    assert caller.stdout == "interrupted\n"
    assert (caller.folder / "heard.0").exists()
    assert (caller.folder / "heard.1").exists()
    caller.expect_nothing_left()
    assert list(caller.folder.glob("tmp/holdfast_call_*")) == []


# Leaves by an exception of its own, as a handler of SIGTERM often does.
LEAVER = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n" + CALLER


def test_a_caller_that_leaves_by_an_exception_ends_the_job(start_program: StartJob) -> None:
    job = start_program(sys.executable, "caller.py", files={"caller.py": LEAVER})
    job.until_files("ready.0", "ready.1")
    job.send(signal.SIGTERM)
    assert job.wait() == 7
    job.expect_nothing_left()
    assert list(job.folder.glob("tmp/holdfast_call_*")) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_caller_that_is_killed_takes_everything_with_it(caller: Job, number: int) -> None:
    caller.send(number)
    assert caller.wait() == -number
    caller.expect_nothing_left()
    until(lambda: list(caller.folder.glob("tmp/holdfast_call_*")) == [], "the private folder")


def test_a_caller_without_standard_streams_gets_its_values(start_program: StartJob) -> None:
    program = """
        import holdfast
        open("value", "w").write(str(holdfast.launch(lambda: print("x") or 5, nproc=2)))
    """
    words = (sys.executable, "program.py")
    job = start_program(*words, files={"program.py": program}, shell="<&- >&- 2>&-")
    assert job.wait() == 0, job.stderr
    assert job.read("value") == "{0: 5, 1: 5}"
    job.expect_nothing_left()


@pytest.mark.torch
def test_tensors_come_back(start_program: StartJob) -> None:
    """In a process of its own: importing PyTorch leaves threads in whoever does."""
    program = """
        import torch
        import holdfast
        def tensor():
            import os
            return torch.full((100, 100), float(os.environ["RANK"]))
        values = holdfast.launch(tensor, nproc=2)
        assert sorted(values) == [0, 1]
        for rank, value in values.items():
            assert value.shape == (100, 100)
            assert bool((value == rank).all())
    """
    job = start_program(sys.executable, "program.py", files={"program.py": program})
    assert job.wait() == 0, job.stderr
    job.expect_nothing_left()
