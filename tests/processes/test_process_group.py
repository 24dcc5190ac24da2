"""The agent's side of the conversation with a real spawner: what cannot be sent is not lost."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast.processes.process_group import GroupMember, ProcessGroup
from holdfast.processes.spawner_process import SpawnerProcess, start_spawner
from holdfast.processes.stdlib_only.private_messages import Message, ReportStuck
from holdfast.runtime.loop import EventLoop

from ..waiting import loop_until


class Stage:
    """A spawner, a group without members, and what was heard from it."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.heard: list[Message] = []
        self.ended: list[str] = []
        process = start_spawner(zygote=False)
        self.group = ProcessGroup(process, self)
        self.group.attach(self.loop)

    def spawner_said(self, message: Message) -> None:
        self.heard.append(message)

    def spawner_ended(self, how: str) -> None:
        self.ended.append(how)

    def member_started(self, member: GroupMember) -> None:
        raise AssertionError(member)

    def member_exited(self, member: GroupMember, status: int) -> None:
        raise AssertionError(member, status)

    def member_failed(self, member: GroupMember, error: str) -> None:
        raise AssertionError(member, error)

    def close(self) -> None:
        if not self.ended:
            self.group.close()
            self.group.reap()
        self.loop.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    one = Stage()
    yield one
    one.close()


def test_what_can_never_be_sent_ends_the_spawner_and_is_named(stage: Stage) -> None:
    closed = os.open(os.devnull, os.O_RDWR)
    os.close(closed)
    stage.group.request(ReportStuck(), [closed])
    os.dup2(0, closed)  # So that there is something to close with the connection.
    loop_until(stage.loop, lambda: stage.ended)
    assert stage.ended == ["could not be asked: Bad file descriptor"]


# As a user with a low limit, of whose descriptors too many are on their way already: the kernel
# takes no more until somebody has read those. Root has no such limit, so it becomes another.
CROWDED = """
import os, resource, socket
from holdfast.runtime.loop import EventLoop
from holdfast.processes.process_group import ProcessGroup
from holdfast.processes.spawner_process import SpawnerProcess
from holdfast.processes.stdlib_only.private_messages import ReportStuck
from holdfast.processes.stdlib_only.wire import PrivateConnection

ours, theirs = socket.socketpair()
crowded, emptied = socket.socketpair()
loop, spawner = EventLoop(), PrivateConnection(theirs)
group = ProcessGroup(SpawnerProcess(os.getpid(), ours), None)
group.attach(loop)
if os.geteuid() == 0:
    os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        socket.send_fds(crowded, [b"x"], [0] * 10)
except OSError as error:
    print(error.strerror)

def empty():
    for number in socket.recv_fds(emptied, 1, 10)[1]:
        os.close(number)

received = []
loop.add_reader(theirs, lambda: received.extend(spawner.receive()))
group.request(ReportStuck(), [os.dup(0)])
assert not received
for turn in range(5):
    loop.call_later(0.1, empty)
loop.call_later(60, received.append, None)
loop.run_until(lambda: received)
print(received[0] and received[0][0])
"""


def test_what_cannot_be_sent_now_is_sent_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CROWDED], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [os.strerror(errno.ETOOMANYREFS), "ReportStuck()"], done


# Ends by itself, should nobody let it: then the test has failed, and does not wait for ever.
HUNG_UP = """
import os, signal, sys
signal.alarm(20)
os.close(int(sys.argv[1]))
os.read(int(sys.argv[2]), 1)
sys.exit(7)
"""


def test_a_spawner_that_has_hung_up_and_is_slow_to_end_holds_up_nobody(stage: Stage) -> None:
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    with theirs:
        numbers = (theirs.fileno(), reading)
        command = [sys.executable, "-c", HUNG_UP, *map(str, numbers)]
        slow = subprocess.Popen(command, pass_fds=numbers)
    group = ProcessGroup(SpawnerProcess(slow.pid, ours), stage)
    group.attach(stage.loop)
    loop_until(stage.loop, lambda: ours.fileno() < 0)  # It was seen to hang up.
    assert stage.ended == []
    os.write(writing, b"x")
    loop_until(stage.loop, lambda: stage.ended)
    assert stage.ended == ["ended with exit code 7"]
    slow.returncode = 7  # It was reaped.
    group.close()
    stage.group.close()
    stage.group.reap()
    os.close(reading)
    os.close(writing)


def test_the_end_of_a_spawner_is_told_with_how_it_came(stage: Stage) -> None:
    stage.group.kill_spawner()
    stage.group.request(ReportStuck())
    loop_until(stage.loop, lambda: stage.ended)
    (how,) = stage.ended
    assert how.startswith("was killed by")
