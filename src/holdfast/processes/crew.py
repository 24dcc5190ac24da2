"""Processes below one spawner, each with its streams.

The one place that knows what a process's start and end mean for its output: where a prefix
names the pid, reading begins when that is known; at its end all that it wrote is taken in
before anybody hears of it. What follows from a start or an end is for the listener to say.
Not thread-safe: all of it happens on one loop.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Protocol

from msgspec import Struct

from holdfast.processes.bare.private_messages import (
    BirthFailed,
    Exited,
    Message,
    OfWorker,
    Signal,
    Started,
)
from holdfast.processes.output.log_files import AT_ONCE, Lane, close_file
from holdfast.processes.output.output import WorkerStreams
from holdfast.processes.spawner_client import SpawnerClient
from holdfast.processes.spawner_process import SpawnerProcess
from holdfast.runtime.loop import Loop


class CrewMember(Struct):
    """A process that was asked for."""

    name: str
    streams: WorkerStreams
    pid: int | None = None


class CrewListener(Protocol):
    """Whoever the crew works for."""

    def member_started(self, member: CrewMember) -> None: ...

    def member_exited(self, member: CrewMember, status: int) -> None:
        """Its output is in. `status` is the exit code, or minus the signal's number."""

    def member_failed(self, member: CrewMember, error: str) -> None:
        """It could not be made."""

    def spawner_said(self, message: Message) -> None:
        """Anything that is not about a member."""

    def spawner_ended(self, how: str) -> None:
        """Nothing of the crew is left, unless the spawner was killed from outside."""


class Crew:
    """The members, and the spawner that is their parent."""

    def __init__(
        self, process: SpawnerProcess, listener: CrewListener, lane: Lane = AT_ONCE
    ) -> None:
        """`lane` is where files are closed that were handed to members."""
        self.members: dict[str, CrewMember] = {}
        self._listener = listener
        self._lane = lane
        self._files: set[int] = set()
        """Descriptors of files that are on their way to the spawner."""
        self._spawner = SpawnerClient(
            process, self._on_message, listener.spawner_ended, self._close_sent
        )

    @property
    def spawner_pid(self) -> int:
        return self._spawner.pid

    def attach(self, loop: Loop) -> None:
        self._spawner.attach(loop)

    def enrol(self, name: str, streams: WorkerStreams) -> list[int]:
        """Take in a process that is about to be asked for; returns its stdout and stderr.

        They are for the request that starts it, which closes them.
        """
        self.members[name] = CrewMember(name, streams)
        try:
            stdout = os.dup(streams.child_stdout)
            try:
                ends = [stdout, os.dup(streams.child_stderr)]
            except OSError:
                os.close(stdout)
                raise
        finally:
            streams.close_child_ends()
        self._files |= {
            end for end, is_file in zip(ends, streams.are_files, strict=True) if is_file
        }
        return ends

    def is_file(self, descriptor: int) -> None:
        """It will be sent, and to close it then may take a disk a while."""
        self._files.add(descriptor)

    def _close_sent(self, descriptor: int) -> None:
        if descriptor in self._files:
            self._files.remove(descriptor)
            self._lane.do(partial(close_file, descriptor))
        else:
            os.close(descriptor)

    def request(self, message: Message, descriptors: list[int] | None = None) -> None:
        """Ask the spawner for something. The descriptors are closed once sent."""
        self._spawner.request(message, descriptors)

    def signal(self, number: int, names: list[str], *, group: bool = False) -> None:
        """Send a signal to these members, or to their process groups."""
        self._spawner.request(Signal(number=int(number), names=names, group=group))

    def kill_spawner(self) -> None:
        self._spawner.kill()

    def dismiss(self) -> None:
        """Nothing of these members is left: take the last of their output, and forget them."""
        for member in self.members.values():
            member.streams.close()
        self.members.clear()

    def close(self) -> None:
        """Hang up: the spawner kills what is left below it and ends."""
        self.dismiss()
        self._spawner.close()

    def release(self) -> None:
        """Nothing of the members is left, and the spawner is for somebody else from now on."""
        self.dismiss()
        self._spawner.release()

    def reap(self) -> str:
        """Wait for the end of the spawner, which must be near, and say how it came."""
        return self._spawner.reap()

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
            case BirthFailed():
                self._listener.member_failed(member, message.error)
