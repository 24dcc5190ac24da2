"""What an import changes outside of modules is seen; and taken back and repeated, or named.

All in one interpreter of its own, which finds these files as the zygote does.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from holdfast.processes import bare, zygote

CHANGES = {
    "the signal handlers": "import signal; signal.signal(40, lambda *_: None)",
    "sys.excepthook": "sys.excepthook = print",
    "sys.displayhook": "sys.displayhook = print",
    "sys.unraisablehook": "sys.unraisablehook = print",
    "sys.breakpointhook": "sys.breakpointhook = print",
    "sys.path_hooks": "sys.path_hooks.append(print)",
    "the standard streams": "import io; sys.stdin = io.StringIO()",
    "who traces or profiles": "sys.setprofile(lambda *_: None)",
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
}
"""What cannot be repeated, with what changes it."""
LOOK = """
import json, locale, logging, random, sys
sys.path[:0] = {folders!r}
from surroundings import State
del sys.path[:{count}]
found = []
for statement in {statements!r}:
    before = State({{}})
    exec(statement)
    found.append(before.unrepeatable(State({{}})))
sys.__stdout__.write(json.dumps(found))
"""
AGAIN = """
import logging, sys
sys.path[:0] = {folders!r}
from surroundings import Change, State
del sys.path[:{count}]
log = logging.getLogger('log')

def look():
    handlers = [type(one).__name__ for one in log.handlers]
    print(log.level, log.propagate, handlers, log.isEnabledFor(30))

log.addHandler(logging.StreamHandler())
before = State({{}})
log.setLevel(40)
log.propagate = False
log.handlers[:] = [logging.NullHandler()]
logging.getLogger('log.new').setLevel(50)
change = Change(before, State({{}}), (b'', b''), [])
look()
before.restore()
look()
print(logging.getLogger('log.new').level)
log.setLevel(10)
log.addHandler(logging.Handler())
change.repeat()
look()
print(logging.getLogger('log.new').level)
"""


def run(text: str, **values: object) -> str:
    folders = [*zygote.__path__, *bare.__path__]
    text = text.format(folders=folders, count=len(folders), **values)
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={"LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """What is said to have changed, by what was changed."""
    words = json.loads(run(LOOK, statements=list(CHANGES.values())))
    return dict(zip(CHANGES, words, strict=True))


@pytest.mark.parametrize("what", CHANGES)
def test_what_cannot_be_repeated_is_named(found: dict[str, str], what: str) -> None:
    assert found[what] == what


def test_loggers_are_set_back_and_changed_again() -> None:
    """Whatever the program does to them in between: the import comes after it."""
    assert run(AGAIN).splitlines() == [
        "40 False ['NullHandler'] False",
        "0 True ['StreamHandler'] True",
        "0",
        "40 False ['Handler', 'NullHandler'] False",
        "50",
    ]
