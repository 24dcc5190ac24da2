"""Functions that are forked from a zygote are what spawned ones are.

Rules
- The same program runs warm, cold (`HOLDFAST_NO_WARM=1`) and, where there is something to compare
  with, by `multiprocessing` itself. What it tells of its workers is the same.
- That it was warm is seen by a library which notes the process that imported it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 60.0
LIBRARIES = {
    "heavy": "import os\nWHERE = os.getpid()\nprint('heavy is here')\n",
    "ranked": "import heavy, os, sys\nRANK = os.environ.get('RANK')\nARGV = list(sys.argv)\n",
    "late": "import os\nWHERE = os.getpid()\n",
    "reads": "import os\nSETTING = os.environ.get('SETTING')\n",
    "threaded": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True)"
    ".start()\n",
    "holding": "FILES = [open('/dev/null') for _ in range(40)]\n",
}
HEAD = """
import json, os, signal, sys, time
import heavy
from holdfast.elastic.multiprocessing import DefaultLogsSpecs, zygote_pool, start_processes

def run(function, *arguments, envs=None, **how):
    number = len(arguments)
    envs = envs or {rank: {"RANK": str(rank), "SHARED": "1"} for rank in range(number)}
    how.setdefault("logs_specs", DefaultLogsSpecs())
    how.setdefault("start_method", "spawn")
    context = start_processes("fn", function, dict(enumerate(arguments)), envs, **how)
    result = context.wait()
    told = [vars(result)["failures"][rank] for rank in sorted(result.failures)]
    return result.return_values or [(one.exitcode, one.message) for one in told]

def tell(**facts):
    print("FACTS " + json.dumps(facts, default=str))
"""


class Program:
    """A program in a folder of its own, with libraries that count as installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.libraries = folder / "lib" / "site-packages"
        self.libraries.mkdir(parents=True)
        for name, text in LIBRARIES.items():
            (self.libraries / f"{name}.py").write_text(text)
        self.file = folder / "program.py"

    def write(self, body: str, head: str = HEAD) -> None:
        self.file.write_text(head + textwrap.dedent(body))

    def environment(self, *, warm: bool) -> dict[str, str]:
        plain = {n: v for n, v in os.environ.items() if not n.startswith(("HOLDFAST_", "PYTHON"))}
        own = {} if warm else {"HOLDFAST_NO_WARM": "1"}
        return {**plain, **own, "PYTHONPATH": str(self.libraries)}

    def run(self, *command: str, warm: bool) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *(command or (str(self.file), "an argument"))],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment(warm=warm),
            timeout=DEADLINE_S,
        )

    def facts(self, *command: str, warm: bool) -> dict[str, Any]:
        ended = self.run(*command, warm=warm)
        lines = [line for line in ended.stdout.splitlines() if line.startswith("FACTS ")]
        assert len(lines) == 1, f"{ended.stdout}\n{ended.stderr}"
        found: dict[str, Any] = json.loads(lines[0].removeprefix("FACTS "))
        return found

    def same(self, *command: str) -> dict[str, Any]:
        """What it tells, which is the same warm and cold."""
        warm, cold = self.facts(*command, warm=True), self.facts(*command, warm=False)
        assert warm.pop("warm") is True
        assert cold.pop("warm") is False
        assert warm == cold
        return warm


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


# --- what a worker is -------------------------------------------------------------------------

LOOK = """
def look():
    import gc, locale, multiprocessing, random, stat, threading, warnings
    main = sys.modules["__main__"]
    process, parent = multiprocessing.current_process(), multiprocessing.parent_process()
    streams = (sys.stdin, sys.stdout, sys.stderr)
    variables = {n: v for n, v in os.environ.items() if n not in VARYING}
    shown = open("/proc/self/environ").read().split("\\0")
    shown = sorted(line for line in shown if line.split("=")[0] not in VARYING)
    return {
        "was imported elsewhere": heavy.WHERE != os.getpid(),
        "main": [main.__name__, __name__, main is sys.modules["__mp_main__"], main.__file__],
        "names of main": sorted(vars(main)),
        "spec of main": [str(main.__spec__), main.__package__],
        "arguments": sys.argv,
        "command": sys.orig_argv[:-2] + sys.orig_argv[-1:],
        "command that is shown": open("/proc/self/cmdline").read().split("\\0")[:-3],
        "flags": [str(sys.flags), sorted(sys._xoptions), sys.warnoptions],
        "path": sys.path,
        "folder": os.getcwd(),
        "environment": variables,
        "environment that is shown": shown,
        "start method": multiprocessing.get_start_method(),
        "process": [process.name, process.daemon, process.exitcode, process._parent_pid],
        "parent process": [parent.name, parent.is_alive(), parent.pid == int(sys.argv[2])],
        # Of those that a program cannot inherit, the order of opening is of no account.
        "descriptors": sorted(
            (int(n) if os.get_inheritable(int(n)) else -1, stat.S_IFMT(os.fstat(int(n)).st_mode))
            for n in os.listdir("/proc/self/fd") if is_open(int(n))
        ),
        "streams": [
            (s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.newlines,
             type(s.buffer).__name__, s.isatty(), s.fileno(), s.buffer.mode) for s in streams
        ],
        "same streams": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "signals": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "limits": [os.umask(0o22), os.getpriority(0, 0), sorted(os.sched_getaffinity(0))],
        "threads": [threading.active_count(), threading.main_thread().name],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
        "warnings": [str(one) for one in warnings.filters],
        "collector": [gc.isenabled(), gc.get_threshold()],
        "seeded": [random.seed(3), random.random()],
        "ours": [n for n in ("wire", "linux", "zygote_server", "run_as_main", "private_messages")
                 if n in sys.modules],
        "locale": [locale.getpreferredencoding(), sys.getfilesystemencoding()],
        "recursion": sys.getrecursionlimit(),
    }

def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True

VARYING = ("TORCHELASTIC_ERROR_FILE", "HOLDFAST_NO_WARM", "_")

if __name__ == "__main__":
    sys.argv[1:] = ["an argument", str(os.getpid())]
    found = run(look, (), ())[1]
    found["arguments"][-1] = "our pid"
    found["process"][-1] = found["process"][-1] == os.getpid()
    tell(**found)
"""
WARM_ONLY = "was imported elsewhere"
EQUAL = (
    "main", "names of main", "spec of main", "arguments", "command", "command that is shown",
    "flags", "path", "folder", "environment", "environment that is shown", "start method",
    "process", "parent process", "descriptors", "streams", "same streams", "signals", "mask",
    "session", "limits", "threads", "hooks", "warnings", "collector", "seeded", "ours", "locale",
    "recursion",
)  # fmt: skip
BY_MULTIPROCESSING = """
def put(queue):
    queue.put(look())

def run(function, *arguments):
    import multiprocessing
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    process = multiprocessing.get_context("spawn").Process(target=put, args=(queue,))
    process.start()
    value = queue.get()
    process.join()
    return [value, value]
"""


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    program = Program(tmp_path_factory.mktemp("looks"))
    program.write(LOOK)
    found = {name: program.facts(warm=name == "warm") for name in ("warm", "cold")}
    program.write(LOOK.replace("if __name__", BY_MULTIPROCESSING + "\nif __name__"))
    found["multiprocessing"] = program.facts(warm=False)
    return found


@pytest.mark.parametrize("what", EQUAL)
def test_a_warm_worker_is_what_a_cold_one_is(looks: dict[str, dict[str, Any]], what: str) -> None:
    assert looks["warm"][WARM_ONLY] is True
    assert looks["cold"][WARM_ONLY] is False
    assert looks["warm"][what] == looks["cold"][what]


@pytest.mark.parametrize(
    "what",
    [
        "main", "arguments", "command", "flags", "path", "folder", "start method",
        "parent process", "hooks", "warnings", "collector", "seeded", "locale", "recursion",
    ],
)  # fmt: skip
def test_a_warm_worker_is_what_multiprocessing_makes(
    looks: dict[str, dict[str, Any]], what: str
) -> None:
    assert looks["warm"][what] == looks["multiprocessing"][what]


def test_each_has_random_numbers_of_its_own(program: Program) -> None:
    program.write(
        """
        def number():
            import random, uuid
            return random.random(), str(uuid.uuid4()), heavy.WHERE != os.getpid()
        if __name__ == "__main__":
            values = run(number, (), (), ())
            tell(numbers=[values[rank] for rank in range(3)])
        """
    )
    numbers = program.facts(warm=True)["numbers"]
    assert all(is_warm for *_, is_warm in numbers)
    assert len({number for number, *_ in numbers}) == 3
    assert len({text for _, text, _ in numbers}) == 3


# --- what it is sent ---------------------------------------------------------------------------


def test_what_multiprocessing_shares_can_be_shared(program: Program) -> None:
    program.write(
        """
        import multiprocessing
        from multiprocessing import shared_memory, resource_tracker
        from multiprocessing.connection import Client, Listener

        def use(queue, lock, event, value, pipe, memory, shared, address):
            with lock:
                value.value += 1
            shared["here"] = shared.get("here", 0) + 0
            memory.buf[int(os.environ["RANK"])] = 7
            with Client(address, authkey=multiprocessing.current_process().authkey) as client:
                client.send("hello")
            queue.put(int(os.environ["RANK"]))
            event.wait()
            pipe.send("sent")
            return heavy.WHERE != os.getpid(), resource_tracker._resource_tracker._fd is not None

        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue, lock, event = context.Queue(), context.Lock(), context.Event()
            value, (ours, theirs) = context.Value("i", 0), context.Pipe()
            memory = shared_memory.SharedMemory(create=True, size=8)
            manager = context.Manager()
            shared = manager.dict()
            import threading
            greetings = []
            listener = Listener(None, "AF_UNIX", authkey=multiprocessing.current_process().authkey)
            def greet():
                for _ in range(2):
                    greetings.append(listener.accept().recv())
            thread = threading.Thread(target=greet)
            thread.start()
            numbers = []
            def take():
                numbers.extend(queue.get() for _ in range(2))
                event.set()
            taker = threading.Thread(target=take)
            taker.start()
            own = queue, lock, event, value, theirs, memory, shared, listener.address
            values = run(use, own, own)
            thread.join(); taker.join()
            tell(
                warm=values[0][0], tracked=values[0][1], numbers=sorted(numbers),
                value=value.value, memory=list(bytes(memory.buf[:2])), greetings=greetings,
                sent=[ours.recv(), ours.recv()], shared=dict(shared),
            )
            memory.close(); memory.unlink(); manager.shutdown(); listener.close()
        """
    )
    facts = program.same()
    assert facts["numbers"] == [0, 1]
    assert facts["memory"] == [7, 7]
    assert facts["tracked"] is True


def test_functions_of_own_modules_and_closures(program: Program) -> None:
    (program.folder / "own.py").write_text(
        "import heavy, os\nWHERE = os.getpid()\n"
        "def look(): return __name__, WHERE == os.getpid(), heavy.WHERE != os.getpid()\n"
    )
    program.write(
        """
        import own
        from functools import partial

        def add(left, right):
            return left + right

        if __name__ == "__main__":
            one = 1
            values = run(own.look, ())
            tell(warm=values[0][2], own=values[0][:2], closure=run(lambda: one + 1, ())[0],
                 partial=run(partial(add, 1), (2,))[0],
                 installed=run(os.path.join, ("a", "b"))[0])
        """
    )
    facts = program.same()
    assert facts == {"own": ["own", True], "closure": 2, "partial": 3, "installed": "a/b"}


def test_functions_of_a_program_that_no_file_has(program: Program) -> None:
    """As in a notebook, or a terminal: they go by value."""
    body = """
    def look(value):
        import late
        main = sys.modules["__main__"]
        return value, late.WHERE != os.getpid(), __name__, \\
            getattr(main, "__file__", None), sys.argv, sys.path[:2]
    value = run(look, (5,))[0]
    tell(warm=value[1], value=value)
    """
    text = HEAD + textwrap.dedent(body)
    warm, cold = (program.facts("-c", text, "word", warm=warm) for warm in (True, False))
    assert warm.pop("warm") is True
    assert cold.pop("warm") is False
    warm["value"][1:2] = cold["value"][1:2] = []
    assert warm == cold


def test_what_a_function_imports_when_it_runs_is_imported_ahead(program: Program) -> None:
    program.write(
        """
        def look():
            import late
            return late.WHERE != os.getpid(), heavy.WHERE != os.getpid()
        if __name__ == "__main__":
            values = run(look, ())[0]
            tell(late=values[0], heavy=values[1])
        """
    )
    assert program.facts(warm=True) == {"late": True, "heavy": True}


def test_what_a_function_sets_before_it_imports_is_found_there(program: Program) -> None:
    program.write(
        """
        def prepare():
            os.environ["SETTING"] = "new"
        def look():
            prepare()
            import late, reads
            return late.WHERE != os.getpid(), reads.SETTING
        if __name__ == "__main__":
            values = run(look, ())[0]
            tell(late=values[0], found=values[1])
        """
    )
    assert program.facts(warm=True) == {"late": True, "found": "new"}


def test_what_only_a_worker_has_is_read_by_the_worker(program: Program) -> None:
    program.write(
        """
        import ranked
        def look():
            return ranked.RANK, ranked.ARGV, sys.argv, sys.path, heavy.WHERE != os.getpid()
        if __name__ == "__main__":
            values = run(look, (), ())
            tell(warm=values[1][4], values=[values[0][:4], values[1][:4]])
        """
    )
    facts = program.same()
    assert [rank for rank, *_ in facts["values"]] == ["0", "1"]
    assert facts["values"][1][1] == [str(program.file), "an argument"]


def test_a_module_that_cannot_be_imported_ahead_is_left_out(program: Program) -> None:
    program.write(
        """
        import threaded, threading
        def look():
            return heavy.WHERE != os.getpid(), threading.active_count()
        if __name__ == "__main__":
            values = run(look, ())[0]
            tell(warm=values[0], threads=values[1])
        """
    )
    assert program.same() == {"threads": 2}


def test_what_a_module_holds_open_is_not_taken_from_it(program: Program) -> None:
    """Its number is where the worker is given something: it starts over, and is what it should."""
    program.write(
        """
        import holding
        def look():
            return {os.readlink(f"/proc/self/fd/{one.fileno()}") for one in holding.FILES}
        if __name__ == "__main__":
            tell(value=[list(each) for each in run(look, (), ()).values()])
        """
    )
    assert program.facts(warm=True)["value"] == [["/dev/null"]] * 2


# --- how it ends -------------------------------------------------------------------------------

ENDS = """
import atexit

def raises():
    raise ValueError("words")

def leaves():
    sys.exit(7)

def leaves_with_words():
    sys.exit("words")

def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)

def aborts():
    os.abort()

def is_told():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)

def interrupts():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)

def raises_at_once():
    os._exit(3)

def says_and_leaves():
    print("this is in a buffer")
    os._exit(4)

def says():
    print("to stdout", flush=False)
    print("to stderr", file=sys.stderr)
    atexit.register(print, "at exit")

if __name__ == "__main__":
    value = run(globals()[sys.argv[1]], ())
    text = json.dumps(value, default=str)
    is_warm = bool(zygote_pool._idle)
    tell(value=text.replace(str(os.getpid()), "caller"), warm=is_warm)
"""


@pytest.mark.thorough(but=("raises", "is_killed", "leaves", "says"))
@pytest.mark.parametrize(
    "function",
    [
        "raises", "leaves", "leaves_with_words", "is_killed", "aborts", "is_told", "interrupts",
        "raises_at_once", "says_and_leaves", "says",
    ],
)  # fmt: skip
def test_it_ends_in_the_same_way(program: Program, function: str) -> None:
    program.write(ENDS)
    warm = program.run(str(program.file), function, warm=True)
    cold = program.run(str(program.file), function, warm=False)
    assert '"warm": true' in warm.stdout, warm.stderr
    assert '"warm": false' in cold.stdout, cold.stderr
    assert _plain(warm.stdout) == _plain(cold.stdout)
    if function != "aborts":  # Where the interpreter shows all frames, two of ours among them.
        assert _plain(warm.stderr) == _plain(cold.stderr)


def _plain(text: str) -> list[str]:
    """Without what differs from one run to the next: pids, times, and whether it was warm."""
    import re

    text = re.sub(r'"warm": (true|false)', "", text)
    text = re.sub(r"(pid|[Pp]rocess) \d+|\d{9,}|0x[0-9a-f]+", "…", text)
    return sorted(text.splitlines())


def test_the_main_module_is_imported_once_in_each_worker_and_not_run(program: Program) -> None:
    program.write(
        """
        print("imported as", __name__, flush=True)
        def nothing(): pass
        if __name__ == "__main__":
            run(nothing, (), ())
            tell(warm=bool(zygote_pool._idle))
        """
    )
    said = program.run(warm=True).stdout.splitlines()
    assert sorted(line for line in said if line.startswith(("imported", "heavy"))) == [
        *["heavy is here"] * 3,
        "imported as __main__",
        *["imported as __mp_main__"] * 2,
    ]
    assert said.count('FACTS {"warm": true}') == 1


def test_nothing_is_left_of_a_caller_that_is_killed(
    program: Program, is_running: Callable[[int], bool]
) -> None:
    program.write(
        """
        def stay(path):
            open(path, "w").write(f"{os.getpid()} {os.getppid()}")
            os.rename(path, path + ".done")
            time.sleep(600)
        if __name__ == "__main__":
            run(stay, ("a",), ("b",))
        """
    )
    caller = subprocess.Popen(
        [sys.executable, program.file], cwd=program.folder, env=program.environment(warm=True)
    )
    files = [program.folder / f"{name}.done" for name in "ab"]
    _wait_until(lambda: all(file.exists() for file in files))
    pids = {int(pid) for file in files for pid in file.read_text().split()}
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    _wait_until(lambda: not any(map(is_running, pids)))


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


# --- one zygote for several contexts --------------------------------------------------------------

PARENT = """
def parent():
    return os.getppid(), heavy.WHERE, heavy.WHERE != os.getpid()
"""


def test_the_next_context_has_the_same_zygote(program: Program) -> None:
    program.write(
        PARENT
        + """
if __name__ == "__main__":
    first, second = run(parent, (), ()), run(parent, (), (), ())
    os.environ["ANOTHER"] = "variable"
    third = run(parent, ())
    os.chdir("/")
    fourth = run(parent, ())
    places, idle = [one[0] for one in (first, second, third, fourth)], len(zygote_pool._idle)
    zygote_pool.let_go()
    left = [pid for place in places for pid in place[:2] if os.path.exists(f"/proc/{pid}")]
    tell(places=places, idle=idle, left=left)
"""
    )
    facts = program.facts(warm=True)
    assert facts["left"] == []
    first, second, third, fourth = facts["places"]
    assert first == second
    assert len({tuple(first), tuple(third), tuple(fourth)}) == 3
    assert all(is_warm for *_, is_warm in facts["places"])
    assert facts["idle"] == 2


@pytest.mark.thorough(but=("zygote",))
@pytest.mark.parametrize("who", ["zygote", "spawner", "guardian"])
def test_one_that_died_while_it_waited_is_replaced(program: Program, who: str) -> None:
    program.write(
        PARENT
        + f"""
if __name__ == "__main__":
    first = run(parent, ())[0]
    idle = zygote_pool._idle[0]
    victim = dict(zygote=first[1], spawner=first[0], guardian=idle.process.pid)["{who}"]
    os.kill(victim, signal.SIGKILL)
    while zygote_pool._is_well(idle):
        time.sleep(0.01)
    second = run(parent, ())[0]
    tell(places=[first, second])
"""
    )
    first, second = program.facts(warm=True)["places"]
    assert first[2]
    assert second[2]
    assert first[1] != second[1]


def test_one_that_dies_while_it_imports_is_done_without(program: Program) -> None:
    (program.libraries / "deadly.py").write_text(
        "import os, sys\nif 'zygote/zygote.py' in ' '.join(sys.orig_argv):\n    os._exit(1)\n"
    )
    program.write(
        """
        import deadly
        def look(): return heavy.WHERE == os.getpid()
        if __name__ == "__main__":
            tell(cold=[run(look, ())[0], run(look, ())[0]], idle=len(zygote_pool._idle))
        """
    )
    assert program.facts(warm=True) == {"cold": [True, True], "idle": 0}


def test_contexts_at_the_same_time_each_have_their_own(program: Program) -> None:
    program.write(
        PARENT
        + """
if __name__ == "__main__":
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(run, parent, (), ()) for _ in range(2)]
        places = [future.result()[0] for future in futures]
    tell(places=places)
"""
    )
    first, second = program.facts(warm=True)["places"]
    assert first[2]
    assert second[2]


def test_a_fork_of_the_caller_does_not_disturb_it(program: Program) -> None:
    program.write(
        PARENT
        + """
if __name__ == "__main__":
    first = run(parent, ())[0]
    pid = os.fork()
    if pid == 0:
        own = run(parent, ())[0]
        os._exit(0 if own[2] and own[1] != first[1] else 1)
    status = os.waitpid(pid, 0)[1]
    tell(places=[first, run(parent, ())[0]], status=status)
"""
    )
    facts = program.facts(warm=True)
    assert facts["status"] == 0
    assert facts["places"][0] == facts["places"][1]


def test_a_restart_has_the_same_zygote(program: Program) -> None:
    program.write(
        """
        from holdfast.elastic.launcher.api import LaunchConfig, elastic_launch
        def work():
            attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
            if attempt == "0":
                with open("first", "w") as file:
                    file.write(str(heavy.WHERE))
                os.kill(os.getpid(), signal.SIGKILL)
            return int(open("first").read()), heavy.WHERE, os.getpid()
        if __name__ == "__main__":
            config = LaunchConfig(1, 1, 1, run_id="r", rdzv_backend="holdfast",
                                  rdzv_endpoint="127.0.0.1:0", max_restarts=1,
                                  start_method="spawn", monitor_interval=0.1)
            tell(value=elastic_launch(config, work)()[0])
        """
    )
    before, after, own = program.facts(warm=True)["value"]
    assert before == after != own


def test_closing_while_it_is_prepared_leaves_nothing(program: Program) -> None:
    (program.libraries / "slow.py").write_text(
        "import os, sys, time\nif 'zygote/zygote.py' in ' '.join(sys.orig_argv):\n"
        "    open('begun', 'w').close()\n    time.sleep(600)\n"
    )
    program.write(
        """
        import slow, threading
        def nothing(): pass
        if __name__ == "__main__":
            from holdfast.elastic.multiprocessing.api import MultiprocessContext
            context = MultiprocessContext("fn", nothing, {0: ()}, {0: {}}, "spawn",
                                          DefaultLogsSpecs())
            thread = threading.Thread(target=context.start)
            context_closed = threading.Event()
            def close():
                while not os.path.exists("begun"):
                    time.sleep(0.01)
                while context._processes is None:
                    time.sleep(0.01)
                context._processes.close(signal.SIGTERM, 30)
            closer = threading.Thread(target=close)
            closer.start()
            context.start()
            closer.join()
            result = context.wait(0)
            tell(codes=[one.exitcode for one in result.failures.values()])
        """
    )
    assert program.facts(warm=True) == {"codes": [-signal.SIGTERM]}


def test_one_that_is_told_to_end_before_it_is_there_ends(program: Program) -> None:
    """The signal comes while the zygote is about to fork; the grace is longer than this test."""
    (program.libraries / "slow_to_fork.py").write_text(
        "import os, sys, time\nif 'zygote/zygote.py' in ' '.join(sys.orig_argv):\n"
        "    os.register_at_fork(before=lambda: time.sleep(1))\n"
    )
    program.write(
        """
        import slow_to_fork, threading
        def stay(): time.sleep(600)
        if __name__ == "__main__":
            from holdfast.elastic.multiprocessing.api import MultiprocessContext
            context = MultiprocessContext("fn", stay, {0: (), 1: ()}, {0: {}, 1: {}}, "spawn",
                                          DefaultLogsSpecs())
            def close():
                while context._processes is None or context._processes._warming._is_pending:
                    time.sleep(0.01)
                context._processes.close(signal.SIGTERM, 600)
            closer = threading.Thread(target=close)
            closer.start()
            context.start()
            closer.join()
            result = context.wait(0)
            codes = [one.exitcode for one in result.failures.values()]
            tell(codes=codes, warm=zygote_pool._idle != [])
        """
    )
    assert program.facts(warm=True) == {"codes": [-signal.SIGTERM] * 2, "warm": True}


@pytest.mark.parametrize(("how", "is_warm"), [("", True), ("warm=False", False)])
def test_launch_imports_ahead_what_the_module_of_a_function_does(
    program: Program, how: str, is_warm: bool
) -> None:
    (program.folder / "own.py").write_text(
        "import os\nfrom heavy import WHERE\ndef look(): return WHERE != os.getpid()\n"
    )
    program.write(
        f"""
        import holdfast, own
        if __name__ == "__main__":
            tell(warm=holdfast.launch(own.look, nproc=1, {how})[0])
        """
    )
    assert program.facts(warm=True) == {"warm": is_warm}
    assert program.facts(warm=False) == {"warm": False}
