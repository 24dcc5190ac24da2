"""How imports are seen, in a program that has the module of the zygote."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

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
        sys.meta_path.insert(0, import_reports.ImportFinder(seen.append))
        print(stacks() == unseen, seen)
        importlib.import_module('package')
        print(seen[3:])
    """
    assert run(text, tmp_path) == [f"True {['package', 'inner', 'broken']}", "[]"]


def test_to_look_whether_a_module_is_there_is_no_import(tmp_path: Path) -> None:
    text = """
        import importlib.util, pkgutil, sys
        seen = []
        finder = import_reports.ImportFinder(seen.append)
        sys.meta_path.insert(0, finder)
        def ask():
            return [one.find_spec('package', None, None) for one in sys.meta_path]
        def ask_all():
            return ask()
        print(importlib.util.find_spec('package').name, len(ask_all()) > 1)
        import package
        importlib.reload(package)
        print(seen)
    """
    assert run(text, tmp_path) == ["package True", "['package', 'inner']"]
