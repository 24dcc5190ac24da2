"""The process at the other end of a local socket, as the kernel reports it.

Rules
1. Nothing that a peer says counts for this, only what the kernel noted when it connected, or began
   to listen: its process and its user.
2. Processes of one user in one network namespace trust each other: they could as well debug each
   other. Nobody else is trusted, but root where a caller says so.
3. In a user namespace the kernel names every user who has no number there by one and the same, the
   overflow uid (65534): that is nobody. Where this process has that number itself, the peer is of
   this user only if the kernel lets this process look at it.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
from typing import NamedTuple

ROOT = 0
EVERY_USER = ["0", "0", "4294967295"]
"""The map of a user namespace in which every user has a number, as the first one has."""
OVERFLOW_UID = 65534
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class LocalPeer(NamedTuple):
    """A process, and its user."""

    pid: int
    uid: int

    @property
    def is_of_this_user(self) -> bool:
        if self.uid != os.geteuid():
            return False
        return not _is_nobody(self.uid) or _may_be_looked_at(self.pid)

    @property
    def is_of_root(self) -> bool:
        return self.uid == ROOT


def peer_of(sock: socket.socket) -> LocalPeer:
    """Raises `OSError` where the socket is not connected."""
    told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(told)
    return LocalPeer(pid, uid & 0xFFFFFFFF)


def user_of(uid: int) -> str:
    """A user as a person knows it: `alice (uid 1000)`. May ask a name server, and so block."""
    import pwd

    if _is_nobody(uid):
        return "a user that is unknown in this user namespace"
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except (KeyError, OSError):
        return f"uid {uid}"


def _is_nobody(uid: int) -> bool:
    return uid == _overflow_uid() and not _knows_every_user()


@functools.cache
def _overflow_uid() -> int:
    try:
        with open("/proc/sys/kernel/overflowuid") as file:
            return int(file.read())
    except (OSError, ValueError):
        return OVERFLOW_UID


@functools.cache
def _knows_every_user() -> bool:
    try:
        with open("/proc/self/uid_map") as file:
            return file.read().split() == EVERY_USER
    except OSError:
        return True  # A kernel without user namespaces.


def _may_be_looked_at(pid: int) -> bool:
    try:
        os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return True
