"""What docs/guides/warm-start.md says of the reading is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.processes.zygote import preload
from holdfast.processes.zygote.program_prefix import OWN_TREE_LIMIT

from .plans import steps_of, write

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "warm-start.md"
SECTION = PAGE.read_text().partition("## What is preloaded\n")[2].partition("\n## ")[0]
CODE = re.compile(r"`([^`]+)`")
OPENING = """
import faulthandler, logging, os, random, signal, sys, time, warnings
from pathlib import Path
rank = int(os.environ["RANK"])
def f(*a): pass
class C: pass
"""


def block(language: str) -> str:
    return SECTION.partition(f"```{language}\n")[2].partition("```")[0]


def rows(heading: str) -> list[str]:
    """The code in the first column of a table."""
    table = SECTION.partition(f"| {heading} |")[2].partition("\n\n")[0]
    first = [line.rpartition(" | ")[0] for line in table.splitlines()[2:]]
    return [code for cell in first for code in CODE.findall(cell)]


def test_the_example_is_what_comes_of_it(tmp_path: Path) -> None:
    write(tmp_path, {"program.py": block("python"), "lib/helper.py": "import decimal"})
    steps = preload.plan(str(tmp_path / "program.py"), str(tmp_path), ())
    assert "\n".join(steps).replace(str(tmp_path), "/job") == block("text").strip()


@pytest.mark.parametrize("code", rows("is passed over"))
def test_is_passed_over(tmp_path: Path, code: str) -> None:
    assert "import decimal" in steps_of(tmp_path, f"{OPENING}{code}\nimport decimal")


@pytest.mark.parametrize("code", rows("from here on, only what makes no difference"))
def test_is_done_ahead_only_under_conditions_from_there(tmp_path: Path, code: str) -> None:
    write(tmp_path, {"program.py": f"{OPENING}{code}\nimport msgspec"})
    steps, late, *_ = preload.read_program(str(tmp_path / "program.py"), str(tmp_path), ())
    assert "import msgspec" not in steps
    assert late == ("msgspec",)


@pytest.mark.parametrize("code", rows("ends the reading"))
def test_ends_the_reading(tmp_path: Path, code: str) -> None:
    write(tmp_path, {"program.py": f"{OPENING}{code}\nimport msgspec"})
    steps, late, *_ = preload.read_program(str(tmp_path / "program.py"), str(tmp_path), ())
    assert "import random" in steps
    assert not late
    assert "import msgspec" not in steps


def test_the_tables_were_found() -> None:
    assert len(rows("is passed over")) > 8
    assert len(rows("from here on, only what makes no difference")) > 6
    assert len(rows("ends the reading")) > 8


def test_the_limit_is_the_one_that_is_told() -> None:
    assert f"At most {OWN_TREE_LIMIT // 1024} KiB" in SECTION.replace("\n", " ")


def test_the_tables_that_are_linked_are_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", SECTION)
    assert [link for link in links if not (PAGE.parent / link).is_file()] == []
    assert links


MADE_OF = {
    '"a" + "b"': "ab",
    "__file__": "{}/program.py",
    "os.getcwd()": str(Path.cwd()),
    'os.path.expanduser("~")': str(Path.home()),
    'os.environ["HOME"]': None,
}


@pytest.mark.parametrize("value", MADE_OF)
def test_a_value_may_be_made_of(tmp_path: Path, value: str) -> None:
    steps = steps_of(tmp_path, f"import os\nos.environ['A'] = {value}")
    expected = MADE_OF[value]
    made = () if expected is None else (f"environ A={expected.format(tmp_path)}",)
    assert steps == ("import os", *made)


@pytest.mark.parametrize("what", ["import numpy", "import own", 'os.environ["A"] = "1"',
                                  'sys.path.append("/a")'])  # fmt: skip
def test_it_may_not_depend_on_what_is_not_known(tmp_path: Path, what: str) -> None:
    text = f"import os, sys\nif os.environ['A']:\n    {what}\nimport decimal"
    assert steps_of(tmp_path, text) == ("import os",)


@pytest.mark.parametrize("name", ["RANK", "MASTER_ADDR"])
def test_a_variable_of_a_single_worker_ends_it(tmp_path: Path, name: str) -> None:
    assert steps_of(tmp_path, f"import os\nos.environ[{name!r}] = '1'\nimport json") == (
        "import os",
    )
