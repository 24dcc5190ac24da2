"""What a program does works in the same way: processes, threads, modules, streams, ranks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .conftest import Each, Program, Same

PROGRAMS = Path(__file__).parent / "programs"
BESIDE = {
    "queue_of_mine.py": "NAME = __name__\n",
    "rank_at_import.py": "import os\nRANK = os.environ.get('RANK', '0')\n",
    "other.py": "told = [__name__, __file__]\n",
}


def observations(name: str) -> list[str]:
    """The names in a program's list of what it looks at, which is not imported to be read."""
    for statement in ast.parse((PROGRAMS / name).read_bytes()).body:
        if (
            isinstance(statement, ast.Assign)
            and ast.unparse(statement.targets[0]) == "OBSERVATIONS"
        ):
            assert isinstance(statement.value, ast.List)
            return [ast.unparse(element) for element in statement.value.elts]
    raise AssertionError(f"{name} does not say what it looks at")


@pytest.fixture(scope="module")
def busy(shared_program: Program) -> Each:
    shared_program.write({"busy.py": (PROGRAMS / "busy.py").read_text(), **BESIDE})
    each = shared_program.each("busy.py")
    assert all(run.saw for run in each.values()), {how: run.stderr for how, run in each.items()}
    return each


@pytest.mark.parametrize("what", observations("busy.py"))
def test_what_a_program_does_has_the_same_result(busy: Each, what: str) -> None:
    warm, cold, plain = (busy[how].saw[0][what] for how in ("warm", "cold", "plain"))
    assert warm == cold == plain


def test_a_busy_program_writes_the_same(busy: Each) -> None:
    assert busy["warm"].ending == busy["cold"].ending == busy["plain"].ending


SCRIPTS = {
    "exit handlers run in their order, without the name of the file": """
        import atexit
        import logging
        atexit.register(print, 'first')
        atexit.register(lambda: print('second', '__file__' in globals(), __name__))
        atexit.register(lambda: 1 / 0)
        """,
    "exit handlers run after an error": """
        import atexit
        import sys
        def last():
            names = sorted(name for name in vars(sys) if name.startswith('last'))
            print('last', names, sys.last_value, sys.last_traceback.tb_frame.f_code.co_filename)
            print('__file__' in globals())
        atexit.register(last)
        raise ValueError('text')
        """,
    "exit handlers run after an exit": """
        import atexit
        atexit.register(lambda: print('__file__' in globals()))
        raise SystemExit(3)
        """,
    "a thread is waited for, a daemon is not": """
        import atexit
        import threading
        def work():
            threading.main_thread().join()
            print('worked', threading.main_thread().is_alive())
        def forever():
            threading.Event().wait()
        threading.Thread(target=work).start()
        threading.Thread(target=forever, daemon=True).start()
        atexit.register(print, 'exit')
        print('end')
        """,
    "the command line is still shown when only a thread is left": """
        import ctypes
        import gc
        import threading
        def look():
            threading.main_thread().join()
            filling = [bytes(size) for size in range(2000)]
            with open('/proc/self/cmdline', 'rb') as file:
                print(file.read(), len(filling))
        threading.Thread(target=look).start()
        """,
    "a deprecation in the program is shown once": """
        import warnings
        for _ in range(2):
            warnings.warn('old', DeprecationWarning)
        warnings.warn('other', UserWarning)
        def call():
            warnings.warn('caller', DeprecationWarning, stacklevel=2)
        call()
        """,
    "a deprecation in another module is not": """
        import loud
        loud.warn()
        """,
    "a resource that is not closed is not mentioned": """
        import socket
        open(__file__)
        """,
    "objects are finalized": """
        import weakref
        class Thing:
            def __init__(self, name):
                self.name, self.itself = name, self
            def __del__(self):
                print('gone', self.name)
        thing, other = Thing('first'), Thing('second')
        weakref.finalize(thing, print, 'finalized')
        del other
        def function():
            return thing
        """,
    "the debugger reads standard input": """
        x = 1
        breakpoint()
        print('after')
        """,
    "a request reads standard input": """
        import sys
        print(input('name? '))
        print(repr(sys.stdin.readline()), repr(sys.stdin.buffer.read()))
        """,
    "the C library writes in order": """
        import ctypes
        libc = ctypes.CDLL(None)
        print('one')
        libc.printf(b'two\\n')
        print('three')
        libc.puts(b'four')
        """,
    "partial lines and bytes go out at once": """
        import os
        import sys
        sys.stdout.write('a')
        os.write(1, b'b')
        sys.stdout.buffer.write(b'c')
        sys.stderr.write('d\\udc80')
        os._exit(0)
        """,
    "replaced streams": """
        import io
        import sys
        sys.stdout = io.StringIO()
        print('lost')
        sys.stdout = sys.__stdout__
        print('kept')
        sys.stdout.reconfigure(line_buffering=True, encoding='ascii', errors='replace')
        print('\\u20ac')
        """,
    "closed streams": """
        import sys
        print('one')
        sys.stdout.close()
        """,
}


@pytest.mark.thorough(
    but=(
        "the C library writes in order",
        "exit handlers run after an error",
        "objects are finalized",
        "replaced streams",
        "a request reads standard input",
    )
)
@pytest.mark.parametrize("what", SCRIPTS)
def test_programs_write_the_same(same: Same, what: str) -> None:
    loud = "import warnings\ndef warn():\n    warnings.warn('old', DeprecationWarning)\n"
    files = {"program.py": SCRIPTS[what], "loud.py": loud}
    same("program.py", files=files, stdin=b"p x\nc\nlast\n")


SETTINGS = {
    "of paths and words": {
        "PYTHONWARNINGS": "error",
        "PYTHONHASHSEED": "7",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONIOENCODING": "latin-1:replace",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": "/tmp",
        "TZ": "Asia/Tokyo",
    },
    "of developers": {"PYTHONDEVMODE": "1", "PYTHONUTF8": "1"},
    "of the rest": {
        "PYTHONOPTIMIZE": "2",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONMALLOC": "debug",
        "LC_ALL": "C",
    },
}
"""Several at once, none of which hides what another one does."""
LOOK = """
    import os, sys, time, warnings, faulthandler, json
    print(sys.flags, sys.warnoptions, sys.path, sys.dont_write_bytecode)
    print(hash('text') if 'PYTHONHASHSEED' in os.environ else 'by chance')
    print([str(entry) for entry in warnings.filters], time.tzname)
    print('PYTHONFAULTHANDLER' not in os.environ or faulthandler.is_enabled())
    print([(s.encoding, s.errors) for s in (sys.stdin, sys.stdout, sys.stderr)], __debug__)
    print(sys.getfilesystemencoding(), os.environ.get('PYTHONPATH'))
    warnings.warn('text')
    """


@pytest.mark.thorough(but=("PYTHONWARNINGS", "PYTHONPATH", "PYTHONHASHSEED", "PYTHONOPTIMIZE"))
@pytest.mark.parametrize("which", SETTINGS)
def test_settings_of_the_interpreter_are_respected(same: Same, which: str) -> None:
    same("program.py", files={"program.py": LOOK}, env=SETTINGS[which])


def test_below_the_program_there_are_two_frames_of_ours(program: Program) -> None:
    """The one difference that a program can see on its stack."""
    text = """
        import sys
        frame = sys._getframe()
        while frame:
            print(frame.f_code.co_filename)
            frame = frame.f_back
        """
    each = program.write({"program.py": text}).each("program.py")
    plain, cold = each["plain"].stdout.decode(), each["cold"].stdout.decode()
    assert plain == cold == f"{program.folder}/program.py\n"
    own, *ours = each["warm"].stdout.decode().split()
    assert own == plain.strip()
    assert [Path(name).name for name in ours] == ["run_as_main.py", "zygote.py"]
