"""What a program imports behind a statement that the import may notice: it is late."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.processes.zygote import preload

NOTICED = [
    "print('a')",
    "import warnings; warnings.filterwarnings('ignore')",
    "import logging; logging.basicConfig(level=10)",
    "import random; random.seed(1)",
    "import os; os.makedirs('a')",
    "import os, warnings\nif int(os.environ.get('RANK', 0)):\n    warnings.simplefilter('ignore')",
]
NO_WAY_ON = [
    "import os; print(); os.environ['A'] = 'b'",
    "import sys; print(); sys.path.insert(0, '/a')",
    "def f(): ...\nprint(); f()",
    "import os; os.chdir('/')",
    "print(); x = object(); x.y = 1",
    "import warnings; warnings.simplefilter('error')",
    "import logging; logging.getLogger('a').setLevel(10)",
    "import torch; torch.set_default_dtype(torch.float64)",
]


def late(folder: Path, text: str, extra: tuple[str, ...] = ()) -> tuple[str, ...]:
    (folder / "program.py").write_text(text + "\nimport numpy\nfrom msgspec import Struct\n")
    plan = preload.read_program(str(folder / "program.py"), str(folder), extra)
    assert "import numpy" not in plan.steps or "numpy" in extra
    return plan.late


@pytest.mark.parametrize("text", NOTICED)
def test_what_comes_behind_it_can_lie_ready(tmp_path: Path, text: str) -> None:
    assert late(tmp_path, text) == ("numpy", "from msgspec import Struct")


@pytest.mark.parametrize("text", NO_WAY_ON)
def test_what_sets_something_or_is_unknown_ends_it(tmp_path: Path, text: str) -> None:
    assert late(tmp_path, text) == ()


def test_the_standard_library_is_not_worth_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print()\nimport sqlite3\n")
    assert preload.read_program(str(tmp_path / "program.py"), str(tmp_path), ())[:2] == ((), ())


def test_what_was_asked_for_is_a_step(tmp_path: Path) -> None:
    assert late(tmp_path, "print()", ("numpy",)) == ("from msgspec import Struct",)
