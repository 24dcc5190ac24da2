"""What an import changes outside of modules is seen, and so is what a program has set before.

All in one interpreter of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

FINDER = "type('Finder', (), {'find_spec': lambda *_: None})()"
CHANGES = {
    "the signal handlers": "import signal; signal.signal(40, lambda *_: None)",
    "sys.excepthook": "sys.excepthook = print",
    "sys.displayhook": "sys.displayhook = print",
    "sys.unraisablehook": "sys.unraisablehook = print",
    "sys.breakpointhook": "sys.breakpointhook = print",
    "sys.path_hooks": "sys.path_hooks.append(print)",
    "the standard streams": "import io; sys.stdin = io.StringIO()",
    "the trace and profile functions": "sys.setprofile(lambda *_: None)",
    "the recursion limit": "sys.setrecursionlimit(1234)",
    "the switch interval": "sys.setswitchinterval(0.5)",
    "the limit of digits": "sys.set_int_max_str_digits(0)",
    "the built-in names": "import builtins; builtins.print = repr",
    "the garbage collection": "import gc; gc.disable()",
    "the working directory": "import os; os.chdir('/')",
    "the umask": "import os; os.umask(0o77)",
    "the priority": "import os; os.nice(1)",
    "the time zone": "import os, time; os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()",
    "the timeout of sockets": "import socket; socket.setdefaulttimeout(7)",
    "the precision of decimal": "import decimal; decimal.getcontext().prec = 7",
    "the start method": "import multiprocessing; multiprocessing.set_start_method('spawn')",
    "the root logger": "logging.root.addHandler(logging.NullHandler())",
    "how loggers are made": "logging.setLoggerClass(type('Own', (logging.Logger,), {}))",
    "what is logged at all": "logging.disable(10)",
    "how warnings are shown": "import warnings; warnings.showwarning = print",
    "threading.excepthook": "import threading; threading.excepthook = print",
    "the locale": "locale.setlocale(locale.LC_ALL, 'C.UTF-8')",
    "the numbers of random": "random.random()",
    "sys.path": "sys.path.append('/a')",
    "sys.meta_path": f"sys.meta_path.insert(0, {FINDER})",
    "the filters of warnings": "import warnings; warnings.resetwarnings()",
}
"""What has its time, with what changes it."""
SETTINGS = {
    "VARIABLE": "import os; os.environ['VARIABLE'] = 'x'",
    "HOME": "import os; del os.environ['HOME']",
    "logger a.b": "logging.getLogger('a.b').setLevel(10)",
    "logger a": "logging.getLogger('a').addHandler(logging.NullHandler())",
    "logger root": "logging.basicConfig()",
    "loggers that were there are disabled": "logging.getLogger('a.b').disabled = True",
    "filter error Warning (None) (None 0)": "import warnings; warnings.simplefilter('error')",
    "": f"import warnings; warnings.simplefilter('ignore'); sys.meta_path.append({FINDER})",
}
"""What a program may set before an import that does so too; no name: in any order."""
LOOK = """
import json, locale, logging, random, sys
from holdfast.processes.zygote.process_state import State
found = []
for statement in {statements!r}:
    before = State()
    exec(statement)
    found.append([before.broken(), *sorted(before.set_by())])
sys.__stdout__.write(json.dumps(found))
"""


def run(text: str, **values: object) -> str:
    text = text.format(**values)
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={"LC_ALL": "C", "HOME": "/", "PYTHONPATH": str(Path(holdfast.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """What is said to have changed, by what was changed."""
    statements = [*SETTINGS.values(), *CHANGES.values()]
    words = json.loads(run(LOOK, statements=statements))
    return dict(zip([*SETTINGS, *CHANGES], words, strict=True))


@pytest.mark.parametrize("what", CHANGES)
def test_what_has_its_time_is_named(found: dict[str, list[str]], what: str) -> None:
    assert found[what][0] == what


@pytest.mark.parametrize("what", SETTINGS)
def test_what_may_be_set_early_is_told_by_its_name(found: dict[str, list[str]], what: str) -> None:
    assert found[what][1:] == [what] * bool(what)
