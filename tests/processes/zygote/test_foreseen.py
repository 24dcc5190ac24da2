"""What a program that trains will import late: imported ahead at the first launch already."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.processes.zygote import preload

DYNAMO = "torch._dynamo"
TORCH = {"torch/__init__.py": "", "torch/_dynamo.py": "", "torch/nn/parallel.py": ""}


def late(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, **own: str) -> tuple[str, ...]:
    site = folder / "site-packages"
    for name, content in {**{f"site-packages/{n}": t for n, t in TORCH.items()}, **own}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (folder / "program.py").write_text(text)
    monkeypatch.syspath_prepend(str(site))
    return preload.read_program(str(folder / "program.py"), str(folder), ()).late


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ndef f(): torch.optim.SGD(model.parameters(), lr=0.1)",
        "from torch import optim",
        "from torch.nn.parallel import DistributedDataParallel as DDP",
        "import torch\ndef f(): model = torch.compile(model)",
    ],
)
def test_a_program_that_trains_will_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    assert late(tmp_path, monkeypatch, text) == (DYNAMO,)


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ndef f(): torch.zeros(2)",
        "import torch\noptimum = 1",
        "import os\n'torch.optim'",
        "import torch._dynamo\n'torch.optim'",
    ],
)
def test_one_that_does_not_or_has_it_anyhow_is_not_burdened_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    assert late(tmp_path, monkeypatch, text) == ()


def test_what_this_version_does_not_have_is_not_foreseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preload, "DYNAMO", "torch._absent")
    assert late(tmp_path, monkeypatch, "from torch import optim") == ()


def test_the_programs_own_modules_are_looked_at_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"training.py": "def train():\n    return torch.optim\n"}
    assert late(tmp_path, monkeypatch, "import torch\nimport training", **own) == (DYNAMO,)


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
