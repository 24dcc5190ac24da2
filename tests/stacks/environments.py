"""The stacks that Holdfast is proven on: what is in each, and the environments they live in.

    python -m tests.stacks.environments            # make all that are not there yet
    python -m tests.stacks.environments plain jax  # only these

Rules
1. An environment is made by one command of pip, with PyTorch pinned in it, in `.stacks/NAME`,
   with Holdfast installed from this checkout. `.definition` in it says what it was made from:
   it is used again while that is still so, and made anew when it is not.
2. Environments of somebody else are used as they are, and never touched: a symbolic link in
   place of `.stacks/NAME`, or all of them below the folder that HOLDFAST_STACKS names.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).parents[2]
SCRIPTS = CHECKOUT / "examples" / "stacks"
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
TORCH = next(p for p in PROJECT["optional-dependencies"]["test"] if p.startswith("torch=="))
"""One version for all, the one that the other tests run under us."""
ENDLESS = 1_000_000_000
DEFINITION = ".definition"


class Stack(NamedTuple):
    """One set of packages that people use together, and a script that trains with it."""

    name: str
    packages: tuple[str, ...]
    """Given to pip in one command."""
    script: str
    short: tuple[str, ...]
    """Arguments for a run of some 20 steps, with checkpoints where the script makes them."""
    endless: tuple[str, ...]
    """Arguments for a run that somebody else ends."""
    proves: tuple[str, ...]
    """What the script is about: modules that all its workers have imported at the end."""
    has_torchrun: bool = True


STACKS = (
    Stack(
        "plain",
        (TORCH, "numpy", "tqdm"),
        "train_plain.py",
        short=("--steps=20", "--save-every=5", "--folder=out"),
        endless=(f"--steps={ENDLESS}", "--save-every=0", "--folder=out"),
        proves=("numpy", "torch", "torch.nn.parallel", "tqdm"),
    ),
    Stack(
        "huggingface",
        (TORCH, "numpy", "transformers", "accelerate", "datasets"),
        "train_huggingface.py",
        short=("--steps=20", "--save-every=5", "--folder=out"),
        endless=(f"--steps={ENDLESS}", "--save-every=0", "--folder=out"),
        proves=("torch", "transformers.trainer", "accelerate", "datasets"),
    ),
    Stack(
        "lightning",
        (TORCH, "lightning", "torchmetrics"),
        "train_lightning.py",
        short=("--epochs=3", "--folder=out"),
        endless=(f"--epochs={ENDLESS}", "--save-every=0", "--folder=out"),
        proves=("torch", "lightning.pytorch.trainer", "torchmetrics"),
    ),
    Stack(
        "science",
        (
            TORCH,
            "numpy",
            "pandas",
            "scikit-learn",
            "matplotlib",
            "tensorboard",
            "hydra-core",
        ),
        "train_science.py",
        short=("steps=20", "folder=out"),
        endless=(f"steps={ENDLESS}", "folder=out"),
        proves=("torch", "pandas", "sklearn", "matplotlib.pyplot", "tensorboard", "hydra"),
    ),
    Stack(
        "jax",
        ("jax", "jaxlib"),
        "train_jax.py",
        short=("--steps=20",),
        endless=(f"--steps={ENDLESS}",),
        proves=("jax", "jaxlib", "numpy"),
        has_torchrun=False,
    ),
)
BY_NAME = {stack.name: stack for stack in STACKS}


def script(stack: Stack) -> Path:
    return SCRIPTS / stack.script


def folder(stack: Stack) -> Path:
    """Where the environment of a stack is, or is to be made."""
    ready_made = os.environ.get("HOLDFAST_STACKS")
    return (Path(ready_made) if ready_made else CHECKOUT / ".stacks") / stack.name


def command(stack: Stack, name: str) -> Path:
    """A command that is installed in the environment of a stack."""
    return folder(stack) / "bin" / name


def why_not_ready(stack: Stack) -> str:
    """What is wrong with the environment of a stack; nothing if it can be used."""
    place = folder(stack)
    if not command(stack, "holdfast").exists():
        return f"{place} is not made (make stacks)"
    if _is_ours(place) and _read_definition(place) != _definition(stack):
        return f"{place} was made from another definition (make stacks)"
    return ""


def make(stack: Stack) -> None:
    """Make the environment of a stack, unless it is there. Raises `CalledProcessError`."""
    place = folder(stack)
    if not why_not_ready(stack):
        print(f"{stack.name}: {place} is ready")
        return
    if not _is_ours(place):
        sys.exit(f"{why_not_ready(stack)}, and it is not ours to make")
    begun = time.monotonic()
    print(f"{stack.name}: installing {' '.join(stack.packages)} into {place} ...", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    python = str(place / "bin" / "python")
    pip = [python, "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, *stack.packages], check=True)
    packages_s = time.monotonic() - begun
    subprocess.run([*pip, "--editable", str(CHECKOUT)], check=True)
    (place / DEFINITION).write_text(_definition(stack))
    print(
        f"{stack.name}: made in {time.monotonic() - begun:.0f} s ({packages_s:.0f} s of packages)"
    )


def _is_ours(place: Path) -> bool:
    return "HOLDFAST_STACKS" not in os.environ and not place.is_symlink()


def _definition(stack: Stack) -> str:
    """What an environment depends on, and nothing else: arguments of the script do not."""
    made_from = {
        "packages": [*stack.packages, *PROJECT["dependencies"]],
        "python": platform.python_version(),
        "checkout": str(CHECKOUT),
    }
    return json.dumps(made_from) + "\n"


def _read_definition(place: Path) -> str:
    try:
        return (place / DEFINITION).read_text()
    except FileNotFoundError:
        return ""


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        sys.exit(f"{unknown[0]!r} is no stack; there are: {', '.join(BY_NAME)}")
    for name in names or BY_NAME:
        make(BY_NAME[name])


if __name__ == "__main__":
    main(sys.argv[1:])
