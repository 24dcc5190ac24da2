"""Which variables a program may set, by the text of its own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.processes.zygote import preload
from holdfast.processes.zygote import preload as variables

from .plans import write

MAY_SET = [
    "def f():\n    os.environ['NAME'] = 'x'",
    "def f():\n    os.environ.setdefault('NAME', 'x')",
    "def f():\n    os.environ.update(NAME='x')",
    "def f():\n    os.environ |= {'NAME': 'x'}",
    "def f():\n    os.putenv('NAME', 'x')",
    "def f():\n    os.unsetenv('NAME')",
    "def f():\n    os.environb[b'NAME'] = b'x'",
    "def f():\n    del os.environ['NAME']",
    "def f():\n    os.environ.pop('NAME')",
    "def f(monkeypatch):\n    monkeypatch.setenv('NAME', 'x')",
    "NAMES = ['OTHER', 'NAME']\ndef f():\n    for name in NAMES: os.environ[name] = 'x'",
    "def f(kind):\n    os.environ[f'NAME{kind}'] = 'x'",
    "os.environ['NAME'] = 'x'\ndef f():\n    os.environ['NAME'] = 'y'",
    "def f():\n    import inner",
    "def f():\n    from package import deep",
    "def f():\n    from package.deep import set_it",
]
CANNOT = [
    "os.environ['NAME'] = 'x'",
    "os.environ.setdefault('NAME', 'x')",
    "def f():\n    return os.environ['NAME']",
    "def f():\n    return os.environ.get('NAME', '')",
    "def f():\n    return os.getenv('NAME')",
    "def f():\n    return 'NAME' in os.environ",
    "def f():\n    'NAME is looked at'",
    "def f():\n    import msgspec",
]
TREE = {
    "inner.py": "import os\nos.environ['NAME'] = 'x'",
    "package/__init__.py": "",
    "package/deep.py": "def set_it():\n    from . import deeper",
    "package/deeper.py": "import os\nos.environ['NAME'] = 'x'",
}


def sets(folder: Path, text: str) -> tuple[str, ...]:
    write(folder, {**TREE, "program.py": f"import os\n{text}\n"})
    return preload.read_program(str(folder / "program.py"), str(folder), ()).sets


@pytest.mark.parametrize("text", MAY_SET)
def test_a_name_that_the_program_may_set_is_found(tmp_path: Path, text: str) -> None:
    assert "NAME" in sets(tmp_path, text)


@pytest.mark.parametrize("text", CANNOT)
def test_a_name_that_is_looked_up_or_is_a_step_is_none(tmp_path: Path, text: str) -> None:
    assert "NAME" not in sets(tmp_path, text)


def test_what_cannot_be_read_or_is_too_long_may_set_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert preload.read_program(str(tmp_path / "absent.py"), str(tmp_path), ()).sets == ("*",)
    monkeypatch.setattr(variables, "MOST_BYTES", 100)
    assert sets(tmp_path, "x = 1\n" * 100) == ("*",)
