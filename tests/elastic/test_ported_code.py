"""Programs that were written for PyTorch's elastic API run here with another import prefix.

Each file of `ported/` is a program as people have it: the idioms of PyTorch's documentation, and
agents in the manner of those that are built on it elsewhere. It is run twice, as it is and with
the prefix replaced, and nothing else; both have to print the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).with_name("ported")
ALWAYS_RUN = ("runs_an_agent_anywhere",)
USED_BY_OTHERS = {"meeting"}
PREFIXES = {
    "torch.distributed.elastic": "holdfast.elastic",
    "torch.distributed.launcher": "holdfast.elastic.launcher",
}
DEADLINE_S = 280.0


def programs() -> list[str]:
    return sorted(path.stem for path in PROGRAMS.glob("*.py") if path.stem not in USED_BY_OTHERS)


def port(source: str) -> str:
    """All that has to be done."""
    for theirs, ours in PREFIXES.items():
        source = source.replace(theirs, ours)
    return source


def printed(program: str, sources: dict[str, str], folder: Path) -> str:
    """What a program prints, run in a folder of its own."""
    work = folder / "work"
    work.mkdir(parents=True)
    for name, source in sources.items():
        (folder / name).write_text(source, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, str(folder / f"{program}.py"), str(work)],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(name, marks=[pytest.mark.thorough] * (name not in ALWAYS_RUN))
        for name in programs()
    ],
)
def test_a_program_prints_the_same_with_the_prefix_replaced(program: str, tmp_path: Path) -> None:
    theirs = {path.name: path.read_text(encoding="utf-8") for path in PROGRAMS.glob("*.py")}
    ours = {name: port(source) for name, source in theirs.items()}
    with ThreadPoolExecutor() as pool:
        running = [
            pool.submit(printed, program, sources, tmp_path / kind)
            for kind, sources in (("theirs", theirs), ("ours", ours))
        ]
        expected, found = (one.result() for one in running)
    assert found == expected
    assert found, "a program that prints nothing shows nothing"


def test_nothing_of_pytorch_is_left_in_a_ported_program() -> None:
    for path in PROGRAMS.glob("*.py"):
        assert "torch." not in port(path.read_text(encoding="utf-8")), path.name
