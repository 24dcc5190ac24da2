"""Variables, ports, and what is filled into the arguments of a worker."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from string import Template
from typing import Any

__all__ = ["get_env_variable_or_raise", "get_socket_with_port", "macros"]


def get_env_variable_or_raise(env_name: str) -> str:
    """A variable's value, which may be empty; raises `ValueError` where it is not set."""
    value = os.environ.get(env_name)
    if value is None:
        raise ValueError(f"the environment variable {env_name} is needed and not set")
    return value


def get_socket_with_port() -> socket.socket:
    """A socket that listens on a free port of localhost, for as long as it is not closed.

    Raises `RuntimeError` where no address of localhost can be bound.
    """
    found = socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.bind((address[0], 0))
            sock.listen()
        except OSError:
            sock.close()  # this family is switched off; another may not be
        else:
            return sock
    raise RuntimeError("no address of localhost can be bound")


class macros:  # noqa: N801 - the name that callers know
    """What stands in an argument for something that only the worker's place decides."""

    local_rank = "${local_rank}"

    @staticmethod
    def substitute(args: Iterable[Any], local_rank: str) -> list[Any]:
        """The arguments with the local rank filled in; what is no text stays as it is.

        They are templates of `string.Template`: `$local_rank` counts too, `$$` is one `$`, and
        other names stay.
        """
        return [
            Template(arg).safe_substitute(local_rank=local_rank) if isinstance(arg, str) else arg
            for arg in args
        ]
