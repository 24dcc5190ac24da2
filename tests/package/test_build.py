"""Releases: the same bytes from the same sources, and a README whose links hold anywhere."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="needs hatchling, which builds the wheel")

from tools.package import build, readme_hook

NEEDED = ("pyproject.toml", "README.md", "LICENSE", "src", "tools/package")


def checkout(folder: Path, mode: int) -> Path:
    """A copy of what a wheel is made of, as another user's checkout of it."""
    for name in NEEDED:
        source, target = build.ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, target)
    for path in folder.rglob("*.py"):
        path.chmod(mode)
        os.utime(path, (mode * 1_000_000, mode * 1_000_000))
    return folder


def test_the_same_sources_give_the_same_wheel(tmp_path: Path) -> None:
    digests = []
    for name, mode in (("one", 0o644), ("another", 0o664)):
        (wheel,) = build.build(
            checkout(tmp_path / name, mode), tmp_path / f"{name}-dist", "1700000000", "wheel"
        )
        digests.append(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert digests[0] == digests[1]


def test_a_readme_for_an_index_page_links_to_the_repository() -> None:
    text = "[a](docs/a.md#b) ![c](images/c.svg) [d](https://d.org) [e](#e)\n```\n[f](g)\n```\n"
    assert readme_hook.absolute(text, "https://x.org/y") == (
        "[a](https://x.org/y/blob/main/docs/a.md#b) ![c](https://x.org/y/raw/main/images/c.svg)"
        " [d](https://d.org) [e](#e)\n```\n[f](g)\n```\n"
    )


def test_the_readme_has_no_other_kind_of_relative_link() -> None:
    readme = (build.ROOT / "README.md").read_text(encoding="utf-8")
    text = readme_hook.absolute(readme, "https://x.org/y")
    found = re.findall(r"\]\((?!https:|#)[^)]*\)|^\[[^]]*\]: .*|<(?:img|a) ", text, re.MULTILINE)
    assert found == []
    assert "https://x.org/y/raw/main/docs/images/" in text


def test_the_version_has_its_part_of_the_changelog() -> None:
    version = re.search(
        r'^__version__ = "(.*)"$', (build.ROOT / "src/holdfast/__init__.py").read_text(), re.M
    )
    assert version is not None
    changes = (build.ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(version[1])}\] - \d{{4}}-\d\d-\d\d$", changes, re.M)
