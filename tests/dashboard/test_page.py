"""The page in the package is the one that its sources make."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.dashboard.site import FOLDER, read_page

SOURCES = Path(__file__).resolve().parents[2] / "frontend"
SERVED = ("index.html", "page.js", "page.css")
TOP = ("index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts")


def fingerprint() -> str:
    """Of all that the page is built from; `frontend/vite.config.ts` has the same rule."""
    paths = [SOURCES / name for name in TOP]
    paths += [path for path in (SOURCES / "src").rglob("*") if path.is_file()]
    digest = hashlib.sha256()
    for name in sorted(path.relative_to(SOURCES).as_posix() for path in paths):
        if not name.endswith(".test.ts"):
            digest.update(f"{name}\0".encode())
            digest.update((SOURCES / name).read_bytes())
    return digest.hexdigest()


def test_the_page_was_built_from_these_sources() -> None:
    built = (FOLDER / "index.html").read_text()
    found = re.search(r'name="sources" content="(\w+)"', built)
    assert found is not None
    assert found[1] == fingerprint(), "build the page again: make page"


@pytest.mark.skipif(
    shutil.which("node") is None or not (SOURCES / "node_modules" / "vite").is_dir(),
    reason="needs Node and what `make page` installs",
)
def test_what_is_built_now_is_what_is_checked_in(tmp_path: Path) -> None:
    vite = SOURCES / "node_modules" / "vite" / "bin" / "vite.js"
    command = ["node", str(vite), "build", "--outDir", str(tmp_path), "--logLevel", "error"]
    subprocess.run(command, cwd=SOURCES, check=True)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in FOLDER.iterdir()}
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (FOLDER / path.name).read_bytes(), path.name


def test_the_page_is_light() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 160_000


def test_the_licences_of_what_is_bundled_are_there() -> None:
    notices = (FOLDER / "THIRD_PARTY.txt").read_text()
    bundled = json.loads((SOURCES / "package.json").read_text())["dependencies"]
    for name, version in bundled.items():
        assert f"{name} {version} (MIT)" in notices
    assert notices.count("Permission is hereby granted") == len(bundled)


def test_nothing_of_the_page_lies_elsewhere() -> None:
    for name in ("index.html", "page.css"):
        text = (FOLDER / name).read_text()
        assert not re.search(r"(?:href|src)=\"?https?:|url\(|@import", text), name
    assert "eval(" not in (FOLDER / "page.js").read_text()


def test_every_file_is_given_with_its_type_and_a_policy() -> None:
    page = read_page()
    assert {path: answer.content_type.partition(";")[0] for path, answer in page.items()} == {
        "/": "text/html",
        "/index.html": "text/html",
        "/page.js": "text/javascript",
        "/page.css": "text/css",
    }
    assert {path.name for path in FOLDER.iterdir()} == {*SERVED, "THIRD_PARTY.txt"}
    for answer in page.values():
        assert "Content-Security-Policy" in dict(answer.headers)
