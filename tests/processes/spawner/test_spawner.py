"""The spawner alone: what it does as it is asked, and what it does when nobody asks any more."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.processes.spawner_process import start_spawner
from holdfast.processes.stdlib_only import linux
from holdfast.processes.stdlib_only.private_messages import (
    EverythingGone,
    Execute,
    Exited,
    Fork,
    InCommon,
    Kill,
    LeaseOver,
    Message,
    Preload,
    Preloaded,
    ReportStuck,
    Shutdown,
    Signal,
    SpawnerIsUp,
    Started,
    StopAndKillAt,
    Stuck,
    WarmWorker,
    ZygoteEnded,
)
from holdfast.processes.stdlib_only.wire import PrivateConnection

from ...timers_of_processes import timers_of
from ...waiting import DEADLINE_S, until

Kind = TypeVar("Kind", bound=Message)
BOOTTIME_ID = 7
"""In what the kernel shows of a timer."""


class Spawner:
    """A real one, spoken to as the agent does."""

    def __init__(self) -> None:
        process = start_spawner(zygote=False)
        self.pid = process.pid
        process.socket.settimeout(DEADLINE_S)
        self.connection = PrivateConnection(process.socket)
        self.heard: list[Message] = []
        assert self.next(SpawnerIsUp).pid == self.pid

    def ask(self, request: Message, descriptors: list[int] | None = None) -> None:
        self.connection.queue(request, descriptors)
        self.connection.flush_blocking()

    def run(self, name: str, *argv: str, env: dict[str, str] | None = None) -> int:
        """Start a command; returns its process id."""
        null = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
        self.ask(Execute(name=name, argv=list(argv), env=env or dict(os.environ)), null)
        return self.next(Started).pid

    def next(self, kind: type[Kind]) -> Kind:
        """The next message of a kind; what came before it is kept for later."""
        while True:
            for message in self.heard:
                if isinstance(message, kind):
                    self.heard.remove(message)
                    return message
            self.heard += [message for message, _ in self.connection.receive()]

    def end_of_stream(self) -> bool:
        """Whether the spawner hangs up before the deadline."""
        try:
            while True:
                self.heard += [message for message, _ in self.connection.receive()]
        except EOFError:
            return True

    def close(self) -> None:
        """Hang up, which ends it; one that does not notice is killed."""
        self.connection.close()
        deadline = time.monotonic() + DEADLINE_S
        try:
            while not os.waitpid(self.pid, os.WNOHANG)[0]:
                if time.monotonic() > deadline:
                    os.kill(self.pid, signal.SIGKILL)
                time.sleep(0.002)
        except ChildProcessError:
            pass  # the test has seen its end


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    one = Spawner()
    yield one
    one.close()


SLEEP = (sys.executable, "-c", "import signal\nwhile True: signal.pause()")


def test_a_command_is_run_with_its_streams_and_environment(
    spawner: Spawner, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("read this")
    descriptors = [
        os.open(tmp_path / "in", os.O_RDONLY),
        os.open(tmp_path / "out", os.O_CREAT | os.O_WRONLY),
        os.open(tmp_path / "err", os.O_CREAT | os.O_WRONLY),
    ]
    argv = ["sh", "-c", "cat; env; echo $0 >&2; exit 7", "arg\udcff"]
    env = {"PATH": os.environ["PATH"], "COLOUR": "bl\udce9u"}
    spawner.ask(Execute(name="one", argv=argv, env=env), descriptors)
    exited = spawner.next(Exited)
    assert (exited.name, exited.status) == ("one", 7)
    assert exited.pid == spawner.next(Started).pid
    out = (tmp_path / "out").read_bytes()
    assert out.startswith(b"read this")
    assert b"COLOUR=bl\xe9u\n" in out
    assert b"HOME=" not in out
    assert (tmp_path / "err").read_bytes() == b"arg\xff\n"


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [("no-such-\udcff", 127, b"No such file"), ("plain-file", 126, b"Permission denied")],
)
def test_what_cannot_be_run_says_so_on_its_own_stderr(
    spawner: Spawner, tmp_path: Path, name: str, code: int, words: bytes
) -> None:
    (tmp_path / "plain-file").write_text("no program")
    null = [os.open(os.devnull, os.O_RDWR) for _ in range(2)]
    err = os.open(tmp_path / "err", os.O_CREAT | os.O_WRONLY)
    command = str(tmp_path / name)
    spawner.ask(Execute(name="one", argv=[command], env={}), [*null, err])
    assert spawner.next(Exited).status == code
    said = (tmp_path / "err").read_bytes()
    assert os.fsencode(command) in said
    assert words in said


def test_a_death_by_signal_is_a_negative_status(spawner: Spawner) -> None:
    pid = spawner.run("one", *SLEEP)
    os.kill(pid, signal.SIGKILL)
    assert spawner.next(Exited).status == -signal.SIGKILL


def test_a_signal_goes_to_those_who_are_named(spawner: Spawner) -> None:
    spawner.run("one", *SLEEP)
    other = spawner.run("other", *SLEEP)
    os.kill(other, signal.SIGSTOP)
    spawner.ask(Signal(number=int(signal.SIGTERM), names=["other", "nobody"]))
    exited = spawner.next(Exited)
    assert (exited.name, exited.status) == ("other", -signal.SIGTERM)
    spawner.ask(ReportStuck())
    assert len(spawner.next(Stuck).processes) == 1


def test_a_worker_that_is_paused_stays_so_until_it_is_to_go_on_or_to_end(spawner: Spawner) -> None:
    pid = spawner.run("one", *SLEEP)

    def send(number: int, *, wakes: bool = False) -> None:
        spawner.ask(Signal(number=int(number), names=["one"], wakes=wakes))

    def state() -> str:
        process = linux.read_process(pid)
        return process.state if process else "gone"

    send(signal.SIGSTOP)
    send(signal.SIGWINCH)  # Only tells it something, later.
    spawner.ask(ReportStuck())  # Is answered once both have been sent.
    spawner.next(Stuck)
    until(lambda: state() == "T")
    send(signal.SIGCONT)
    until(lambda: state() == "S")
    send(signal.SIGSTOP)
    until(lambda: state() == "T")
    send(signal.SIGTERM, wakes=True)
    assert spawner.next(Exited).status == -signal.SIGTERM


def test_a_signal_right_after_the_birth_is_not_lost(spawner: Spawner) -> None:
    """The child of a process that ignores it would ignore it too, until it is its own."""
    for number in range(30):
        spawner.run(str(number), *SLEEP)
        spawner.ask(Signal(number=int(signal.SIGTERM), names=[str(number)]))
    statuses = {spawner.next(Exited).status for _ in range(30)}
    assert statuses == {-signal.SIGTERM}


def test_a_kill_reaches_all_generations_and_tells_of_each_worker_first(
    spawner: Spawner, tmp_path: Path
) -> None:
    program = """
        import os, signal, sys
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open(sys.argv[1], "w").close()
        while True:
            signal.pause()
    """
    for name in ("one", "two"):
        argv = (sys.executable, "-c", textwrap.dedent(program), str(tmp_path / name))
        spawner.run(name, *argv)
    until(lambda: (tmp_path / "one").exists() and (tmp_path / "two").exists())
    spawner.ask(Kill())
    spawner.next(EverythingGone)
    exits = {m.name: m.status for m in spawner.heard if isinstance(m, Exited)}
    assert exits == {"one": -signal.SIGKILL, "two": -signal.SIGKILL}
    assert linux.descendants(spawner.pid) == []


# What it is taken for is in its command; what it does, and whether it ever ends, is up to the test.
CLEANER = """
import os, signal, sys
reading, writing = os.pipe()
if os.fork() == 0:
    os.close(writing)
    os.set_inheritable(reading, True)
    program = "import os, signal, sys; open(sys.argv[2], 'w').close(); " + sys.argv[2]
    words = ["-c", program, str(reading), sys.argv[1]]
    name = "from multiprocessing.resource_tracker import main;main(3)"
    os.execv(sys.executable, [sys.executable, *words, name])
signal.pause()
"""
CLEANS_UP = "os.read(int(sys.argv[1]), 1); open(sys.argv[2] + '.cleaned', 'w').close()"
NEVER_ENDS = "\nwhile True: signal.pause()"


def test_who_cleans_up_after_the_others_may_do_so(spawner: Spawner, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    spawner.run("one", sys.executable, "-c", CLEANER, str(ready), CLEANS_UP)
    until(ready.exists)
    spawner.ask(Kill())
    spawner.next(EverythingGone)
    assert (tmp_path / "ready.cleaned").exists()


@pytest.mark.parametrize("how", ["kill", "end", "hang up", "lease"])
def test_who_only_pretends_to_clean_up_is_killed_too(
    spawner: Spawner, tmp_path: Path, how: str
) -> None:
    ready = tmp_path / "ready"
    spawner.run("one", sys.executable, "-c", CLEANER, str(ready), NEVER_ENDS)
    until(ready.exists)
    pretender = linux.descendants(spawner.pid)[-1].pid
    if how == "hang up":
        spawner.connection.socket.close()
        os.waitpid(spawner.pid, 0)
    elif how == "lease":
        spawner.ask(StopAndKillAt(stop_at=linux.now(), kill_at=linux.now()))
        spawner.next(EverythingGone)
    else:
        spawner.ask(Shutdown() if how == "end" else Kill())
        assert spawner.end_of_stream() if how == "end" else spawner.next(EverythingGone)
    assert linux.read_process(pretender) is None


def test_a_lease_is_waited_for_on_its_own_clock(spawner: Spawner) -> None:
    """With a timeout workers would run on after the machine was suspended."""
    spawner.run("one", *SLEEP)
    assert timers_of(spawner.pid) == [], "who has no lease needs no timer"
    stop_at = linux.now() + 1000
    spawner.ask(StopAndKillAt(stop_at=stop_at, kill_at=stop_at + 1000))

    def left_s() -> float:
        return sum(timer.left_s for timer in timers_of(spawner.pid) if timer.clock == BOOTTIME_ID)

    until(lambda: left_s() > 0, "the timer")
    assert stop_at - 100 < linux.now() + left_s() <= stop_at + 1
    spawner.ask(StopAndKillAt(stop_at=linux.now(), kill_at=stop_at))
    spawner.next(LeaseOver)
    until(lambda: left_s() > 0, "the timer of the kill")
    assert stop_at - 100 < linux.now() + left_s() <= stop_at + 1
    spawner.ask(StopAndKillAt(stop_at=linux.now(), kill_at=linux.now()))
    spawner.next(EverythingGone)
    until(lambda: not left_s(), "the end of the lease")


def test_a_kill_of_nothing_is_done_at_once(spawner: Spawner) -> None:
    spawner.ask(Kill())
    spawner.next(EverythingGone)


def test_each_kill_is_answered_for_its_round_and_the_end_of_a_lease_for_none(
    spawner: Spawner,
) -> None:
    spawner.run("one", *SLEEP)
    spawner.ask(StopAndKillAt(stop_at=linux.now(), kill_at=linux.now()))
    assert spawner.next(EverythingGone).round == 0
    for number in (1, 1, 2):
        spawner.ask(Kill(round=number))
        assert spawner.next(EverythingGone).round == number


def test_it_can_be_used_again_after_a_kill(spawner: Spawner) -> None:
    spawner.run("one", *SLEEP)
    spawner.ask(Kill())
    spawner.next(EverythingGone)
    spawner.run("two", sys.executable, "-c", "raise SystemExit(5)")
    assert [m.status for m in (spawner.next(Exited), spawner.next(Exited))] == [-9, 5]


def test_orphans_are_reaped(spawner: Spawner, tmp_path: Path) -> None:
    """Neither a daemon nor a forgotten child stays as a zombie."""
    daemon = "(sleep 0.01; echo > done) & exit 0"
    spawner.run("one", "sh", "-c", f"cd {tmp_path}; {daemon}")
    spawner.next(Exited)
    until((tmp_path / "done").exists)
    until(lambda: linux.descendants(spawner.pid) == [])


def test_the_end_is_the_end_of_everything(
    spawner: Spawner, is_running: Callable[[int], bool]
) -> None:
    pids = [spawner.run(name, *SLEEP) for name in ("one", "two")]
    spawner.ask(Shutdown())
    assert spawner.end_of_stream()
    assert not any(map(is_running, pids))
    assert os.waitstatus_to_exitcode(os.waitpid(spawner.pid, 0)[1]) == 0


def test_it_ends_everything_when_nobody_is_there_any_more(
    spawner: Spawner, is_running: Callable[[int], bool]
) -> None:
    pids = [spawner.run(name, *SLEEP) for name in ("one", "two")]
    spawner.connection.socket.close()
    assert os.waitstatus_to_exitcode(os.waitpid(spawner.pid, 0)[1]) == 0
    assert not any(map(is_running, pids))


def test_it_outlives_the_signals_of_a_terminal_and_of_a_shutdown(spawner: Spawner) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.kill(spawner.pid, number)
    spawner.ask(Kill())
    spawner.next(EverythingGone)
    assert os.getsid(spawner.pid) == spawner.pid


def test_it_is_one_thread_and_holds_on_to_nothing(spawner: Spawner) -> None:
    before = os.listdir(f"/proc/{spawner.pid}/fd")
    for number in range(20):
        spawner.run(str(number), "true")
        spawner.next(Exited)
    assert len(os.listdir(f"/proc/{spawner.pid}/task")) == 1
    assert os.listdir(f"/proc/{spawner.pid}/fd") == before


def test_a_fork_without_a_zygote_is_told_and_its_descriptors_are_let_go(spawner: Spawner) -> None:
    reading, writing = os.pipe()
    spawner.ask(fork_of("one"), [writing])
    spawner.next(ZygoteEnded)
    assert os.read(reading, 1) == b"", "somebody still holds the other end"
    os.close(reading)


def test_a_fork_by_a_zygote_that_has_just_died_holds_on_to_nothing(
    spawner: Spawner, tmp_path: Path, is_running: Callable[[int], bool]
) -> None:
    """It reads the request before it sees the end of the zygote, and has nowhere to send it."""

    def is_gone(pid: int) -> bool:
        return not is_running(pid)

    deaf = tmp_path / "deaf"
    deaf.write_text("#!/bin/sh\nexec sleep 1000\n")
    deaf.chmod(0o755)
    before = os.listdir(f"/proc/{spawner.pid}/fd")
    for _ in range(10):
        spawner.ask(preload_by(str(deaf)))
        until(lambda: below(spawner.pid))
        (zygote,) = below(spawner.pid)
        os.kill(spawner.pid, signal.SIGSTOP)
        until(lambda: is_stopped(spawner.pid))
        null = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
        spawner.ask(fork_of("one"), null)
        os.kill(zygote, signal.SIGKILL)
        until(partial(is_gone, zygote))
        os.kill(spawner.pid, signal.SIGCONT)
        spawner.next(ZygoteEnded)
        spawner.ask(ReportStuck())
        spawner.next(Stuck)  # All that came before is done.
        spawner.heard.clear()
    assert os.listdir(f"/proc/{spawner.pid}/fd") == before


def fork_of(name: str, **shared: str) -> Fork:
    """Of a worker that no zygote would make anything of."""
    worker = WarmWorker(
        name=name, kind="", target="", interpreter=(), command=[], argv=[], env={}, learns=False,
        descriptors=0, cpus=None,
    )  # fmt: skip
    return Fork(common=InCommon(shared_env=shared, spawner=0), workers=[worker])


def preload_by(interpreter: str) -> Preload:
    """Of nothing."""
    return Preload(
        interpreter=interpreter, env={}, under={}, steps=(), late=(), avoid=(), trusted=(),
        per_worker_names=(), always_set=(), program_folder=None, own_folders=[],
    )  # fmt: skip


def is_stopped(pid: int) -> bool:
    process = linux.read_process(pid)
    return process is not None and process.state == "T"


def below(pid: int) -> list[int]:
    return [process.pid for process in linux.descendants(pid) if process.state != "Z"]


# Speaks as a zygote does, but only when it is let: it takes two requests, with a word after
# the first, and says another word for each line that it is then sent as a file.
IMPOSTOR = """\
#!{python}
import os, socket, sys, time
sys.path.insert(0, {folder!r})
import wire
from private_messages import Preloaded

spawner = wire.PrivateConnection(socket.socket(fileno=int(sys.argv[3])))

def say(word):
    spawner.queue(Preloaded(steps=(), late=(), has_torch=False, reason=word))
    spawner.flush_blocking()

def take(count):
    taken = 0
    while taken < count:
        taken += len(spawner.receive())

take(1)
say("ready")
while not os.path.exists({go!r}):
    time.sleep(0.002)
take(1)
say("first taken")
take(1)
time.sleep(1000)
"""


def test_a_message_of_the_zygote_is_not_waited_for_twice(
    spawner: Spawner, tmp_path: Path, is_running: Callable[[int], bool]
) -> None:
    """A child's end makes it read the zygote too, which may be all that there was to read.

    It is kept busy with sending what the zygote does not take, until both have happened.
    """
    impostor = tmp_path / "impostor"
    folder = str(Path(linux.__file__).parent)
    impostor.write_text(
        IMPOSTOR.format(python=sys.executable, folder=folder, go=str(tmp_path / "go"))
    )
    impostor.chmod(impostor.stat().st_mode | stat.S_IXUSR)
    spawner.ask(preload_by(str(impostor)))
    assert spawner.next(Preloaded).reason == "ready"
    worker = spawner.run("one", *SLEEP)
    for number in range(2):
        spawner.connection.queue(fork_of(f"{number}", PADDING="x" * 2_000_000))
    spawner.connection.socket.setblocking(False)
    spawner.connection.flush()
    os.kill(worker, signal.SIGKILL)
    until(lambda: not is_running(worker))
    (tmp_path / "go").touch()
    spawner.connection.socket.settimeout(DEADLINE_S)
    spawner.connection.flush_blocking()
    assert spawner.next(Preloaded).reason == "first taken"
    assert spawner.next(Exited).name == "one"
    spawner.ask(ReportStuck())
    spawner.next(Stuck)


def test_a_zygote_that_ends_is_told(spawner: Spawner) -> None:
    spawner.ask(preload_by("/bin/false"))
    spawner.next(ZygoteEnded)


def test_more_descriptors_than_one_message_carries_reach_a_command(
    spawner: Spawner, tmp_path: Path
) -> None:
    path = tmp_path / "numbers"
    descriptors = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
    numbers = tuple(range(500, 1000))
    descriptors += [os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY) for _ in numbers]
    program = "import os\nfor number in range(500, 1000): os.write(number, b'x')"
    argv = [sys.executable, "-c", program]
    spawner.ask(Execute(name="one", argv=argv, env={}, keep=numbers), descriptors)
    assert spawner.next(Exited).status == 0
    assert path.read_bytes() == b"x" * 500


def test_a_request_that_it_cannot_carry_out_ends_it_at_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One that was passed over would be waited for, for ever."""
    spawner = Spawner()
    spawner.ask(EverythingGone())
    assert spawner.end_of_stream()
    assert os.waitstatus_to_exitcode(os.waitpid(spawner.pid, 0)[1]) == 1
    spawner.close()
    assert "nothing that a spawner does: EverythingGone" in capfd.readouterr().err


def test_nothing_here_is_inheritable_while_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another thread started meanwhile would keep it open."""
    spawn = os.posix_spawn
    inheritable: list[int] = []

    def noting(*arguments: Any, **more: Any) -> int:
        inheritable.extend(filter(_is_inheritable, map(int, os.listdir("/proc/self/fd"))))
        return spawn(*arguments, **more)

    before = set(filter(_is_inheritable, map(int, os.listdir("/proc/self/fd"))))
    monkeypatch.setattr(os, "posix_spawn", noting)
    start_spawner(zygote=False).drop()
    assert set(inheritable) <= before


def _is_inheritable(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:
        return False


def test_both_ends_of_its_socket_are_private(spawner: Spawner, tmp_path: Path) -> None:
    """A worker that held one could speak for the agent, or hide its end."""
    ready = tmp_path / "ready"
    program = "import signal, sys; open(sys.argv[1], 'w').close()\nwhile True: signal.pause()"
    pid = spawner.run("one", sys.executable, "-c", program, str(ready))
    until(ready.exists)  # From then on it opens and closes nothing.
    targets = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    assert not [target for target in targets if target.startswith("socket:")]
    assert spawner.connection.socket.family == socket.AF_UNIX
