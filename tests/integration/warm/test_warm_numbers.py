"""Random numbers and parallel arithmetic: what is seeded is equal, what is not differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Each, Program

PROGRAMS = Path(__file__).parent / "programs"
TWO_THREADS = {
    "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2",
}  # fmt: skip


@pytest.fixture(scope="module")
def arrays(shared_program: Program) -> Each:
    shared_program.write({"arrays.py": (PROGRAMS / "arrays.py").read_text()})
    each = shared_program.each("arrays.py", env=TWO_THREADS)
    assert all(run.saw for run in each.values()), {how: run.stderr for how, run in each.items()}
    return each


@pytest.fixture(scope="module")
def tensors(shared_program: Program) -> Each:
    shared_program.write({"tensors.py": (PROGRAMS / "tensors.py").read_text()})
    # Not cold: that a cold worker is what Python is, the arrays show, without six more seconds.
    each = shared_program.each("tensors.py", hows=("plain", "warm"), env=TWO_THREADS)
    assert all(run.saw for run in each.values()), {how: run.stderr for how, run in each.items()}
    return each


@pytest.mark.thorough
@pytest.mark.parametrize(
    "what",
    ["seeded_random_numbers", "kind_of_random_state", "parallel_operations", "threads_in_use"],
)
def test_arrays_have_the_same_values(arrays: Each, what: str) -> None:
    warm, cold, plain = (arrays[how].saw[0][what] for how in ("warm", "cold", "plain"))
    assert warm == cold == plain


def test_threads_that_are_started_again_after_a_fork_are_no_reason_to_be_left_out(
    arrays: Each,
) -> None:
    (ready,) = arrays["warm"].events("ZygoteReady")
    assert "import numpy" in ready["preloaded"]
    assert not arrays["warm"].events("ModuleRejected")


def test_unseeded_numbers_differ_between_ranks_and_between_runs(
    shared_program: Program, arrays: Each
) -> None:
    options = ("--nproc-per-node=2",)
    runs = [shared_program.run("warm", "arrays.py", options=options) for _ in range(2)]
    drawn = [number for run in runs for saw in run.saw for number in saw["drawn"]]
    assert len(drawn) == 28
    assert len(set(drawn)) == 28


@pytest.mark.torch
@pytest.mark.parametrize(
    "what",
    [
        "seeded_random_numbers", "thread_counts", "parallel_operations", "gradients",
        "loader_by_fork", "loader_by_spawn",
    ],
)  # fmt: skip
def test_tensors_have_the_same_values(tensors: Each, what: str) -> None:
    warm, plain = (tensors[how].saw[0][what] for how in ("warm", "plain"))
    assert warm == plain


@pytest.mark.torch
def test_unseeded_tensors_differ_between_ranks_and_between_rounds(program: Program) -> None:
    """As they do from one process to the next: PyTorch draws its first seed by chance."""
    text = """
        import json
        import os
        import torch
        drawn = [torch.initial_seed(), torch.rand(1).item()]
        name = os.environ["RANK"] + "." + os.environ["HOLDFAST_ROUND"]
        with open(name, "w") as file:
            json.dump(drawn, file)
        os.rename(name, os.environ["SAW"] + "." + name)  # whole, even if stopped meanwhile
        raise SystemExit(os.environ["HOLDFAST_ROUND"] == "1")
        """
    options = ("--nproc-per-node=2", "--max-restarts=1", "--preload=torch")
    run = program.write({"program.py": text}).run("warm", "program.py", options=options)
    drawn = [number for saw in run.saw for number in saw]
    assert len(drawn) >= 6  # one worker may be stopped before it has told
    assert len(set(drawn)) == len(drawn)


@pytest.mark.torch
def test_torch_is_preloaded(tensors: Each) -> None:
    ready, *_ = tensors["warm"].events("ZygoteReady")
    assert "import torch" in ready["preloaded"]
