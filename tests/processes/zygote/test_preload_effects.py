"""What a program sets before it imports, and what is known of it."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from holdfast.processes import environment
from holdfast.processes.zygote import preload
from holdfast.processes.zygote.module_path import installed_folders

from .plans import TREE, steps_of, write

VARIABLES = {
    "os.environ['A'] = '1'": ["A=1"],
    "os.environ['A'] = 'x=y ? z'": ["A=x=y ? z"],
    "os.environ['A'] = str(4)": ["A=4"],
    "os.environ['A'] = f'{n}-{n + 1}'": ["A=2-3"],
    "os.environ['A'] = CACHE": ["A=/tmp/x"],
    "os.environ['A'] = CACHE + '/y'": ["A=/tmp/x/y"],
    "os.environ['A'] = os.path.join(CACHE, 'y')": ["A=/tmp/x/y"],
    "os.environ['A'] = str(Path(CACHE) / 'y')": ["A=/tmp/x/y"],
    "os.environ['A'] = '1' if n else '2'": ["A=1"],
    "os.environ['A'] = B = '1'; os.environ['C'] = B": ["A=1", "C=1"],
    "environ = os.environ; environ['A'] = '1'": ["A=1"],
    "from os import environ as e; e['A'] = '1'": ["A=1"],
    "os.environ.setdefault('A', '1')": ["A?=1"],
    "os.environ['A'] = '1'; os.environ.setdefault('A', '2')": ["A=1", "A?=2"],
    "del os.environ['A']; os.environ.setdefault('A', '2')": ["-A", "A?=2"],
    "del os.environ['A']": ["-A"],
    "os.environ.pop('A')": ["-A"],
    "x = os.environ.pop('A', None)": ["-A"],
    "if sys.platform == 'linux': os.environ['A'] = '1'": ["A=1"],
    "try:\n import absent_x\nexcept ImportError:\n os.environ['A'] = '1'": ["A=1"],
}
OPENING = """
import os, sys
from pathlib import Path
import settings
class Settings: NAME = 'name'
CACHE = '/tmp/x'
n = 2
items = ['a']
"""
SETTINGS = {"settings.py": "NAME = 'name'"}


@pytest.mark.parametrize("line", VARIABLES)
def test_a_variable_is_a_step(tmp_path: Path, line: str) -> None:
    steps = steps_of(tmp_path, f"{OPENING}{line}\nimport json", **SETTINGS)
    begin = ("import os", "from pathlib import Path")
    assert steps[:2] == begin
    taken = [step for step in steps[2:] if step != "from os import environ"]
    assert taken == [*(f"environ {each}" for each in VARIABLES[line]), "import json"]


NO_VARIABLES = r"""
os.environ['A'] = '%s/%d' % (CACHE, n)
os.environ['A'] = '{}/{}'.format(CACHE, n)
os.environ['A'] = ','.join(['a', 'b']).upper()
os.environ['A'] = settings.NAME
os.environ['A'] = Settings.NAME
a, b = '1', '2'; os.environ['A'] = b
os.environ['A'] = '1'; os.environ['B'] = os.environ['A']
os.environ['A'] = '1'; os.environ['B'] = os.environ.get('A', '2')
os.environ.pop('A', None); os.environ['B'] = os.getenv('A', '2')
os.environ.update({'A': '1', 'B': CACHE}, C='3')
for a in ('A', 'B'): os.environ[a] = a.lower()
os.environ['A'] = 1
os.environ['A'] = b'1'
os.environ[n] = '1'
os.environ['A='] = '1'
os.environ['A?'] = '1'
os.environ['-A'] = '1'
os.environ[''] = '1'
os.environ['A'] = '\0'
os.environ['A'] = '\ud800'
os.environ['A'] = os.environ['B']
os.environ['A'] = os.environ.get('B', '1')
os.environ['A'] = str(os.getpid())
os.environ['A'] = items[0]
items.append('b'); os.environ['A'] = ','.join(items)
os.environ['A'] = ('x' if os.environ['B'] else 'y')
os.environ['A'] = '2' * 100000
os.environ['A'] = '%5d' % n
os.environ['A'] = '{:5}'.format(n)
os.environ['A'] = f'{n:5}'
os.environ['A'] = str(n ** 3)
os.environ['A'] = str(9000000000000000000 * 9)
os.environ['A'] = '1' if CACHE is n else '2'
os.environ['RANK'] = '1'
os.environ.setdefault('MASTER_ADDR', 'localhost')
del os.environ['LOCAL_RANK']
os.environ.setdefault('A', '1'); os.environ['B'] = os.environ['A']
if os.x: os.environ['A'] = '1'
if 'A' not in os.environ: os.environ['A'] = '1'
if 'A' in os.environ: os.environ['A'] = '1'
x = os.x and os.environ.setdefault('A', '1')
x = [os.environ.setdefault('A', '1') for a in 'AB']
if os.x or os.environ.setdefault('A', '1'): pass
x = os.x and (CACHE := 'y'); os.environ['A'] = CACHE
X = 1\nif os.x: X = True\nos.environ['A'] = str(X)
os.environ['HOME'] = '/x'; os.environ['A'] = str(Path('~').expanduser())
x = lambda: os.environ.pop('A'); x()
os.environ['HOME'] = '/x'; os.environ['A'] = os.path.expanduser('~')
os.environ |= {'A': '1'}
os.environb[b'A'] = b'1'
os.environ = {}
os.environ.update(items)
os.environ['A'] += '1'
class os: environ = {}\nos.environ['A'] = '1'
if os.x: CACHE = 'y'\nos.environ['A'] = CACHE
try:\n import json\n CACHE = 'y'\nexcept ImportError: pass\nos.environ['A'] = CACHE
""".strip().splitlines()


@pytest.mark.parametrize("line", NO_VARIABLES)
def test_a_variable_ends_the_reading_if_it_is_not_a_constant(tmp_path: Path, line: str) -> None:
    text = OPENING + line.replace(r"\n", "\n") + "\nimport decimal"
    steps = steps_of(tmp_path, text, **SETTINGS)
    assert "from pathlib import Path" in steps
    assert "import decimal" not in steps
    assert not any(step.startswith("environ B") for step in steps)


@pytest.mark.parametrize("name", environment.PER_WORKER)
def test_what_is_read_of_a_single_worker_is_not_known(tmp_path: Path, name: str) -> None:
    text = f"import os\nx = int(os.environ.get('{name}', 0))\nif x:\n    y = 1\n"
    assert steps_of(tmp_path, f"{text}import re\nif x: import numpy\nimport json") == (
        "import os",
        "import re",
    )


# Folders.


def test_a_folder_that_is_put_first_or_last_is_a_step(tmp_path: Path) -> None:
    text = """
        import os, sys
        from pathlib import Path
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'elsewhere'))
        sys.path.append(str(Path(__file__).resolve().parent / 'pack'))
        import far, inner_x, re
        """
    steps = steps_of(tmp_path, text, **{"pack/inner_x.py": "import heapq"})
    assert steps == (
        "import os", "from pathlib import Path", f"path 0 {tmp_path}/elsewhere",
        f"path -1 {tmp_path}/pack", "import struct", "import heapq", "import re",
    )  # fmt: skip
    folders = preload.own_folders(steps, str(tmp_path))
    assert folders == (str(tmp_path), f"{tmp_path}/elsewhere", f"{tmp_path}/pack")


def test_what_may_be_loaded_already_or_be_hidden_ends_the_reading(tmp_path: Path) -> None:
    """Another module may have imported the installed one before the folder was added."""
    text = f"import sys\nsys.path.insert(0, '{tmp_path}/elsewhere')\nimport far, json, re"
    assert steps_of(tmp_path, text) == (f"path 0 {tmp_path}/elsewhere", "import struct")


@pytest.mark.parametrize("given", ["", "elsewhere/", "./elsewhere", "{}/elsewhere/"])
def test_a_folder_is_given_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = steps_of(tmp_path, f"import sys\nsys.path.insert(0, '{given.format(tmp_path)}')")
    assert steps == (f"path 0 {tmp_path}{'/elsewhere' if given else ''}",)


def test_what_is_found_last_does_not_hide(tmp_path: Path) -> None:
    text = "import sys\nsys.path.append('elsewhere')\nimport json"
    steps = steps_of(tmp_path, text)
    assert steps == (f"path -1 {os.getcwd()}/elsewhere", "import json")


def test_installed_folders_are_those_that_sysconfig_names() -> None:
    names = ("stdlib", "purelib", "platlib")
    assert {sysconfig.get_paths()[name] for name in names} <= installed_folders()


def test_installed_folders_are_not_the_programs(tmp_path: Path) -> None:
    known = next(folder for folder in installed_folders() if folder.endswith("site-packages"))
    text = f"import sys\nsys.path.insert(0, {known!r})\nimport numpy"
    steps = steps_of(tmp_path, text)
    assert steps == (f"path 0 {known}", "import numpy")
    assert preload.own_folders(steps, str(tmp_path)) == (str(tmp_path),)
    assert preload.own_folders(steps, None) == ()


def test_a_folder_is_added_if_it_is_not_there(tmp_path: Path) -> None:
    text = """
        import sys
        from pathlib import Path
        FILE = Path(__file__).resolve()
        if str(FILE.parent) not in sys.path:
            sys.path.append(str(FILE.parent))
        if str(FILE.parents[1]) not in sys.path:
            sys.path.append(str(FILE.parents[1]))
        if str(FILE.parents[1]) not in sys.path:
            sys.path.append(str(FILE.parents[1]))
        """
    assert steps_of(tmp_path, text)[1:] == (f"path -1 {tmp_path.parent}",)


def test_the_file_of_a_module_is_its_own(tmp_path: Path) -> None:
    write(tmp_path, TREE)
    adding = "import os, sys\nsys.path.append(os.path.dirname(__file__))\n"
    files = {"pack/adding.py": f"{adding}import inner_x", "pack/inner_x.py": "import heapq"}
    steps = steps_of(tmp_path, "import pack.adding", **files)
    assert steps[-2:] == (f"path -1 {tmp_path}/pack", "import heapq")


def test_the_file_of_the_program_is_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"a/program.py": "import os\nos.environ['A'] = __file__"})
    steps = preload.plan("./a/program.py", str(tmp_path / "a"), ())
    assert steps[-1] == f"environ A={tmp_path}/./a/program.py"


NO_FOLDERS = """
sys.path.insert(1, '/x')
sys.path.insert(-1, '/x')
sys.path.insert(0, os.environ['X'])
sys.path.append(Path('/x'))
sys.path.append('/x.zip')
sys.path.extend(['/x'])
sys.path += ['/x']
sys.path = ['/x']
sys.path[0] = '/x'
sys.path[:0] = ['/x']
sys.path.remove('/x')
sys.path.pop(0)
del sys.path[0]
if os.x: sys.path.append('/x')
""".strip().splitlines()


@pytest.mark.parametrize("line", NO_FOLDERS)
def test_any_other_change_of_the_path_ends_the_reading(tmp_path: Path, line: str) -> None:
    steps = steps_of(tmp_path, f"{OPENING}{line}\nimport json", **SETTINGS)
    assert steps == ("import os", "from pathlib import Path")


def test_where_the_path_begins_is_not_known_without_a_folder(tmp_path: Path) -> None:
    write(tmp_path, {"program.py": "import sys\nif '/x' not in sys.path: sys.path.append('/x')\n"})
    assert preload.plan(str(tmp_path / "program.py"), None, ()) == ()
    assert sys.path  # The path of ours is left alone.
