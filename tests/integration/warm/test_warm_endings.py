"""However a program ends, the onlooker sees the same: status, stdout and stderr, byte by byte."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Same

EXITS = {
    "at the end": ("print('done')", 0),
    "empty": ("", 0),
    "with a number": ("import sys; print('out'); sys.exit(3)", 3),
    "with a text": ("import sys; sys.exit('a text')", 1),
    "with None": ("import sys; sys.exit(None)", 0),
    "with an object": ("import sys; sys.exit([1, 2])", 1),
    "at once": ("import os; print('out'); os._exit(7)", 7),
    "by SIGTERM": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
    "by SIGKILL": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
    "by an abort": ("import os; os.abort()", -6),
    "by an interrupt": ("import os, signal, time; os.kill(os.getpid(), signal.SIGINT)", -2),
    "by a broken pipe": ("import signal, os; signal.raise_signal(signal.SIGPIPE)", 0),
}
ERRORS = {
    "plain": """
        def inner(value):
            return {'a': value}['b']
        def outer():
            inner(1) + inner(2)
        outer()
        """,
    "with a cause": """
        try:
            int('x')
        except ValueError as error:
            raise RuntimeError('outer') from error
        """,
    "with a context": """
        try:
            {}['a']
        except KeyError:
            open('/nonexistent/file')
        """,
    "without its context": """
        try:
            {}['a']
        except KeyError:
            raise RuntimeError('outer') from None
        """,
    "of a group": """
        def fail(number):
            raise ValueError(number)
        errors = []
        for number in (1, 2):
            try:
                fail(number)
            except ValueError as error:
                errors.append(error)
        raise ExceptionGroup('both', [*errors, ExceptionGroup('deep', [TypeError('t')])])
        """,
    "with notes": """
        error = ValueError('text')
        error.add_note('a note')
        raise error
        """,
    "of an assertion": "x = 1\nassert x == 2, 'no'",
    "interrupting": "raise KeyboardInterrupt('text')",
    "below Exception": "class Own(BaseException): pass\nraise Own('text')",
    "in code that has no file": "exec(compile('1/0', '<made up>', 'exec'))",
    "that cannot be printed": """
        class Own(Exception):
            def __str__(self):
                raise ValueError
        raise Own
        """,
    "in a loop": "import runpy; runpy.run_path('other.py')",
    "in an own module": "import own; own.call()",
    "while an own module is imported": "import broken",
    "in the syntax of an own module": "import crooked",
    "of a missing module": "import is_nowhere_to_be_found",
    "of a missing name": "import os\nos.pth",
    "by an own hook": """
        import sys
        def hook(kind, value, trace):
            depth = 0
            while trace:
                print('frame', trace.tb_frame.f_code.co_filename, trace.tb_lineno)
                trace = trace.tb_next
            print('hook', kind, value, value.__traceback__ is sys.last_traceback)
        sys.excepthook = hook
        def fail():
            raise ValueError('text')
        fail()
        """,
    "in a thread": """
        import threading
        def fail():
            raise ValueError('text')
        thread = threading.Thread(target=fail, name='own')
        thread.start()
        thread.join()
        """,
    "in a finalizer": """
        class Own:
            def __del__(self):
                raise ValueError('text')
        Own()
        """,
}
MODULES = {
    "own.py": "def call():\n    raise ValueError('text')\n",
    "broken.py": "import own\nown.call()\n",
    "crooked.py": "def (:\n",
    "other.py": "print(__name__)\n1/0\n",
    "package/__init__.py": "",
    "package/__main__.py": "import own\nown.call()\n",
    "package/inner.py": "from . import absent\n",
    "broken_package/__init__.py": "1/0\n",
    "broken_package/inner.py": "",
}
SYNTAX = {
    "a bracket": b"print('one'\nprint('two')\n",
    "an indentation": b"if True:\nprint('x')\n",
    "tabs and blanks": b"if True:\n        a = 1\n\tb = 2\n",
    "a keyword": b"x = 1\nreturn x\n",
    "a string": b"x = 'text\n",
    "bytes that are no UTF-8": b"# \xe9\nx = 1\n",
    "an unknown encoding": b"# -*- coding: nonsense -*-\n",
    "a null byte": b"x = 1\0\n",
    "a warning before the error": b"print('\\d')\nx = (\n",
}
SOURCES = {
    "in Latin-1": b"# -*- coding: latin-1 -*-\nprint(ascii('\xe9'), len('\xe9'))\n",
    "with a byte order mark": b"\xef\xbb\xbfprint(ascii('\xc3\xa9'))\n",
    "with CRLF": b"print('one')\r\nprint('''a\r\nb'''.encode())\r\n",
    "without a last newline": b"print('one')",
    "with a shebang": b"#!/usr/bin/env python\nprint('one')\n",
    "of blanks": b"  \n\n#\n",
    "that warns": b"print(1 is 1, '\\d')\n",
}


MORE_OF_THE_SAME = {
    "empty", "with None", "with an object", "by SIGKILL",
    "with a context", "without its context", "of a group", "with notes", "of an assertion",
    "below Exception", "that cannot be printed", "of a missing module", "of a missing name",
    "in the syntax of an own module", "in a finalizer",
}  # fmt: skip
"""Python itself prints it or ends by it, in the way that another of them shows."""


def each_of(ways: dict[str, Any]) -> list[Any]:
    marks = {way: [pytest.mark.thorough] * (way in MORE_OF_THE_SAME) for way in ways}
    return [pytest.param(way, marks=marks[way]) for way in ways]


@pytest.mark.thorough(but=("with a number", "by SIGKILL", "by SIGTERM", "at the end"))
@pytest.mark.parametrize("how", each_of(EXITS))
def test_exits_are_the_same(same: Same, how: str) -> None:
    text, status = EXITS[how]
    assert same("program.py", files={"program.py": text}).status == status


@pytest.mark.thorough(
    but=(
        "plain",
        "in an own module",
        "while an own module is imported",
        "in a thread",
        "interrupting",
        "by an own hook",
    )
)
@pytest.mark.parametrize("what", each_of(ERRORS))
def test_errors_are_shown_in_the_same_way(same: Same, what: str) -> None:
    same("program.py", files={**MODULES, "program.py": ERRORS[what]})


@pytest.mark.parametrize("module", ["own_main", "package", "package.inner", "broken_package.inner"])
@pytest.mark.thorough
def test_errors_of_modules_are_shown_in_the_same_way(same: Same, module: str) -> None:
    files = {**MODULES, "own_main.py": "import own\nown.call()\n"}
    assert b"Traceback" in same("-m", module, files=files).stderr


def test_a_missing_module_is_reported_in_the_same_way(same: Same) -> None:
    files = {"there.py": "import absent"}
    assert b"No module named 'absent'" in same("-m", "there", files=files).stderr


@pytest.mark.parametrize("what", SYNTAX)
@pytest.mark.thorough
def test_errors_of_syntax_are_shown_in_the_same_way(same: Same, what: str) -> None:
    assert b"SyntaxError" in same("program.py", files={"program.py": SYNTAX[what]}).stderr.replace(
        b"IndentationError", b"SyntaxError"
    ).replace(b"TabError", b"SyntaxError")


@pytest.mark.parametrize("what", SOURCES)
@pytest.mark.thorough
def test_source_is_read_in_the_same_way(same: Same, what: str) -> None:
    assert same("program.py", files={"program.py": SOURCES[what]}).status == 0
