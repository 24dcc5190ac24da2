"""A wheel in an environment with nothing but what it asks for: the first minutes of a new user."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="needs hatchling, which builds the wheel")

from tools.package import build

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (built,) = build.build(build.ROOT, tmp_path_factory.mktemp("dist"), "1700000000", "wheel")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and the packages that its metadata names, without an index."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
    pip += ["--python", str(folder / "bin" / "python")]
    install = [*pip, "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (info,) = packages.glob("holdfast-*.dist-info")
    for requirement in importlib.metadata.Distribution.at(info).requires or []:
        if "extra ==" not in requirement:
            copy_package(re.split(r"[^\w.-]", requirement)[0], packages)
    return folder


def copy_package(name: str, packages: Path) -> None:
    for file in importlib.metadata.files(name) or []:
        if ".." not in file.parts:
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), target)


@pytest.fixture
def run(environment: Path, tmp_path: Path) -> Run:
    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": f"{environment}/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
        command = [str(environment / "bin" / program), *arguments]
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=environ,
            check=False,
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run


def test_only_the_package_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"holdfast"}
    assert not [name for name in names if "simulator" in name or "/testing" in name]
    assert {"holdfast/py.typed", "holdfast/worker/hook/sitecustomize.py"} <= set(names)
    assert "holdfast/dashboard/page/page.js" in names


def test_a_job_loses_a_worker_and_recovers_and_its_report_says_so(run: Run, tmp_path: Path) -> None:
    for name in ("demo.py", "training.py"):
        shutil.copyfile(build.ROOT / "examples" / name, tmp_path / name)
    demo = run("python", "demo.py", "logs")
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "step 12   sum  54   from 4 workers" in demo.stdout
    report = run("holdfast", "report", "logs")
    assert report.returncode == 0, report.stdout + report.stderr
    assert "SIGKILL" in report.stdout


def test_help_is_printed(run: Run) -> None:
    shown = run("holdfast", "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "holdfast run" in shown.stdout


def test_the_doctor_looks_at_the_machine(run: Run) -> None:
    shown = run("holdfast", "doctor")
    assert "Traceback" not in shown.stderr
    assert "versions" in shown.stdout
