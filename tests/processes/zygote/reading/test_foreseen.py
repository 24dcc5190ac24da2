"""What a package is known to import once a program uses it: imported ahead at the first launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.processes.zygote import preload
from holdfast.processes.zygote.reading import foreseen

STEPS = ("import os", "import torch")
DYNAMO = "torch._dynamo"


def found(text: str, steps: tuple[str, ...] = STEPS) -> tuple[str, ...]:
    return foreseen.foreseen(steps, [text.encode()], lambda module: True)


@pytest.mark.parametrize(
    "text",
    [
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        "from torch import optim",
        "from torch.nn.parallel import DistributedDataParallel as DDP",
        "model = torch.compile(model)",
    ],
)
def test_a_program_that_trains_will_import_it(text: str) -> None:
    assert found(text) == (DYNAMO,)


@pytest.mark.parametrize("text", ["print(torch.zeros(2))", "optimum = 1", "import optimus"])
def test_one_that_does_not_is_not_burdened_with_it(text: str) -> None:
    assert found(text) == ()


def test_without_the_package_nothing_is_foreseen() -> None:
    assert found("torch.optim", ("import os",)) == ()


def test_what_is_there_anyhow_is_not_late() -> None:
    assert found("torch.optim", (*STEPS, "import torch._dynamo")) == ()


def test_what_this_version_does_not_have_is_not_foreseen() -> None:
    assert foreseen.foreseen(STEPS, [b"torch.optim"], lambda module: False) == ()


def test_the_programs_own_modules_are_looked_at_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = foreseen.Foreseen("msgspec", rb"\boptim\b", "msgspec.yaml", "is what the test is about")
    monkeypatch.setattr(foreseen, "FORESEEN", (row,))
    (tmp_path / "program.py").write_text("import msgspec\nimport training\n")
    (tmp_path / "training.py").write_text("def train():\n    return msgspec.optim\n")
    steps, late, *_ = preload.read_program(str(tmp_path / "program.py"), str(tmp_path), ())
    assert (steps, late) == (("import msgspec",), ("msgspec.yaml",))


@pytest.mark.torch
@pytest.mark.thorough
def test_the_installed_version_imports_it_as_it_says() -> None:
    import subprocess
    import sys

    code = (
        "import sys, torch; before = 'torch._dynamo' in sys.modules; "
        "torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1); "
        "print(before, 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False True"
