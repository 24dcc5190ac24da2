"""What is remembered of a program's imports, and when it is not believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.processes.zygote import learned_imports
from holdfast.processes.zygote.learned_imports import WarmMemory, keep, recall

KNOWN = WarmMemory(("torch._dynamo",), {"odd": "it reads RANK when imported"}, {"a": ("B",)})


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "train.py"
    path.write_text("import torch")
    return str(path)


@pytest.fixture
def folder(program: str) -> Path:
    """Where it lies, with something in it."""
    keep(program, KNOWN)
    return Path(program).parent / "cache" / "holdfast" / "imports"


def test_what_was_kept_is_recalled(program: str, folder: Path) -> None:
    assert recall(program) == KNOWN
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


def test_of_an_unknown_program_nothing_is_known(program: str) -> None:
    assert recall(program) == WarmMemory()


def test_a_program_that_was_changed_is_another(program: str, folder: Path) -> None:
    Path(program).write_text("import numpy")
    assert recall(program) == WarmMemory()


def test_where_something_was_installed_it_is_forgotten(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    keep(program, KNOWN)
    assert recall(program) == KNOWN
    os.utime(site, ns=(1, 1))
    assert recall(program) == WarmMemory()


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_can_write_to_is_not_believed(
    program: str, folder: Path, mode: int
) -> None:
    folder.chmod(mode)
    assert recall(program) == WarmMemory()


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_to_is_not_believed(
    program: str, folder: Path, mode: int
) -> None:
    next(folder.iterdir()).chmod(mode)
    assert recall(program) == WarmMemory()


@pytest.mark.root
def test_what_belongs_to_somebody_else_is_not_believed(program: str, folder: Path) -> None:
    os.chown(folder, 12345, 12345)
    assert recall(program) == WarmMemory()


def test_a_link_is_not_followed(program: str, folder: Path) -> None:
    (file,) = folder.iterdir()
    other = folder.parent / "other"
    file.rename(other)
    file.symlink_to(other)
    assert recall(program) == WarmMemory()
    keep(program, KNOWN)
    assert not file.is_symlink()
    assert recall(program) == KNOWN


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"late": [1]}', b'{"avoid": []}', b"\xff"])
def test_garbage_is_as_good_as_nothing(program: str, folder: Path, text: bytes) -> None:
    next(folder.iterdir()).write_bytes(text)
    assert recall(program) == WarmMemory()


def test_where_nothing_can_be_written_nothing_breaks(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    keep(program, KNOWN)
    assert recall(program) == WarmMemory()


def test_only_so_many_are_kept(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_imports, "MOST_FILES", 2)
    for number in range(4):
        Path(program).write_text(f"import a{number}")
        keep(program, KNOWN)
    assert len(list(folder.iterdir())) == 2
    assert recall(program) == KNOWN
