"""Processes below one spawner, each with its streams, and the conversation with that spawner.

The one place that knows what a process's start and end mean for its output: where a prefix
names the pid, reading begins when that is known; at its end all that it wrote is taken in
before anybody hears of it. What follows from a start or an end is for the listener to say.

Requests are queued and never block the loop. The end of the socket, for whatever reason, arrives
once, as `spawner_ended` with the reason in words, when the process has ended too. What the kernel
does not take now is tried again; what it never takes ends the spawner, with the reason.
Not thread-safe: all of it happens on one loop.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec import Struct

from holdfast.core.protocol.model import ExitStatus
from holdfast.processes.output.log_files import AT_ONCE, Lane, close_file
from holdfast.processes.output.output import WorkerStreams
from holdfast.processes.spawner_process import SpawnerProcess
from holdfast.processes.stdlib_only.private_messages import (
    Exited,
    ForkFailed,
    Message,
    OfWorker,
    Signal,
    Started,
)
from holdfast.processes.stdlib_only.wire import PrivateConnection
from holdfast.runtime.loop import Loop

TRY_AGAIN_S = 0.05
ENDS_WITHIN_S = 20.0
"""How long a spawner that has hung up may take to end: a guardian kills what it left first."""
_FOR_NOW = (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM)
"""The kernel takes nothing now: too many descriptors of this user are on their way, say."""


class GroupMember(Struct):
    """A process that was asked for."""

    name: str
    streams: WorkerStreams
    pid: int | None = None


class GroupListener(Protocol):
    """The owner of a group, which hears of its processes."""

    def member_started(self, member: GroupMember) -> None: ...

    def member_exited(self, member: GroupMember, status: int) -> None:
        """Its output is in. `status` is the exit code, or minus the signal's number."""

    def member_failed(self, member: GroupMember, error: str) -> None:
        """It could not be made."""

    def spawner_said(self, message: Message) -> None:
        """Anything that is not about a member."""

    def spawner_ended(self, how: str) -> None:
        """Nothing of the group is left, unless the spawner was killed from outside."""


class ProcessGroup:
    """The members, and the spawner that is their parent, seen from the process that started it."""

    def __init__(
        self, process: SpawnerProcess, listener: GroupListener, lane: Lane = AT_ONCE
    ) -> None:
        """`lane` is where files are closed that were handed to members."""
        self.members: dict[str, GroupMember] = {}
        self.spawner_pid = process.pid
        self._connection = PrivateConnection(process.socket)
        self._connection.close_sent = self._close_sent
        self._listener = listener
        self._lane = lane
        self._files: set[int] = set()
        """Descriptors of files that are on their way to the spawner."""
        self._loop: Loop | None = None
        self._problem = ""
        """Why the spawner could not be asked for something, and was killed for that."""
        self._ending: SpawnerEnding | None = None

    # The members.

    def add(self, name: str, streams: WorkerStreams) -> list[int]:
        """Take in a process that is about to be asked for; returns its stdout and stderr.

        They are for the request that starts it, which closes them.
        """
        self.members[name] = GroupMember(name, streams)
        ends = streams.hand_over()
        self._files |= {
            end for end, is_file in zip(ends, streams.are_files, strict=True) if is_file
        }
        return ends

    def is_file(self, descriptor: int) -> None:
        """It will be sent, and to close it then may take a disk a while."""
        self._files.add(descriptor)

    def signal(
        self, number: int, names: list[str], *, group: bool = False, wakes: bool = True
    ) -> None:
        """Send a signal to these members, or to their process groups; `wakes` stopped ones."""
        self.request(Signal(number=int(number), names=names, group=group, wakes=wakes))

    def dismiss(self) -> None:
        """Nothing of these members is left: take the last of their output, and forget them."""
        for member in self.members.values():
            member.streams.close()
        self.members.clear()

    def _on_message(self, message: Message) -> None:
        member = self.members.get(message.name) if isinstance(message, OfWorker) else None
        if member is None:
            self._listener.spawner_said(message)
            return
        match message:
            case Started():
                member.pid = message.pid
                member.streams.set_pid(message.pid)
                self._listener.member_started(member)
            case Exited():
                member.streams.drain_now()
                self._listener.member_exited(member, message.status)
            case ForkFailed():
                self._listener.member_failed(member, message.error)

    # The spawner.

    def attach(self, loop: Loop) -> None:
        """Serve its socket on this loop. Requests made before are sent all the same."""
        self._loop = loop
        self._connection.socket.setblocking(False)
        loop.add_reader(self._connection.socket, self._readable)
        self._flush()

    def request(self, message: Message, descriptors: list[int] | None = None) -> None:
        """Ask for something. The descriptors are ours to close, which happens once sent."""
        self._connection.queue(message, descriptors)
        self._flush()

    def close(self) -> None:
        """Hang up: the spawner kills what is left below it and ends."""
        self.release()
        self._connection.close()

    def release(self) -> None:
        """Nothing of the members is left, and the spawner is for somebody else from now on."""
        self.dismiss()
        self._stop_serving()

    def _stop_serving(self) -> None:
        if self._ending is not None:
            self._ending.stop()
        loop, self._loop = self._loop, None
        if loop is not None and self._is_open:
            loop.remove_reader(self._connection.socket)
            loop.remove_writer(self._connection.socket)

    def kill_spawner(self) -> None:
        """It does not do as it is asked. Its end arrives as `spawner_ended`, like any other."""
        # Our own child, not reaped yet: the pid is its own.
        os.kill(self.spawner_pid, signal.SIGKILL)

    def reap(self) -> str:
        """Wait for the end of the spawner, which must be near, and say how it came."""
        try:
            _, status = os.waitpid(self.spawner_pid, 0)
        except ChildProcessError:
            return "is gone"
        ended = ExitStatus.from_wait_status(os.waitstatus_to_exitcode(status))
        return f"ended with {ended}" if ended.signal is None else f"was killed by {ended}"

    @property
    def _is_open(self) -> bool:
        return self._connection.socket.fileno() >= 0

    def _close_sent(self, descriptor: int) -> None:
        if descriptor in self._files:
            self._files.remove(descriptor)
            self._lane.do(partial(close_file, descriptor))
        else:
            os.close(descriptor)

    def _flush(self) -> None:
        if not self._is_open:
            return
        try:
            done = self._connection.flush()
        except (BrokenPipeError, ConnectionResetError):
            return  # The reader sees the end of the socket and tells.
        except OSError as error:
            self._cannot_send(error)
            return
        if self._loop is None:
            return
        if done:
            self._loop.remove_writer(self._connection.socket)
        else:
            self._loop.add_writer(self._connection.socket, self._flush)

    def _cannot_send(self, error: OSError) -> None:
        """Try again in a moment, if that may help; else a spawner that cannot be asked is none."""
        if error.errno in _FOR_NOW and self._loop is not None:
            self._loop.remove_writer(self._connection.socket)
            self._loop.call_later(TRY_AGAIN_S, self._flush)
            return
        self._problem = f"could not be asked: {error.strerror}"
        self.kill_spawner()

    def _readable(self) -> None:
        try:
            messages = self._connection.receive()
        except BlockingIOError:
            return
        except (EOFError, OSError):
            loop = self._loop
            self._stop_serving()
            self._connection.close()
            assert loop is not None, "a socket is only read while it is served"
            self._ending = SpawnerEnding(loop, self.spawner_pid, self._on_end)
            return
        for message, _ in messages:
            self._on_message(message)

    def _on_end(self, has_ended: bool) -> None:
        how = self.reap() if has_ended else "hung up, and does not end"
        self._listener.spawner_ended(self._problem or how)


class SpawnerEnding:
    """The wait for the end of a spawner that has hung up; `then` is told whether it has ended."""

    def __init__(self, loop: Loop, pid: int, then: Callable[[bool], None]) -> None:
        self._loop, self._then = loop, then
        try:
            self._pinned: int | None = os.pidfd_open(pid)
        except OSError:  # It was reaped by somebody else, or this kernel has none.
            self._pinned = None
            self._timer = loop.call_soon(then, True)
            return
        loop.add_reader(self._pinned, self._tell, True)
        self._timer = loop.call_later(ENDS_WITHIN_S, self._tell, False)

    def _tell(self, has_ended: bool) -> None:
        self.stop()
        self._then(has_ended)

    def stop(self) -> None:
        """Wait no more, and tell nobody."""
        self._timer.cancel()
        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            self._loop.remove_reader(pinned)
            os.close(pinned)
