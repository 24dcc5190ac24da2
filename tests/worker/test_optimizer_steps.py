"""Steps of optimizers as signs of life, in interpreters of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.processes.monitoring.pages import RoundPages
from holdfast.worker import optimizer_steps
from holdfast.worker.page import VARIABLE as PAGE

OPTIMIZER = """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
def step():
    for hook in hooks:
        hook(None, (), {})
"""
BEGIN = f"""
import os, sys, time
names = {{"__name__": "watching", "__file__": {optimizer_steps.__file__!r}}}
exec(open(names["__file__"]).read(), names)
names["take_variable"]()
assert {optimizer_steps.VARIABLE!r} not in os.environ
assert "torch" not in sys.modules
"""


@pytest.fixture
def pages(tmp_path: Path) -> RoundPages:
    folder = tmp_path / "torch" / "optim"
    folder.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "optimizer.py").write_text(OPTIMIZER)
    return RoundPages(1)


def run(pages: RoundPages, folder: Path, program: str) -> None:
    variables = {optimizer_steps.VARIABLE: "1", PAGE: pages.variable(0)}
    subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        env={**os.environ, **variables},
        cwd=folder,
        check=True,
    )


def test_steps_are_signs_without_a_number(pages: RoundPages, tmp_path: Path) -> None:
    run(pages, tmp_path, "from torch.optim import optimizer\noptimizer.step()")
    first = pages.read(0)
    assert first is not None
    assert (first.step, first.longest_s) == (None, 0.0)
    run(
        pages,
        tmp_path,
        "from torch.optim import optimizer\n"
        "optimizer.step(); time.sleep(0.1); optimizer.step()\n"
        "assert names['TorchFinder'] not in sys.meta_path",
    )
    second = pages.read(0)
    assert second is not None
    assert second.longest_s >= 0.1


def test_a_program_that_says_where_it_is_is_believed(pages: RoundPages, tmp_path: Path) -> None:
    said = "from torch.optim import optimizer\nimport holdfast\nholdfast.progress(7)\n"
    run(pages, tmp_path, said + "time.sleep(0.2)\noptimizer.step()\n")
    sign = pages.read(0)
    assert sign is not None
    assert sign.step == 7
    assert sign.age_s >= sign.step_age_s, "no later sign than that step"


def test_a_module_that_is_there_already_is_used(pages: RoundPages, tmp_path: Path) -> None:
    again = f"os.environ[{optimizer_steps.VARIABLE!r}] = '1'\nnames['take_variable']()\n"
    drop = "sys.meta_path.remove(names['TorchFinder'])\nfrom torch.optim import optimizer\n"
    run(pages, tmp_path, f"{drop}{again}optimizer.step()")
    assert pages.read(0) is not None


@pytest.mark.parametrize("broken", ["del optimizer.register_optimizer_step_post_hook", ""])
def test_nothing_fails_for_it(pages: RoundPages, tmp_path: Path, broken: str) -> None:
    (tmp_path / "torch" / "optim" / "optimizer.py").write_text("" if broken else OPTIMIZER)
    program = "from torch.optim import optimizer\n"
    if not broken:
        program += "names['PAGE'] = '/no/such/file'\noptimizer.step()\n"
    run(pages, tmp_path, program)
    assert pages.read(0) is None
