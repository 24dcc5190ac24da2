"""How imports are seen, in a program that has the module of the zygote."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import holdfast

SOURCE = Path(holdfast.__file__).parents[1]
IMPORT = "from holdfast.processes.zygote import import_reports\n"
DEADLINE_S = 60.0


def run(text: str, folder: Path) -> list[str]:
    """Run a program beside some modules; the lines it prints."""
    (folder / "package.py").write_text("import sys, inner\nframe = sys._getframe()")
    (folder / "inner.py").write_text("")
    (folder / "broken.py").write_text("1 / 0")
    (folder / "program.py").write_text(IMPORT + textwrap.dedent(text))
    ended = subprocess.run(
        [sys.executable, "program.py"],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def test_every_import_that_loads_something_is_seen_and_leaves_no_frame(tmp_path: Path) -> None:
    text = """
        import importlib, sys, traceback
        def stacks():
            import package
            names, frame = [], package.frame
            while frame:
                names.append(frame.f_code.co_name)
                frame = frame.f_back
            try:
                importlib.import_module('broken')
            except ZeroDivisionError as error:
                return names, traceback.format_tb(error.__traceback__)
        unseen = stacks()
        del sys.modules['package'], sys.modules['inner']
        seen = []
        sys.meta_path.insert(0, import_reports.Finder(seen.append))
        print(stacks() == unseen, seen)
        importlib.import_module('package')
        print(seen[3:])
    """
    assert run(text, tmp_path) == [f"True {['package', 'inner', 'broken']}", "[]"]


def test_to_look_whether_a_module_is_there_is_no_import(tmp_path: Path) -> None:
    text = """
        import importlib.util, pkgutil, sys
        seen = []
        finder = import_reports.Finder(seen.append)
        sys.meta_path.insert(0, finder)
        def ask():
            return [one.find_spec('package', None, None) for one in sys.meta_path]
        def ask_all():
            return ask()
        print(finder.is_asked(), importlib.util.find_spec('package').name, len(ask_all()) > 1)
        import package
        importlib.reload(package)
        print(seen)
    """
    assert run(text, tmp_path) == ["True package True", "['import_probe', 'package', 'inner']"]


def test_what_is_to_be_done_with_a_module_is_done_once_it_is_loaded(tmp_path: Path) -> None:
    text = """
        import sys
        done = []
        finder = import_reports.Finder(lambda name: None)
        sys.meta_path.insert(0, finder)
        finder.when_loaded['package'] = lambda module: done.append(hasattr(module, 'frame'))
        import package
        spec = package.__spec__
        print(done, vars(spec.loader) == {'name': 'package', 'path': package.__file__})
        print(type(spec.loader).__name__, package.__loader__ is spec.loader)
    """
    assert run(text, tmp_path) == ["[True] True", "SourceFileLoader True"]


UNSEEN = {
    # The import system asks no finder, or in another way, or its loaders load in another way.
    "who asks is another": """
        importing = sys.modules['_frozen_importlib']
        plain = importing._find_spec
        importing._find_spec = lambda *arguments: plain(*arguments)
        """,
    "a finder is before it": """
        from importlib.machinery import PathFinder
        class First:
            def insert(self, place, finder):
                sys.meta_path = [*old, finder]
            def __iter__(self):
                return iter(old)
        old = [*sys.meta_path, PathFinder]
        sys.path.append(os.path.dirname(import_reports.__file__))
        sys.meta_path = First()
        """,
    "a loader has no such method": """
        from importlib.machinery import SourceFileLoader
        importing = sys.modules['_frozen_importlib']
        def load(spec):
            module = importing.module_from_spec(spec)
            type(spec.loader).exec_module(spec.loader, module)
            sys.modules[spec.name] = module
            return module
        importing._load_unlocked = load
        """,
}


@pytest.mark.parametrize("text", UNSEEN.values(), ids=UNSEEN)
def test_where_imports_are_not_seen_that_is_said(text: str, tmp_path: Path) -> None:
    told = "print(import_reports.Watch().why_not())"
    seen = run("import os, sys\n" + textwrap.dedent(text) + told, tmp_path)
    version = ".".join(map(str, sys.version_info[:3]))
    assert seen == [f"Python {version} does not let us see what is imported"]


def test_that_a_module_was_loaded_unseen_is_said(tmp_path: Path) -> None:
    text = """
        import sys
        for name in ('random', 'tempfile'):
            sys.modules.pop(name, None)
        from importlib.machinery import PathFinder
        watch = import_reports.Watch()
        print(watch.why_not() == '')
        watch.guard(print, {'random': lambda module: ''})
        sys.meta_path.insert(0, PathFinder)
        import random
        print(watch.why_not())
        watch.guard(None)
        print(watch.why_not())
    """
    why = "random was loaded without our seeing it"
    assert run(text, tmp_path) == ["True", why, why]


def test_what_a_package_does_that_cannot_be_watched_is_asked_about(tmp_path: Path) -> None:
    """Of the standard library it is said, since nobody may have imported it but the program."""
    text = """
        import sys
        for name in ('random', 'tempfile', 'wave'):
            sys.modules.pop(name, None)
        watch = import_reports.Watch()
        watch.guard(print, {'package': lambda module: 'why', 'wave': lambda module: 'other'})
        import package
        print([watch.why_not()])
        import wave
        print(watch.why_not())
    """
    assert run(text, tmp_path) == ["why", "['']", "other"]
