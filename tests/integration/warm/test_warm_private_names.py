"""Where Python lacks a private name that a warm start needs, workers start cold, and why is said.

The name is taken away from the interpreter of the zygote, by a `sitecustomize`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.processes.stdlib_only import private_names

from ...taking_away import write_sitecustomize
from .conftest import Program

VERSION = ".".join(map(str, sys.version_info[:3]))

BREAKS_ANY_PROGRAM = {
    "os._Environ.__getitem__",
    "os._Environ.__setitem__",
    "os._Environ.__delitem__",
    "os._Environ.__iter__",
    "os._Environ()._data",
}
"""Nobody could start without them, and `test_private_names.py` has them."""
NEEDED = [
    name
    for name, entry in private_names.NAMES.items()
    if private_names.WARM_START in entry.users and name not in BREAKS_ANY_PROGRAM
]
PROGRAM = "import logging, threading\nprint(logging.__name__, threading.__name__)"


@pytest.mark.parametrize(
    "name", [NEEDED[0], *(pytest.param(name, marks=pytest.mark.thorough) for name in NEEDED[1:])]
)
def test_without_a_name_that_it_needs_workers_start_cold(
    program: Program, tmp_path: Path, name: str
) -> None:
    program.write({"program.py": PROGRAM})
    folder = write_sitecustomize(tmp_path / "lacking", name, only_in="zygote.py")
    run = program.run("cold all the same", "program.py", env={"PYTHONPATH": str(folder)})
    assert run.ending == (0, b"logging threading\n", b"")
    assert run.starts == [False]
    (lost,) = run.events("ZygoteLost")
    why = f"Python {VERSION} has no {name}, which a warm start needs"
    assert lost["reason"] == why
    assert why in run.console


def test_what_is_lacking_from_the_start_is_said_before_anything_is_imported(
    program: Program, tmp_path: Path
) -> None:
    program.write({"program.py": "import traced"})
    folder = write_sitecustomize(tmp_path / "lacking", NEEDED[0], only_in="zygote.py")
    (folder / "traced.py").write_text(
        "import sys\nwith open(__file__ + '.trace', 'a') as file:\n    file.write(sys.orig_argv[2])"
    )
    run = program.run(
        "cold all the same",
        "program.py",
        options=("--preload=traced",),
        env={"PYTHONPATH": str(folder)},
    )
    assert run.starts == [False]
    assert (folder / "traced.py.trace").read_text() == "program.py"


@pytest.mark.parametrize("module", ["_signal", "_socket"])
def test_without_what_is_only_faster_workers_are_warm(
    program: Program, tmp_path: Path, module: str
) -> None:
    program.write({"program.py": "print('ran')"})
    folder = write_sitecustomize(tmp_path / "lacking", "", only_in="zygote.py")
    with open(folder / "sitecustomize.py", "a") as file:
        file.write(f"    import signal, socket\n    sys.modules[{module!r}] = None\n")
    run = program.run("warm", "program.py", env={"PYTHONPATH": str(folder)})
    assert run.ending == (0, b"ran\n", b"")
