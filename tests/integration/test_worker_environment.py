"""What a worker finds in its environment and on its command line, cold and warm."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Job, StartJob

STARTS = pytest.mark.parametrize("start", ["--preload=json", "--no-warm"])

# Writes down what it was given, and the environment as the kernel shows it to others.
LOOK = """
import json, os, sys
with open("/proc/self/environ", "rb") as file:
    shown = dict(entry.split("=", 1) for entry in file.read().decode().split("\\0") if entry)
found = {"env": dict(os.environ), "shown": shown, "argv": sys.argv, "executable": sys.executable}
place = f"found.{os.environ['RANK']}"
with open(place, "w") as file:
    json.dump(found, file)
"""


Look = Callable[..., tuple[Job, list[dict[str, Any]]]]


@pytest.fixture
def look(run_job: StartJob) -> Look:
    """Run workers that write down what they find; returns what each found, by rank."""

    def run(
        nproc: int, *words: str, script: str = LOOK, **more: object
    ) -> tuple[Job, list[dict[str, Any]]]:
        job = run_job(f"--nproc-per-node={nproc}", *words, script=script, **more)
        assert job.process.returncode == 0, job.stderr
        return job, [json.loads(job.read(f"found.{rank}")) for rank in range(nproc)]

    return run


@pytest.mark.parametrize(("start", "nproc"), [("--preload=json", 4), ("--no-warm", 1)])
def test_every_variable_has_its_value(look: Look, start: str, nproc: int) -> None:
    words = (start, "--max-restarts=3", "--rdzv-id=the-job", "--role=trainer")
    job, found = look(nproc, *words)
    ports = {worker["env"]["MASTER_PORT"] for worker in found}
    assert len(ports) == 1
    for rank, worker in enumerate(found):
        env = worker["env"]
        expected = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "GROUP_RANK": "0",
            "ROLE_RANK": str(rank),
            "ROLE_NAME": "trainer",
            "WORLD_SIZE": str(nproc),
            "LOCAL_WORLD_SIZE": str(nproc),
            "GROUP_WORLD_SIZE": "1",
            "ROLE_WORLD_SIZE": str(nproc),
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCHELASTIC_RUN_ID": "the-job",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }
        assert {name: env.get(name) for name in expected} == expected
        assert 0 < int(env["MASTER_PORT"]) < 65536
        assert int(env["HOLDFAST_ROUND"]) >= 1
        assert env["TORCHELASTIC_USE_AGENT_STORE"] in ("True", "False")
        error_file = env["TORCHELASTIC_ERROR_FILE"]
        assert error_file.startswith(str(job.folder / "logs"))
        assert error_file.endswith(f"/attempt_0/{rank}/error.json")
        assert "TORCHELASTIC_TIMER_FILE" not in env


def test_the_environment_is_the_agents_own_beside_that(look: Look) -> None:
    own = {"COLOUR": "blue", "EMPTY": "", "LINES": "a\nb=c", "UMLAUT": "ü", "PYTHONPATH": "/none"}
    _, found = look(2, env=own)
    for worker in found:
        assert {name: worker["env"].get(name) for name in own} == own
        assert not [name for name in worker["env"] if name.startswith("HOLDFAST_HOOK")]


@STARTS
def test_what_others_see_of_a_workers_environment_is_its_own(look: Look, start: str) -> None:
    """`ps e` and alike read what the kernel shows, which an interpreter cannot just assign."""
    _, found = look(2, start)
    for rank, worker in enumerate(found):
        assert worker["shown"]["RANK"] == str(rank)
        assert worker["shown"]["MASTER_PORT"] == worker["env"]["MASTER_PORT"]


def test_ranks_of_an_outer_job_are_not_inherited(look: Look) -> None:
    outer = {"RANK": "7", "WORLD_SIZE": "8", "MASTER_PORT": "1", "TORCHELASTIC_RESTART_COUNT": "5"}
    _, (worker,) = look(1, env=outer)
    assert worker["env"]["RANK"] == "0"
    assert worker["env"]["WORLD_SIZE"] == "1"
    assert worker["env"]["MASTER_PORT"] != "1"
    assert worker["env"]["TORCHELASTIC_RESTART_COUNT"] == "0"


def test_the_agents_own_value_for_nccl_is_kept(look: Look) -> None:
    _, (worker,) = look(1, env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"})
    assert worker["env"]["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


@pytest.mark.parametrize(
    ("nproc", "given", "expected"), [(1, None, None), (2, None, "1"), (2, "5", "5")]
)
def test_threads_are_limited_where_several_workers_share_a_machine(
    look: Look, nproc: int, given: str | None, expected: str | None
) -> None:
    job, found = look(nproc, env={"OMP_NUM_THREADS": given})
    assert [worker["env"].get("OMP_NUM_THREADS") for worker in found] == [expected] * nproc
    said = [line for line in job.stderr.splitlines() if "OMP_NUM_THREADS" in line]
    assert len(said) == (1 if expected == "1" else 0)


def test_the_local_rank_is_filled_into_arguments(look: Look) -> None:
    arguments = ("--shard=${local_rank}", "${local_rank}/${local_rank}", "$local_rank", "${rank}")
    _, found = look(2, args=arguments)
    for rank, worker in enumerate(found):
        filled = [f"--shard={rank}", f"{rank}/{rank}", "$local_rank", "${rank}"]
        assert worker["argv"] == ["program.py", *filled]


@pytest.mark.parametrize(
    ("visible", "own"), [(None, ["0", "1"]), ("GPU-a, GPU-b", ["GPU-a", "GPU-b"])]
)
def test_a_virtual_local_rank_comes_with_a_device_of_its_own(
    look: Look, visible: str | None, own: list[str]
) -> None:
    env = {"CUDA_VISIBLE_DEVICES": visible}
    _, found = look(2, "--virtual-local-rank", env=env, args=("${local_rank}",))
    assert [worker["env"]["LOCAL_RANK"] for worker in found] == ["0", "0"]
    assert [worker["env"]["RANK"] for worker in found] == ["0", "1"]
    assert [worker["env"]["CUDA_VISIBLE_DEVICES"] for worker in found] == own
    # The one thing that still tells them apart, as in torchrun.
    assert [worker["argv"][1] for worker in found] == ["0", "1"]


def test_the_list_of_devices_of_hip_comes_first(look: Look, run_job: StartJob) -> None:
    env = {"HIP_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "0"}
    _, found = look(2, "--virtual-local-rank", env=env)
    for name in env:
        assert [worker["env"][name] for worker in found] == ["4", "5"]
    empty = {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "6,7"}
    _, found = look(2, "--virtual-local-rank", env=empty)
    assert [worker["env"]["CUDA_VISIBLE_DEVICES"] for worker in found] == ["6", "7"]
    assert [worker["env"]["HIP_VISIBLE_DEVICES"] for worker in found] == ["", ""]
    job = run_job("--virtual-local-rank", "--nproc-per-node=3", script=LOOK, env=env)
    assert "HIP_VISIBLE_DEVICES=4,5 has fewer devices" in job.stderr


@pytest.mark.parametrize("names", ["", "SIGTERM,SIGUSR1"])
def test_workers_know_which_signals_are_handled(look: Look, names: str) -> None:
    _, (found,) = look(1, *([f"--signals-to-handle={names}"] if names else []))
    told = found["env"]["TORCHELASTIC_SIGNALS_TO_HANDLE"]
    assert told == (names or "SIGTERM,SIGINT,SIGHUP,SIGQUIT")


def test_a_virtual_local_rank_without_a_device_is_refused(run_job: StartJob) -> None:
    """Any other device belongs to somebody else."""
    words = ("--virtual-local-rank", "--nproc-per-node=3")
    job = run_job(*words, script=LOOK, env={"CUDA_VISIBLE_DEVICES": "4,5"})
    assert job.process.returncode == 2
    assert "CUDA_VISIBLE_DEVICES" in job.stderr
    assert "Traceback" not in job.stderr
    assert not (job.folder / "found.0").exists()


def test_another_interpreter_can_run_the_workers(look: Look, tmp_path: Path) -> None:
    interpreter = tmp_path / "other-python"
    interpreter.write_text(f'#!/bin/sh\nOTHER=yes exec {sys.executable} "$@"\n')
    interpreter.chmod(interpreter.stat().st_mode | stat.S_IXUSR)
    _, found = look(2, env={"PYTHON_EXEC": str(interpreter)})
    assert [worker["env"]["OTHER"] for worker in found] == ["yes", "yes"]


@STARTS
def test_a_module_is_run_as_python_does(look: Look, start: str) -> None:
    words = (start, "-m", "module", "an argument", "${local_rank}")
    job, found = look(2, *words, script=None, files={"module.py": LOOK})
    for rank, worker in enumerate(found):
        assert worker["argv"] == [str(job.folder / "module.py"), "an argument", str(rank)]


def test_a_file_is_run_through_its_path(look: Look) -> None:
    words = ("--run-path", "other.py", "x", "${local_rank}")
    _, found = look(2, *words, script=None, files={"other.py": LOOK})
    assert [worker["argv"] for worker in found] == [["other.py", "x", "0"], ["other.py", "x", "1"]]


def test_a_command_that_is_not_python_is_run_as_it_is(run_job: StartJob) -> None:
    line = 'echo "$RANK of $WORLD_SIZE: $0 $1" > found.$RANK'
    job = run_job("--nproc-per-node=2", "--no-python", "sh", "-c", line, "name", "${local_rank}")
    assert job.process.returncode == 0, job.stderr
    assert job.read("found.0") == "0 of 2: name 0\n"
    assert job.read("found.1") == "1 of 2: name 1\n"


def test_a_master_that_the_user_names_reaches_the_workers_as_given(look: Look) -> None:
    words = ("--master-addr=127.0.0.9", "--master-port=23456")
    _, found = look(2, *words)
    for worker in found:
        assert worker["env"]["MASTER_ADDR"] == "127.0.0.9"
        assert worker["env"]["MASTER_PORT"] == "23456"


@STARTS
def test_only_the_first_worker_reads_what_the_agent_would(start_job: StartJob, start: str) -> None:
    script = "import os, sys\nopen(f'read.{os.environ[\"RANK\"]}', 'w').write(sys.stdin.read())"
    reading, writing = os.pipe()
    job = start_job(start, "--nproc-per-node=2", script=script, stdin=reading)
    os.close(reading)
    os.write(writing, b"some words")
    os.close(writing)
    assert job.wait() == 0, job.stderr
    assert job.read("read.0") == "some words"
    assert job.read("read.1") == ""


@pytest.mark.thorough
def test_two_hundred_workers_each_have_their_rank_and_nothing_of_each_other(look: Look) -> None:
    """More than fit into one message to the spawner."""
    script = """
        import json, os
        names = [name for name in os.listdir("/proc/self/fd") if int(name) > 2]
        open_ones = [f"/proc/self/fd/{name}" for name in names]
        pipes = [os.readlink(path) for path in open_ones if os.path.exists(path)]
        with open(f"found.{os.environ['RANK']}", "w") as file:
            json.dump({"size": os.environ["WORLD_SIZE"], "pipes": pipes}, file)
    """
    _, found = look(200, "--redirects=3", script=script)
    assert {worker["size"] for worker in found} == {"200"}
    in_all = set.intersection(*(set(worker["pipes"]) for worker in found))
    assert [set(worker["pipes"]) - in_all for worker in found] == [set()] * 200
