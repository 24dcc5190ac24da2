"""What all tests share.

Rules
- A test of real processes leaves none behind, and no file descriptor either: it is checked
  after each of them, for everything that descends from the test process, orphans included.
- A test that this machine cannot run is skipped with the reason, never passed.

How the check works: the test process is a *subreaper*, so the kernel hands it every orphan
below it; a walk from the test process (`process_tree.py`) therefore finds even what daemonised
itself. What is there after a test and was not there before it has `LEFTOVER_DEADLINE_S` to go;
then the test fails and the leftovers are killed, so that the next test starts clean. A test that
failed for its own reasons is cleaned up after in the same way, without a second complaint.
What a fixture of a module or of the session started is that fixture's, and so is whatever descends
from it, whenever that begins: a browser starts processes as it likes.

What follows from it for tests: an orphan that died is a zombie of the test process until the
test is over, and then it is reaped. "Gone" means not running (`is_running`), not that the
number is free.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest

from .process_tree import Process, command_of, family, running_below, status_of

TESTS = Path(__file__).parent
SEVERAL_HOSTS = TESTS / "integration" / "nodes"
PLANTED = TESTS / "planted"
LONGEST = (TESTS / "stacks", SEVERAL_HOSTS)
LONG_TIMEOUT_S = 300
"""For tests of several hosts or with PyTorch, whose import takes a busy machine a minute."""
PEER = "torch.distributed.elastic"
"""In the names of tests that run on PyTorch's own API, to show that ours is measured by it."""
CHECKED_FOLDERS = frozenset(
    {
        "admin",
        "agent",
        "benchmarks",
        "cli",
        "elastic",
        "engine",
        "integration",
        "package",
        "planted",
        "processes",
        "registers",
        "stacks",
        "store",
        "transport",
    }
)
LEFTOVER_DEADLINE_S = 20.0
PR_SET_CHILD_SUBREAPER = 36
SETTINGS_PREFIXES = ("HOLDFAST_", "PET_", "TORCHELASTIC_")

# Most tests start processes, thousands in all. Where Python was told to keep no compiled modules,
# each of these would compile Holdfast anew, which takes several times as long as what it is for.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tests never judge by time, and a busy machine is no bug. The examples are the same in every run,
# so that a change passes or fails by itself; `pytest --hypothesis-profile explore` draws new ones.
hypothesis.settings.register_profile(
    "explore",
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "holdfast",
    hypothesis.settings.get_profile("explore"),
    derandomize=True,
    max_examples=100 if os.environ.get("TEST_ALL") else 40,
)
hypothesis.settings.load_profile("holdfast")


# --- what this machine can run ------------------------------------------------------------


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with the reason, what needs a user or a package that is not here."""
    if not os.environ.get("TEST_ALL"):
        _leave_out_the_thorough(config, items)
    if hasattr(config, "workerinput"):
        _begin_with_the_longest(items, config.workerinput["workercount"])
    missing = {}
    if os.getuid() != 0:
        missing["root"] = f"needs to run as root, and this is user {os.getuid()}"
    if importlib.util.find_spec("torch") is None:
        missing["torch"] = "needs PyTorch, which is not installed here (make test installs it)"
    for item in items:
        is_long = _is_below(item, SEVERAL_HOSTS, PLANTED)
        is_long = is_long or item.get_closest_marker("torch") is not None
        if is_long and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _is_below(item: pytest.Item, *folders: Path) -> bool:
    return item.nodeid.startswith(
        tuple(f"tests/{folder.relative_to(TESTS)}/" for folder in folders)
    )


def _leave_out_the_thorough(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What says more of the same, or checks PyTorch itself, is for `make test-all`."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (left_out if _is_thorough(item) or PEER in item.name else kept).append(item)
    if kept and left_out:  # Who asks for nothing else gets it.
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _is_thorough(item: pytest.Item) -> bool:
    """Whether one of its marks says so, `thorough(but=…)` for all cases but those named."""
    case = getattr(item, "callspec", None)
    return any(
        case is None or case.id not in mark.kwargs.get("but", ())
        for mark in item.iter_markers("thorough")
    )


def _begin_with_the_longest(items: list[pytest.Item], workers: int) -> None:
    """Let half of the processes of a parallel run begin with a share of them each.

    They wait most of their time: the others use the processors meanwhile. At the end of the run
    they would be what all wait for, with nothing beside them; all at once, each with many processes
    and with leases to keep, they would be too much for a machine of two cores.
    """
    longest = [item for item in items if _is_below(item, *LONGEST)]
    others = [item for item in items if not _is_below(item, *LONGEST)]
    beginners = max(1, workers // 2)
    left = len(items)
    items.clear()
    for number in range(workers):
        size = left // (workers - number)  # what this process gets at first
        left -= size
        bounds = (n * len(longest) // beginners for n in (number, number + 1))
        share = longest[slice(*bounds)]
        items += [*share, *others[: max(0, size - len(share))]]
        del others[: max(0, size - len(share))]
    items += others


# --- nothing is left behind ---------------------------------------------------------------


class Descriptor(NamedTuple):
    """An open file of the test process, told apart by what it points at."""

    number: int
    device: int
    inode: int


class Leftovers(NamedTuple):
    """What is there and was not there before."""

    processes: set[Process]
    descriptors: set[Descriptor]

    def __bool__(self) -> bool:
        return bool(self.processes or self.descriptors)

    def __str__(self) -> str:
        lines = [f"process {p.pid}: {command_of(p.pid)}" for p in sorted(self.processes)]
        lines += [
            f"file descriptor {d.number}: {_target_of(d.number)}" for d in sorted(self.descriptors)
        ]
        return "\n  ".join(["left behind by this test:", *lines])


passed_key = pytest.StashKey[bool]()
shared = Leftovers(set(), set())
"""What fixtures of a module or of the session hold, whenever they were first asked for."""


def pytest_sessionstart() -> None:
    """Become the adopter of every orphan below this process, and ignore no signal.

    A shell without job control starts what is to run in the background with some ignored, and
    every program that a test starts would inherit that.
    """
    for number, usual in (
        (signal.SIGHUP, signal.SIG_DFL),
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot become a subreaper: {os.strerror(error)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test itself passed, for the check that follows it."""
    report = yield
    if call.when == "call":
        item.stash[passed_key] = report.passed
    return report


class SharedFixtures:
    """Notes what is to outlive the test that happens to be the first to ask for it."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object]
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        before = Leftovers(family().running, _descriptors())
        value = yield
        made = _left_since(before)
        shared.processes.update(made.processes)
        shared.descriptors.update(made.descriptors)
        return value


def pytest_configure(config: pytest.Config) -> None:
    # Not as a function here, which would not be told of fixtures of the session.
    config.pluginmanager.register(SharedFixtures())


@pytest.fixture(scope="session", autouse=True)
def memory_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What jobs remember of their imports is not the user's, and goes with the tests."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test of real processes that leaves a process or a descriptor behind."""
    if request.path.relative_to(TESTS).parts[0] not in CHECKED_FOLDERS:
        yield
        return
    at_first = family()
    before = Leftovers(at_first.running, _descriptors())
    yield
    _let_idle_zygotes_go()
    passed = request.node.stash.get(passed_key, False)
    left = _wait_until_gone(before) if passed else _left_since(before)
    report = str(left)
    if left.processes:
        _kill(left.processes)
    _reap(family().dead - at_first.dead - at_first.running - shared.processes)
    if left and passed:
        pytest.fail(report, pytrace=False)


def _let_idle_zygotes_go() -> None:
    """Those that wait for another call of functions, which is none of this test's."""
    zygote_pool = sys.modules.get("holdfast.elastic.multiprocessing.zygote_pool")
    if zygote_pool is not None:
        zygote_pool.let_go()


def _wait_until_gone(before: Leftovers) -> Leftovers:
    """Return what is still left when nothing is, or when the deadline has come."""
    deadline = time.monotonic() + LEFTOVER_DEADLINE_S
    # Two looks, because one may pass by a process that changes its parent meanwhile.
    while left := _left_since(before) or _left_since(before):
        if left.descriptors:
            gc.collect()  # one held by a dead cycle is not a leak
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    return left


def _left_since(before: Leftovers) -> Leftovers:
    processes = _running_of_tests() - before.processes
    descriptors = _descriptors() - before.descriptors - shared.descriptors
    pids, numbers = _helpers_of_multiprocessing()
    return Leftovers(
        {process for process in processes if process.pid not in pids},
        {descriptor for descriptor in descriptors if descriptor.number not in numbers},
    )


def _running_of_tests() -> set[Process]:
    """All that runs below this process, but for what is shared and what descends from that."""
    return family().running - shared.processes - running_below(shared.processes)


def _helpers_of_multiprocessing() -> tuple[set[int | None], set[int | None]]:
    """Processes and descriptors of the fork server and of the tracker of shared memory.

    There is one of each for the life of a process, whichever test needs it first.
    """
    server: Any = forkserver._forkserver
    tracker: Any = resource_tracker._resource_tracker
    pids = {server._forkserver_pid, tracker._pid}
    return pids, {server._forkserver_alive_fd, tracker._fd}


def _kill(processes: set[Process]) -> None:
    """Kill them and whatever they fork meanwhile, and wait until all of it is dead."""
    known = _running_of_tests() - processes
    deadline = time.monotonic() + LEFTOVER_DEADLINE_S
    while processes and time.monotonic() < deadline:
        for process in processes:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it went by itself since it was seen
        time.sleep(0.02)
        processes = _running_of_tests() - known


def _reap(dead: set[Process]) -> None:
    """Forget the orphans that fell to us; those from before the test belong to others."""
    for process in dead:
        try:
            os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:
            pass  # whoever started it has waited for it since it was seen


def _descriptors() -> set[Descriptor]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(name))
        except OSError:
            continue  # the one through which the directory was read
        found.add(Descriptor(int(name), status.st_dev, status.st_ino))
    return found


def _target_of(number: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:
        return "closed"


@pytest.fixture(scope="session")
def pytorch_in_this_process() -> None:
    """For tests that use a store of PyTorch's themselves: some descriptors it opens for good."""
    import torch.distributed

    torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(scope="session")
def is_running() -> Callable[[int], bool]:
    """Whether a process is there and not dead: a zombie is dead."""

    def running(pid: int) -> bool:
        status = status_of(pid)
        return status is not None and status.is_running

    return running


# --- the installed command ----------------------------------------------------------------


@pytest.fixture(scope="session")
def holdfast() -> Path:
    """The installed command, beside the interpreter that runs the tests."""
    command = Path(sys.executable).with_name("holdfast")
    if not command.exists():
        pytest.fail(f"{command} is not there; install the package: pip install -e .")
    return command


RunHoldfast = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def run_holdfast(holdfast: Path) -> RunHoldfast:
    """Run the installed command to its end.

    `env` is laid over the environment of the tests, from which every setting of Holdfast
    is taken out first; a value of None takes a variable out. Without `input`, standard
    input is empty. Raises `subprocess.TimeoutExpired` after `timeout` seconds.
    """

    def run(
        *args: str | Path,
        env: Mapping[str, str | None] | None = None,
        timeout: float = 100,
        input: str | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [holdfast, *args],
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            input="" if input is None else input,
            timeout=timeout,
            cwd=cwd,
            env=_environment(env or {}),
        )

    return run


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith(SETTINGS_PREFIXES)}
    merged: dict[str, str | None] = {**plain, **changes}
    return {name: value for name, value in merged.items() if value is not None}
