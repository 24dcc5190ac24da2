"""The processes of one context, watched by a loop in a thread of its own.

Rules
1. All that happens to the processes happens on the loop; other threads ask it (`ThreadCalls`), are
   told (`News`), and hold no lock that it needs. So any thread may wait or close, several at once
   too, also in a signal handler, and the code that it interrupts has left nothing half done.
2. The thread lives as long as there is something to watch: it ends when the spawner has, by
   itself once all processes have ended, or because of `close`. All that was opened for the
   processes is its own from its first line on, and closed at its last.
3. Nothing is decided here but this: when all have ended, what they left running is killed. Who
   is in the group of a command has the same signal and the same grace as the command.

Whether enough has happened for a result is `settled`: one has failed, or all have ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
from functools import partial
from pathlib import Path

from msgspec import Struct

from holdfast.elastic.multiprocessing import zygote_pool
from holdfast.elastic.multiprocessing.between_threads import News, Relay, Reply
from holdfast.elastic.multiprocessing.warming import Warming, forked, in_parts, to_fork
from holdfast.elastic.multiprocessing.zygote_pool import PooledSpawner
from holdfast.processes.output.console import Console
from holdfast.processes.output.log_files import LogFile
from holdfast.processes.output.output import StreamContext, StreamPlan, open_planned
from holdfast.processes.process_group import GroupMember, ProcessGroup
from holdfast.processes.spawner.spawner import close_all
from holdfast.processes.spawner_process import SpawnerProcess
from holdfast.processes.stdlib_only import private_messages as messages
from holdfast.runtime.loop import Cancellable, EventLoop
from holdfast.runtime.thread_calls import ThreadCalls

NOT_MADE = 126
LOST = -9
"""The exit code of processes whose spawner was killed: the kernel kills them."""
CONSOLE_PATIENCE_S = 10.0
STUCK_AFTER_S = 30.0
"""The wait for a process after SIGKILL: one that is stuck in the kernel stays."""

logger = logging.getLogger(__name__)


class Start(Struct):
    """One process to be started."""

    local_rank: int
    request: messages.Execute | messages.ForkCall
    reads_our_stdin: bool
    stdout: StreamPlan | None
    stderr: StreamPlan | None
    given: tuple[int, ...] = ()
    """Descriptors beyond the standard streams; they stay whose they are."""
    cargo: bytes = b""
    ends: tuple[socket.socket, socket.socket] | None = None
    """Of the line to a function: ours, and the worker's, which is among the given."""

    def standard_input(self) -> int:
        """A descriptor for the standard input of the process."""
        if self.reads_our_stdin:
            with contextlib.suppress(OSError):  # It was closed before this process started.
                return os.dup(0)
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def drop(self) -> None:
        """Let go of what was opened for it. Idempotent."""
        for end in self.ends or ():
            end.close()


class Exit(Struct, frozen=True):
    """The end of a process. `code` is minus the signal's number where one ended it."""

    local_rank: int
    pid: int
    code: int
    error: str = ""


class StartedProcesses:
    """Started once, closed once; see the rules above."""

    def __init__(self, starts: list[Start], filtered: dict[int, str], *, by_group: bool) -> None:
        self.exits: dict[int, Exit] = {}
        self.values: dict[int, bytes] = {}
        self.pids: dict[int, int] = {}
        self._by_name = {start.request.name: start for start in starts}
        self._filtered = filtered
        self._by_group = by_group
        self._streams = (sys.stdout, sys.stderr)
        self._news = News()
        self._replies: list[Reply] = []
        self._relays: list[Relay] = []
        self._filters: dict[int, LogFile] = {}
        self._is_gone = self._is_ending = self._is_over = self._groups_left = False
        self._warming: Warming | None = None
        self._is_kept = False
        """Nothing is left of the processes, and their spawner waits for others."""
        self._given: dict[str, list[int]] = {}
        """The descriptors of those that are not there yet."""
        self._problem: BaseException | None = None
        self._deadline: Cancellable | None = None

    # From any thread.

    @property
    def settled(self) -> bool:
        failed = any(ended.code for ended in list(self.exits.values()))
        return failed or len(self.exits) == len(self._by_name) or self._is_over

    def start(self, spawner: SpawnerProcess, pooled: PooledSpawner | None = None) -> None:
        """Have them started. If this raises, the caller still has to drop spawner and starts."""
        self._group = ProcessGroup(spawner, self)
        if pooled is not None:
            self._warming = Warming(pooled, self._group.request, self._fork, self._execute)
        self._thread = threading.Thread(target=self._run, name="holdfast-processes", daemon=True)
        self._opened = contextlib.ExitStack()
        try:
            self._loop = EventLoop()
            self._opened.callback(self._loop.close)
            self._calls = ThreadCalls(self._loop)
            self._opened.callback(self._calls.close)
            self._thread.start()
        except (OSError, RuntimeError):
            self._opened.close()
            raise

    def wait_for_pids(self) -> None:
        """Returns when each of them has a pid, or has failed to get one."""
        self._news.wait_for(lambda: self._is_over or self._all_known(), None)
        if self._problem is not None:
            self._thread.join()
            raise self._problem

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it is settled, which is waited for that long at most."""
        return self._news.wait_for(lambda: self.settled, timeout_s)

    def close(self, number: int, grace_s: float) -> None:
        """Send them a signal, give them that long, then kill all of it; returns when done."""
        self._calls.put(self._begin_close, number, grace_s)
        self._thread.join()

    def _all_known(self) -> bool:
        return len(self.pids.keys() | self.exits.keys()) == len(self._by_name)

    # On the loop.

    def _run(self) -> None:
        try:
            with self._opened as opened:
                opened.callback(self._drop_starts)
                self._prepare(opened)
                for name, start in self._by_name.items():
                    self._open(name, start)
                if self._warming is None:
                    self._execute()
                else:
                    self._warming.begin(self._loop)
                self._loop.run_until(lambda: self._is_gone)
        except BaseException as error:
            self._problem = error
            logger.exception("the processes are ended, since they can no longer be watched")
        finally:
            try:
                self._let_spawner_go()
                if not self._is_gone:
                    self.spawner_ended(self._group.reap())
            finally:
                self._is_over = True
                self._news.tell()

    def _prepare(self, opened: contextlib.ExitStack) -> None:
        """Open what they are watched with; it is closed in the reverse order."""
        opened.callback(self._close_relays)
        self._console = Console(self._loop, (self._own_descriptor(1), self._own_descriptor(2)))
        opened.callback(self._console.close)
        opened.callback(self._show_the_rest)
        self._open_filters(opened)
        self._group.attach(self._loop)
        opened.callback(self._dismiss_group)
        opened.callback(self._release)
        opened.callback(self._close_given)

    def _open(self, name: str, start: Start) -> None:
        """All that it takes to start one, so that it can be asked for."""
        surroundings = StreamContext(self._console, self._loop, self._filters, object())
        streams = open_planned(start.stdout, start.stderr, surroundings)
        descriptors = self._group.add(name, streams)
        try:
            descriptors.insert(0, start.standard_input())
            descriptors.extend(map(os.dup, start.given))
        except OSError:
            close_all(descriptors)
            raise
        self._given[name] = descriptors
        if start.ends is not None:
            ours, theirs = start.ends
            theirs.close()
            reply = Reply(ours, self._loop, start.cargo)
            start.cargo = b""
            self._replies.append(reply)
            reply.open(partial(self._on_returned, start.local_rank))

    def _execute(self) -> None:
        """Start those that have not been, each by itself."""
        for name in [name for name in self._given if self._is_wanted(name)]:
            self._group.request(self._by_name[name].request, self._given.pop(name))

    def _fork(self, pooled: PooledSpawner) -> None:
        """Have the zygote fork them all; what they are given is kept until they are there."""
        workers = []
        for name, descriptors in self._given.items():
            request = self._by_name[name].request
            assert isinstance(request, messages.Execute), "a copy of this process has no zygote"
            if self._is_wanted(name):
                workers.append(forked(pooled.plan, request, descriptors))
        for part in in_parts(workers):
            copies = [os.dup(one) for worker in part for one in self._given[worker.name]]
            self._group.request(to_fork(pooled, part), copies)

    def _is_wanted(self, name: str) -> bool:
        return not self._has_ended(self._by_name[name])

    def _close_given(self) -> None:
        for name in list(self._given):
            close_all(self._given.pop(name))

    def _own_descriptor(self, number: int) -> int:
        """The descriptor that shows a stream: ours, if Python's is that one; else a pipe to it."""
        stream = self._streams[number - 1]
        with contextlib.suppress(AttributeError, OSError, ValueError):
            if stream is None or stream.fileno() == number:
                return number
        self._relays.append(Relay(stream, self._loop))
        return self._relays[-1].descriptor

    def _open_filters(self, opened: contextlib.ExitStack) -> None:
        for number, path in self._filtered.items():
            self._filters[number] = LogFile(Path(path), self._console)
            opened.callback(self._filters[number].close)

    def _begin_close(self, number: int, grace_s: float) -> None:
        if self._is_ending:
            return
        if self._warming is not None and self._warming.give_up():
            for start in self._by_name.values():  # They would be born to be sent it at once.
                self._note(Exit(start.local_rank, 0, -number))
            return
        alive = [name for name, start in self._by_name.items() if not self._has_ended(start)]
        self._groups_left = self._by_group
        self._group.signal(number, alive, group=self._by_group)
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(max(0.0, grace_s), self._end)
        self._end_if_done()

    def _end_if_done(self) -> None:
        ended = all(map(self._has_ended, self._by_name.values()))
        if ended and not self._groups_left and not self._is_gone:
            self._end()

    def _end(self) -> None:
        """Kill what is left, and let the spawner go."""
        if not self._is_ending:
            self._is_ending = True
            is_kept = self._warming is not None and self._warming.is_worth_keeping
            self._group.request(messages.Kill() if is_kept else messages.Shutdown())
            self._loop.call_later(STUCK_AFTER_S, self._give_up)

    def _give_up(self) -> None:
        stuck = sorted(self.pids.keys() - self.exits.keys())
        logger.error("local ranks %s did not end after SIGKILL; going on without them", stuck)
        self._group.close()
        self.spawner_ended("was left")

    def _has_ended(self, start: Start) -> bool:
        return start.local_rank in self.exits

    def _on_returned(self, local_rank: int, value: bytes) -> None:
        self.values[local_rank] = value
        self._release_if_done()

    def _release_if_done(self) -> None:
        """Let them go when nobody is left who could need what another serves."""
        if len(self.values.keys() | self.exits.keys()) == len(self._by_name):
            self._release()

    def _release(self) -> None:
        for reply in self._replies:
            reply.close()

    # What the group tells.

    def member_started(self, member: GroupMember) -> None:
        assert member.pid is not None
        self.pids[self._by_name[member.name].local_rank] = member.pid
        close_all(self._given.pop(member.name, []))
        self._news.tell()

    def member_exited(self, member: GroupMember, status: int) -> None:
        local_rank = self._by_name[member.name].local_rank
        self._note(Exit(local_rank, member.pid or 0, status))

    def member_failed(self, member: GroupMember, error: str) -> None:
        local_rank = self._by_name[member.name].local_rank
        self._note(Exit(local_rank, 0, NOT_MADE, f"the process could not be made: {error}"))

    def spawner_said(self, message: messages.Message) -> None:
        if isinstance(message, messages.GroupsGone):
            self._groups_left = False
            self._end_if_done()
        elif isinstance(message, messages.EverythingGone):
            self._on_gone()
        elif self._warming is not None:
            self._warming.said(message)

    def _on_gone(self) -> None:
        """All was killed. The spawner waits for others, unless its zygote was lost meanwhile."""
        if self._warming is not None and self._warming.is_worth_keeping:
            self._is_gone = self._is_kept = True
        else:
            self._group.request(messages.Shutdown())

    def spawner_ended(self, how: str) -> None:
        self._is_gone = True
        for start in self._by_name.values():
            if not self._has_ended(start):
                pid = self.pids.get(start.local_rank, 0)
                self._note(Exit(start.local_rank, pid, LOST, f"the spawner {how}"))

    def _note(self, ended: Exit) -> None:
        self.exits[ended.local_rank] = ended
        self._news.tell()
        self._release_if_done()
        self._end_if_done()

    # The end.

    def _dismiss_group(self) -> None:
        if self._is_kept:
            self._group.release()
        else:
            self._group.close()

    def _let_spawner_go(self) -> None:
        """To the next context, if all went well; else it ends."""
        if self._is_kept and self._problem is None and self._warming is not None:
            zygote_pool.give_back(self._warming.pooled)
        else:
            self._group.close()
            if self._is_kept:
                self._group.reap()

    def _show_the_rest(self) -> None:
        given_up: list[bool] = []
        timer = self._loop.call_later(CONSOLE_PATIENCE_S, given_up.append, True)
        self._loop.run_until(lambda: bool(given_up) or not self._console.pending())
        timer.cancel()

    def _close_relays(self) -> None:
        for relay in self._relays:
            relay.close()

    def _drop_starts(self) -> None:
        for start in self._by_name.values():
            start.drop()
