"""The hook of cold workers, with real interpreters: the same program with and without it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.processes.failures import HOOK_DIRECTORY, hook_environment

OLDEST, NEWEST = 8, 15
WHAT_A_SCRIPT_SEES = """
import os, subprocess, sys
print(sys.path)
print(sorted(os.environ.items()))
print(sys.modules.get("sitecustomize"), sys.modules.get("usercustomize"))
print(sys.excepthook is sys.__excepthook__, sys.argv, sys.flags)
print([entry for entry in sys.path_importer_cache if "hook" in entry])
code = "import os, sys; print(sys.path, sorted(os.environ.items()), 'sitecustomize' in sys.modules)"
print(subprocess.check_output([sys.executable, "-c", code]).decode())
print(sorted(subprocess.check_output(["env"]).splitlines()))
"""


def interpreters() -> list[str]:
    """This Python, and whichever others are on the path and run."""
    found = {f"python3.{minor}" for minor in range(OLDEST, NEWEST)}
    found.discard(f"python3.{sys.version_info.minor}")
    return [sys.executable, *sorted(filter(_runs, found))]


def _runs(name: str) -> bool:
    path = shutil.which(name)
    if path is None:
        return False
    return subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0


@pytest.fixture(params=interpreters())
def interpreter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Seen(NamedTuple):
    """All that a run shows to the world."""

    status: int
    stdout: bytes
    stderr: bytes


def _without_addresses(text: bytes) -> bytes:
    """The kernel gives each process other addresses, which some messages show."""
    return re.sub(rb"\b0x[0-9a-f]{6,}", b"0x...", text)


class Runner:
    """Runs programs with one interpreter, in one directory."""

    def __init__(self, directory: Path, interpreter: str) -> None:
        self.directory = directory
        self.interpreter = interpreter
        self.error_path = directory / "error.json"

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def run(self, *command: str, hooked: bool, environ: Mapping[str, str] | None = None) -> Seen:
        plain = {
            "PATH": os.environ["PATH"],
            "TORCHELASTIC_ERROR_FILE": str(self.error_path),
            **(environ or {}),
        }
        self.error_path.unlink(missing_ok=True)
        done = subprocess.run(
            [self.interpreter, *command],
            env={**plain, **(hook_environment(plain) if hooked else {})},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return Seen(done.returncode, *map(_without_addresses, (done.stdout, done.stderr)))

    def compare(self, *command: str, environ: Mapping[str, str] | None = None) -> Seen:
        """Run with and without the hook; what was left is that of the run with it."""
        without = self.run(*command, hooked=False, environ=environ)
        assert not self.error_path.exists()
        with_hook = self.run(*command, hooked=True, environ=environ)
        assert with_hook == without
        return with_hook

    def left(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.error_path.read_text())["message"]
        return message


@pytest.fixture
def runner(tmp_path: Path, interpreter: str) -> Runner:
    return Runner(tmp_path, interpreter)


# --- nothing is to be seen of it ----------------------------------------------------------


@pytest.mark.parametrize("python_path", [None, "", "/nowhere", "own:", ":own", "/a:/b:own"])
def test_a_script_and_its_children_see_nothing(runner: Runner, python_path: str | None) -> None:
    script = runner.write("script.py", WHAT_A_SCRIPT_SEES)
    environ = {} if python_path is None else {"PYTHONPATH": python_path}
    seen = runner.compare(str(script), "an argument", environ=environ)
    assert seen.status == 0
    assert seen.stderr == b""
    assert b"HOLDFAST" not in seen.stdout
    assert not runner.error_path.exists()


def test_a_module_sees_nothing(runner: Runner) -> None:
    runner.write("module.py", WHAT_A_SCRIPT_SEES)
    assert runner.compare("-m", "module", environ={"PYTHONPATH": "x"}).status == 0


def test_the_hook_did_run_in_these_tests(runner: Runner) -> None:
    code = "import sys; print(sys.excepthook.__qualname__)"
    assert runner.run("-c", code, hooked=True).stdout == b"Witness.excepthook\n"
    assert runner.run("-c", code, hooked=False).stdout == b"excepthook\n"


def test_nothing_is_loaded_from_a_file_for_it(runner: Runner) -> None:
    code = "import sys; print(sorted(set(sys.modules) - set(sys.builtin_module_names)))"
    runner.compare("-c", code)


def test_the_users_own_customisation_runs_and_stays(runner: Runner) -> None:
    runner.write("own/sitecustomize.py", "print('mine', __name__, __file__)\nMARK = 7\n")
    code = "import sys, sitecustomize; print(sitecustomize.MARK, sys.modules['sitecustomize'])"
    seen = runner.compare("-c", code, environ={"PYTHONPATH": str(runner.directory / "own")})
    assert seen.stdout.startswith(b"mine sitecustomize ")
    assert b"\n7 <module 'sitecustomize' from" in seen.stdout


@pytest.mark.parametrize("text", ["1 / 0", "import there_is_no_such_module", "def broken("])
def test_a_broken_customisation_of_the_users_breaks_in_the_same_way(
    runner: Runner, text: str
) -> None:
    runner.write("own/sitecustomize.py", text)
    runner.compare("-c", "print('on')", environ={"PYTHONPATH": str(runner.directory / "own")})


def test_a_hook_that_the_users_customisation_puts_in_is_called(runner: Runner) -> None:
    text = "import sys\nsys.excepthook = lambda *a: print('caught', a[1], file=sys.stderr)\n"
    runner.write("own/sitecustomize.py", text)
    seen = runner.compare("-c", "1 / 0", environ={"PYTHONPATH": str(runner.directory / "own")})
    assert seen.stderr == b"caught division by zero\n"
    assert runner.left()["message"] == "ZeroDivisionError: division by zero"


def test_without_a_file_to_write_nothing_is_installed(runner: Runner) -> None:
    code = "import sys; print(sys.excepthook is sys.__excepthook__, sys.excepthook)"
    environ = {"TORCHELASTIC_ERROR_FILE": ""}
    assert b"built-in function" in runner.compare("-c", code, environ=environ).stdout


def test_a_directory_that_was_left_on_the_path_does_nothing(runner: Runner) -> None:
    seen = runner.run("-c", "1 / 0", hooked=False, environ={"PYTHONPATH": HOOK_DIRECTORY})
    assert seen == runner.run("-c", "1 / 0", hooked=False)
    assert not runner.error_path.exists()


# --- what ends a worker is written down ----------------------------------------------------


def test_an_exception_leaves_what_was_printed(runner: Runner) -> None:
    script = runner.write(
        "script.py",
        "def f():\n    try:\n        {}['key']\n    except KeyError as error:\n"
        "        raise ValueError('bad \\u00e9') from error\nf()\n",
    )
    seen = runner.compare(str(script), environ={"PYTHONIOENCODING": "utf-8"})
    assert seen.status == 1
    assert runner.left()["message"] == "ValueError: bad é"
    assert b"direct cause" in seen.stderr
    assert runner.left()["extraInfo"]["py_callstack"] == seen.stderr.decode()


def test_an_exception_of_a_module_is_left(runner: Runner) -> None:
    runner.write("module.py", "import os\nos.stat('/no/such/file')\n")
    seen = runner.compare("-m", "module")
    assert seen.status == 1
    assert runner.left()["message"].startswith("FileNotFoundError: ")
    assert runner.left()["extraInfo"]["py_callstack"] == seen.stderr.decode()


def test_a_script_that_cannot_be_compiled_is_left(runner: Runner) -> None:
    script = runner.write("script.py", "print('never')\nif True\n    pass\n")
    seen = runner.compare(str(script))
    assert (seen.status, seen.stdout) == (1, b"")
    assert runner.left()["message"].startswith("SyntaxError: ")
    assert runner.left()["extraInfo"]["py_callstack"] == seen.stderr.decode()


def test_an_interrupt_ends_by_the_signal_and_leaves_nothing(runner: Runner) -> None:
    code = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    seen = runner.compare(str(runner.write("script.py", code)))
    assert seen.status == -2
    assert seen.stderr.endswith(b"KeyboardInterrupt\n")
    assert not runner.error_path.exists()


@pytest.mark.parametrize(
    ("code", "status"), [("0", 0), ("None", 0), ("3", 3), ("'text'", 1), ("['a', 1]", 1)]
)
def test_an_exit_leaves_nothing(runner: Runner, code: str, status: int) -> None:
    assert runner.compare("-c", f"import sys; sys.exit({code})").status == status
    assert not runner.error_path.exists()


def test_what_will_not_get_better_is_marked(runner: Runner) -> None:
    runner.compare("-c", "class No(Exception): non_retryable = True\nraise No('x')")
    assert runner.left()["extraInfo"]["non_retryable"] is True


def test_what_was_left_before_stays(runner: Runner) -> None:
    code = "import os; open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('{}'); 1 / 0"
    runner.run("-c", code, hooked=True)
    assert runner.error_path.read_text() == "{}"


def test_an_exception_in_a_thread_is_not_what_ended_the_worker(runner: Runner) -> None:
    code = (
        "import sys, threading\n"
        "def f():\n    try:\n        1 / 0\n"
        "    except Exception:\n        sys.excepthook(*sys.exc_info())\n        raise\n"
        "t = threading.Thread(target=f, name='t')\nt.start()\nt.join()\nsys.exit(4)\n"
    )
    assert runner.compare(str(runner.write("script.py", code))).status == 4
    assert not runner.error_path.exists()


def test_an_exception_in_a_forked_child_is_not_what_ended_the_worker(runner: Runner) -> None:
    code = (
        "import os, sys\nchild = os.fork()\nif not child:\n    raise ValueError('child')\n"
        "print(os.waitpid(child, 0)[1])\nsys.exit(4)\n"
    )
    seen = runner.compare(str(runner.write("script.py", code)))
    assert (seen.status, seen.stdout) == (4, b"256\n")
    assert b"ValueError: child" in seen.stderr
    assert not runner.error_path.exists()


def test_the_last_exception_that_was_printed_counts(runner: Runner) -> None:
    code = (
        "import sys\ntry:\n    1 / 0\nexcept Exception:\n    sys.excepthook(*sys.exc_info())\n"
        "raise ValueError('the real one')\n"
    )
    runner.compare(str(runner.write("script.py", code)))
    assert runner.left()["message"] == "ValueError: the real one"


def test_a_script_that_replaces_the_hook_still_leaves_its_error(runner: Runner) -> None:
    code = "import sys\nsys.excepthook = lambda *a: print('own way')\n1 / 0\n"
    seen = runner.compare(str(runner.write("script.py", code)))
    assert (seen.status, seen.stdout, seen.stderr) == (1, b"own way\n", b"")
    assert runner.left()["message"] == "ZeroDivisionError: division by zero"


def test_a_script_that_empties_its_environment_still_leaves_its_error(runner: Runner) -> None:
    runner.compare("-c", "import os; os.environ.clear(); 1 / 0")
    assert runner.left()["message"] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError('x' * 1000000)",
        "def f(): f()\nf()",
        "class E(Exception):\n    def __str__(self): raise KeyError\nraise E",
        "import sys; sys.stderr = None; 1 / 0",
        "import os, sys; os.close(2); 1 / 0",
        "import sys; sys.modules['json'] = None; 1 / 0",
        "import sys; sys.modules['traceback'] = None; 1 / 0",
        "import os; os.chdir('/'); 1 / 0",
        "import atexit; atexit.register(lambda: 1 / 0)",
        "import sys; del sys.excepthook; 1 / 0",
    ],
)
def test_odd_ends_look_the_same(runner: Runner, code: str) -> None:
    runner.compare("-c", code)


def test_a_place_that_cannot_be_written_is_not_mentioned(runner: Runner) -> None:
    runner.write("file", "")
    environ = {"TORCHELASTIC_ERROR_FILE": str(runner.directory / "file" / "error.json")}
    assert runner.compare("-c", "1 / 0", environ=environ).status == 1


def test_processes_of_the_multiprocessing_module_see_nothing(runner: Runner) -> None:
    script = runner.write(
        "script.py",
        "import multiprocessing, os, sys\n"
        "def show():\n"
        "    print(sys.path, sorted(os.environ.items()), flush=True)\n"
        "    raise ValueError('child')\n"
        "if __name__ == '__main__':\n"
        "    for method in ('spawn', 'fork', 'forkserver'):\n"
        "        process = multiprocessing.get_context(method).Process(target=show, name='p')\n"
        "        process.start()\n"
        "        process.join()\n"
        "        print(process.exitcode, flush=True)\n",
    )
    assert runner.compare(str(script)).stdout.count(b"\n1\n") == 3
    assert not runner.error_path.exists()


def test_an_agent_whose_path_cannot_be_named_sets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.processes.failures.HOOK_DIRECTORY", "/odd:place/hook")
    assert hook_environment({"PYTHONPATH": "x"}) == {}
