"""What is preloaded behaves as if each worker had imported it; what cannot is left out.

The modules under test lie in a folder on PYTHONPATH and are asked for with `--preload`.
"""

from __future__ import annotations

import os

import pytest

DEVICES = ("/dev/fuse", "/dev/kmsg", "/dev/net/tun", "/dev/loop-control", "/dev/vda", "/dev/sda")

UNFIT = {
    "a thread": (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
        "it leaves a thread running when imported",
    ),
    "a child": (
        "import subprocess\nchild = subprocess.Popen(['sleep', '100'], stdout=subprocess.DEVNULL)",
        "it leaves a child process behind when imported",
    ),
    "a file": ("file = open(__file__)", "it opens {library}/unfit.py when imported"),
    "a socket": ("import socket\nends = socket.socketpair()", "it opens socket:["),
    "an error": (
        "import sys\nif 'zygote' in sys.orig_argv[2]:\n    raise ValueError('not today')",
        "importing it raised ValueError: not today",
    ),
    "an exit": (
        "import sys\nif 'zygote' in sys.orig_argv[2]:\n    sys.exit(3)",
        "raised SystemExit",
    ),
    "a look at its rank": ("import os\nRANK = os.environ.get('RANK')", "it reads RANK"),
    "a look for its rank": ("import os\nHAS = 'RANK' in os.environ", "it reads RANK"),
    "a default for its rank": (
        "import os\nos.environ.setdefault('LOCAL_RANK', '0')",
        "it reads LOCAL_RANK",
    ),
    "a look at its rank in bytes": ("import os\nRANK = os.environb.get(b'RANK')", "it reads RANK"),
    "a copy of the environment": ("import os\nCOPY = os.environ.copy()", "it reads "),
    "a change of what the launcher sets": (
        "import os\nos.environ['MASTER_ADDR'] = 'elsewhere'",
        "it sets MASTER_ADDR",
    ),
    "a look at the arguments": ("import sys\nWORDS = sys.argv[1:]", "it reads the command line"),
    "a walk over the arguments": (
        "import sys\nWORDS = ' '.join(sys.argv)",
        "it reads the command line",
    ),
    "a warning about whoever imports it": (
        "import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel=2)",
        "it warns about the line that imports it",
    ),
    "a change of folder": ("import os\nos.chdir('/')", "it changes the working directory"),
    "an own module of the program": (
        "try:\n    import beside\nexcept ImportError:\n    beside = None",
        "it imports beside, of which the program has its own",
    ),
}
USE = """
    import os
    import sys
    import unfit
    names = sorted(name for name in vars(unfit) if name.isupper())
    print([getattr(unfit, name) for name in names if name != 'COPY'], os.environ.get('MASTER_ADDR'))
    print(getattr(unfit, 'COPY', {}).get('RANK'), getattr(unfit, 'beside', None) is None)
    if hasattr(unfit, 'child'):
        unfit.child.kill()
        unfit.child.wait()
    """


@pytest.fixture
def library(program):
    """A folder on the module path that is not the program's."""
    folder = program.folder.parent / "library"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("what", UNFIT)
def test_what_cannot_be_preloaded_is_left_out_with_the_reason(program, library, what) -> None:
    text, reason = UNFIT[what]
    (library / "unfit.py").write_text(text)
    program.write({"program.py": USE, "beside.py": "", "__pycache__/x": ""})
    each = program.each(
        "program.py", "a", "b", preload=("unfit", "json"), env={"PYTHONPATH": str(library)},
        hows=("cold", "warm"),
    )  # fmt: skip
    warm = each["warm"]
    assert warm.ending == each["cold"].ending
    assert warm.status == 0
    (rejected,) = warm.events("ModuleRejected")
    assert rejected["module"] == "unfit"
    assert reason.format(library=library) in rejected["reason"]
    preloaded = warm.events("ZygoteReady")[-1]["preloaded"]
    assert "json" in preloaded
    assert "unfit" not in preloaded


@pytest.mark.root
def test_a_module_that_opens_a_device_is_left_out(program, library) -> None:
    found = [path for path in DEVICES if os.path.exists(path) and _opens(path)]
    if not found:
        pytest.skip(f"none of {DEVICES} can be opened here")
    (library / "unfit.py").write_text(f"import os\nopened = os.open({found[0]!r}, os.O_RDONLY)")
    program.write({"program.py": "import unfit\nprint(unfit.opened)"})
    warm = program.run("warm", "program.py", preload=("unfit",), env={"PYTHONPATH": str(library)})
    assert warm.events("ModuleRejected")[0]["reason"] == f"it opens {found[0]} when imported"
    assert (warm.status, warm.stdout) == (0, b"3\n")


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True


def test_a_module_that_never_returns_is_given_up(program, library) -> None:
    (library / "endless.py").write_text("import threading\nthreading.Event().wait()")
    program.write({"program.py": "print('done')"})
    run = program.run(
        "cold but asked to be warm", "program.py", env={"PYTHONPATH": str(library)},
        options=("--preload=endless", "--preload-timeout=1"),
    )  # fmt: skip
    assert run.events("AgentTimerFired")
    assert run.starts == [False]
    assert (run.status, run.stdout) == (0, b"done\n")
    assert "preloading took more than 1 s" in run.console


HABITS = """
    import atexit, gc, locale, logging, os, random, signal, sys, warnings
    print('printed', flush=True)
    print('complained', file=sys.stderr)
    os.write(1, b'written')
    os.system('echo from a child')
    warnings.warn('about itself')
    os.environ['SET_BY_HABITS'] = 'yes'
    os.environ['CHANGED'] = os.environ['CHANGED'] + '!'
    os.environ.pop('REMOVED')
    sys.path.insert(0, '/put/first')
    sys.path.append('/put/last')
    warnings.filterwarnings('ignore', 'nothing')
    atexit.register(print, 'bye')
    signal.signal(signal.SIGUSR1, lambda *_: print('signalled'))
    gc.set_threshold(1000, 20, 30)
    sys.setrecursionlimit(1234)
    os.umask(0o27)
    handler = logging.StreamHandler()
    logging.getLogger().addHandler(handler)
    held = sys.stdout
    import __main__ as main
    """
LOOK = """
    import os
    import sys
    import habits
    import gc, logging, signal, warnings
    print(habits.handler.stream is sys.stderr, habits.held is sys.stdout, habits.main.LOOKED)
    logging.getLogger().warning('logged')
    print({name: os.environ.get(name) for name in ('SET_BY_HABITS', 'CHANGED', 'REMOVED')})
    print(sys.path[:2], sys.path[-1], os.getcwd(), os.umask(0), sys.getrecursionlimit())
    print(gc.get_threshold(), [str(entry) for entry in warnings.filters][:2])
    os.kill(os.getpid(), signal.SIGUSR1)
    sys.stdout.flush()
    os.system('echo $CHANGED')
    """


def test_what_a_preloaded_module_does_is_done_in_each_worker(program, library) -> None:
    """It prints, warns, sets and registers; nothing of it is lost, doubled or out of order."""
    (library / "habits.py").write_text("\n".join(line[4:] for line in HABITS.splitlines()))
    program.write({"program.py": "LOOKED = 1\n" + "\n".join(x[4:] for x in LOOK.splitlines())})
    env = {"PYTHONPATH": str(library), "CHANGED": "a", "REMOVED": "b"}
    each = program.each("program.py", preload=("habits",), env=env)
    assert "habits" in each["warm"].events("ZygoteReady")[-1]["preloaded"]
    assert each["warm"].ending == each["cold"].ending == each["plain"].ending
    assert b"printed\nwritten" in each["warm"].stdout


def test_what_importing_prints_appears_once_in_every_worker(program, library) -> None:
    (library / "loud.py").write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)")
    program.write({"program.py": "import loud"})
    options = ("--nproc-per-node=3", "--tee=3")
    env = {"PYTHONPATH": str(library)}
    run = program.run("warm", "program.py", options=options, preload=("loud",), env=env)
    logs = sorted(run.logs.glob("attempt_0/*/std*.log"))
    assert [log.read_text() for log in logs] == ["err\n", "out\n"] * 3


def test_what_is_printed_because_we_fork_is_not_shown(program, library) -> None:
    """NumPy's threads are put to the test with a fork, and every worker is forked twice."""
    (library / "hooks.py").write_text(
        "import os\nos.register_at_fork(before=lambda: print('fork'))"
    )
    program.write({"program.py": "import hooks\nimport numpy\nprint('done')"})
    env = {"PYTHONPATH": str(library), "OPENBLAS_NUM_THREADS": "2"}
    each = program.each("program.py", preload=("hooks", "numpy", "json"), env=env)
    assert each["warm"].events("ZygoteReady")[-1]["preloaded"][-3:] == ["hooks", "numpy", "json"]
    assert each["warm"].ending == each["plain"].ending


def test_who_wants_to_see_the_imports_gets_a_cold_worker(program) -> None:
    program.write({"program.py": "import json"})
    env = {"PYTHONPROFILEIMPORTTIME": "1"}
    run = program.run("cold all the same", "program.py", env=env)
    assert run.starts == [False]
    assert b"import time:" in run.stderr


def test_a_thread_of_the_interpreter_itself_is_a_reason_to_start_cold(program, library) -> None:
    (library / "sitecustomize.py").write_text(UNFIT["a thread"][0])
    text = "import threading\nprint(threading.active_count())"
    run = program.write({"program.py": text}).run(
        "cold all the same", "program.py", env={"PYTHONPATH": str(library)}
    )
    assert (run.starts, run.stdout) == ([False], b"2\n")
    assert "starts a thread" in run.events("ZygoteLost")[0]["reason"]


KILL_ZYGOTE = """
    import os
    import signal
    import time
    for pid in os.listdir("/proc"):
        try:
            with open(f"/proc/{pid}/stat") as file:
                parent = file.read().rpartition(")")[2].split()[1]
            with open(f"/proc/{pid}/cmdline") as file:
                command = file.read().split("\\0")
        except OSError:
            continue
        if parent == str(os.getppid()) and any(word.endswith("/zygote.py") for word in command):
            os.kill(int(pid), signal.SIGKILL)
            while os.path.exists(f"/proc/{pid}"):
                time.sleep(0.002)  # until it is known: the next round may begin at once
            print("killed", os.environ["HOLDFAST_ROUND"])
    raise SystemExit(os.environ["HOLDFAST_ROUND"] == "1")
    """


def test_without_its_zygote_a_job_goes_on_cold(program) -> None:
    program.write({"program.py": KILL_ZYGOTE})
    run = program.run("killed", "program.py", options=("--max-restarts=1",))
    assert run.stdout == b"killed 1\n"
    assert run.starts == [True, False]
    (lost,) = run.events("ZygoteLost")
    assert lost["reason"]
    assert run.status == 0


def test_a_zygote_that_is_killed_while_it_imports_is_done_without(program, library) -> None:
    suicide = "import os, signal\nif 'zygote' in __import__('sys').orig_argv[2]:\n    "
    (library / "suicide.py").write_text(suicide + "os.kill(os.getpid(), signal.SIGKILL)")
    program.write({"program.py": "import suicide\nprint('done')"})
    env = {"PYTHONPATH": str(library)}
    run = program.run("killed", "program.py", options=("--preload=suicide",), env=env)
    assert (run.status, run.stdout, run.starts) == (0, b"done\n", [False])
    assert run.events("ZygoteLost")[0]["reason"]
