"""What is preloaded behaves as if each worker had imported it; what cannot is left out.

The modules under test lie in a folder on PYTHONPATH and are asked for with `--preload`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.processes.zygote import reasons

from .conftest import Program, Run, Same

DEVICES = ("/dev/fuse", "/dev/kmsg", "/dev/net/tun", "/dev/loop-control", "/dev/vda", "/dev/sda")

LEFT_BEHIND = {
    "a thread": (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
        reasons.LEAVES_THREAD,
    ),
    "a child": (
        "import subprocess\nchild = subprocess.Popen(['sleep', '100'], stdout=subprocess.DEVNULL)",
        reasons.LEAVES_CHILD,
    ),
    "a file": ("file = open(__file__)", reasons.opens("{library}/unfit.py")),
    "a socket": ("import socket\nends = socket.socketpair()", "it opens socket:["),
    "an error": (
        "import sys\nif 'zygote' in sys.orig_argv[2]:\n    raise ValueError('not today')",
        reasons.raised(ValueError("not today")),
    ),
    "an exit": (
        "import sys\nif 'zygote' in sys.orig_argv[2]:\n    sys.exit(3)",
        reasons.raised(SystemExit(3)),
    ),
    "a warning about whoever imports it": (
        "import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel=2)",
        reasons.WARNS_ABOUT_LINE,
    ),
    "a change of folder": ("import os\nos.chdir('/')", reasons.CHANGES_FOLDER),
    "a lock for processes": (
        "import multiprocessing\nlock = multiprocessing.Lock()",
        reasons.SHARES_MEMORY,
    ),
    "memory for processes": (
        "import mmap\nmemory = mmap.mmap(-1, 100)",
        reasons.SHARES_MEMORY,
    ),
    "a timer": (
        "import signal\nsignal.setitimer(signal.ITIMER_REAL, 1000)",
        reasons.SETS_TIMER,
    ),
    "a copy of the environment as a list": (
        "import os\npairs = list(os.environ.items())",
        reasons.COPIES_ENVIRONMENT,
    ),
}
"""What an import leaves that workers would share or lose: seen when it is too late to stop."""
ONLY_IN_A_WORKER = {
    "a look at its rank": (
        "import os\nRANK = os.environ.get('RANK')",
        reasons.asks("reads", "RANK"),
    ),
    "a default for its rank": (
        "import os\nos.environ.setdefault('LOCAL_RANK', '0')",
        reasons.asks("reads", "LOCAL_RANK"),
    ),
    "a look at its rank in bytes": (
        "import os\nRANK = os.environb.get(b'RANK')",
        reasons.asks("reads", "RANK"),
    ),
    "a look at all values": (
        "import os\nTEXT = sorted(v for v in os.environ.values() if v.isdigit())[:1]",
        "it reads ",
    ),
    "its rank, found by a prefix": (
        "import os\nFOUND = {k: int(v) for k, v in os.environ.items() if k.startswith('RANK')}",
        reasons.asks("reads", "RANK"),
    ),
    "a change of what the launcher sets": (
        "import os\nos.environ['MASTER_ADDR'] = 'elsewhere'",
        reasons.asks("sets", "MASTER_ADDR"),
    ),
    "a look at the arguments": (
        "import sys\nWORDS = sys.argv[1:]",
        reasons.asks("reads", reasons.COMMAND_LINE),
    ),
    "a walk over the arguments": (
        "import sys\nWORDS = ' '.join(sys.argv)",
        reasons.asks("reads", reasons.COMMAND_LINE),
    ),
    "a temporary folder": (
        "import atexit, shutil, tempfile\natexit.register(shutil.rmtree, tempfile.mkdtemp())",
        reasons.MAKES_TEMPORARY_FOLDER,
    ),
    "a folder named after its process": (
        "import os\npath = f'of-{os.getpid()}'\nos.mkdir(path)\nos.rmdir(path)",
        reasons.MAKES_FOLDER_OF_PROCESS,
    ),
    "an own module of the program": (
        "try:\n    import beside\nexcept ImportError:\n    beside = None",
        reasons.imports_own("beside"),
    ),
    "a look at its rank, deep inside": (
        "import json\nimport inner.rank\nRANK = inner.rank.RANK",
        reasons.asks("reads", "RANK"),
    ),
}
"""What only a worker can answer or should do: the module is left to each of them."""
NO_QUESTION = {
    "a look for its rank": "import os\nHAS = 'RANK' in os.environ",
    "a search for a prefix": (
        "import os\nFOUND = {k: v for k, v in os.environ.items() if k.startswith('SETTING_')}"
    ),
    "a copy of the environment": "import os\nCOPY = os.environ.copy()",
    "a dictionary of the environment": "import os\nCOPY = dict(os.environ)",
    "names only": "import os\nNAMES = sorted(k for k in os.environ if k.startswith('MASTER'))",
    "what all workers have": "import os\nSIZE = os.environ['WORLD_SIZE']",
    "children that nobody waits for": (
        "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    ),
    "its process": "import os\nPID = os.getpid()\nSAME_PID = True",
}
"""What is the same in all workers, or is put right in each."""
USE = """
    import os
    import sys
    import unfit
    names = sorted(n for n in vars(unfit) if n.isupper() and n not in ('COPY', 'PID'))
    print([getattr(unfit, name) for name in names], os.environ.get('MASTER_ADDR'))
    print(getattr(unfit, 'COPY', {}).get('RANK'), getattr(unfit, 'beside', None) is None)
    print(dict(getattr(unfit, 'COPY', os.environ)) == dict(os.environ))
    print(getattr(unfit, 'PID', os.getpid()) == os.getpid(), hasattr(unfit, 'beside'))
    if hasattr(unfit, 'child'):
        unfit.child.kill()
        unfit.child.wait()
    """


@pytest.fixture
def library(program: Program) -> Path:
    """A folder on the module path in which packages are installed."""
    folder = program.folder.parent / "library" / "site-packages"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "__init__.py").write_text("")
    (folder / "inner" / "rank.py").write_text("import os\nRANK = os.environ['RANK']")
    return folder


def use(program: Program, library: Path, text: str) -> Run:
    """The program, which imports this module, cold and warm; returns the warm run."""
    (library / "unfit.py").write_text(text)
    program.write({"program.py": USE, "beside.py": "", "__pycache__/x": ""})
    env = {"PYTHONPATH": str(library), "SETTING_A": "b", "XDG_CACHE_HOME": str(library)}
    each = program.each("program.py", "a", "b", env=env, hows=("cold", "warm"))
    assert each["warm"].ending == each["cold"].ending
    assert each["warm"].status == 0
    return each["warm"]


@pytest.mark.thorough(but=("a thread", "a child", "a file", "an error", "a socket"))
@pytest.mark.parametrize("what", LEFT_BEHIND)
def test_what_leaves_something_behind_is_left_out_with_the_reason(
    program: Program, library: Path, what: str
) -> None:
    text, reason = LEFT_BEHIND[what]
    warm = use(program, library, text)
    (rejected,) = warm.events("ModuleRejected")
    assert rejected["module"] == "import unfit"
    assert reason.format(library=library) in rejected["reason"]
    preloaded = warm.events("ZygoteReady")[-1]["preloaded"]
    assert "import os" in preloaded
    assert "import unfit" not in preloaded


@pytest.mark.thorough(
    but=("an own module of the program", "a look at its rank, deep inside", "a temporary folder")
)
@pytest.mark.parametrize("what", ONLY_IN_A_WORKER)
def test_what_only_a_worker_can_import_is_left_to_each_of_them(
    program: Program, library: Path, what: str
) -> None:
    text, reason = ONLY_IN_A_WORKER[what]
    warm = use(program, library, text)
    (rejected,) = warm.events("ModuleRejected")
    assert rejected["module"] == "import unfit"
    assert reason in rejected["reason"]
    assert "import os" in warm.events("ZygoteReady")[-1]["preloaded"]


@pytest.mark.thorough(but=("a copy of the environment", "names only"))
@pytest.mark.parametrize("what", NO_QUESTION)
def test_what_all_workers_share_or_is_put_right_is_no_request(
    program: Program, library: Path, what: str
) -> None:
    warm = use(program, library, NO_QUESTION[what])
    (ready,) = warm.events("ZygoteReady")
    assert "import unfit" in ready["preloaded"]
    assert not warm.events("ModuleRejected")
    assert not warm.events("ZygoteLost")


def test_what_the_user_asks_for_may_read_what_it_likes(program: Program, library: Path) -> None:
    (library / "unfit.py").write_text(ONLY_IN_A_WORKER["a look at its rank"][0])
    program.write({"program.py": "import unfit\nprint(unfit.RANK)"})
    env = {"PYTHONPATH": str(library)}
    run = program.run("warm", "program.py", preload=("unfit",), env=env)
    assert "import unfit" in run.events("ZygoteReady")[0]["preloaded"]
    assert run.stdout == b"None\n"


def test_what_was_set_before_an_import_is_there_when_a_worker_does_it(
    same: Same, library: Path
) -> None:
    (library / "unfit.py").write_text(
        "import os\nRANK = os.environ['RANK']\nSEEN = os.environ.get('SETTING')"
    )
    text = "import os\nos.environ['SETTING'] = 'x'\nimport unfit\nprint(unfit.SEEN)\n"
    run = same(
        "program.py", files={"program.py": text}, env={"PYTHONPATH": str(library), "RANK": "0"}
    )
    assert run.stdout == b"x\n"
    assert run.events("ModuleRejected")[0]["module"] == "import unfit"


@pytest.mark.root
def test_a_module_that_opens_a_device_is_left_out(program: Program, library: Path) -> None:
    found = [path for path in DEVICES if os.path.exists(path) and _opens(path)]
    if not found:
        pytest.skip(f"none of {DEVICES} can be opened here")
    (library / "unfit.py").write_text(f"import os\nopened = os.open({found[0]!r}, os.O_RDONLY)")
    program.write({"program.py": "import unfit\nprint(unfit.opened)"})
    warm = program.run("warm", "program.py", preload=("unfit",), env={"PYTHONPATH": str(library)})
    assert warm.events("ModuleRejected")[0]["reason"] == reasons.opens(found[0])
    assert (warm.status, warm.stdout.strip().isdigit()) == (0, True)


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True


def test_a_module_that_never_returns_is_given_up(program: Program, library: Path) -> None:
    (library / "endless.py").write_text("import threading\nthreading.Event().wait()")
    program.write({"program.py": "print('done')"})
    run = program.run(
        "cold but asked to be warm", "program.py", env={"PYTHONPATH": str(library)},
        options=("--preload=endless", "--preload-timeout=1"),
    )  # fmt: skip
    assert run.events("NodeTimerFired")
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


def test_what_a_preloaded_module_does_is_done_in_each_worker(
    program: Program, library: Path
) -> None:
    """It prints, warns, sets and registers; nothing of it is lost, doubled or out of order."""
    (library / "habits.py").write_text("\n".join(line[4:] for line in HABITS.splitlines()))
    program.write({"program.py": "LOOKED = 1\n" + "\n".join(x[4:] for x in LOOK.splitlines())})
    env = {"PYTHONPATH": str(library), "CHANGED": "a", "REMOVED": "b"}
    each = program.each("program.py", preload=("habits",), env=env)
    assert "import habits" in each["warm"].events("ZygoteReady")[-1]["preloaded"]
    assert each["warm"].ending == each["cold"].ending == each["plain"].ending
    assert b"printed\nwritten" in each["warm"].stdout


def test_what_importing_prints_appears_once_in_every_worker(
    program: Program, library: Path
) -> None:
    (library / "loud.py").write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)")
    program.write({"program.py": "import loud"})
    options = ("--nproc-per-node=3", "--tee=3")
    env = {"PYTHONPATH": str(library)}
    run = program.run("warm", "program.py", options=options, preload=("loud",), env=env)
    logs = sorted(run.logs.glob("attempt_0/*/std*.log"))
    assert [log.read_text() for log in logs] == ["err\n", "out\n"] * 3


def test_what_is_printed_because_we_fork_is_not_shown(program: Program, library: Path) -> None:
    """NumPy's threads are put to the test with a fork, and every worker is forked twice."""
    (library / "hooks.py").write_text(
        "import os\nos.register_at_fork(before=lambda: print('fork'))"
    )
    program.write({"program.py": "import hooks\nimport numpy\nprint('done')"})
    env = {"PYTHONPATH": str(library), "OPENBLAS_NUM_THREADS": "2"}
    each = program.each("program.py", preload=("hooks", "numpy", "json"), env=env)
    preloaded = each["warm"].events("ZygoteReady")[-1]["preloaded"]
    assert {"import hooks", "import numpy", "import json"} <= set(preloaded)
    assert each["warm"].ending == each["plain"].ending


def test_who_wants_to_see_the_imports_gets_a_cold_worker(program: Program) -> None:
    program.write({"program.py": "import json"})
    env = {"PYTHONPROFILEIMPORTTIME": "1"}
    run = program.run("cold all the same", "program.py", env=env)
    assert run.starts == [False]
    assert b"import time:" in run.stderr


def test_a_thread_of_the_interpreter_itself_is_a_reason_to_start_cold(
    program: Program, library: Path
) -> None:
    (library / "sitecustomize.py").write_text(LEFT_BEHIND["a thread"][0])
    text = "import threading\nprint(threading.active_count())"
    run = program.write({"program.py": text}).run(
        "cold all the same", "program.py", env={"PYTHONPATH": str(library)}
    )
    assert (run.starts, run.stdout) == ([False], b"2\n")
    assert run.events("ZygoteLost")[0]["reason"] == reasons.HAS_THREAD


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


def test_without_its_zygote_a_job_goes_on_cold(program: Program) -> None:
    program.write({"program.py": KILL_ZYGOTE})
    run = program.run("killed", "program.py", options=("--max-restarts=1",))
    assert run.stdout == b"killed 1\n"
    assert run.starts == [True, False]
    (lost,) = run.events("ZygoteLost")
    assert lost["reason"]
    assert run.status == 0


def test_a_zygote_that_is_killed_while_it_imports_is_done_without(
    program: Program, library: Path
) -> None:
    suicide = "import os, signal\nif 'zygote' in __import__('sys').orig_argv[2]:\n    "
    (library / "suicide.py").write_text(suicide + "os.kill(os.getpid(), signal.SIGKILL)")
    program.write({"program.py": "import suicide\nprint('done')"})
    env = {"PYTHONPATH": str(library)}
    run = program.run("killed", "program.py", options=("--preload=suicide",), env=env)
    assert (run.status, run.stdout, run.starts) == (0, b"done\n", [False])
    assert run.events("ZygoteLost")[0]["reason"]
