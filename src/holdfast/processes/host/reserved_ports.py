"""Ports that are ours until somebody we chose binds them.

A port is held by a socket that is bound to the wildcard address of both families with
SO_REUSEADDR and does not listen. The kernel then gives that port to nobody who asks for
"any port", while a worker that asks for it by number, with SO_REUSEADDR as every server
does, can still bind it and listen. No port is ever picked, released and hoped for.
"""

from __future__ import annotations

import os
import socket


class ReservedPort:
    """A held port. Keep the object for as long as the port is to be held."""

    def __init__(self, address: str | None = None) -> None:
        """Hold any free port; of one IPv4 address, or of all."""
        self._socket = _bound_to_any_port(address)
        self.number: int = self._socket.getsockname()[1]

    def listen(self) -> None:
        """Let clients connect, and wait, from now on."""
        self._socket.listen(socket.SOMAXCONN)

    def duplicate(self) -> int:
        """A descriptor of the same socket, for the process that is to serve it."""
        return os.dup(self._socket.fileno())

    def release(self) -> None:
        self._socket.close()


def another_port(before: ReservedPort | None, address: str | None = None) -> ReservedPort:
    """Hold a port of another number than one that was released, which may be given out again."""
    port = ReservedPort(address)
    if before is None or port.number != before.number:
        return port
    other = ReservedPort(address)
    port.release()
    return other


def _bound_to_any_port(address: str | None) -> socket.socket:
    if address is not None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, 0))
        return sock
    try:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        address = "::"
    except OSError:  # A machine without IPv6.
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        address = ""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, 0))
    return sock
