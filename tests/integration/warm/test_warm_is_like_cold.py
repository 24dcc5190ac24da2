"""What a program sees of itself is the same, forked from a zygote or started from nothing.

One program looks at everything (`programs/observer.py`); each thing it looks at is one test.
The reference is `python -u program.py` where that can be: a launcher gives its workers a
parent, a session and an environment of their own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from .conftest import Each, Program, Run

PROGRAMS = Path(__file__).parent / "programs"


def load_observer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("observer", PROGRAMS / "observer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OBSERVATIONS = [look.__name__ for look in load_observer().OBSERVATIONS]
OF_A_WORKER = {
    "environment", "environment_in_proc", "parent", "session", "death_with_parent", "exit_handlers",
}  # fmt: skip
"""What a launcher gives, and `python` alone does not."""
OF_A_COLD_WORKER = {"exception_hook"}
"""Where a cold worker differs from plain Python: the hook that leaves its traceback."""
OF_THE_PROGRAM = [
    "argv", "orig_argv", "module_path", "names_of_main", "values_of_main", "types_of_main",
    "spec_of_main", "loader_of_main", "main_is_this_module", "importers", "command_line",
    "modules_not_of_the_library", "source_of_a_function", "pickle_of_a_class",
]  # fmt: skip
"""What depends on how the program was named."""
PRELOAD = ("logging", "threading", "multiprocessing.process", "asyncio", "inspect", "json")
"""They remember the process that loaded them, or are used by those who look."""
FORMS = {
    "relative": ("observer.py", "a", "--b=c d", ""),
    "dotted": ("./observer.py", "a"),
    "crooked": ("package/..//observer.py",),
    "absolute": ("{folder}/observer.py", "a"),
    "symbolic link": ("linked/link.py", "a"),
    "link to a folder": ("{folder}/linked/folder/observer.py",),
    "module": ("-m", "observer", "a", "-m"),
    "package": ("-m", "package", "a"),
    "module of a package": ("-m", "package.inner.observer", "a"),
}


Forms = Callable[[str], Each]


@pytest.fixture(scope="module")
def forms(shared_program: Program) -> Forms:
    """The program under all the names it can be given: `runs(form)` is each way's run."""
    folder, observer = shared_program.folder, (PROGRAMS / "observer.py").read_text()
    where = ("observer.py", "package/__main__.py", "package/inner/observer.py")
    shared_program.write(dict.fromkeys(where, observer))
    shared_program.write({"package/__init__.py": "", "package/inner/__init__.py": ""})
    (folder / "linked").mkdir()
    (folder / "linked/link.py").symlink_to("../observer.py")
    (folder / "linked/folder").symlink_to(folder)
    made: dict[str, Each] = {}

    def runs(form: str) -> Each:
        if form not in made:
            words = [word.format(folder=folder) for word in FORMS[form]]
            made[form] = shared_program.each(*words, preload=PRELOAD)
        return made[form]

    return runs


def saw(run: Run, what: str) -> object:
    assert run.saw, f"the program failed: {run.stderr.decode()}\n{run.console}"
    return run.saw[0][what]


@pytest.mark.parametrize("what", [what for what in OBSERVATIONS if what not in OF_A_WORKER])
def test_a_warm_worker_sees_what_python_shows(forms: Forms, what: str) -> None:
    each = forms("relative")
    assert saw(each["warm"], what) == saw(each["plain"], what)


@pytest.mark.parametrize("what", [what for what in OBSERVATIONS if what not in OF_A_COLD_WORKER])
def test_a_warm_worker_sees_what_a_cold_one_sees(forms: Forms, what: str) -> None:
    each = forms("relative")
    assert saw(each["warm"], what) == saw(each["cold"], what)


@pytest.mark.parametrize("what", OF_THE_PROGRAM)
@pytest.mark.parametrize("form", [form for form in FORMS if form != "relative"])
def test_however_a_program_is_named_it_sees_the_same(forms: Forms, form: str, what: str) -> None:
    each = forms(form)
    assert saw(each["warm"], what) == saw(each["plain"], what)
    assert saw(each["warm"], what) == saw(each["cold"], what)
