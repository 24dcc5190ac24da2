"""What the kernel offers for keeping processes together, on real processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.processes.stdlib_only import linux

from ...timers_of_processes import timers_of
from ...waiting import DEADLINE_S, until

Start = Callable[..., Any]
"""Returns a process all of whose pipes are there."""


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program with pipes; it is killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


# A family of three generations that says its process ids, and then waits.
FAMILY = """
import os, signal, sys
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    grandchild = os.fork()
    if grandchild:
        os.write(writer, str(grandchild).encode())
    while True:
        signal.pause()
print(os.getpid(), child, os.read(reader, 20).decode(), flush=True)
sys.stdin.read()
"""


def test_a_process_is_read_whatever_its_name(start: Start) -> None:
    """A name may hold the brackets and blanks that separate the fields."""
    name = "a) S 1 (b"
    process = start(
        """
        import sys
        from holdfast.processes.stdlib_only import linux
        print(linux.set_title(sys.argv[1]), flush=True)
        sys.stdin.read()
        """,
        name,
    )
    assert process.stdout.readline() == "True\n"
    found = linux.read_process(process.pid)
    assert found is not None
    assert (found.pid, found.parent, found.name) == (process.pid, os.getpid(), name)
    assert found.state in "SRD"


def test_a_process_that_is_not_there_is_none(start: Start) -> None:
    process = start("")
    process.wait()
    assert linux.read_process(process.pid) is None


def test_descendants_are_found_in_all_generations(start: Start) -> None:
    family = [int(word) for word in start(FAMILY).stdout.readline().split()]
    parent, child, grandchild = family
    found = {process.pid for process in linux.descendants(os.getpid())}
    assert set(family) <= found
    below = {process.pid for process in linux.descendants(parent)}
    assert below == {child, grandchild}
    assert linux.descendants(parent, without=(child,)) == []
    assert linux.is_below(grandchild, parent)
    assert not linux.is_below(parent, grandchild)
    assert not linux.is_below(os.getppid(), os.getpid())
    os.kill(grandchild, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)


def test_only_what_is_below_is_killed(start: Start, is_running: Callable[[int], bool]) -> None:
    parent, child, grandchild = (int(word) for word in start(FAMILY).stdout.readline().split())
    table = {process.pid: process for process in linux.process_table()}
    linux.kill_if_below(table[grandchild], root=os.getpid() + 1)
    linux.kill_if_below(table[parent], root=child)
    assert all(map(is_running, (parent, child, grandchild)))
    linux.kill_if_below(table[grandchild], root=parent)
    linux.kill_if_below(table[child], root=parent)
    until(lambda: not is_running(child) and not is_running(grandchild))
    assert is_running(parent)


def test_a_process_that_has_gone_is_not_missed(
    start: Start, is_running: Callable[[int], bool]
) -> None:
    ended, other = start("input()"), start("print('here', flush=True); input()")
    gone = linux.read_process(ended.pid)
    assert gone is not None
    assert gone.parent == os.getpid()
    assert other.stdout.readline() == "here\n"
    ended.kill()
    ended.wait()
    before = os.listdir("/proc/self/fd")
    linux.kill_if_below(gone, os.getpid())
    assert is_running(other.pid)
    assert os.listdir("/proc/self/fd") == before
    there = linux.read_process(other.pid)
    assert there is not None
    linux.kill_if_below(there, os.getpid())
    assert other.wait() == -signal.SIGKILL


def test_everything_below_a_subreaper_is_killed_and_reaped(
    start: Start, is_running: Callable[[int], bool]
) -> None:
    """Daemons, those who ignore signals, and those who are forking at that very moment."""
    process = start(
        """
        import os, signal, sys
        from holdfast.processes.stdlib_only import linux

        linux.set_subreaper()
        pids = []
        for number in range(3):
            reader, writer = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if os.fork():
                    os._exit(0)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.write(writer, str(os.getpid()).encode())
                while True:
                    if os.fork() == 0:
                        signal.sigtimedwait([], 0.001)
                        os._exit(0)
                    try:
                        while os.waitpid(-1, os.WNOHANG)[0]:
                            pass
                    except ChildProcessError:
                        pass
            pids.append(int(os.read(reader, 20)))
        linux.kill_all_below(os.getpid())
        left = linux.descendants(os.getpid())
        print(*pids)
        print(len(left), linux.has_children(), flush=True)
        """,
    )
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 3
    assert process.stdout.readline() == "0 False\n"
    assert not any(map(is_running, pids))


def test_a_process_knows_whether_it_has_children(start: Start) -> None:
    process = start(
        """
        import os
        from holdfast.processes.stdlib_only import linux
        print(linux.has_children())
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        print(linux.has_children())
        os.waitpid(child, 0)
        print(linux.has_children(), flush=True)
        """
    )
    assert process.stdout.read().split() == ["False", "True", "False"]


def test_a_worker_has_a_session_descriptors_and_signals_of_its_own(
    start: Start, tmp_path: Path
) -> None:
    """Whatever its parent ignored, blocked or had open in the way."""
    process = start(
        """
        import os, signal, sys
        from holdfast.processes.stdlib_only import linux

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        parent = os.getpid()
        out = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
        child = os.fork()
        if child == 0:
            os.dup2(out, 0)  # What is to be stdout lies where stdin will be.
            null = os.open(os.devnull, os.O_RDWR)
            linux.become_worker(parent, [null, 0, null], (min(os.sched_getaffinity(0)),))
            print(os.getsid(0) == os.getpid(), len(os.sched_getaffinity(0)))
            print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
            print(signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)
            print(signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL)
            print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
            print(os.readlink("/proc/self/fd/0"), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        """,
        str(tmp_path / "out"),
    )
    assert process.wait(DEADLINE_S) == 0
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines == ["True 1", "True", "True", "True", "set()", "/dev/null"]


def test_a_worker_dies_with_its_parent(start: Start, is_running: Callable[[int], bool]) -> None:
    process = start(
        """
        import os, signal, sys
        from holdfast.processes.stdlib_only import linux

        reader, writer = os.pipe()
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            linux.become_worker(parent, [0, 1, 2], None)
            os.write(writer, b".")
            while True:
                signal.pause()
        os.read(reader, 1)
        print(child, flush=True)
        signal.pause()
        """
    )
    worker = int(process.stdout.readline())
    assert is_running(worker)
    process.kill()
    until(lambda: not is_running(worker))


def test_a_worker_whose_parent_is_already_gone_never_runs(start: Start) -> None:
    process = start(
        """
        import os
        from holdfast.processes.stdlib_only import linux

        child = os.fork()
        if child == 0:
            linux.become_worker(os.getppid() + 1, [0, 1, 2], None)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        """
    )
    assert process.stdout.readline() == "125\n"


def test_a_process_shows_the_command_and_environment_it_is_given(start: Start) -> None:
    process = start(
        """
        import sys
        from holdfast.processes.stdlib_only import linux

        argv = ["python", "train.py", "--name", "x" * 5000]
        print(linux.show_as(argv, {"RANK": "3", "LONG": "y" * 200000}), flush=True)
        sys.stdin.read()
        """
    )
    assert process.stdout.readline() == "True\n"
    with open(f"/proc/{process.pid}/cmdline", "rb") as file:
        assert file.read() == b"python\0train.py\0--name\0" + b"x" * 5000 + b"\0"
    with open(f"/proc/{process.pid}/environ", "rb") as file:
        assert file.read() == b"RANK=3\0LONG=" + b"y" * 200000 + b"\0"


# --- patience with those who clean up ----------------------------------------------------


def test_who_was_spared_is_killed_however_little_time_is_left_then(
    start: Start, is_running: Callable[[int], bool]
) -> None:
    process = start(
        """
        import os, signal, subprocess, sys
        from holdfast.processes.stdlib_only import linux

        linux.set_subreaper()
        linux.CleanupGrace.LIMIT_S = 1.0
        program = "import signal, sys; print(flush=True)\\nwhile True: signal.pause()"
        command = [sys.executable, "-c", program, linux.CleanupGrace.PROGRAM.decode()]
        pretender = subprocess.Popen(command, stdout=subprocess.PIPE)
        pretender.stdout.readline()
        linux.kill_all_below(os.getpid(), give_up_after_s=0.5)
        print(pretender.pid, linux.has_children(), flush=True)
        """
    )
    pid, has_children = process.stdout.readline().split()
    assert has_children == "False"
    assert not is_running(int(pid))


def test_a_process_whose_program_cannot_be_seen_yet_is_spared_and_looked_at_again(
    start: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no command line while it is being loaded, just as when it has ended."""
    monkeypatch.setattr(linux.CleanupGrace, "SOON_S", 0.0)
    monkeypatch.setattr(linux.CleanupGrace, "LIMIT_S", DEADLINE_S)
    ended = start("")
    until(lambda: (found := linux.read_process(ended.pid)) and found.state == "Z")
    process = linux.read_process(ended.pid)
    assert process is not None
    patience = linux.CleanupGrace()
    assert patience.left() is None
    assert patience.spares(process)
    assert patience.is_due()
    assert patience.left() is None, "it was to be looked at once"
    patience.end()
    assert not patience.spares(process)


# --- looking changes nothing -------------------------------------------------------------


def test_who_asks_for_a_subreaper_stays_what_it_was(start: Start) -> None:
    """A doctor that looked took an agent's orphans away, once."""
    process = start(
        """
        import os
        from holdfast.processes.stdlib_only import linux

        linux.set_subreaper()
        assert linux.has_subreaper()
        if os.fork() == 0:
            if os.fork() == 0:
                os.read(0, 1)  # Until its parent is gone.
                os._exit(7)
            os._exit(0)
        os.wait()
        print(flush=True)
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
        """
    )
    process.stdout.readline()
    process.stdin.write("x")
    process.stdin.flush()
    assert process.stdout.readline() == "7\n"


# The clock of leases.

BOOTTIME_ID = 7
"""In `<time.h>`, and in what the kernel shows of a timer."""


def test_a_timer_counts_on_the_clock_of_leases_and_is_set_for_its_moment() -> None:
    timer = linux.BootTimer()
    at = linux.now() + 1000
    timer.set(at)
    (shown,) = timers_of(os.getpid(), timer.fileno())
    assert shown.clock == BOOTTIME_ID
    assert at - 100 < linux.now() + shown.left_s <= at + 1
    assert not is_readable(timer)
    timer.set(None)
    (shown,) = timers_of(os.getpid(), timer.fileno())
    assert shown.left_s == 0
    assert not is_readable(timer)
    timer.close()


def test_a_timer_can_be_read_from_its_moment_on_until_it_is_set_again() -> None:
    timer = linux.BootTimer()
    at = linux.now() + 0.02
    timer.set(at)
    until(lambda: is_readable(timer), "the moment")
    assert linux.now() >= at
    timer.set(linux.now() + 1000)
    assert not is_readable(timer)
    timer.set(linux.now() - 1000)
    until(lambda: is_readable(timer), "a moment that is over")
    timer.close()


def is_readable(timer: linux.BootTimer) -> bool:
    return bool(select.select([timer], [], [], 0)[0])
