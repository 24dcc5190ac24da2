"""`make test-pythons`: which interpreters it finds, and what it says of one that is not there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from . import on_pythons

VERSION = "{}.{}.{}".format(*sys.version_info[:3])
MINOR = VERSION.rpartition(".")[0]
BROKEN = "#!/bin/sh\nexit 127\n"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH and a pyenv in which there is nothing yet: `bin` and `versions`."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    return tmp_path


def install(path: Path, text: str = "") -> None:
    """This very Python, or a program, under another name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text or f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)


@pytest.mark.parametrize("where", ["bin/python{minor}", "versions/{version}/bin/python"])
def test_a_version_is_found_on_the_path_and_in_pyenv(places: Path, where: str) -> None:
    assert on_pythons.find(MINOR) is None
    install(places / where.format(minor=MINOR, version=VERSION))
    assert on_pythons.find(MINOR) == on_pythons.Python(sys.executable, VERSION)


def test_a_shim_that_leads_nowhere_is_passed_over(places: Path) -> None:
    install(places / "bin" / f"python{MINOR}", BROKEN)
    install(places / "versions" / VERSION / "bin" / "python")
    assert on_pythons.find(MINOR) == on_pythons.Python(sys.executable, VERSION)


def test_the_newest_of_pyenv_is_taken_and_no_other_version(places: Path) -> None:
    for name in ("3.9.30", "3.90.2", "3.90.10", "3.9"):
        (places / "versions" / name).mkdir(parents=True)
    found = [Path(path).parents[1].name for path in on_pythons.candidates("3.90")]
    assert found == ["3.90.10", "3.90.2"]


def test_a_path_is_that_very_interpreter(places: Path) -> None:
    assert on_pythons.find(sys.executable) == on_pythons.Python(sys.executable, VERSION)
    assert on_pythons.find(str(places / "nothing")) is None


@pytest.mark.parametrize("is_demanded", [False, True])
def test_one_that_is_not_there_is_skipped_unless_it_is_demanded(
    places: Path, capsys: pytest.CaptureFixture[str], is_demanded: bool
) -> None:
    words = ["--all-of-them"] if is_demanded else []
    status = on_pythons.main([*words, "3.90", f"{os.sep}nowhere", "--", "-x"])
    assert status == is_demanded
    skipped = "" if is_demanded else ": skipped"
    assert capsys.readouterr().out.splitlines() == [
        f"Python 3.90 is neither on PATH nor in pyenv{skipped}",
        f"Python /nowhere is not there{skipped}",
    ]


def test_each_way_to_install_has_an_environment_of_its_own() -> None:
    made = [
        on_pythons.Installation(*how).environment(on_pythons.Python("", version)).name
        for how in ((), ("", True), ("2.15.0",))
        for version in ("3.11.7", "3.15.2")
    ]
    assert made == [
        ".venv-3.11", ".venv-3.15", ".venv-wheel-3.11", ".venv-wheel-3.15",
        ".venv-torch-2.15.0", ".venv-torch-2.15.0-3.15",
    ]  # fmt: skip
