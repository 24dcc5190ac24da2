"""The processes of one context, watched by a loop in a thread of its own.

Rules
1. All that happens to the processes happens on the loop; other threads ask it (`ThreadCalls`), are
   told (`News`), and hold no lock that it needs. So any thread may wait or close, several at once
   too, also in a signal handler, and the code that it interrupts has left nothing half done.
2. The thread lives as long as there is something to watch: it ends when the spawner has, by
   itself once all processes have ended, or because of `close`. All that was opened for the
   processes is its own from its first line on, and closed at its last.
3. Nothing is decided here but this: when all have ended, what they left running is killed. The
   group of a command has the same signal and the same grace as the command.
4. A zygote is a help, never a condition: one that is late, unfit or lost means that processes
   are started one by one, those that are there already left as they are. A step that cannot be
   done ahead is left out, and the rest is tried again, so many times; what was found out is
   remembered for the next zygote of that kind (`Warming`).

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
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TextIO

from msgspec import Struct

from holdfast.core.protocol.preload_steps import module_of, without
from holdfast.elastic.multiprocessing import zygote_pool
from holdfast.elastic.multiprocessing.calls import SIZE
from holdfast.elastic.multiprocessing.zygote_pool import PooledSpawner, WarmPlan
from holdfast.processes.output.console import Console
from holdfast.processes.output.log_files import LogFile
from holdfast.processes.output.output import StreamContext, StreamPlan, open_planned
from holdfast.processes.process_group import GroupMember, ProcessGroup
from holdfast.processes.spawner.spawner import close_all
from holdfast.processes.spawner_process import SpawnerProcess
from holdfast.processes.stdlib_only import private_messages as messages
from holdfast.runtime.loop import Cancellable, EventLoop
from holdfast.runtime.thread_calls import ThreadCalls

logger = logging.getLogger(__name__)


_READ_BYTES = 65536


class News:
    """Wakes waiting threads: it is worth another look."""

    def __init__(self) -> None:
        self._waiting: list[SimpleQueue[None]] = []

    def tell(self) -> None:
        for queue in self._waiting.copy():
            queue.put(None)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Whether it holds, which is waited for that long at most."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        queue: SimpleQueue[None] = SimpleQueue()
        self._waiting.append(queue)  # Before the first look: what comes after it is told.
        try:
            while not condition():
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    queue.get(timeout=left)
                except Empty:
                    return condition()
            return True
        finally:
            self._waiting.remove(queue)


class Reply:
    """The line to one worker: its call goes out, the value of its function comes back."""

    def __init__(self, sock: socket.socket, loop: EventLoop, cargo: bytes) -> None:
        self._socket = sock
        self._socket.setblocking(False)
        self._loop = loop
        self._outgoing = memoryview(cargo)
        self._incoming = bytearray()

    def open(self, returned: Callable[[bytes], None]) -> None:
        """Serve it from now on; `returned` is called at most once, with the pickled value."""
        self._loop.add_reader(self._socket, self._read, returned)
        if self._outgoing:
            self._loop.add_writer(self._socket, self._write)

    def close(self) -> None:
        """Let the worker go. Idempotent."""
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
            self._outgoing = memoryview(b"")  # A part of it, be it empty, keeps all of it.
            self._loop.remove_writer(self._socket)

    def _read(self, returned: Callable[[bytes], None]) -> None:
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
                whole, self._incoming = self._incoming, bytearray()
                self._loop.remove_reader(self._socket)
                returned(bytes(memoryview(whole)[SIZE.size :]))


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


MOST_ATTEMPTS = 8
LONGEST_S = 120.0
"""The wait for a zygote before workers are started without."""


class Warming:
    """Has a zygote prepared where it is not yet, then `fork`s; or else `execute`s."""

    def __init__(
        self,
        pooled: PooledSpawner,
        request: Callable[[messages.Message], None],
        fork: Callable[[PooledSpawner], None],
        execute: Callable[[], None],
    ) -> None:
        self.pooled = pooled
        self._request = request
        self._fork = fork
        self._execute = execute
        self._attempts = 0
        self._is_pending = True
        self._is_lost = False
        self._timer: Cancellable | None = None

    @property
    def is_worth_keeping(self) -> bool:
        return self.pooled.is_ready and not self._is_pending and not self._is_lost

    def begin(self, loop: EventLoop) -> None:
        if self.pooled.is_ready:
            self._go()
        else:
            self._timer = loop.call_later(LONGEST_S, self._fail, "it takes too long")
            self._prepare()

    def give_up(self) -> bool:
        """The context is being closed. Returns whether no process was started yet."""
        was_pending = self._is_pending
        self._settle()
        self._is_lost = self._is_lost or was_pending
        return was_pending

    def said(self, message: messages.Message) -> None:
        """Take a message of the spawner that is about no process."""
        if isinstance(message, messages.SpawnerIsUp):
            self.pooled.spawner_pid = message.pid
        elif isinstance(message, messages.OfZygote) and not self._is_lost:
            self._on_zygote(message)

    def _on_zygote(self, message: messages.OfZygote) -> None:
        pooled = self.pooled
        match message:
            case messages.Preloaded() if self._is_pending:
                pooled.is_ready = True
                self._go()
            case messages.StepRejected(step=step, reason=reason) if self._is_pending:
                rest = without(pooled.steps, step)
                pooled.avoid.setdefault(module_of(step) or step, reason)
                if rest == pooled.steps:
                    self._fail(f"there is no doing without {step}: {reason}")
                else:
                    pooled.steps = rest
                    self._prepare()
            case messages.LateUnfit() if self._is_pending:
                pooled.avoid.update(message.reasons)
                self._prepare()
            case messages.Unsuitable():
                self._fail(message.reason)
            case _:
                self._lose(message.reason)

    def _prepare(self) -> None:
        self._attempts += 1
        if self._attempts > MOST_ATTEMPTS:
            self._fail("too much of it cannot be imported ahead")
            return
        self._request(_to_prepare(self.pooled))

    def _go(self) -> None:
        self._settle()
        self._fork(self.pooled)

    def _fail(self, reason: str) -> None:
        """Do without the zygote, now and for later contexts."""
        zygote_pool.note_useless(self.pooled.plan)
        if self._is_pending:
            self._request(messages.CloseZygote())
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        logger.info("workers are started one by one: no zygote, since %s", reason)
        self._settle()
        self._is_lost = True
        self._execute()

    def _settle(self) -> None:
        self._is_pending = False
        if self._timer is not None:
            self._timer.cancel()


def _to_prepare(pooled: PooledSpawner) -> messages.Preload:
    plan = pooled.plan
    return messages.Preload(
        interpreter=plan.interpreter,
        options=plan.options,
        env=plan.environment,
        steps=pooled.steps,
        late=plan.late,
        avoid=tuple(pooled.avoid),
        under={},
        sets=plan.sets,
        trusted=(),
        per_worker_names=plan.per_worker,
        always_set=plan.always_set,
        program_folder=None,
        sys_path=plan.sys_path,
        own_folders=list(plan.own_folders),
        not_own=("holdfast",),
    )


def forked(plan: WarmPlan, cold: messages.Execute, descriptors: list[int]) -> messages.WarmWorker:
    """The worker that would be started by the request `cold` otherwise."""
    command = [os.fsdecode(word) for word in cold.argv[1:]]
    code = command.index("-c") + 1
    shared = plan.environment
    return messages.WarmWorker(
        name=cold.name,
        kind="code",
        target=command[code],
        interpreter=(plan.interpreter,),
        command=command,
        argv=["-c", *command[code + 1 :]],
        env={key: text for key, text in cold.env.items() if shared.get(key) != text},
        learns=False,
        descriptors=len(descriptors),
        cpus=cold.cpus,
        keep=cold.keep,
    )


NOT_MADE = 126
LOST = -9
"""The exit code of processes whose spawner was killed: the kernel kills them."""
CONSOLE_PATIENCE_S = 10.0
STUCK_AFTER_S = 30.0
"""The wait for a process after SIGKILL: one that is stuck in the kernel stays."""


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
    """The ends of the socket to a function: ours, and the worker's, which is among the given."""

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

    def wait(self, timeout_s: float | None, or_when: Callable[[], bool] = lambda: False) -> bool:
        """Whether it is settled, which is waited for that long at most.

        `or_when` ends the wait, too; it is asked again after each `wake`.
        """
        self._news.wait_for(lambda: self.settled or or_when(), timeout_s)
        return self.settled

    def wake(self) -> None:
        self._news.tell()

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
        surroundings = StreamContext(self._console, self._loop, self._filters)
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
        common = messages.InCommon(shared_env=pooled.plan.environment, spawner=pooled.spawner_pid)
        for name, descriptors in self._given.items():
            request = self._by_name[name].request
            assert isinstance(request, messages.Execute), "a copy of this process has no zygote"
            if self._is_wanted(name):
                worker = forked(pooled.plan, request, descriptors)
                copies = [os.dup(one) for one in descriptors]
                self._group.request(messages.Fork(common=common, workers=[worker]), copies)

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
        """All was killed. The spawner is kept for others, unless its zygote was lost meanwhile."""
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
