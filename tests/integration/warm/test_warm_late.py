"""What workers import after they began: learned, imported ahead, remembered.

The package under test is imported inside of a function. The first round of a warm run waits until
that has been learned, which shows by the memory that is written, and fails; the second is compared.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from holdfast.processes.zygote import reasons

from .conftest import Launches, Program, Run, Same

LATE = {
    "late/__init__.py": """
        import logging, os, warnings
        from late import inner
        os.environ['SET_LATE'] = 'yes'
        warnings.filterwarnings('ignore', 'late')
        logging.getLogger('late').setLevel(10)
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
}
WAIT = """
    sys.stdout.flush()
    memory = os.path.join(os.environ['XDG_CACHE_HOME'], 'holdfast', 'imports')
    if os.environ.get('HOLDFAST_ROUND') == '1' and 'WAITS' in os.environ:
        while not (os.path.isdir(memory) and [n for n in os.listdir(memory) if n[0] != '.']):
            time.sleep(0.01)
        sys.exit(1)
    """
PROGRAM = (
    """
    import os, sys, time, warnings

    def work():
        import later
        import late.odd
        print(later.SAME, sys.modules['late'].inner is sys.modules['late.inner'])
        print(late.__spec__.name, late.__spec__.origin, late.__loader__ is late.__spec__.loader)
        print(os.environ['SET_LATE'], [f[0] for f in warnings.filters][:1])
        import importlib.util
        print(importlib.util.find_spec('later').origin, importlib.reload(later).SAME)

    work()
    """
    + WAIT
)


@pytest.fixture
def late(program: Program) -> Launches:
    """The program, with its packages installed."""
    library = program.folder.parent / "library" / "site-packages"
    program._replace(folder=library).write(LATE)
    program.write({"program.py": PROGRAM})
    env = {
        "PYTHONPATH": str(library),
        "XDG_CACHE_HOME": str(program.folder.parent / "cache"),
    }

    return Launches(program, env)


def output_of(run: Run, attempt: int = 0) -> list[bytes]:
    return [
        (run.logs / f"attempt_{attempt}/0/{name}.log").read_bytes() for name in ("stdout", "stderr")
    ]


def test_what_is_imported_late_is_imported_ahead_in_the_next_round(late: Launches) -> None:
    cold = late("cold")
    learning = late("warm", WAITS="1")
    assert output_of(learning, 0) == output_of(cold)
    assert output_of(learning, 1) == output_of(cold)
    (ready,) = [event for event in learning.events("ZygoteReady") if event.get("beside")]
    assert ready["late"] == ["later"]
    assert learning.starts == [True, True]


def test_the_next_launch_knows_it_from_the_start(late: Launches) -> None:
    cold = late("cold")
    late("warm", WAITS="1")
    run = late("warm")
    assert run.events("NodeStarted")[0]["late"]
    assert "later" in run.events("ZygoteReady")[0]["late"]
    assert output_of(run) == output_of(cold)


def test_what_a_program_imports_that_is_itself_installed_is_learned(late: Launches) -> None:
    library = late.program.folder.parent / "library" / "site-packages"
    late.program._replace(folder=library).write({"installed.py": PROGRAM})
    learning = late("warm", "-m", "installed", WAITS="1")
    assert learning.starts == [True, True]
    assert "later" in late("warm", "-m", "installed").events("NodeStarted")[0]["late"]


def test_a_program_that_has_changed_is_learned_anew(late: Launches) -> None:
    late("warm", WAITS="1")
    late.program.write({"program.py": PROGRAM + "\n    print('more')\n"})
    assert "late" not in late("warm").events("NodeStarted")[0]


def test_of_a_package_that_asks_for_its_rank_late_only_that_is_left_out(late: Launches) -> None:
    text = """
        import os, sys, time
        def work():
            os.environ['LEVEL'] = '3'
            import asks, settings
            print(asks.RANK, settings.LEVEL)
        work()
        """
    late.program.write({"asking.py": textwrap.dedent(text) + textwrap.dedent(WAIT)})
    run = late("warm", "asking.py", WAITS="1")
    assert output_of(run, 1)[0] == b"0 3\n"
    unfit = {
        name: why for event in run.events("ModulesUnfit") for name, why in event["unfit"].items()
    }
    assert unfit["asks"] == reasons.asks("reads", "RANK")
    assert unfit["settings"] == reasons.uses_set("LEVEL")
    again = late("warm", "asking.py")
    assert set(again.events("NodeStarted")[0]["avoid"]) == {"asks", "settings"}


SHOWS = {
    "prints": ("print('printed')", reasons.SHOWS_SOMETHING),
    "writes": (
        "import sys; print('written', file=sys.stderr)",
        reasons.SHOWS_SOMETHING,
    ),
    "warns": ("import warnings; warnings.warn('warned')", reasons.SHOWS_SOMETHING),
    "logs": (
        "import logging; logging.getLogger('logs').warning('logged')",
        reasons.SHOWS_SOMETHING,
    ),
    "whispers": (
        "import logging; logging.getLogger('whispers').debug('said softly')",
        reasons.uses_set("logger root"),
    ),
    "adds_a_folder": ("import sys; sys.path.append('/added')", reasons.changes("sys.path")),
    "catches": (
        "import signal; signal.signal(40, lambda *_: None)",
        reasons.changes("the signal handlers"),
    ),
    "has_its_logger_set": (
        "import logging; logging.getLogger('has.its').setLevel(10)",
        reasons.uses_set("logger has.its"),
    ),
    "shows_warnings": (
        "import warnings; warnings.filterwarnings('always', 'x')",
        "it uses filter error Warning ",
    ),
}


def test_what_would_show_before_its_time_is_left_to_the_worker(late: Launches) -> None:
    """And what it sets holds, where the program has set the same before."""
    library = late.program.folder.parent / "library" / "site-packages"
    late.program._replace(folder=library).write({f"{n}.py": text for n, (text, _) in SHOWS.items()})
    imports = "".join(f"    import {name}\n    print('{name}')\n" for name in SHOWS)
    text = (
        "import logging, os, sys, time, warnings\ndef work():\n"
        "    logging.basicConfig(level=10, format='%(name)s %(message)s')\n"
        "    logging.getLogger('has.its').setLevel(30)\n"
        "    warnings.filterwarnings('error', 'never warned of')\n"
        f"{imports}    import fit\n"
        "    print(sys.path[-1], logging.getLogger('has.its').level, warnings.filters[:2])\n"
        "work()\n"
    )
    late.program.write({"program.py": text + textwrap.dedent(WAIT)})
    cold = late("cold")
    learning = late("warm", WAITS="1")
    assert output_of(learning, 0) == output_of(learning, 1) == output_of(cold)
    unfit = {
        n: why for event in learning.events("ModulesUnfit") for n, why in event["unfit"].items()
    }
    assert {n: why[: len(SHOWS[n][1])] for n, why in unfit.items()} == {
        name: why for name, (_, why) in SHOWS.items()
    }
    assert learning.events("ZygoteReady")[-1]["late"] == ["fit"]


def test_loggers_that_the_program_disables_are_made_after_that(late: Launches) -> None:
    """Those that are there when it does so are disabled for good."""
    library = late.program.folder.parent / "library" / "site-packages"
    late.program._replace(folder=library).write(
        {"has_logger.py": "import logging\nLOG = logging.getLogger('has_logger')"}
    )
    text = """
        import logging.config, os, sys, time
        logging.getLogger('early')
        def work():
            logging.config.dictConfig({'version': 1, 'root': {'level': 10}})
            import has_logger, fit
            print(has_logger.LOG.disabled)
        work()
        """
    late.program.write({"program.py": textwrap.dedent(text) + textwrap.dedent(WAIT)})
    learning = late("warm", WAITS="1")
    assert output_of(learning, 1) == [b"False\n", b""]
    assert learning.events("ZygoteReady")[-1]["late"] == ["fit"]


@pytest.mark.parametrize(
    ("variable", "ahead"), [("NCCL_DEBUG", ["fit"]), ("OMP_NUM_THREADS", []), ("OTHER", None)]
)
def test_where_libraries_read_a_variable_unseen_they_are_loaded_after_it_is_set(
    late: Launches, variable: str, ahead: list[str] | None
) -> None:
    """One that may read it when it is loaded; any, if it is read at the first computation."""
    if not can_ask_for_variables("libsqlite3"):
        pytest.skip("needs a sqlite3 of its own, which asks for variables")
    library = late.program.folder.parent / "library" / "site-packages"
    late.program._replace(folder=library).write({"loads.py": "import sqlite3\n"})
    text = f"""
        import os, sys, time
        def work():
            os.environ['{variable}'] = '1'
            import fit, loads
            print(loads.sqlite3.connect(':memory:').execute('select 7').fetchall())
        work()
        """
    late.program.write({"program.py": textwrap.dedent(text) + textwrap.dedent(WAIT)})
    learning = late("warm", WAITS="1")
    assert output_of(learning, 1) == [b"[(7,)]\n", b""]
    last = learning.events("ZygoteReady")[-1].get("late", [])
    assert last == (["fit", "loads"] if ahead is None else ahead)


def can_ask_for_variables(library: str) -> bool:
    import sqlite3  # noqa: F401 - so that it is loaded

    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(None, 5)[-1] for line in maps if library in line}
    return any(b"getenv" in Path(path).read_bytes() for path in paths)


def test_behind_a_setting_of_a_module_nothing_is_imported_ahead(late: Launches) -> None:
    """It may look at it: what it makes of numbers would be of another type."""
    library = late.program.folder.parent / "library" / "site-packages"
    torch = (
        "TYPE = None\ndef get_default_dtype():\n    assert TYPE, 'too soon'\n    return TYPE\n"
        "print('left to the worker')\nimport inside\nTYPE = 'torch.float32'\n"
    )
    makes = "import torch\nMADE = torch.get_default_dtype()\n"
    late.program._replace(folder=library).write({"torch.py": torch, "makes.py": makes})
    late.program._replace(folder=library).write({"inside.py": ""})
    text = """
        import os, sys, time
        def work():
            import fit
            import torch
            torch.TYPE = 'torch.float64'
            import makes
            print(makes.MADE)
        work()
        """
    late.program.write({"program.py": textwrap.dedent(text) + textwrap.dedent(WAIT)})
    learning = late("warm", WAITS="1")
    printed = b"left to the worker\ntorch.float64\n"
    assert output_of(learning, 0) == output_of(learning, 1) == [printed, b""]
    assert learning.events("ZygoteReady")[-1]["late"] == ["fit"]


KEEPS_RANK = """
    import os
    class rank_zero_only: pass
    rank_zero_only.rank = getattr(rank_zero_only, "rank", int(os.environ.get("LOCAL_RANK", 0)))
    """


@pytest.mark.parametrize("looks_different", [False, True])
def test_what_a_package_keeps_of_its_rank_is_put_right(
    program: Program, looks_different: bool
) -> None:
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
    assert bool(run.events("ModuleRejected")) is looks_different


def test_what_is_imported_behind_an_effect_is_ahead_at_the_first_launch(
    program: Program, same: Same
) -> None:
    """Unless it shows: whatever comes first shows first, and once."""
    library = program.folder.parent / "library" / "site-packages"
    noisy = "import logging\nprint('noise')\nlogging.getLogger('noisy').debug('starts')\n"
    library_files = {"noisy.py": noisy, "calm.py": "import wave\nX = 1", "mixed.py": "import noisy"}
    program._replace(folder=library).write(library_files)
    script = """
        import logging
        import warnings
        print('first')
        warnings.filterwarnings('ignore', 'noisy')
        logging.basicConfig(level=10, format='%(levelname)s %(name)s %(message)s %(funcName)s')
        import calm
        print('second', calm.X)
        import noisy, mixed
        print([f[0] for f in warnings.filters][:2])
        """
    env = {"PYTHONPATH": str(library), "XDG_CACHE_HOME": str(library)}
    run = same("program.py", files={"program.py": script}, env=env)
    assert run.events("NodeStarted")[0]["late"] == ["calm", "noisy", "mixed"]
    assert run.events("ZygoteReady")[0]["late"] == ["calm"]
    assert run.stdout.startswith(b"first\nsecond 1\nnoise\n")
    assert b"DEBUG noisy starts <module>" in run.stderr


def test_what_comes_first_of_the_standard_library_brings_nothing_else(
    program: Program, same: Same
) -> None:
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
    assert run.events("NodeStarted")[0]["late"] == ["draws"]
    assert run.stdout.startswith(b"first False False\nsecond False\ndraws\n")


def test_what_gives_the_root_logger_a_handler_is_left_to_the_worker(
    program: Program, same: Same
) -> None:
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
