"""What workers import after they began: learned, laid on the shelf, remembered.

The package under test is imported inside of a function. The first round of a warm run waits until
that has been learned, which shows by the memory that is written, and fails; the second is compared.
"""

from __future__ import annotations

import pytest

LATE = {
    "late/__init__.py": """
        import os, sys, warnings
        from late import inner
        print('imported late', flush=True)
        print('warned late', file=sys.stderr)
        os.environ['SET_LATE'] = 'yes'
        os.environ.pop('REMOVED_LATE', None)
        warnings.filterwarnings('ignore', 'late')
        sys.path.append('/added/late')
        """,
    "late/inner.py": """
        import sys, types
        class Odd(types.ModuleType):
            def __setattr__(self, name, value):
                raise AttributeError(name)
        odd = Odd('late.odd')
        sys.modules['late.odd'] = odd
        """,
    "later.py": "from late import inner\nimport late\nSAME = late.inner is inner",
    "asks.py": "import os\nimport fit\nRANK = os.environ['RANK']",
    "fit.py": "VALUE = 1",
    "settings.py": "import os\nLEVEL = os.environ.get('LEVEL')",
    "uses.py": "import settings\nimport fit",
}
PROGRAM = """
    import os, sys, time, warnings

    def look(when):
        names = ('late', 'late.inner', 'late.odd', 'later')
        print(when, [name in sys.modules for name in names], os.environ.get('SET_LATE'),
              os.environ.get('REMOVED_LATE'), '/added/late' in sys.path,
              [f[1].pattern for f in warnings.filters if f[1] and f[1].pattern == 'late'])

    def work():
        look('before')
        import later
        look('after')
        import late.odd
        print(later.SAME, sys.modules['late'].inner is sys.modules['late.inner'])
        print(late.__spec__.name, late.__spec__.origin, late.__loader__ is late.__spec__.loader)
        import importlib.util
        print(importlib.util.find_spec('later').origin, importlib.reload(later).SAME)

    work()
    sys.stdout.flush()
    memory = os.path.join(os.environ['XDG_CACHE_HOME'], 'holdfast', 'imports')
    if os.environ['HOLDFAST_ROUND'] == '1' and 'WAITS' in os.environ:
        while not (os.path.isdir(memory) and [n for n in os.listdir(memory) if n[0] != '.']):
            time.sleep(0.01)
        sys.exit(1)
    """


@pytest.fixture
def late(program):
    """The program, with its packages installed; `run(how)` runs it."""
    library = program.folder.parent / "library" / "site-packages"
    program._replace(folder=library).write(LATE)
    program.write({"program.py": PROGRAM})
    env = {
        "PYTHONPATH": str(library),
        "XDG_CACHE_HOME": str(program.folder.parent / "cache"),
        "REMOVED_LATE": "there",
    }

    def run(how, *words, **more):
        words = words or ("program.py",)
        return program.run(how, *words, options=("--max-restarts=1",), env={**env, **more})

    run.program = program
    return run


def output_of(run, attempt=0):
    return [
        (run.logs / f"attempt_{attempt}/0/{name}.log").read_bytes() for name in ("stdout", "stderr")
    ]


def test_what_lies_on_the_shelf_shows_only_when_it_is_imported(late) -> None:
    cold = late("cold")
    learning = late("warm", WAITS="1")
    assert output_of(learning, 0) == output_of(cold)
    assert output_of(learning, 1) == output_of(cold)
    (ready,) = [event for event in learning.events("ZygoteReady") if event.get("beside")]
    assert ready["late"] == ["later", "late.odd"][: len(ready["late"])]
    assert learning.starts == [True, True]


def test_the_next_launch_knows_it_from_the_start(late) -> None:
    cold = late("cold")
    late("warm", WAITS="1")
    run = late("warm")
    assert run.events("AgentStarted")[0]["late"]
    assert "later" in run.events("ZygoteReady")[0]["late"]
    assert output_of(run) == output_of(cold)


def test_what_a_program_imports_that_is_itself_installed_is_learned(late) -> None:
    library = late.program.folder.parent / "library" / "site-packages"
    late.program._replace(folder=library).write({"installed.py": PROGRAM})
    learning = late("warm", "-m", "installed", WAITS="1")
    assert learning.starts == [True, True]
    assert "later" in late("warm", "-m", "installed").events("AgentStarted")[0]["late"]


def test_a_program_that_has_changed_is_learned_anew(late) -> None:
    late("warm", WAITS="1")
    late.program.write({"program.py": PROGRAM + "\n    print('more')"})
    assert "late" not in late("warm").events("AgentStarted")[0]


def test_of_a_package_that_asks_for_its_rank_late_only_that_is_left_out(late) -> None:
    text = """
        import os, sys, time
        def work():
            os.environ['LEVEL'] = '3'
            import asks, settings
            print(asks.RANK, settings.LEVEL)
        work()
        memory = os.path.join(os.environ['XDG_CACHE_HOME'], 'holdfast', 'imports')
        if os.environ['HOLDFAST_ROUND'] == '1':
            while not (os.path.isdir(memory) and [n for n in os.listdir(memory) if n[0] != '.']):
                time.sleep(0.01)
            sys.exit(1)
        """
    late.program.write({"asking.py": text})
    run = late("warm", "asking.py")
    assert output_of(run, 1)[0] == b"0 3\n"
    unfit = {
        name: why for event in run.events("ModulesUnfit") for name, why in event["unfit"].items()
    }
    assert unfit["asks"] == "it reads RANK when imported"
    assert unfit["settings"] == "it reads LEVEL when imported, which the program sets first"
    again = late("warm", "asking.py")
    assert set(again.events("AgentStarted")[0]["avoid"]) == {"asks", "settings"}


def test_what_read_a_variable_that_has_changed_since_is_imported_anew(late) -> None:
    """And so is what had it imported; what has nothing to do with it comes from the shelf."""
    text = """
        import os, sys, time
        def work():
            if 'CHANGED' in os.environ:
                os.environ['LEVEL'] = '3'
            import uses, settings, fit
            print(settings.LEVEL, uses.settings is settings, uses.fit is fit)
            print([getattr(one.__spec__, 'loader') is one.__loader__ for one in (uses, settings)])
        work()
        sys.stdout.flush()
        memory = os.path.join(os.environ['XDG_CACHE_HOME'], 'holdfast', 'imports')
        if os.environ['HOLDFAST_ROUND'] == '1' and 'WAITS' in os.environ:
            while not (os.path.isdir(memory) and [n for n in os.listdir(memory) if n[0] != '.']):
                time.sleep(0.01)
            sys.exit(1)
        """
    late.program.write({"changing.py": text})
    learning = late("warm", "changing.py", WAITS="1")
    assert output_of(learning, 1)[0].startswith(b"None True True\n")
    run = late("warm", "changing.py", CHANGED="1")
    assert "uses" in run.events("ZygoteReady")[0]["late"]
    assert output_of(run)[0] == output_of(late("cold", "changing.py", CHANGED="1"))[0]
    assert output_of(run)[0].startswith(b"3 True True\n")


KEEPS_RANK = """
    import os
    class rank_zero_only: pass
    rank_zero_only.rank = getattr(rank_zero_only, "rank", int(os.environ.get("LOCAL_RANK", 0)))
    """


@pytest.mark.parametrize("looks_different", [False, True])
def test_what_a_package_keeps_of_its_rank_is_put_right(program, looks_different) -> None:
    library = program.folder.parent / "library" / "site-packages"
    text = KEEPS_RANK.replace("0)))", "'0')))") if looks_different else KEEPS_RANK
    files = {"torchmetrics/__init__.py": "", "torchmetrics/utilities/__init__.py": ""}
    program._replace(folder=library).write({**files, "torchmetrics/utilities/prints.py": text})
    script = """
        import os
        import torchmetrics.utilities.prints as prints
        print(prints.rank_zero_only.rank == int(os.environ['LOCAL_RANK']))
        """
    program.write({"program.py": script})
    env = {"PYTHONPATH": str(library), "XDG_CACHE_HOME": str(library)}
    run = program.run("warm", "program.py", options=("--nproc-per-node=3",), env=env)
    logs = sorted(run.logs.glob("attempt_0/*/stdout.log"))
    assert [log.read_text() for log in logs] == ["True\n"] * 3
    assert ("stopped_in" in run.events("ZygoteReady")[0]) is looks_different


@pytest.mark.thorough
@pytest.mark.torch
def test_the_store_is_served_from_the_middle_of_an_import_too(program) -> None:
    """The process that serves it has nothing to do with the rest of that import."""
    library = program.folder.parent / "library" / "site-packages"
    asks = "import os\nimport torch.distributed\nRANK = os.environ['RANK']\nos.write(1, b'.')"
    program._replace(folder=library).write({"asks.py": asks})
    script = """
        import os
        import asks
        import torch
        import torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        by_us = os.environ["TORCHELASTIC_USE_AGENT_STORE"]
        print(asks.RANK == os.environ["RANK"], int(total), by_us)
        dist.barrier()
        dist.destroy_process_group()
        """
    program.write({"program.py": script})
    env = {"PYTHONPATH": str(library), "XDG_CACHE_HOME": str(library)}
    run = program.run("warm", "program.py", options=("--nproc-per-node=2",), env=env)
    assert run.events("ZygoteReady")[0]["stopped_in"] == ["asks"]
    logs = sorted(run.logs.glob("attempt_0/*/stdout.log"))
    assert [log.read_text() for log in logs] == [".True 2 True\n"] * 2


def test_what_is_imported_behind_an_effect_lies_ready_at_the_first_launch(program, same) -> None:
    """Whatever comes first shows first, and once; a filter holds for warnings of a later import."""
    library = program.folder.parent / "library" / "site-packages"
    noisy = """
        import sys, warnings
        print('noise', flush=True)
        print('more', file=sys.stderr)
        import logging
        logging.getLogger('noisy').debug('starts %s', 'here')
        warnings.warn('noisy thing')
        warnings.warn('other thing')
        class Thing: pass
        """
    program._replace(folder=library).write({"noisy.py": noisy, "calm.py": "import noisy\nX = 1"})
    script = """
        import logging
        import sys
        import warnings
        print('first', 'noisy' in sys.modules)
        warnings.filterwarnings('ignore', 'noisy')
        logging.basicConfig(level=10, format='%(levelname)s %(name)s %(message)s %(funcName)s')
        from noisy import Thing
        print('second', Thing.__module__, 'noisy' in sys.modules)
        import calm
        print(calm.X, [f[0] for f in warnings.filters][:2])
        """
    env = {"PYTHONPATH": str(library), "XDG_CACHE_HOME": str(library)}
    run = same("program.py", files={"program.py": script}, env=env)
    assert run.events("AgentStarted")[0]["late"] == ["from noisy import Thing", "calm"]
    assert run.events("ZygoteReady")[0]["late"] == ["from noisy import Thing", "calm"]
    assert run.stdout.startswith(b"first False\nnoise\nsecond noisy True\n")
    assert b"DEBUG noisy starts here <module>" in run.stderr
    assert b"other thing" in run.stderr
    assert b"noisy thing" not in run.stderr


def test_what_comes_first_of_the_standard_library_brings_nothing_else(program, same) -> None:
    """And what draws random numbers when imported draws those of the worker, after its seed."""
    library = program.folder.parent / "library" / "site-packages"
    draws = "import random, wave\nprint('draws')\nDRAWN = random.random()"
    program._replace(folder=library).write({"draws.py": draws})
    script = """
        import sys
        print('first', 'wave' in sys.modules, 'random' in sys.modules)
        import random
        random.seed(7)
        import wave
        print('second', 'draws' in sys.modules)
        import draws
        print(draws.DRAWN, random.random())
        """
    env = {"PYTHONPATH": str(library), "XDG_CACHE_HOME": str(library)}
    run = same("program.py", files={"program.py": script}, env=env)
    assert run.events("AgentStarted")[0]["late"] == ["draws"]
    assert run.stdout.startswith(b"first False False\nsecond False\ndraws\n")


def test_what_gives_the_root_logger_a_handler_is_left_to_the_worker(program, same) -> None:
    library = program.folder.parent / "library" / "site-packages"
    shouts = "import logging\nlogging.warning('there was no handler')\n"
    program._replace(folder=library).write({"shouts.py": shouts})
    script = """
        print('first')
        import logging
        print(logging.root.handlers)
        import shouts
        print(len(logging.root.handlers))
        """
    env = {"PYTHONPATH": str(library), "XDG_CACHE_HOME": str(library)}
    run = same("program.py", files={"program.py": script}, env=env)
    assert run.stdout == b"first\n[]\n1\n"
