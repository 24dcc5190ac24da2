"""Names become addresses, without the loop ever waiting for a name server.

A name is looked up in a thread of its own, because the C library offers nothing else. One that
hangs in a lookup is left to itself and keeps nothing alive. Numbers need no thread.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.core.protocol.model import Endpoint
from holdfast.runtime.loop import Loop
from holdfast.runtime.thread_calls import ThreadCalls

if TYPE_CHECKING:
    from threading import Thread


class Address(Struct, frozen=True):
    """Somewhere to connect to, and the endpoint that it was found for."""

    family: int
    sockaddr: tuple[Any, ...]
    endpoint: Endpoint

    def __str__(self) -> str:
        return str(Endpoint(self.sockaddr[0], self.sockaddr[1]))


def addresses_of(endpoint: Endpoint, flags: int = 0) -> list[Address]:
    """Ask the C library, which may take long; raises OSError when there are none."""
    try:
        found = socket.getaddrinfo(
            endpoint.address, endpoint.port, type=socket.SOCK_STREAM, flags=flags
        )
    except ValueError as error:  # A label that is too long or empty, a null byte.
        raise OSError(f"{endpoint.address!r} is not a host name") from error
    unique = {(family, sockaddr): None for family, _, _, _, sockaddr in found}
    return [Address(family, sockaddr, endpoint) for family, sockaddr in unique]


def numeric(endpoint: Endpoint) -> list[Address]:
    """The address that an endpoint gives as a number; empty if it gives a name."""
    try:
        return addresses_of(endpoint, socket.AI_NUMERICHOST)
    except OSError:
        return []


class Lookup:
    """One name being looked up; `on_found(endpoint, addresses)` once, empty if there are none."""

    def __init__(
        self,
        loop: Loop,
        endpoint: Endpoint,
        on_found: Callable[[Endpoint, list[Address]], None],
    ) -> None:
        self._endpoint, self._on_found = endpoint, on_found
        self._answer = AddressesFound()
        self._calls = ThreadCalls(loop)
        _ask(endpoint, self._answer, lambda: self._calls.put(self._on_done))

    def _on_done(self) -> None:
        self.close()
        self._on_found(self._endpoint, self._answer.addresses)

    def close(self) -> None:
        """Do not wait for it any longer."""
        self._calls.close()


def addresses_within(endpoint: Endpoint, timeout_s: float) -> list[Address]:
    """The addresses of an endpoint, found within that time; blocks. Raises OSError for none."""
    if found := numeric(endpoint):
        return found
    answer = AddressesFound()
    _ask(endpoint, answer).join(timeout_s)
    if problem := answer.problem:
        raise OSError(f"has no address: {problem.strerror or problem}")
    if not answer.addresses:
        raise TimeoutError("the name server does not answer")
    return answer.addresses


class AddressesFound(Struct):
    """The result of a look-up in a thread, or its error."""

    addresses: list[Address] = []
    problem: OSError | None = None


def _ask(
    endpoint: Endpoint, answer: AddressesFound, done: Callable[[], None] = lambda: None
) -> Thread:
    from threading import Thread

    def ask() -> None:
        try:
            answer.addresses = addresses_of(endpoint)
        except OSError as error:
            answer.problem = error
        finally:
            done()

    thread = Thread(target=ask, name="name lookup", daemon=True)
    thread.start()
    return thread
