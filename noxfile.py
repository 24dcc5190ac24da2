"""Sessions of tests on other Pythons, on another PyTorch, and from a wheel (`make test-pythons`).

Each session has an environment of its own below `.nox`. What follows `--` goes to pytest.
"""

from __future__ import annotations

import os
from pathlib import Path

import nox

nox.needs_version = ">=2026.2"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"

# pyenv's shims run the chosen versions only: its interpreters themselves come first.
INTERPRETERS = map(str, Path.home().glob(".pyenv/versions/3.*/bin"))
os.environ["PATH"] = os.pathsep.join([*INTERPRETERS, os.environ["PATH"]])

PYTHONS = ["3.11", "3.12", "3.13", "3.14", "3.15"]
TORCH = os.environ.get("TORCH", "2.15.0")
# Everything that tests need but PyTorch, which not every Python has.
TESTED = ".[test-without-torch]"
# What depends on how Holdfast is installed: what starts processes of ours by their path.
INSTALLED = [
    "tests/processes",
    "tests/integration/warm",
    "tests/cli",
    "tests/elastic/multiprocessing",
    "tests/worker",
]


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run all that needs no PyTorch."""
    session.install("--editable", TESTED)
    run_tests(session, "tests")


@nox.session(default=False)
def wheel(session: nox.Session) -> None:
    """Run what depends on the installation from a wheel, without the checkout's `src`."""
    session.install(TESTED)  # of a path that is not editable pip makes a wheel, each time anew
    run_tests(session, *INSTALLED)


@nox.session(default=False)
@nox.parametrize("version", [TORCH], ids=[TORCH])
def torch(session: nox.Session, version: str) -> None:
    """Run what touches PyTorch on the version that TORCH names, as pip brings it."""
    session.install("--no-cache-dir", f"torch=={version}")  # it may be gigabytes
    session.install("--editable", TESTED)
    session.env["TEST_ALL"] = "1"
    run_tests(session, "-m", "torch", "tests")


def run_tests(session: nox.Session, *usual: str) -> None:
    several = ["--numprocesses", os.environ.get("WORKERS", "4"), "--dist", "worksteal"]
    session.run("python", "-m", "pytest", "-q", "-rfE", *several, *(session.posargs or usual))
