"""Functions on a Python that lacks a private name: refused with a sentence, or started anyway.

The program is a real one; the name is taken away from its interpreter before its first line, by a
`sitecustomize`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast.processes.stdlib_only import private_names

from ...taking_away import write_sitecustomize

DEADLINE_S = 100.0
PROGRAM = """
import sys
from holdfast.core.protocol.errors import UnsupportedPlatform
from holdfast.elastic.multiprocessing import DefaultLogsSpecs, start_processes

def twice(number):
    return 2 * number

if __name__ == "__main__":
    try:
        method, folder = sys.argv[1:]
        arguments = ("job", twice, {0: (21,)}, {0: {}}, DefaultLogsSpecs(folder))
        context = start_processes(*arguments, start_method=method)
        print(context.wait().return_values)
    except UnsupportedPlatform as error:
        print(error)
"""


def run(method: str, lacking: Path, tmp_path: Path) -> str:
    """What the program prints."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, program, method, tmp_path / "logs"],
        env={**os.environ, "PYTHONPATH": str(lacking)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.strip()


def needed_by(user: str) -> list[str]:
    return [name for name, entry in private_names.NAMES.items() if user in entry.users]


@pytest.mark.parametrize(
    ("method", "user", "name"),
    [
        pytest.param(
            method, user, name, id=f"{method}-{name}", marks=[pytest.mark.thorough] * (number > 0)
        )
        for method, user in (("spawn", private_names.SPAWN), ("fork", private_names.FORK))
        for number, name in enumerate(needed_by(user))
        if name != "concurrent.futures.thread._threads_queues"
    ],
)
def test_without_a_name_that_it_needs_a_function_is_refused(
    method: str, user: str, name: str, tmp_path: Path
) -> None:
    said = run(method, write_sitecustomize(tmp_path / "lacking", name), tmp_path)
    version = ".".join(map(str, sys.version_info[:3]))
    assert said.startswith(f"Python {version} has no multiprocessing.")
    assert f"no {name}" in said
    assert said.endswith(f", which {user} needs; commands can be started all the same")


@pytest.mark.parametrize("has_pools", [True, False])
def test_only_who_has_pools_needs_what_forgets_them(has_pools: bool, tmp_path: Path) -> None:
    text = f"""
        import sys, types
        name = 'concurrent.futures.thread'
        if {has_pools}:
            sys.modules[name] = types.ModuleType(name)
    """
    said = run("fork", write(tmp_path / "lacking", text), tmp_path)
    if has_pools:
        assert "has no concurrent.futures.thread._threads_queues" in said
    else:
        assert said == "{0: 42}"


def test_without_a_look_at_the_tracker_there_is_one(tmp_path: Path) -> None:
    text = """
        import sys
        if any(word.endswith('program.py') for word in sys.orig_argv):
            from multiprocessing import resource_tracker
            del resource_tracker._resource_tracker
    """
    assert run("spawn", write(tmp_path / "lacking", text), tmp_path) == "{0: 42}"


def write(folder: Path, text: str) -> Path:
    """A `sitecustomize` in a folder of its own."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(textwrap.dedent(text))
    return folder
