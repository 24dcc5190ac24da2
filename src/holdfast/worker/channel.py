"""The channel on which a worker's own code speaks to its agent.

Rules
1. It never delays and never breaks the training: a message that cannot be sent at once is
   dropped, and where there is no agent, nothing happens.
2. One packet is one JSON object. The agent knows the sender's process from the kernel; the
   local rank is added so that a helper process of a worker can speak for it.
3. A forked child opens a connection of its own, so that the kernel names it rightly.
4. Nothing is said to a process of another user that has taken the name of an agent that is gone.

How far it is goes another way, without a message (`worker.progress`); only the first step is said
here.

The socket is named by `HOLDFAST_CHANNEL`; a name that starts with `@` lies in the abstract
namespace, which leaves no file behind. It is connected to when it is first used.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

VARIABLE = "HOLDFAST_CHANNEL"
PACKET_LIMIT = 64 * 1024
ROOT, NOBODY = 0, 65534
"""The second stands for all users that have no number in a user namespace."""


class Channel:
    """One process's connection to its agent."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process = 0

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message if that is possible at once; say whether it was sent."""
        name = os.environ.get(VARIABLE)
        if not name:
            return False
        packet = encode(message)
        if len(packet) > PACKET_LIMIT:
            return False
        try:
            self._connected(name).send(packet, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False  # the agent is behind: it will want the next one, not this
        except OSError:
            self.close()  # no agent, or a new one: the next message tries again
            return False
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self, name: str) -> socket.socket:
        """The connection of *this* process. Raises `OSError` where there is no agent."""
        process = os.getpid()
        if self._process != process:
            self.close()  # only the copy of the descriptor: the parent's stays open
            self._process = process
        if self._socket is None:
            self._socket = _connect(name)
        return self._socket


def _connect(name: str) -> socket.socket:
    fresh = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        fresh.setblocking(False)
        connect_to_agent(fresh, name)
    except OSError:
        fresh.close()
        raise
    return fresh


def connect_to_agent(line: socket.socket, name: str) -> None:
    """Connect to the agent of that name. Raises `OSError`, also where it is not the agent's.

    A line with a timeout waits for its turn that long, where many want to be let in.
    """
    patience_s = line.gettimeout()
    if patience_s:
        # The kernel lets waiting clients in one after the other. With a timeout of its own, Python
        # would give up at once where there is no room.
        line.setblocking(True)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _as_timeval(patience_s))
    line.connect(address_of(name))
    line.settimeout(patience_s)
    told = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid = (int.from_bytes(told[at : at + 4], sys.byteorder) for at in (0, 4))
    if uid == ROOT or (uid == os.geteuid() != NOBODY):
        return
    # A worker may be of another user than its agent (sudo), or know no users (a namespace).
    if name.split("-")[1:2] != [str(pid)]:
        raise PermissionError(f"{name} is another user's")


def _as_timeval(seconds: float) -> bytes:
    import struct

    return struct.pack("ll", int(seconds), int(seconds % 1.0 * 1e6))


def address_of(name: str) -> str:
    """The address to bind or connect, from the name in the environment."""
    return "\0" + name[1:] if name.startswith("@") else name


def encode(message: dict[str, Any]) -> bytes:
    """One packet, with the local rank that it speaks for."""
    import json

    local_rank = os.environ.get("LOCAL_RANK", "")
    if local_rank.isdecimal():
        message = {**message, "local_rank": int(local_rank)}
    return json.dumps(message).encode()
