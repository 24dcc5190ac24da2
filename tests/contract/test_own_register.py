"""How a user's own register is found, and that the example does what it says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.protocol.errors import UsageError
from holdfast.registers import opening
from holdfast.registers.opening import open_register, register_backend
from holdfast.registers.register import (
    Closes,
    RegisterRefused,
    RegisterSettings,
    RegisterUnreachable,
)

from .opening import EXAMPLES, own_register


@pytest.fixture
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_registered", {})


@pytest.fixture
def installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_registered: None
) -> Iterator[None]:
    """A package that offers the example by an entry point, as pip leaves one behind."""
    info = tmp_path / "packages" / "own_register-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-register\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[holdfast.registers]\nsqlite = own_register:SqliteRegister\n"
    )
    monkeypatch.delitem(sys.modules, "own_register", raising=False)
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    sys.modules.pop("own_register", None)


def test_it_is_found_by_its_entry_point(installed: None, tmp_path: Path) -> None:
    settings = RegisterSettings("sqlite", str(tmp_path / "registers.sqlite"), "run")
    register = open_register(settings)
    assert type(register).__name__ == "SqliteRegister"
    assert register.set_state(b"content") == (b"content", 1, True)
    assert isinstance(register, Closes)
    register.close()


def test_it_is_found_by_the_name_that_it_was_registered_by(
    nothing_registered: None, tmp_path: Path
) -> None:
    settings = RegisterSettings("mine", str(tmp_path / "registers.sqlite"), "run")
    with pytest.raises(UsageError, match="no backend 'mine'"):
        open_register(settings)
    register_backend("mine", own_register().SqliteRegister)
    assert isinstance(open_register(settings), own_register().SqliteRegister)


def test_the_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "own_register.py"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "first:  (b'the first leads', 2, True)",
        "second: (b'the first leads', 2, False)",
    ]


def test_a_database_that_is_locked_or_not_there_is_unreachable(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "registers.sqlite"
    settings = RegisterSettings("sqlite", str(path), "run", call_timeout_s=0.1)
    register = own_register().SqliteRegister(settings)
    with pytest.raises(RegisterUnreachable):
        register.get_state()
    path.parent.mkdir()
    assert register.get_state() is None

    import sqlite3

    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(RegisterUnreachable):
        register.set_state(b"content")
    other.execute("ROLLBACK")
    other.close()
    assert register.set_state(b"content") == (b"content", 1, True)
    register.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "registers.sqlite"
    path.write_bytes(b"this is not a database, and will not become one" * 100)
    register = own_register().SqliteRegister(RegisterSettings("sqlite", str(path), "run"))
    with pytest.raises(RegisterRefused):
        register.get_state()
    register.close()
