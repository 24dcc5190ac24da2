"""What still differs between a warm worker and a cold one, as docs/guides/warm-start.md says it.

Whoever mends one of these finds out here that the page has to change.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from .conftest import Each, Program

LIBRARY = {
    "sitecustomize.py": """
        import os, sys
        print('customized')
        sys.customized_as = os.environ.get('RANK')
        """,
    "package.py": """
        import os, random, time, uuid
        import numpy
        TAKEN = [time.time_ns(), uuid.uuid4().hex, f'of-{os.getpid()}']
        STATE = numpy.random.RandomState()
        random.seed(7)
        FORKED = []
        os.register_at_fork(after_in_child=lambda: FORKED.append(True))
        """,
    "late.py": """
        import package
        package.CHANGED = True
        """,
}
PROGRAM = """
    import gc
    import json
    import os
    import random
    import sys
    import threading
    import package
    print('begins')
    FINDERS = sys.meta_path[:2]
    CHANGED = ['CHANGED' in package.__dict__, 'late' in sys.modules]
    import late
    import faulthandler
    import warnings
    with open('/proc/self/status') as file:
        caught = int(next(line for line in file if line.startswith('SigCgt:')).split()[1], 16)
    def depth(reached):
        try:
            return depth(reached + 1)
        except RecursionError:
            return reached
    saw = {
        'taken': package.TAKEN, 'drawn': [random.random(), package.STATE.rand()],
        'forked': package.FORKED, 'hash': hash('text'), 'depth': depth(0),
        'frozen': gc.get_freeze_count() > 0, 'customized as': sys.customized_as,
        'for stacks': [sum(960 <= int(n) < 1000 for n in os.listdir('/proc/self/fd')),
                       caught >> 60 & 1, faulthandler.is_enabled()],
        'finders': [[type(one).__name__ for one in ones] for ones in (FINDERS, sys.meta_path)],
        'changed': CHANGED, 'thread': threading.main_thread().native_id == os.getpid(),
    }
    warnings.warn('from afar', stacklevel=2)
    with open(f"{os.environ['SAW']}.{os.environ['RANK']}", "w") as file:
        json.dump(saw, file)
    """


@pytest.fixture(scope="module")
def runs(shared_program: Program) -> Each:
    """By how they were started: the runs of two workers."""
    library = shared_program.folder.parent / "library" / "site-packages"
    shared_program._replace(folder=library).write(LIBRARY)
    shared_program.write({"program.py": PROGRAM})
    env = {"PYTHONPATH": str(library), "XDG_CACHE_HOME": str(library)}
    options = ("--nproc-per-node=2",)
    return shared_program.each("program.py", hows=("cold", "warm"), options=options, env=env)


def seen(runs: Each, how: str, what: str) -> list[Any]:
    """What each worker saw of it."""
    return [saw[what] for saw in runs[how].saw]


def test_what_a_package_takes_when_it_is_imported_is_the_same_in_all_workers(runs: Each) -> None:
    cold, warm = (seen(runs, how, "taken") for how in ("cold", "warm"))
    assert all(one != other for one, other in zip(*cold, strict=True))
    assert warm[0] == warm[1]
    cold, warm = ([drawn[1] for drawn in seen(runs, how, "drawn")] for how in ("cold", "warm"))
    assert cold[0] != cold[1]
    assert warm[0] == warm[1]


def test_a_seed_that_a_package_sets_does_not_hold(runs: Each) -> None:
    cold, warm = ([drawn[0] for drawn in seen(runs, how, "drawn")] for how in ("cold", "warm"))
    assert cold[0] == cold[1]
    assert len({*cold, *warm}) == 3


def test_who_looks_whether_it_was_forked_sees_it(runs: Each) -> None:
    assert seen(runs, "cold", "forked") == [[], []]
    assert seen(runs, "warm", "forked") == [[True, True]] * 2


def test_all_workers_of_a_node_have_one_hash_seed(runs: Each) -> None:
    assert len(set(seen(runs, "warm", "hash"))) == 1


def test_recursion_goes_a_little_less_deep(runs: Each) -> None:
    cold, warm = (seen(runs, how, "depth")[0] for how in ("cold", "warm"))
    assert 0 < cold - warm <= 4


def test_numbers_that_were_taken_when_the_zygote_was_made_stay(runs: Each) -> None:
    assert seen(runs, "cold", "thread") == [True, True]
    renews = sys.version_info >= (3, 14)  # Python itself, in a fork.
    assert seen(runs, "warm", "thread") == [renews, renews]


def test_what_was_preloaded_is_frozen(runs: Each) -> None:
    assert seen(runs, "cold", "frozen") == [False, False]
    assert seen(runs, "warm", "frozen") == [True, True]


def test_what_sets_up_an_interpreter_ran_once_without_a_rank(runs: Each) -> None:
    assert seen(runs, "cold", "customized as") == ["0", "1"]
    assert seen(runs, "warm", "customized as") == [None, None]
    assert runs["cold"].stdout.startswith(b"customized\n")
    assert runs["warm"].stdout.startswith(b"begins\n")


def test_what_stacks_are_asked_by_is_in_cold_workers_too(runs: Each) -> None:
    assert seen(runs, "cold", "for stacks") == [[1, 1, True]] * 2
    assert seen(runs, "warm", "for stacks") == [[1, 1, True]] * 2


def test_what_a_late_import_changed_in_other_modules_is_there_from_the_start(runs: Each) -> None:
    assert "late" in runs["warm"].events("ZygoteReady")[0]["late"]
    assert seen(runs, "cold", "changed") == [[False, False]] * 2
    assert seen(runs, "warm", "changed") == [[True, True]] * 2


def test_a_finder_of_ours_is_the_first_one(runs: Each) -> None:
    cold = seen(runs, "cold", "finders")[0][1]
    assert seen(runs, "warm", "finders")[0] == [["ImportFinder", cold[0]], ["ImportFinder", *cold]]


def test_a_warning_from_beyond_the_program_names_our_file(runs: Each) -> None:
    place = b"<sys>:0" if sys.version_info >= (3, 14) else b"sys:1"
    assert place + b": UserWarning: from afar" in runs["cold"].stderr
    assert b"/run_as_main.py:" in runs["warm"].stderr
