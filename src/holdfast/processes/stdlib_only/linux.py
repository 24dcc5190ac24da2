"""What Linux offers for keeping processes together, and Python does not wrap.

Standard library only: the spawner and the zygote load this file by path. Every call is
tolerant of an older kernel: it says whether it worked and never raises for that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import time

from holdfast.processes.stdlib_only import private_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_MM = 35
PR_SET_MM_MAP = 14
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37
PR_SET_PTRACER = 0x59616D61
TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
TFD_TIMER_ABSTIME = 1

_libc = ctypes.CDLL(None, use_errno=True)
_quick = ctypes.PyDLL(None)
"""For calls that return at once: no other thread takes its turn meanwhile."""
_plain = private_names.plain_signals()
FOR_THE_AGENT = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
"""Signals by which a node is ended, or asked to leave: terminals and schedulers may send them to
every process of it. Those that only serve others go on until they are killed."""
_SIGNALS: set[int] = _plain.valid_signals()


class ProcessEntry:
    """A line of the process table."""

    __slots__ = ("name", "parent", "pid", "state")

    def __init__(self, pid: int, parent: int, state: str, name: str) -> None:
        self.pid = pid
        self.parent = parent
        self.state = state
        self.name = name


def _prctl(option: int, *arguments: int) -> bool:
    padded = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    return bool(_libc.prctl(option, *padded) == 0)


def set_subreaper() -> bool:
    """Become the parent of orphans below this process."""
    return _prctl(PR_SET_CHILD_SUBREAPER, 1)


def has_subreaper() -> bool:
    """Whether `set_subreaper` would work here; whether it was called stays as it is."""
    is_set = ctypes.c_int()
    return bool(_libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(is_set), 0, 0, 0) == 0)


def set_parent_death_signal(number: int) -> bool:
    """Be sent this signal when the present parent dies."""
    return _prctl(PR_SET_PDEATHSIG, number)


def permit_agent(environ: Mapping[str, str]) -> bool:
    """Let the agent, and what it starts, look into this process, also after an exec.

    Kernels with Yama let nobody do that but ancestors; a debugger that the agent runs is none. The
    agent is known by where it wants stacks (`stack_handler`): without that, nobody is let in.
    """
    agent = environ.get("HOLDFAST_STACKS", "").partition("@/proc/")[2].partition("/")[0]
    return agent.isdecimal() and _prctl(PR_SET_PTRACER, int(agent))


def set_title(name: str) -> bool:
    """Set the short name that `ps` and `top` show."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    return bool(_libc.prctl(PR_SET_NAME, buffer, 0, 0, 0) == 0)


def become_worker(
    parent: int, stdio: list[int], cpus: tuple[int, ...] | None, *, fresh: bool = True
) -> None:
    """In a fresh child: a session, descriptors and signals of its own, and a fate.

    Descriptors beyond the standard streams are the node's tether and its note: they are kept open,
    also by whatever the worker becomes or forks. The fate: SIGKILL when the spawner dies. If it
    died before that was set, end here. Signals are reset unless the child comes from a zygote,
    which has none of its own.
    """
    os.setsid()
    set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(125)
    # Move them out of the way first: one of them may be 0, 1 or 2 already.
    safe = [os.dup(descriptor) for descriptor in stdio]
    for target, descriptor in enumerate(safe[:3]):
        os.dup2(descriptor, target)
        os.close(descriptor)
    for descriptor in safe[3:]:
        os.set_inheritable(descriptor, True)
    if fresh:
        reset_signals()
    if cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus)


def moved_above(descriptors: list[int], numbers: tuple[int, ...]) -> list[int]:
    """Copies of these descriptors, above all of these numbers, that close on exec.

    None of them takes the place of anything that is open.
    """
    if not descriptors:
        return []
    import fcntl  # Seldom needed, and in a worker nobody else may have loaded it.

    above = max([2, *numbers]) + 1
    return [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, above) for one in descriptors]


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def block_signals() -> set[int]:
    """Block all that can be; returns what was blocked before, for `unblock_signals`."""
    before: set[int] = _plain.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    return before


def unblock_signals(before: set[int] | frozenset[int] = frozenset()) -> None:
    """Block only these any more."""
    _plain.pthread_sigmask(signal.SIG_SETMASK, before)


def reset_signals() -> None:
    """Handle every signal as a fresh process does, and block none."""
    for number in _SIGNALS:
        if number in (signal.SIGKILL, signal.SIGSTOP):
            continue
        if _plain.getsignal(number) != _plain.SIG_DFL:
            with contextlib.suppress(OSError, ValueError):
                _plain.signal(number, _plain.SIG_DFL)
    unblock_signals()


def now() -> float:
    """The clock of leases: it does not stand still while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class BootTimer:
    """A descriptor that can be read once `now` has come to a set moment.

    What waits with a timeout is late by as long as the machine was suspended; what waits for this
    wakes as soon as it goes on.
    """

    def __init__(self) -> None:
        """Raises OSError where the kernel has none."""
        self._number: int = _libc.timerfd_create(time.CLOCK_BOOTTIME, TFD_FLAGS)
        if self._number < 0:
            raise OSError(ctypes.get_errno(), "no timer")
        self._set_for: float | None = None

    def fileno(self) -> int:
        return self._number

    def set(self, at: float | None) -> None:
        """Until when to wait; None: for ever. It is not readable before that, nor after None."""
        if at == self._set_for:
            return
        self._set_for = at
        # An interval of nothing, and the moment: a moment of nothing would be none.
        seconds, nanoseconds = divmod(0 if at is None else max(int(at * 1e9) + 1, 1), 10**9)
        moment = (ctypes.c_long * 4)(0, 0, seconds, nanoseconds)
        _quick.timerfd_settime(self._number, TFD_TIMER_ABSTIME, moment, None)

    def close(self) -> None:
        os.close(self._number)


def boot_timer() -> BootTimer | None:
    """One, where the kernel has them; else timeouts have to do."""
    try:
        return BootTimer()
    except OSError:
        return None


def readable(sock: socket.socket) -> bool:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def read_process(pid: int | str) -> ProcessEntry | None:
    """The process table's line for a pid, or None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    state, parent = text[text.rindex(")") + 2 :].split()[:2]
    return ProcessEntry(int(pid), int(parent), state, name)


def process_table() -> list[ProcessEntry]:
    table = [read_process(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [process for process in table if process is not None]


def descendants(root: int, without: tuple[int, ...] = ()) -> list[ProcessEntry]:
    """Everything below `root`, except for these and what is below them."""
    children: dict[int, list[ProcessEntry]] = {}
    for process in process_table():
        children.setdefault(process.parent, []).append(process)
    found: list[ProcessEntry] = []
    pending = [root]
    while pending:
        for child in children.get(pending.pop(), ()):
            if child.pid not in without:
                found.append(child)
                pending.append(child.pid)
    return found


def has_children() -> bool:
    """Whether this process has a child, dead or alive; a subreaper without has nothing below."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def await_end(child: int) -> None:
    """Wait for a child to end, also where SIGCHLD is ignored, so that nobody can be told how."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def reap() -> list[tuple[int, int]]:
    """Take every child that has ended: (pid, status)."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, status))
    return ended


def is_below(pid: int, root: int) -> bool:
    """Whether `root` is an ancestor of `pid`, right now."""
    for _ in range(1000):
        process = read_process(pid)
        if process is None or process.parent == 0:
            return False
        if process.parent == root:
            return True
        pid = process.parent
    return False


def group_exists(group: int) -> bool:
    """Whether any process is in that group, be it one that we may not signal."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def has_pidfd() -> bool:
    """Whether this kernel can pin a process, so that its pid cannot be reused meanwhile."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def kill_if_below(process: ProcessEntry, root: int) -> None:
    """SIGKILL, unless the pid has meanwhile come to mean a process that is not ours.

    Nor is one ours that may not be signalled (`is_forbidden`): it stays.
    """
    try:
        pinned = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:
        # No pidfd on this kernel: the look and the kill are as close as they can be.
        if is_below(process.pid, root):
            send_signal(process.pid, signal.SIGKILL)
        return
    try:
        if is_below(process.pid, root):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(pinned, signal.SIGKILL)
    finally:
        os.close(pinned)


def send_signal(target: int, number: int) -> None:
    """Signal a process or, below zero, a group, if it is there and this process may do so."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(target, number)


def is_forbidden(pid: int) -> bool:
    """Whether this process may not signal that one: after `sudo`, it is another user's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False


def described(process: ProcessEntry) -> str:
    """A process as a user may look for it; whose it is, if it may not be signalled."""
    owner = ""
    if is_forbidden(process.pid):
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/status", "rb") as file:
            (line,) = [line for line in file if line.startswith(b"Uid:")]
            owner = f", of uid {int(line.split()[1])}"
    return f"pid {process.pid} ({process.name}, state {process.state}{owner})"


class CleanupGrace:
    """How long processes that clean up after others may outlive them: seconds at most.

    They unlink the shared memory of processes that can no longer do it themselves, as soon as
    the last of them is gone, and end. Killed with the others, they would leave it in /dev/shm.
    Which program a process has that is only just being started cannot be known yet, nor does
    anybody tell when it can: it is looked at again soon.
    """

    PROGRAM = b"from multiprocessing.resource_tracker import main"
    """What `multiprocessing` has its own one run."""
    COMMAND = b"torch_shm_manager"
    LIMIT_S = 4.0
    SOON_S = 0.01

    def __init__(self) -> None:
        self._until: float | None = None
        self._look_at: float | None = None
        self._others: set[int] = set()

    def spares(self, process: ProcessEntry) -> bool:
        """Whether this one is not to be killed yet."""
        cleans_up = process.pid not in self._others and self._cleans_up(process.pid)
        if cleans_up is False:
            self._others.add(process.pid)
            return False
        now = time.monotonic()
        if self._until is None:
            self._until = now + self.LIMIT_S
        if now >= self._until:
            return False
        look_at = self._until if cleans_up else now + self.SOON_S
        self._look_at = look_at if self._look_at is None else min(look_at, self._look_at)
        return True

    def left(self) -> float | None:
        """How long to wait before those that were spared are to be looked at again."""
        return None if self._look_at is None else max(0.0, self._look_at - time.monotonic())

    def is_due(self) -> bool:
        """Whether they are to be looked at now; asked before they are."""
        if self.left() != 0.0:
            return False
        self._look_at = None
        return True

    def end(self) -> None:
        """Spare nobody any more."""
        self._until = 0.0

    def _cleans_up(self, pid: int) -> bool | None:
        """None while it cannot be seen: its program is being loaded, or it is at its end."""
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read(4096)
        except OSError:
            return False
        if not command:
            return None
        words = command.split(b"\0")
        is_tracker = any(word.startswith(self.PROGRAM) for word in words)
        return is_tracker or os.path.basename(words[0]) == self.COMMAND


def kill_all_below(root: int, give_up_after_s: float = 5.0) -> list[ProcessEntry]:
    """SIGKILL and reap everything below this process, a subreaper, until nothing is left.

    A process that forked between the look and the kill comes up to us and is caught the next time
    round. Processes that are stuck in the kernel are left to it when the time is over, which
    begins when nobody is spared any more. Returns those that are left: also such that this process
    may not signal, which are not waited for.
    """
    patience = CleanupGrace()
    child_ended = {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, child_ended)
    deadline = time.monotonic() + give_up_after_s
    reap()
    # A subreaper without children has nothing below it: most often that ends the matter.
    while has_children() and time.monotonic() < deadline:
        left = _running_below(root)
        if left and all(is_forbidden(process.pid) for process in left):
            break
        for process in left:
            if patience.spares(process):
                deadline = time.monotonic() + give_up_after_s
            else:
                kill_if_below(process, root)
        signal.sigtimedwait(child_ended, max(0.0, min(0.2, deadline - time.monotonic())))
        reap()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _running_below(root) if has_children() else []


def _running_below(root: int) -> list[ProcessEntry]:
    return [process for process in descendants(root) if process.state != "Z"]


class _MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map`."""

    _fields_ = [
        *[(name, ctypes.c_uint64) for name in (
            "start_code", "end_code", "start_data", "end_data", "start_brk", "brk",
            "start_stack", "arg_start", "arg_end", "env_start", "env_end", "auxv")],
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_int32),
    ]  # fmt: skip


_shown: list[object] = []


def show_as(argv: list[str], environ: dict[str, str]) -> bool:
    """Make `/proc/<pid>/cmdline` and `environ` read as if started with these.

    The kernel is pointed to memory of ours; it needs no privilege, and the old areas stay.
    """
    arguments = b"".join(os.fsencode(word) + b"\0" for word in argv)
    variables = b"".join(os.fsencode(f"{key}={value}") + b"\0" for key, value in environ.items())
    buffer = ctypes.create_string_buffer(arguments + variables, len(arguments) + len(variables))
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    # Field 3 (state) is fields[0], so field n of proc(5) is fields[n - 3].
    start = ctypes.addressof(buffer)
    middle = start + len(arguments)
    _libc.sbrk.restype = ctypes.c_void_p
    area = _MemoryMap(
        start_code=int(fields[23]), end_code=int(fields[24]), start_stack=int(fields[25]),
        start_data=int(fields[42]), end_data=int(fields[43]), start_brk=int(fields[44]),
        brk=_libc.sbrk(0), arg_start=start, arg_end=middle, env_start=middle,
        env_end=middle + len(variables), auxv=0, auxv_size=0, exe_fd=-1,
    )  # fmt: skip
    _shown.append(buffer)
    size = ctypes.c_ulong(ctypes.sizeof(area))
    options = (ctypes.c_ulong(PR_SET_MM_MAP), ctypes.byref(area), size, ctypes.c_ulong(0))
    return bool(_libc.prctl(PR_SET_MM, *options) == 0)


def thread_count(without: frozenset[str] = frozenset()) -> int:
    """How many threads this process has, those with such a name not counted."""
    threads = os.listdir("/proc/self/task")
    if len(threads) == 1 or not without:
        return len(threads)
    return sum(_thread_name(thread) not in without for thread in threads)


def _thread_name(thread: str) -> str:
    try:
        with open(f"/proc/self/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def open_descriptors() -> dict[int, str]:
    """Every open descriptor of this process, and what it leads to."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[int(entry)] = os.readlink(f"/proc/self/fd/{entry}")
    return found


def shared_mappings() -> set[str]:
    """Memory that this process could write to, and would share with what it forks."""
    found = set()
    with open("/proc/self/maps", "rb") as file:
        for line in file:
            place, rights, rest = line.split(b" ", 2)
            if rights.startswith(b"rw") and rights.endswith(b"s"):
                found.add(f"{place.decode()} {rest.strip().decode(errors='replace')}")
    return found


def mapped_libraries() -> set[str]:
    """The files of the shared libraries that this process has loaded."""
    with open("/proc/self/maps", "rb") as file:
        paths = [os.fsdecode(line.rstrip(b"\n")).split(None, 5)[5:] for line in file]
    return {path for (path,) in filter(None, paths) if ".so" in path}


def close_all_but(kept: int) -> None:
    """Close every descriptor of this process, but for the standard streams and this one."""
    for number in open_descriptors():
        if number > 2 and number != kept:
            # One of them was for listing the others, and is closed already.
            with contextlib.suppress(OSError):
                os.close(number)


def mount_of(path: str, table: str = "/proc/self/mounts") -> tuple[str, str]:
    """Where the file system is mounted that an absolute path is on, and of which kind it is."""
    found = "/", ""
    with open(table, encoding="utf-8", errors="replace") as file:
        for line in file:
            _, point, kind, *_ = line.split(" ")
            for written, meant in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
                point = point.replace(f"\\{written}", meant)
            is_above = f"{path}/".startswith(f"{point.rstrip('/')}/")
            if is_above and len(point) >= len(found[0]):  # A later one lies on top.
                found = point, kind
    return found
