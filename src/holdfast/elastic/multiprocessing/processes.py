"""The processes of one context, watched by a loop in a thread of its own.

Rules
1. All that happens to the processes happens on the loop; other threads ask it (`_ask`) and wait
   under one condition. So any thread may wait or close, several at once too, and whoever is
   interrupted while it waits has left nothing half done.
2. The thread lives as long as there is something to watch: it ends when the spawner has, by
   itself once all processes have ended, or because of `close`.
3. Nothing is decided here but this: when all have ended, what they left running is killed. Who
   is in the group of a command has the same signal and the same grace as the command.

Whether enough has happened for a result is `settled`: one has failed, or all have ended.
"""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

from msgspec import Struct

from holdfast.agent.crew import Crew, Member
from holdfast.elastic.multiprocessing.calls import SIZE
from holdfast.workers.console import Console
from holdfast.workers.event_loop import Cancellable, EventLoop
from holdfast.workers.log_files import FilterFiles, LogFile
from holdfast.workers.output import StreamPlan, Surroundings, open_planned
from holdfast.workers.spawner_process import SpawnerProcess

NOT_MADE = 126
LOST = -9
"""How those end whose spawner was killed: the kernel sees to it."""
CONSOLE_PATIENCE_S = 10.0
STUCK_AFTER_S = 30.0
"""How long after SIGKILL a process is waited for: one that is stuck in the kernel stays."""
_READ_BYTES = 65536

logger = logging.getLogger(__name__)


class Start(Struct):
    """One process to be started."""

    local_rank: int
    request: dict[str, Any]
    """To the spawner, but for its id."""
    stdin: int
    kept: list[int]
    """Descriptors beyond the standard streams."""
    stdout: StreamPlan | None
    stderr: StreamPlan | None
    reply: socket.socket | None = None
    cargo: bytes = b""

    def drop(self) -> None:
        """It is not to be started after all."""
        for descriptor in (self.stdin, *self.kept):
            os.close(descriptor)
        if self.reply is not None:
            self.reply.close()


class Exit(Struct, frozen=True):
    """How a process ended. `code` is minus the signal's number where one ended it."""

    local_rank: int
    pid: int
    code: int
    error: str = ""


class Reply:
    """The line to one worker: its call goes out, the value of its function comes back."""

    def __init__(self, start: Start, loop: EventLoop, returned: Callable[[int, bytes], None]):
        assert start.reply is not None
        self._rank = start.local_rank
        self._socket = start.reply
        self._socket.setblocking(False)
        self._loop = loop
        self._returned = returned
        self._outgoing = memoryview(start.cargo)
        self._incoming = bytearray()
        loop.add_reader(self._socket, self._read)
        if self._outgoing:
            loop.add_writer(self._socket, self._write)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._outgoing, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._outgoing)  # It is dead, of which we shall hear.
        self._outgoing = self._outgoing[sent:]
        if not self._outgoing:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            block = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            block = b""
        self._incoming += block
        if not block:
            self._loop.remove_reader(self._socket)
        elif len(self._incoming) >= SIZE.size:
            (size,) = SIZE.unpack_from(self._incoming)
            if len(self._incoming) == SIZE.size + size:
                self._returned(self._rank, bytes(self._incoming[SIZE.size :]))


class Relay:
    """A pipe whose other end is printed to a stream that exists in Python only."""

    def __init__(self, stream: TextIO, loop: EventLoop) -> None:
        self._stream = stream
        self._loop = loop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._end, self.descriptor = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        loop.add_reader(self._end, self._print)

    def _print(self) -> bool:
        """Print what is there; whether there was anything."""
        try:
            block = os.read(self._end, _READ_BYTES)
        except BlockingIOError:
            return False
        # The stream is the user's own, and may raise anything; the processes go on.
        with contextlib.suppress(Exception):
            self._stream.write(self._decoder.decode(block))
            self._stream.flush()
        return bool(block)

    def close(self) -> None:
        while self._print():
            pass
        self._loop.remove_reader(self._end)
        os.close(self._end)
        os.close(self.descriptor)


class Processes:
    """Started once, closed once; see the rules above."""

    def __init__(
        self, name: str, starts: list[Start], filtered: dict[int, str], *, by_group: bool
    ) -> None:
        self.exits: dict[int, Exit] = {}
        self.values: dict[int, bytes] = {}
        self.pids: dict[int, int] = {}
        self._by_name = {f"{name}:{start.local_rank}": start for start in starts}
        self._filtered = filtered
        self._by_group = by_group
        self._streams = (sys.stdout, sys.stderr)
        self._changed = threading.Condition()
        self._requests: deque[Callable[[], None]] = deque()
        self._replies: dict[int, Reply] = {}
        self._relays: list[Relay] = []
        self._is_gone = self._is_ending = self._is_over = self._groups_left = False
        self._problem: BaseException | None = None
        self._deadline: Cancellable | None = None
        self._thread: threading.Thread | None = None

    # From any thread.

    @property
    def settled(self) -> bool:
        failed = any(ended.code for ended in self.exits.values())
        return failed or len(self.exits) == len(self._by_name) or self._is_over

    def start(self, spawner: SpawnerProcess) -> None:
        """Have them started; returns when each of them has a pid, or has failed to get one."""
        try:
            self._prepare(spawner)
        except OSError:
            self._call_off(spawner)
            raise
        self._thread = threading.Thread(target=self._run, name="holdfast-processes", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._all_known())
        if self._problem is not None:
            self._thread.join()
            raise self._problem

    def wait(self, timeout: float | None) -> bool:
        """Whether it is settled, which is waited for as long as `timeout` says."""
        with self._changed:
            return self._changed.wait_for(lambda: self.settled, timeout)

    def close(self, number: int, grace_s: float) -> None:
        """Send them a signal, give them that long, then kill all of it; returns when done."""
        if self._thread is not None:
            self._ask(lambda: self._begin_close(number, grace_s))
            self._thread.join()

    def _ask(self, request: Callable[[], None]) -> None:
        with self._changed:
            if not self._is_over:
                self._requests.append(request)
                os.eventfd_write(self._bell, 1)

    def _all_known(self) -> bool:
        return len(self.pids.keys() | self.exits.keys()) == len(self._by_name)

    def _prepare(self, spawner: SpawnerProcess) -> None:
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop = EventLoop()
        self._loop.add_reader(self._bell, self._on_bell)
        self._crew = Crew(spawner, self)
        self._crew.attach(self._loop)
        self._console = Console(self._loop, (self._own_descriptor(1), self._own_descriptor(2)))
        self._filters = self._open_filters()

    def _call_off(self, spawner: SpawnerProcess) -> None:
        """There are not even descriptors enough to watch them."""
        spawner.socket.close()
        os.waitpid(spawner.pid, 0)
        for start in self._by_name.values():
            start.drop()

    # On the loop.

    def _run(self) -> None:
        try:
            for name, start in self._by_name.items():
                self._start_one(name, start)
            self._loop.run_until(lambda: self._is_gone)
        except BaseException as error:
            self._problem = error
            logger.exception("the processes are ended, since they can no longer be watched")
            self._crew.close()
            self.spawner_ended(self._crew.reap())
        finally:
            self._clean_up()

    def _start_one(self, name: str, start: Start) -> None:
        surroundings = Surroundings(self._console, self._loop, self._filters, object())
        streams = open_planned(start.stdout, start.stderr, surroundings)
        descriptors = [start.stdin, *self._crew.enrol(name, streams), *start.kept]
        start.stdin, start.kept = -1, []
        self._crew.request({**start.request, "id": name}, descriptors)
        if start.reply is not None:
            self._replies[start.local_rank] = Reply(start, self._loop, self._on_returned)

    def _on_bell(self) -> None:
        os.eventfd_read(self._bell)
        while self._requests:
            self._requests.popleft()()

    def _own_descriptor(self, number: int) -> int:
        """Where to show a stream: ours, if Python's is that one; else Python's, by a pipe."""
        stream = self._streams[number - 1]
        with contextlib.suppress(AttributeError, OSError, ValueError):
            if stream is None or stream.fileno() == number:
                return number
        self._relays.append(Relay(stream, self._loop))
        return self._relays[-1].descriptor

    def _open_filters(self) -> FilterFiles | None:
        from pathlib import Path

        if not self._filtered:
            return None
        files = {n: LogFile(Path(path), self._console) for n, path in self._filtered.items()}
        return FilterFiles(files)

    def _begin_close(self, number: int, grace_s: float) -> None:
        if self._is_ending:
            return
        alive = [name for name, start in self._by_name.items() if not self._has_ended(start)]
        self._groups_left = self._by_group
        self._crew.signal(number, alive, group=self._by_group)
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(max(0.0, grace_s), self._end)

    def _end_if_done(self) -> None:
        ended = all(map(self._has_ended, self._by_name.values()))
        if ended and not self._groups_left and not self._is_gone:
            self._end()

    def _end(self) -> None:
        """Kill what is left, and let the spawner go."""
        if not self._is_ending:
            self._is_ending = True
            self._crew.request({"do": "end"})
            self._loop.call_later(STUCK_AFTER_S, self._give_up)

    def _give_up(self) -> None:
        stuck = sorted(self.pids.keys() - self.exits.keys())
        logger.error("local ranks %s do not end though they were killed; they are left", stuck)
        self._crew.close()
        self.spawner_ended("was left")

    def _has_ended(self, start: Start) -> bool:
        return start.local_rank in self.exits

    def _on_returned(self, local_rank: int, value: bytes) -> None:
        self.values[local_rank] = value
        if len(self.values) == len(self._by_name):
            self._release()

    def _release(self) -> None:
        """All have returned: let them go."""
        for reply in self._replies.values():
            reply.close()

    # What the crew tells.

    def member_started(self, member: Member) -> None:
        assert member.pid is not None
        with self._changed:
            self.pids[self._by_name[member.name].local_rank] = member.pid
            self._changed.notify_all()

    def member_exited(self, member: Member, status: int) -> None:
        local_rank = self._by_name[member.name].local_rank
        self._note(Exit(local_rank, member.pid or 0, status))

    def member_failed(self, member: Member, error: str) -> None:
        local_rank = self._by_name[member.name].local_rank
        self._note(Exit(local_rank, 0, NOT_MADE, f"the process could not be made: {error}"))

    def spawner_said(self, message: dict[str, Any]) -> None:
        if message["say"] == "groups_gone":
            self._groups_left = False
            self._end_if_done()

    def spawner_ended(self, how: str) -> None:
        self._is_gone = True
        for start in self._by_name.values():
            if not self._has_ended(start):
                pid = self.pids.get(start.local_rank, 0)
                self._note(Exit(start.local_rank, pid, LOST, f"the spawner {how}"))

    def _note(self, ended: Exit) -> None:
        with self._changed:
            self.exits[ended.local_rank] = ended
            self._changed.notify_all()
        self._end_if_done()

    # The end.

    def _clean_up(self) -> None:
        for start in self._by_name.values():
            if start.stdin >= 0:
                start.drop()
        self._release()
        self._crew.close()
        if self._filters is not None:
            self._filters.close()
        self._show_the_rest()
        self._console.close()
        self._loop.close()
        with self._changed:
            self._is_over = True
            os.close(self._bell)
            self._changed.notify_all()

    def _show_the_rest(self) -> None:
        given_up: list[bool] = []
        timer = self._loop.call_later(CONSOLE_PATIENCE_S, given_up.append, True)
        self._loop.run_until(lambda: bool(given_up) or not self._console.pending())
        timer.cancel()
        for relay in self._relays:
            relay.close()
