"""An installation from a wheel, where Holdfast itself lies among the installed packages."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from .conftest import Program

ROOT = Path(__file__).parents[3]
PROGRAM = """
    import os, sys, time

    def work():
        import package
        print(package.__name__, flush=True)

    work()
    memory = os.path.join(os.environ['XDG_CACHE_HOME'], 'holdfast', 'imports')

    def is_learned():
        return os.path.isdir(memory) and any(name[0] != '.' for name in os.listdir(memory))

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not is_learned():
        time.sleep(0.01)
    """


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="needs hatchling, which builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an installation that takes all packages but Holdfast from this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    python = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # What is named in the .pth files over there, as this checkout may be, is not looked at.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin" / "holdfast"


def test_late_imports_are_learned(program: Program, installed: Path) -> None:
    library = program.folder.parent / "library" / "site-packages"
    program._replace(folder=library).write({"package.py": ""})
    program = program.write({"program.py": PROGRAM})._replace(holdfast=installed)
    env = {"PYTHONPATH": str(library), "XDG_CACHE_HOME": str(program.folder.parent / "cache")}
    program.run("warm", "program.py", env=env)
    again = program.run("warm", "program.py", env=env)
    assert again.events("NodeStarted")[0]["late"] == ["package"]
    assert again.stdout == b"package\n"


def test_it_is_the_wheel_that_is_run(installed: Path) -> None:
    python = installed.parent / "python"
    where = "import holdfast; print(holdfast.__file__)"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    told = subprocess.check_output([python, "-c", where], text=True, env=env, cwd="/")
    assert Path(told.strip()).is_relative_to(installed.parents[1])
