"""How many bytes the TCP connections of this machine have moved, as the kernel counts them.

`/proc/PID/io` has what was read and written, and not what was sent and received. One question to
the kernel (netlink, sock_diag(7)) tells it of all connections of this network namespace; which of
them a process has is told by its descriptors. Where the kernel does not answer, nothing is known.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Mapping

SOCK_DIAG = 4
BY_FAMILY = 20
DUMP = 0x301
DONE, ERROR = 3, 2
INFO = 2
ESTABLISHED, CLOSE_WAIT = 1 << 1, 1 << 8
PATIENCE_S = 1.0
ANSWER_MOST = 1 << 18
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI48x")
_PORTS = struct.Struct(">HH")
_COUNTS = struct.Struct("=QQ")
PORTS_AT, INODE_AT, ATTRIBUTES_AT, COUNTS_AT = 4, 68, 72, 120
"""Within the kernel's `inet_diag_msg`, and within `tcp_info`."""


def bytes_moved(store_port: int = 0) -> dict[int, int]:
    """By the inode of each connection's socket, but those of PyTorch's store: its clients ask it
    now and then, whatever their process does."""
    found: dict[int, int] = {}
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            for inode, ports, moved in _connections(family):
                if store_port not in ports:
                    found[inode] = moved
    except (OSError, struct.error):
        return {}
    return found


def moved_by(pid: int, moved: Mapping[int, int]) -> int:
    """What the connections that a process has open have moved."""
    folder = f"/proc/{pid}/fd"
    total = 0
    try:
        for name in os.listdir(folder) if moved else ():
            total += moved.get(_inode(f"{folder}/{name}"), 0)
    except OSError:
        return 0
    return total


def _inode(descriptor: str) -> int:
    try:
        leads_to = os.readlink(descriptor)
    except OSError:
        return 0
    return int(leads_to[8:-1]) if leads_to.startswith("socket:[") else 0


def _connections(family: int) -> Iterable[tuple[int, tuple[int, int], int]]:
    request = _REQUEST.pack(
        family, socket.IPPROTO_TCP, 1 << (INFO - 1), 0, ESTABLISHED | CLOSE_WAIT
    )
    header = _HEADER.pack(_HEADER.size + len(request), BY_FAMILY, DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as asked:
        asked.settimeout(PATIENCE_S)
        asked.send(header + request)
        while True:
            answer = memoryview(asked.recv(ANSWER_MOST))
            while answer:
                length, kind = struct.unpack_from("=IH", answer)
                if kind in (DONE, ERROR) or length < _HEADER.size:
                    return
                yield _connection(answer[_HEADER.size : length])
                answer = answer[_aligned(length) :]


def _connection(message: memoryview) -> tuple[int, tuple[int, int], int]:
    ours, theirs = _PORTS.unpack_from(message, PORTS_AT)
    (inode,) = struct.unpack_from("=I", message, INODE_AT)
    left = message[ATTRIBUTES_AT:]
    moved = 0
    while len(left) >= 4:
        length, kind = struct.unpack_from("=HH", left)
        if kind == INFO and length >= 4 + COUNTS_AT + _COUNTS.size:
            moved = sum(_COUNTS.unpack_from(left, 4 + COUNTS_AT))
        left = left[max(4, _aligned(length)) :]
    return inode, (ours, theirs), moved


def _aligned(length: int) -> int:
    return (length + 3) & ~3
