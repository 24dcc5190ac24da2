"""Programs that set variables, at every usual place: a warm worker finds what a cold one finds.

Each is run cold, then warm with a restart once its late imports were learned, then warm again,
with what was remembered.
"""

from __future__ import annotations

import json

import pytest

from .conftest import Launches, Program, Run

PLACES = {
    "at_the_top": "os.environ['{0}'] = 'new'; import {1}",
    "after_another_import": "import calm; os.environ['{0}'] = 'new'; import {1}",
    "unless_it_is_set": "os.environ.setdefault('{0}', 'new'); import {1}",
    "several": "os.environ.update({0}='new', OTHER='x'); import {1}",
    "removed": "os.environ.pop('{0}', None); import {1}",
    "in_a_helper": "import helper; helper.prepare('{0}'); import {1}",
    "put_together": "os.environ['{0}'[:5] + '{0}'[5:]] = 'new'; import {1}",
    "from_a_file": "os.environ.update(json.load(open('settings.json'))); import {1}",
    "by_the_command_line": (
        "os.environ['{0}'] = argparse.ArgumentParser().parse_known_args()[1][0]; import {1}"
    ),
    "too_late": "import {1}; os.environ['{0}'] = 'new'",
    "never": "import {1}",
}
READS = "import os\nFOUND = os.environ.get('{0}')\n"
SETS = "import os\nos.environ.setdefault('SET_BY_IMPORT', 'by-import')\n"
HELPER = "import os\ndef prepare(name):\n    os.environ[name] = 'new'\n"
BEGIN = "import argparse, json, os, sys, time\nsys.path.append('.')\n"
END = """
sys.stdout.flush()
memory = os.path.join(os.environ['XDG_CACHE_HOME'], 'holdfast', 'imports')
if os.environ.get('HOLDFAST_ROUND') == '1' and 'WAITS' in os.environ:
    while not (os.path.isdir(memory) and [n for n in os.listdir(memory) if n[0] != '.']):
        time.sleep(0.01)
    sys.exit(1)
"""
WHERE = ("top", "main")


def library_of_readers() -> dict[str, str]:
    names = {f"{where}_{place}": f"{where}_{place}".upper() for where in WHERE for place in PLACES}
    readers = {f"reads_{name}.py": READS.format(variable) for name, variable in names.items()}
    return {**readers, "calm.py": "X = 1", "sets.py": SETS}


def program_of(where: str) -> str:
    """Each place in turn, each with a variable and a package of its own."""
    lines = ["import calm"]
    for place, text in PLACES.items():
        name = f"{where}_{place}"
        lines.append(text.format(name.upper(), f"reads_{name}"))
        lines.append(f"print('{place}', reads_{name}.FOUND, os.environ.get('{name.upper()}'))")
    lines.append("os.environ.setdefault('SET_BY_IMPORT', 'by-program')")
    lines.append("import sets; print(os.environ['SET_BY_IMPORT'])")
    if where == "top":
        return BEGIN + "\n".join(lines) + END
    return BEGIN + "def main():\n    " + "\n    ".join(lines) + "\nmain()" + END


@pytest.fixture
def runs(program: Program) -> Launches:
    """The output of each round, by how it was run; in the order in which it is to be compared."""
    library = program.folder.parent / "library" / "site-packages"
    program._replace(folder=library).write(library_of_readers())
    settings = json.dumps({f"{where.upper()}_FROM_A_FILE": "new" for where in WHERE})
    program.write({"helper.py": HELPER, "settings.json": settings})
    names = [f"{where}_{place}".upper() for where in WHERE for place in PLACES]
    env = dict.fromkeys((n for n in names if "UNLESS" not in n), "old")
    env |= {"PYTHONPATH": str(library), "XDG_CACHE_HOME": str(program.folder.parent / "cache")}

    return Launches(program, env, ("word",))


def outputs(run: Run) -> list[bytes]:
    """What each round has printed."""
    return [path.read_bytes() for path in sorted(run.logs.glob("attempt_*/0/stdout.log"))]


@pytest.mark.parametrize("where", WHERE)
def test_each_import_finds_the_variables_that_the_program_has_set_by_then(
    runs: Launches, where: str
) -> None:
    runs.program.write({"program.py": program_of(where)})
    (cold,) = outputs(runs("cold", "program.py"))
    assert b"never old" in cold
    assert b"at_the_top new" in cold
    learning = runs("warm", "program.py", WAITS="1")
    assert outputs(learning) == [cold, cold]
    again = runs("warm", "program.py")
    assert outputs(again) == [cold]
    assert f"reads_{where}_never" in again.events("ZygoteReady")[0].get("late", ())


def test_a_variable_that_is_set_in_this_launch_only_counts_if_the_program_names_it(
    runs: Launches,
) -> None:
    text = """
    def main():
        if 'CHANGED' in os.environ:
            os.environ['TOP_NEVER'] = 'new'
        import reads_top_never, reads_main_never
        print(reads_top_never.FOUND, reads_main_never.FOUND)
    main()
    """
    runs.program.write({"program.py": BEGIN + "\n".join(text.split("\n    ")) + END})
    learning = runs("warm", "program.py", WAITS="1")
    assert outputs(learning) == [b"old old\n"] * 2
    again = runs("warm", "program.py", CHANGED="1")
    assert outputs(again) == [b"new old\n"]
    assert again.events("ZygoteReady")[0]["late"] == ["reads_main_never"]


def test_what_is_imported_at_the_top_is_so_before_a_function_sets_anything(runs: Launches) -> None:
    """Also behind a filter, where it is no step any more."""
    text = """
    import warnings
    warnings.filterwarnings('ignore')
    import reads_top_never
    def main():
        os.environ['TOP_NEVER'] = os.environ['OMP_NUM_THREADS'] = 'new'
        import reads_main_never
        print(reads_top_never.FOUND, os.environ['TOP_NEVER'])
    main()
    """
    program = "import os\n" + "\n".join(text.split("\n    "))
    runs.program.write({"program.py": program})
    run = runs("warm", "program.py")
    assert outputs(run) == [b"old new\n"]
    assert run.events("ZygoteReady")[0]["late"] == ["reads_top_never"]


@pytest.mark.parametrize("edited", ["program.py", "beside.py"])
def test_a_program_that_is_edited_while_it_runs_is_started_as_it_is_then(
    runs: Launches, edited: str
) -> None:
    """The next round is another program: nothing of what was read before holds."""
    text = f"""
    import os, sys
    import beside
    import reads_top_never
    print(reads_top_never.FOUND, flush=True)
    if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':
        with open('{edited}') as file:
            now = file.read()
        with open('{edited}', 'w') as file:
            file.write("import os\\nos.environ['TOP_NEVER'] = 'new'\\n" + now)
        sys.exit(1)
    """
    runs.program.write({"program.py": text, "beside.py": "import calm\n"})
    assert outputs(runs("warm", "program.py")) == [b"old\n", b"new\n"]


def test_a_variable_that_no_launch_has_set_before_is_known_to_the_next(runs: Launches) -> None:
    """One that comes from elsewhere: the program does not name it."""
    text = """
    import glob
    def main():
        with open('settings.json') as file:
            os.environ.update(json.load(file))
        import reads_top_from_a_file
        print(reads_top_from_a_file.FOUND, flush=True)
        while 'AWAITED' in os.environ and not any(
            os.environ['AWAITED'] in open(path).read()
            for path in glob.glob(os.environ['XDG_CACHE_HOME'] + '/holdfast/imports/[!.]*')
        ):
            import wave
            time.sleep(0.01)
    main()
    """
    program = BEGIN + "\n".join(text.split("\n    ")) + END
    runs.program.write({"program.py": program, "settings.json": "{}"})
    assert outputs(runs("warm", "program.py", WAITS="1")) == [b"old\n"] * 2
    runs.program.write({"settings.json": '{"TOP_FROM_A_FILE": "new"}'})
    again = runs("warm", "program.py", AWAITED="uses TOP_FROM_A_FILE")
    assert outputs(again) == [b"old\n"]  # Where it is cold: new.
    assert again.events("ImportsLearned")[0]["too_early"] == {
        "reads_top_from_a_file": ["TOP_FROM_A_FILE"]
    }
    assert "each worker imports reads_top_from_a_file itself" in again.console
    assert outputs(runs("warm", "program.py")) == [b"new\n"]


VARIABLES = (
    "NCCL_DEBUG=WARN", "CUDA_VISIBLE_DEVICES=0", "OMP_NUM_THREADS=2", "MKL_NUM_THREADS=2",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "GLOO_SOCKET_IFNAME=lo",
    "NCCL_P2P_DISABLE=1", "TORCH_LOGS=+dynamo", "KMP_DUPLICATE_LIB_OK=TRUE",
    "CUDA_LAUNCH_BLOCKING=1", "TORCHINDUCTOR_CACHE_DIR=/nowhere", "TORCHDYNAMO_VERBOSE=1",
)  # fmt: skip
TRAINING = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def main():
    for one in os.environ.get("TO_SET", "").split():
        name, _, value = one.partition("=")
        os.environ[name] = value
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    from torch import _dynamo
    print("stepped", torch.get_num_threads(), _dynamo.config.verbose,
          os.environ.get("TORCHINDUCTOR_CACHE_DIR"))
    dist.destroy_process_group()

main()
"""
SET = "    os.environ['{}'] = '{}'\n"


@pytest.mark.torch
@pytest.mark.parametrize(
    "variables",
    [
        VARIABLES[:1],
        *(
            pytest.param(each, marks=pytest.mark.thorough, id=each[0])
            for each in ((*VARIABLES,), *((one,) for one in VARIABLES[1:]))
        ),
    ],
)
def test_a_training_that_sets_variables_after_it_has_imported_torch(
    program: Program, variables: tuple[str, ...]
) -> None:
    sets = "".join(SET.format(*each.split("=")) for each in variables)
    text = TRAINING.replace("def main():\n", "def main():\n" + sets)
    program.write({"program.py": text})
    env = {"XDG_CACHE_HOME": str(program.folder.parent / "cache")}
    (cold,) = outputs(program.run("cold", "program.py", env=env))
    assert cold.startswith(b"stepped")
    run = program.run("warm", "program.py", env=env)
    assert outputs(run) == [cold], run.console
