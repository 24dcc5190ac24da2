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
    """A socket that holds a port which is free at every address, for as long as it is not closed.

    It does not listen: nobody may connect to it in place of the server that is to be there.
    Raises `RuntimeError` where no port can be bound.
    """
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # this family is switched off
        try:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind((address, 0))
        except OSError:
            sock.close()
        else:
            return sock
    raise RuntimeError("no port can be bound")


class macros:  # noqa: N801 - the name that callers know
    """Placeholders in arguments, for values that only the worker's place decides."""

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
