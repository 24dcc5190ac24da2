"""What is planned for a program: what it imports, as far as that can be read."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from holdfast.processes.zygote import preload, program_prefix

from .plans import TREE, steps_of, write

J = "import json"
PLANS = {
    "imports at the top": (
        "import os\nimport json.decoder\nfrom re import sub, match as m\nimport xml.dom as d",
        ("import os", "import json.decoder", "from re import sub, match", "import xml.dom")),
    "each once": (
        "import json.decoder\nimport json\nfrom json import loads\nfrom json import loads, dumps",
        ("import json.decoder", "from json import loads", "from json import dumps")),
    "all names": ("from json import *\nimport re", ("from json import *", "import re")),
    "nothing that is built in or ours": (
        "from __future__ import annotations\nimport sys, time, holdfast\nimport json", (J,)),
    "what is imported by a call": (
        "import importlib\nx = importlib.import_module('json.decoder')",
        ("import importlib", "import json.decoder")),
    "what is imported in a class": ("class C:\n    import json\nimport re", (J, "import re")),
    "a module that is made up by another": ("import os.path\nimport json", ("import os.path", J)),
    "none after what is missing": ("import absent_x\nimport json", ()),
    "none after a submodule that is missing": ("import json.absent_x\nimport re", (J,)),
    "nothing of what is no Python": ("import json\nimport (", ()),
    "what own modules import": ("import own\nimport json", ("import struct", J)),
    "none after an own module that does something": (
        "import doing\nimport json", ("import struct",)),
    "what own packages import": (
        "from pack.inner import x\nimport json",
        ("import string", "import struct", "from textwrap import dedent", J)),
    "what own packages import by name": (
        "from pack import inner\nimport json",
        ("import string", "import struct", "from textwrap import dedent", J)),
    "what own packages without code have": (
        "from spread import part\nimport spread.deep.down.part\nimport json",
        ("import struct", "import string", J)),
    "what own modules import that import each other": (
        "import round\nimport json", ("import string", "import struct", J)),
    "none after a relative import without a package": ("from . import own\nimport json", ()),
    "not what the program hides": ("import queue\nimport json", ("import heapq", J)),
    "not what is run as the program in an own module": (
        "import mine\nimport re", ("import re",)),
    "what the program does as such": ("if __name__ == '__main__':\n    import json", (J,)),
}  # fmt: skip


@pytest.mark.parametrize("what", PLANS)
def test_the_plan_has(tmp_path: Path, what: str) -> None:
    text, expected = PLANS[what]
    mine = "if __name__ == '__main__':\n    import json\n"
    assert steps_of(tmp_path, text, **{"mine.py": mine}) == expected


TRIES = {
    "what is tried": (
        "try:\n import json\nexcept ImportError:\n json = None\nimport re", (J, "import re")),
    "what is tried in its place": (
        "try:\n import absent_x\nexcept ImportError:\n import json\nimport re", (J, "import re")),
    "nothing that is tried after what is missing": (
        "try:\n import absent_x\n import json\nexcept ImportError:\n pass\nimport re",
        ("import re",)),
    "what is tried before it": (
        "try:\n import json\n import absent_x\nexcept ImportError:\n pass\nimport re",
        (J, "import re")),
    "what an own module imports before it fails": (
        "try:\n import lacking\nexcept ImportError:\n import json\nimport re",
        ("import struct", J, "import re")),
    "what follows on success": (
        "try:\n import json\nexcept ImportError:\n pass\nelse:\n import re", (J, "import re")),
    "not what follows on success after a failure": (
        "try:\n import absent_x\nexcept ImportError:\n pass\nelse:\n import re", ()),
    "no handler for what fails on success": (
        "try:\n import json\nexcept ImportError:\n import re\nelse:\n import absent_x\nimport os",
        (J,)),
    "what is done in the end": (
        "try:\n import absent_x\nexcept ImportError:\n pass\nfinally:\n import json", (J,)),
    "none after what nobody catches": (
        "try:\n import absent_x\nfinally:\n import json\nimport re", ()),
    "none after what is not caught": (
        "try:\n import absent_x\nexcept OSError:\n pass\nimport json", ()),
    "the handler that catches it": (
        "try: import absent_x\nexcept OSError: pass\nexcept (KeyError, ImportError):\n import json",
        (J,)),
    "none where it cannot be told who catches it": (
        "try:\n import absent_x\nexcept MINE:\n pass\nimport json\n", ()),
    "none where the program's own exception is caught": (
        "class E(OSError): 1\ntry:\n try: import absent_x\n except E: 1\nexcept: import re",
        ()),
    "what is tried when it fails again": (
        "try: import lacking\nexcept: 1\ntry: import lacking\nexcept Exception: import json",
        ("import struct", J)),
    "none where it is not sure that it fails": (
        "import os\ntry:\n if os.x: import absent_x\nexcept ImportError: import json\nimport re",
        ("import os",)),
    "nothing that depends on whether it worked": (
        "try:\n import numpy\n X = 1\nexcept ImportError: X = 0\nif X:\n import psutil\nimport re",
        ("import numpy",)),
    "what follows a handler that leaves": (
        "import sys\ntry: import numpy\nexcept ImportError:\n print('no')\n sys.exit(1)\nimport re",
        ("import numpy", "import re")),
    "what follows a handler that only says so": (
        "try:\n import numpy\nexcept ImportError:\n print('no')\nimport re",
        ("import numpy", "import re")),
    "what follows a handler, whatever that would do": (
        "try:\n import numpy\nexcept ImportError:\n fall_back()\nimport re",
        ("import numpy", "import re")),
    "nothing behind what may raise": (
        "import os\ntry:\n x = os.environ['X']\n import numpy\nexcept KeyError:\n pass\nimport re",
        ("import os",)),
    "what may raise if nothing depends on it": (
        "import os\ntry:\n x = int(os.environ['X'])\nexcept KeyError:\n x = 1\nimport numpy",
        ("import os", "import numpy")),
    "no handler of what may raise": (
        "import os\ntry:\n x = os.environ['X']\nexcept KeyError:\n import numpy\nimport re",
        ("import os",)),
    "what may raise something else": (
        "import os\ntry:\n x = os.environ['X']\n import numpy\nexcept ImportError:\n pass",
        ("import os", "import numpy")),
}  # fmt: skip


@pytest.mark.parametrize("what", TRIES)
def test_of_a_try_the_plan_has(tmp_path: Path, what: str) -> None:
    text, expected = TRIES[what]
    assert steps_of(tmp_path, text) == expected


IS_TRUE = (
    "not TYPE_CHECKING", "not typing.TYPE_CHECKING", "1 + 1 == 2",
    "sys.version_info >= (3, 8)", "sys.version_info[0] == 3",
    "sys.platform == 'linux'", "os.name == 'posix'",
    "sys.platform.startswith('linux')", "__name__ == '__main__'",
    "WANTED", "'a' if WANTED else ''",
)  # fmt: skip
IS_FALSE = (
    "TYPE_CHECKING", "typing.TYPE_CHECKING", "False", "0", "not WANTED",
    "sys.version_info < (3, 8)", "sys.platform == 'win32'", "os.name == 'nt'",
    "__name__ != '__main__'",
)  # fmt: skip
IS_EITHER = (
    "x", "x or TYPE_CHECKING", "not x", "x and not TYPE_CHECKING", "os.environ.get('X')",
    "os.path.exists('x')", "int(x) > 1", "x == 'linux'", "os.x", "len(sys.argv) > 1",
    "typing.OTHER", "(x and 1) or x",
)  # fmt: skip
OPENING = """
import os, sys, typing, hidden
from typing import TYPE_CHECKING
WANTED = True
x = os.environ["X"]
if CONDITION:
    import numpy
else:
    import psutil
import json
"""


@pytest.mark.parametrize(("condition", "branch"), [
    *((each, ("import numpy", J)) for each in IS_TRUE),
    *((each, ("import psutil", J)) for each in IS_FALSE),
    *((each, ()) for each in IS_EITHER),
])  # fmt: skip
def test_a_condition_is_worked_out_or_ends_it(
    tmp_path: Path, condition: str, branch: tuple[str, ...]
) -> None:
    steps = steps_of(tmp_path, OPENING.replace("CONDITION", condition))
    begin = ("import os", "import typing", "from typing import TYPE_CHECKING")
    assert steps == (*begin, *branch)


def test_a_module_of_the_standard_library_may_depend(tmp_path: Path) -> None:
    text = "import os\nif os.x:\n    import json\nelse:\n    y = 1\nimport re"
    assert steps_of(tmp_path, text) == ("import os", "import re")


# Whose modules are.


def test_parts_of_a_package_in_several_folders_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "site-packages", {"parts_x/theirs/__init__.py": "", "parts_x/more.py": ""})
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    text = "import parts_x.theirs\nfrom parts_x import ours, more\nfrom parts_x.theirs import a"
    steps = steps_of(tmp_path, text, **{"parts_x/ours.py": "import struct"})
    assert steps == (
        "import parts_x.theirs", "import struct", "import parts_x.more",
        "from parts_x.theirs import a",
    )  # fmt: skip


def test_an_installed_package_is_hidden_by_the_program(tmp_path: Path) -> None:
    write(tmp_path, {"numpy.py": ""})
    assert preload.installed("numpy.linalg", None)
    assert not preload.installed("numpy.linalg", str(tmp_path))
    assert not preload.installed("absent_x", None)


def test_what_lies_beside_our_own_command_is_not_found(tmp_path: Path) -> None:
    """It is not on the path of a worker."""
    write(tmp_path, {"there/beside_x.py": "", "own/program.py": "import beside_x\nimport json"})
    code = (
        "from holdfast.processes.zygote.preload import plan\n"
        f"print(plan('program.py', {str(tmp_path / 'own')!r}, ()))"
    )
    (tmp_path / "there" / "command.py").write_text(code)
    for start in (["../there/command.py"], ["-c", code]):
        run = subprocess.run(
            [sys.executable, *start], cwd=tmp_path / "own", capture_output=True, check=True
        )
        assert run.stdout == b"()\n"


class Finder:
    """Finds what is not on the path."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        return None


def test_nothing_is_missing_for_sure_if_somebody_else_may_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "try:\n import absent_x\nexcept ImportError:\n import json\nimport re"
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert steps_of(tmp_path, text) == ("import absent_x", "import re")


def test_a_package_that_is_edited_in_place_is_read_as_the_programs(tmp_path: Path) -> None:
    code = """
        import sys
        from importlib.machinery import PathFinder
        class Finder:
            __module__ = "__editable___x_finder"
            @staticmethod
            def find_spec(name, path=None, target=None):
                return PathFinder.find_spec(name, ["away"]) if name == "away_x" else None
        sys.meta_path.append(Finder)
        from holdfast.processes.zygote.preload import plan
        print(*plan("program.py", ".", ()), sep=", ")
        """
    files = {"away/away_x/__init__.py": "import struct\n", "away/away_x/a.py": "import string\n"}
    program = "try:\n import away_x.a\nexcept ImportError:\n import re\nimport json"
    write(tmp_path, {**files, "program.py": program, "command.py": code})
    run = subprocess.run(
        [sys.executable, "command.py"], cwd=tmp_path, capture_output=True, check=True
    )
    assert run.stdout == b"import struct, import string, import json\n"


# Modules as programs, and programs as modules.


def test_the_plan_of_a_module_has_what_its_packages_import(tmp_path: Path) -> None:
    write(tmp_path, {**TREE, "pack/main.py": "from .other import y\nimport json"})
    folder = str(tmp_path)
    source = preload.module_source("pack.main", folder)
    assert source == f"{folder}/pack/main.py"
    planned = preload.plan(source, folder, ("extra", "json"))
    expected = ("import string", "import struct", "from textwrap import dedent", J, "import extra")
    assert planned == expected


def test_the_plan_of_an_installed_module_has_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they are installed below the folder that the job is started in."""
    installed = tmp_path / "env" / "site-packages"
    main = "from .inner import f\nf()"
    write(installed, {"tool_x/__init__.py": "", "tool_x/inner.py": "", "tool_x/__main__.py": main})
    monkeypatch.syspath_prepend(str(installed))
    source = preload.module_source("tool_x", str(tmp_path))
    assert source == str(installed / "tool_x" / "__main__.py")
    planned = preload.plan(source, str(tmp_path), ())
    assert planned == ("import tool_x", "from tool_x.inner import f")


def test_a_module_that_has_two_names_has_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m code.main` and, with the folder on the path, `python -m main` are one file."""
    inner = {"code_x/pack_x/__init__.py": "", "code_x/pack_x/main.py": "import json"}
    write(tmp_path, inner)
    monkeypatch.syspath_prepend(str(tmp_path / "code_x"))
    source = str(tmp_path / "code_x" / "pack_x" / "main.py")
    assert preload.plan(source, str(tmp_path), ()) == ("import json",)
    write(tmp_path, {"code_x/__init__.py": "import os\nos.putenv('A', '1')"})
    assert preload.plan(source, str(tmp_path), ()) == ()
    assert preload.plan_of_module(source, str(tmp_path)) == ()


def test_extra_modules_are_last_unless_they_are_there_in_any_form(tmp_path: Path) -> None:
    write(tmp_path, {"program.py": "import json.decoder\nfrom xml import dom\nfrom re import sub"})
    extra = ("json", "json.decoder", "xml.dom", "re", "struct", "struct", "json.encoder", "re.sub")
    steps = preload.plan(str(tmp_path / "program.py"), str(tmp_path), extra)
    assert steps[3:] == ("import struct", "import json.encoder")


def test_a_file_that_is_imported_is_not_the_program(tmp_path: Path) -> None:
    text = "import re\nif __name__ == '__main__':\n    import json\nimport struct"
    write(tmp_path, {**TREE, "program.py": text, "pack/work.py": f"from . import other\n{text}"})
    folder = str(tmp_path)
    begin = ("import string", "import struct", "from textwrap import dedent")
    assert preload.plan_of_module(f"{folder}/program.py", folder) == ("import re", "import struct")
    assert preload.plan_of_module(f"{folder}/pack/work.py", folder) == (*begin, "import re")
    assert preload.plan_of_module(f"{folder}/pack/__init__.py", folder) == ("import string",)


# Limits.


def test_a_large_tree_is_read_up_to_a_limit(tmp_path: Path) -> None:
    half = "#" * (program_prefix.OWN_TREE_LIMIT // 2)
    files = {f"big_{n}.py": f"{half}\nimport {name}\n" for n, name in enumerate(("re", "json"))}
    assert steps_of(tmp_path, "import big_0\nimport big_1", **files) == ("import re",)


def test_a_large_program_is_not_read(tmp_path: Path) -> None:
    text = f"import re\n#{'#' * program_prefix.SOURCE_LIMIT}"
    assert steps_of(tmp_path, text) == ()


def test_many_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    files = {f"small_{n}.py": "" for n in range(program_prefix.OWN_FILES_LIMIT + 1)}
    text = "\n".join(f"import small_{n}" for n in range(program_prefix.OWN_FILES_LIMIT + 1))
    assert steps_of(tmp_path, f"import re\n{text}\nimport json", **files) == ("import re",)


LARGE = {
    "deep": "import re\nx = " + "-" * 5000 + "1\nimport json",
    "deep attributes": "import re\nx = re" + ".a" * 5000 + "\nimport json",
    "many turns": "import re\n" + "".join(
        f"{' ' * n}for x{n} in range(60):\n" for n in range(8)) + "         y = 1\nimport json",
    "large number": "import re\nx = 9**9**9\ny = 10 ** 100000000\nimport json",
    "large text": "import re\nx = 'x' * 10**12\nz = '%999999999d' % 1\nimport json",
    "wide text": "import re\nx = f'{1:999999999}'\ny = '{:999999999}'.format(1)\nimport json",
    "text that doubles": "import re\nx = 'x'\n" + "x = x + x\n" * 60 + "import json",
    "a list of itself": "import re\nx = []\nx = [x, x]\n" + "x = (x, x)\n" * 60 + "import json",
    "a null": "import re\n\0",
    "no text": "\xff\xfe",
}  # fmt: skip


@pytest.mark.parametrize("what", LARGE)
def test_what_is_large_or_strange_is_no_trouble(tmp_path: Path, what: str) -> None:
    (tmp_path / "program.py").write_bytes(LARGE[what].encode("latin-1"))
    steps = preload.plan(str(tmp_path / "program.py"), str(tmp_path), ("struct",))
    assert steps[-1] == "import struct"
    assert steps[:-1] in [(), ("import re",), ("import re", "import json")]


@pytest.mark.parametrize("name", ["missing.py", ".", "fifo"])
def test_what_is_no_file_has_no_plan(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert preload.plan(str(tmp_path / name), str(tmp_path), ()) == ()


SAMPLE = (
    "argparse", "asyncio", "concurrent.futures.process", "csv", "dataclasses", "doctest",
    "email.message", "ftplib", "http.client", "http.server", "inspect", "logging.handlers",
    "multiprocessing.pool", "optparse", "pdb", "pickle", "platform", "random", "shutil",
    "smtplib", "socketserver", "ssl", "statistics", "subprocess", "tarfile", "tempfile",
    "trace", "unittest.mock", "urllib.request", "uuid", "xml.sax.saxutils", "zipfile",
)  # fmt: skip


def test_what_is_planned_is_what_is_imported() -> None:
    """Of some modules that do this and that when imported."""
    folder = sysconfig.get_paths()["stdlib"]
    count = 0
    for name in SAMPLE:
        path = preload.module_source(name, folder) or f"{folder}/{name.replace('.', '/')}.py"
        if "__main__" in path:
            path = path.replace("__main__", "__init__")
        steps = preload.plan_of_module(path, folder)
        planned = {step.split()[1] for step in steps}
        command = [sys.executable, "-I", "-S", "-c", f"import sys, {name}\nprint(*sys.modules)"]
        loaded = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
        assert planned <= set(loaded), name
        count += len(steps)
    assert count > 5 * len(SAMPLE)


@pytest.mark.thorough
def test_every_file_of_the_standard_library_is_read_without_an_error() -> None:
    """Nothing but the three ways to end comes out, whatever the file."""
    from holdfast.processes.zygote.program_prefix import Absent, EndOfReading, Reader

    folder = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(folder.glob("*.py")):
        try:
            preload.read_from_the_top(Reader(None), str(path), None, "__main__")
        except (EndOfReading, Absent, RecursionError):
            continue
