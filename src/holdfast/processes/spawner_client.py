"""The agent's side of the conversation with its spawner.

Requests are queued and never block the loop; answers arrive through one callback. The end
of the socket, for whatever reason, arrives once, as `on_end` with the reason in words. What the
kernel does not take now is tried again; what it never takes ends the spawner, with the reason.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable

from holdfast.core.protocol.model import ExitStatus
from holdfast.processes.bare import linux
from holdfast.processes.bare.private_messages import Message
from holdfast.processes.bare.wire import PrivateConnection
from holdfast.processes.spawner_process import SpawnerProcess
from holdfast.runtime.loop import Loop

TRY_AGAIN_S = 0.05
_FOR_NOW = (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM)
"""The kernel takes nothing now: too many descriptors of this user are on their way, say."""


class SpawnerClient:
    """One spawner, seen from the agent that started it."""

    def __init__(
        self,
        process: SpawnerProcess,
        on_message: Callable[[Message], None],
        on_end: Callable[[str], None],
        close_sent: Callable[[int], None] = os.close,
    ) -> None:
        """`close_sent` closes a descriptor that was sent."""
        self.pid = process.pid
        self._connection = PrivateConnection(process.socket)
        self._connection.close_sent = close_sent
        self._on_message = on_message
        self._on_end = on_end
        self._loop: Loop | None = None
        self._problem = ""
        """Why it could not be asked for something, and was killed for that."""

    def attach(self, loop: Loop) -> None:
        """Serve the socket on this loop. Requests made before are sent all the same."""
        self._loop = loop
        self._connection.socket.setblocking(False)
        loop.add_reader(self._connection.socket, self._readable)
        self._flush()

    def request(self, message: Message, descriptors: list[int] | None = None) -> None:
        """Ask for something. The descriptors are ours to close, which happens once sent."""
        self._connection.queue(message, descriptors, close=True)
        self._flush()

    def close(self) -> None:
        """Hang up: the spawner kills what is left below it and ends."""
        if self._connection.socket.fileno() < 0:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._connection.socket)
            self._loop.remove_writer(self._connection.socket)
        self._connection.close()

    def release(self) -> None:
        """Serve the socket no longer; it stays open, for whoever has the spawner from now on."""
        if self._loop is not None and self._connection.socket.fileno() >= 0:
            self._loop.remove_reader(self._connection.socket)
            self._loop.remove_writer(self._connection.socket)

    def kill(self) -> None:
        """It does not do as it is asked. Its end arrives as `on_end`, like any other."""
        os.kill(self.pid, signal.SIGKILL)  # Our own child, not reaped yet: the pid is its own.

    def reap(self) -> str:
        """Wait for the spawner's own end, which must be near, and say how it came."""
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return "is gone"
        ended = ExitStatus.from_wait_status(os.waitstatus_to_exitcode(status))
        return f"ended with {ended}" if ended.signal is None else f"was killed by {ended}"

    def _flush(self) -> None:
        if self._connection.socket.fileno() < 0:
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
        self.kill()

    def _readable(self) -> None:
        try:
            messages = self._connection.receive()
        except BlockingIOError:
            return
        except (EOFError, OSError):
            self.close()
            how = self.reap()
            self._on_end(self._problem or how)
            return
        for message, _ in messages:
            self._on_message(message)


def sweep() -> None:
    """The spawner is gone: kill whatever came up to this process, a subreaper too."""
    linux.kill_all_below(os.getpid())
