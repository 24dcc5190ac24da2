"""Run the tests on several Pythons: `python tests/on_pythons.py 3.12 /opt/3.14/bin/python -- -x`.

Rules
- Each has a virtual environment of its own (`.venv-3.12`), made when it is missing or older than
  pyproject.toml, with everything that tests need but PyTorch, which not every Python has.
- With `--torch 2.15.0` it has that PyTorch (`.venv-torch-2.15.0`), as pip brings it: on Linux that
  may be the build with CUDA, and gigabytes.
- With `--wheel` Holdfast is installed from a wheel (`.venv-wheel-3.12`), which is built and
  installed anew each time; the checkout's `src` is not on the path.
- A Python is named by its version, and found on PATH or below `pyenv root`, or by its path.
- Where none is named it is the one that runs this.
- One that is not there is said so and skipped; with `--all-of-them` that is a failure.
- All of them are run, whatever comes of the first; the status is 0 if all passed.

What follows `--` goes to pytest. Standard library only, since nothing is installed yet.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
EXTRA = "test-without-torch"
LOOK = "import ensurepip, sys, venv; print(sys.executable, '%d.%d.%d' % sys.version_info[:3])"


class Python(NamedTuple):
    """An interpreter that works."""

    path: str
    version: str
    """All three numbers."""

    @property
    def minor(self) -> str:
        return self.version.rpartition(".")[0]


class Installation(NamedTuple):
    """What is installed into an environment besides what tests need."""

    torch: str = ""
    """The version of PyTorch; none if empty."""
    is_wheel: bool = False
    """Whether Holdfast comes from a wheel, instead of being this checkout."""

    def environment(self, python: Python) -> Path:
        if self.torch:
            # The Python is in the name where it is not the one that most have.
            more = "" if python.minor == "3.11" else f"-{python.minor}"
            return ROOT / f".venv-torch-{self.torch}{more}"
        return ROOT / f".venv-{'wheel-' if self.is_wheel else ''}{python.minor}"


class Outcome(NamedTuple):
    """What came of one of them."""

    is_well: bool
    words: str


def find(name: str) -> Python | None:
    """The Python of that version or path; None where there is none."""
    for candidate in candidates(name):
        try:
            looked = subprocess.run(
                [candidate, "-c", LOOK], capture_output=True, text=True, check=False
            )
        except OSError:
            continue
        if looked.returncode == 0:
            # A shim of pyenv is there for every version, and works for the chosen ones only.
            path, _, version = looked.stdout.strip().rpartition(" ")
            return Python(path, version)
    return None


def candidates(name: str) -> Iterator[str]:
    """Where it may be, in order."""
    if os.sep in name:
        yield name
        return
    on_path = shutil.which(f"python{name}")
    if on_path:
        yield on_path
    versions = [path for path in pyenv_versions() if f"{path.name}.".startswith(f"{name}.")]
    for path in sorted(versions, key=numbers, reverse=True):
        yield str(path / "bin" / "python")


def pyenv_versions() -> list[Path]:
    root = os.environ.get("PYENV_ROOT") or str(Path.home() / ".pyenv")
    if shutil.which("pyenv"):
        root = subprocess.run(
            ["pyenv", "root"], capture_output=True, text=True, check=True
        ).stdout.strip()
    return list(Path(root).glob("versions/*"))


def numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]


def prepare(python: Python, installation: Installation) -> Path:
    """Make its environment, unless it is there and up to date; returns the interpreter in it."""
    environment = installation.environment(python)
    inside = environment / "bin" / "python"
    stamp, project = environment / ".ready", ROOT / "pyproject.toml"
    made_of = f"{python.path} {python.version}"
    is_made = stamp.exists() and stamp.read_text() == made_of
    if not is_made or stamp.stat().st_mtime < project.stat().st_mtime:
        say(f"Installing Holdfast and what its tests need into {environment.name} ...")
        if not is_made:
            subprocess.run([python.path, "-m", "venv", "--clear", environment], check=True)
        if installation.torch:
            # Not kept a second time: it may be gigabytes.
            install(inside, "--no-cache-dir", f"torch=={installation.torch}")
        install(inside, "--editable", f"{ROOT}[{EXTRA}]")
        stamp.write_text(made_of)
    if installation.is_wheel:
        install_wheel(inside)
    return inside


def install(inside: Path, *what: str | Path) -> None:
    command = [inside, "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
    subprocess.run([*command, *what], check=True)


def install_wheel(inside: Path) -> None:
    """Have Holdfast as a wheel of what the checkout is now, in place of what was there."""
    with tempfile.TemporaryDirectory() as folder:
        build = [inside, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(build, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        (wheel,) = Path(folder).glob("*.whl")
        install(inside, "--force-reinstall", "--no-deps", wheel)


def run(python: Python, installation: Installation, arguments: list[str]) -> Outcome:
    """Run the tests on it."""
    try:
        inside = prepare(python, installation)
    except subprocess.CalledProcessError as error:
        return Outcome(False, f"could not be set up: status {error.returncode}")
    say(f"Tests on Python {python.version}")
    started = time.monotonic()
    status = subprocess.run([inside, "-m", "pytest", *arguments], cwd=ROOT, check=False).returncode
    took = f"after {time.monotonic() - started:.0f} s"
    return Outcome(status == 0, f"passed {took}" if status == 0 else f"failed {took}")


def without(name: str, *, is_demanded: bool) -> Outcome:
    """What comes of one that is not there."""
    where = "is not there" if os.sep in name else "is neither on PATH nor in pyenv"
    return Outcome(not is_demanded, where if is_demanded else f"{where}: skipped")


def say(words: str) -> None:
    print(words, flush=True)


def main(words: list[str]) -> int:
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        usage="%(prog)s [--all-of-them] [--wheel | --torch VERSION] [PYTHON ...] [-- PYTEST ...]"
    )
    parser.add_argument("--all-of-them", action="store_true")
    parser.add_argument("--wheel", action="store_true")
    parser.add_argument("--torch", default="")
    parser.add_argument("pythons", nargs="*", default=[sys.executable])
    asked = parser.parse_args(words[:split])
    installation = Installation(asked.torch, asked.wheel)
    outcomes: dict[str, Outcome] = {}
    for name in asked.pythons:
        python = find(name)
        if python is None:
            outcomes[name] = without(name, is_demanded=asked.all_of_them)
        else:
            outcomes[python.version] = run(python, installation, words[split + 1 :])
    for name, outcome in outcomes.items():
        say(f"Python {name} {outcome.words}")
    return 0 if all(outcome.is_well for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
