"""Real stacks whose script sets variables, as scripts do: warm, they end as they do cold."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from . import launches
from .environments import SCRIPTS, Stack
from .launches import COLD, WARM, WORKERS, Launch

pytestmark = [pytest.mark.stacks, pytest.mark.slow, pytest.mark.thorough]

VARIABLES = {
    "NCCL_DEBUG": "WARN", "NCCL_P2P_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "0",
    "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "lo",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TORCH_LOGS": "+dynamo",
    "KMP_DUPLICATE_LIB_OK": "TRUE", "CUDA_LAUNCH_BLOCKING": "1", "TORCHDYNAMO_VERBOSE": "1",
    "TOKENIZERS_PARALLELISM": "false", "TF_CPP_MIN_LOG_LEVEL": "2",
}  # fmt: skip
HELPER = """
import atexit, json, os, sys

VARIABLES = json.loads({variables!r})

def prepare():
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
        os.environ[name] = value

def look():
    torch, found = sys.modules.get("torch"), {{name: os.environ.get(name) for name in VARIABLES}}
    if torch is not None:
        found["threads"] = torch.get_num_threads()
        found["dynamo"] = "torch._dynamo" in sys.modules and torch._dynamo.config.verbose
    path = os.environ["RANK"] + "-" + os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    with open(os.path.join(os.environ["STACK_RESULTS"], f"found-{{path}}"), "w") as file:
        json.dump(found, file)

atexit.register(look)
"""
LITERALS = "\n".join(f"os.environ[{name!r}] = {value!r}" for name, value in VARIABLES.items())
PLACES = {
    "before the imports": ("import os\n" + LITERALS + "\nimport setting\n", "", ""),
    "after the imports": ("import os, setting\n", LITERALS + "\n", ""),
    "in main": ("import os, setting\n", "", LITERALS),
    "by a helper": ("import setting\n", "", "setting.prepare()"),
    "from a file": (
        "import os, json, setting\n", "",
        "os.environ.update(json.load(open(os.path.join(os.path.dirname(__file__), 'set.json'))))",
    ),
}  # fmt: skip
"""What is put before the imports, behind them, and at the beginning of `main`."""


def with_variables(stack: Stack, place: str, folder: Path) -> Stack:
    """The stack with a script that sets them there."""
    folder.mkdir()
    shutil.copy(SCRIPTS / "stepping.py", folder)
    (folder / "setting.py").write_text(HELPER.format(variables=json.dumps(VARIABLES)))
    (folder / "set.json").write_text(json.dumps(VARIABLES))
    first, behind, inside = PLACES[place]
    text = (SCRIPTS / stack.script).read_text()
    text = text.replace("import stepping", f"{first}import stepping", 1)
    text = re.sub(r"(?m)^(def|class|@|[A-Z_]+ =)", lambda at: behind + at[0], text, count=1)
    lines = "".join(f"    {line}\n" for line in inside.splitlines())
    text = re.sub(r"(?m)^def main\(.*\n", lambda found: found[0] + lines, text)
    (folder / stack.script).write_text(text)
    return stack._replace(script=str(folder / stack.script))


def found_by(launch: Launch) -> list[object]:
    return [
        json.loads(next(iter(sorted(launch.folder.glob(f"found-{rank}-*"))[-1:])).read_text())
        for rank in range(WORKERS)
    ]


@pytest.mark.parametrize("place", PLACES)
def test_a_script_that_sets_variables_ends_as_it_does_cold(
    stack: Stack, place: str, tmp_path: Path
) -> None:
    """At the first launch, in a round after one that lost a worker, and at the next launch."""
    changed = with_variables(stack, place, tmp_path / "scripts")
    cold = launches.run(changed, COLD, tmp_path / "cold", tmp_path / "unused")
    memory = tmp_path / "memory"
    killed = launches.run_and_kill(changed, tmp_path / "killed", memory, settle_s=5.0)
    later = launches.run(changed, WARM, tmp_path / "later", memory)
    for launch in (killed, later):
        assert found_by(launch) == found_by(cold)
        assert launch.digests == cold.digests
        assert all(launch.starts)
