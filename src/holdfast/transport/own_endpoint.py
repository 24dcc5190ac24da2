"""Whether an endpoint is on this machine, as the kernel says, and listening there.

Rules
- An address is this machine's own if the kernel would reach it from itself: the way to it begins
  there. Names are only resolved, never compared.
- A port that is taken means that somebody on this machine holds it already. Of several that try
  at once exactly one gets it, but for those that share it (`sharing`).
- The host listens on the wildcard of both families, so that peers reach it whatever the
  name means to them; on loopback only if the endpoint says loopback in so many words. (On
  many systems a machine's own name resolves to 127.0.1.1 on that machine alone.)

An endpoint's name may have several addresses, of which some are this machine's and some are not
(that of a bridge is the same on every machine): the machine with all of them hosts. Where none has
all, `is_host` has to say which one is meant; so it has where two machines own the very address that
the endpoint is, since each of them always reaches itself.
"""

from __future__ import annotations

import errno
import os
import socket
import sys

from msgspec import Struct

from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Endpoint
from holdfast.transport.addresses import source_towards
from holdfast.transport.listener import bound_socket, listening_socket
from holdfast.transport.resolving import Address, addresses_of, numeric


def try_to_host(
    endpoint: Endpoint,
    is_host: bool | None = None,
    addresses: list[Address] | None = None,
    other_jobs: int | None = None,
) -> socket.socket | None:
    """Return a socket that listens on the endpoint's port, or None if another machine hosts.

    `is_host` is what the user said: False never hosts, True does without looking. Where the
    endpoint's addresses are not given, resolves its name, which may block. `other_jobs` share the
    port already, and would lose connections to a socket that listens before it is served: then it
    is only bound. With None the port is not shared. Raises `UsageError` when hosting is demanded
    or due, and the port cannot be had.
    """
    if is_host is False:
        return None
    if addresses is None:
        addresses = _resolved(endpoint)
    try:
        if is_host is None and not any(_is_ours(address) for address in addresses):
            return None
        return _listen(endpoint, addresses, other_jobs)
    except OSError as error:
        if error.errno == errno.EADDRINUSE and not is_host:
            return None
        raise cannot_listen(endpoint, error) from None


def cannot_listen(endpoint: Endpoint, error: OSError) -> UsageError:
    return UsageError(
        f"cannot listen on {endpoint}: {error.strerror}",
        "another agent or job may be there already; choose another port with --rdzv-endpoint, "
        "or with --rdzv-conf coordinator_port=PORT for static nodes",
    )


LISTENS = "0A"
"""A state, as `/proc/net/tcp` has it."""
ANY_ADDRESS = ("0.0.0.0", "::")


def stranger_at(endpoint: Endpoint, addresses: list[Address]) -> int | None:
    """The uid of another user (root is none) who listens where this machine's nodes would dial.

    Asks the kernel: nobody is spoken to. None also where that cannot be known.
    """
    places = {str(address.sockaddr[0]) for address in addresses} | set(ANY_ADDRESS)
    wanted = {f"{_as_the_kernel_shows(place)}:{endpoint.port:04X}" for place in places}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file]
        except OSError:
            continue  # A kernel without IPv6, or a system that hides it.
        for _, local, _, state, _, _, _, uid, *_ in rows[1:]:
            if local in wanted and state == LISTENS and int(uid) not in (0, os.geteuid()):
                return int(uid)
    return None


def _as_the_kernel_shows(number: str) -> str:
    """An address as in `/proc/net/tcp`: words of four bytes in the machine's own order."""
    number = number.partition("%")[0]
    packed = socket.inet_pton(socket.AF_INET6 if ":" in number else socket.AF_INET, number)
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


class EndpointLocation(Struct, frozen=True):
    """The location of an endpoint, as seen from this machine."""

    is_here: bool | None
    """Whether one of its addresses is this machine's; None if the name means nothing here."""
    elsewhere: tuple[Address, ...] = ()
    """Those of its addresses by which another machine can be reached."""


def location_of(addresses: list[Address]) -> EndpointLocation:
    """Look where an endpoint is that has these addresses."""
    others = [address for address in addresses if not _is_ours(address)]
    is_here = len(others) < len(addresses) if addresses else None
    # Without IPv6, even its loopback is not ours, and leads nowhere.
    return EndpointLocation(is_here, tuple(filter(source_towards, others)))


def is_this_machine(endpoint: Endpoint) -> bool | None:
    """Whether the endpoint is an address of this machine; None if the name means nothing here.

    Resolves the name, which may block.
    """
    return location_of(_resolved(endpoint)).is_here


def _resolved(endpoint: Endpoint) -> list[Address]:
    """Its addresses; none if the name means nothing here, and so does not name this machine."""
    try:
        return addresses_of(endpoint)
    except OSError:
        return []


def _is_ours(address: Address) -> bool:
    number = str(address.sockaddr[0]).partition("%")[0]
    is_loopback_or_any = number.startswith("127.") or number in ANY_ADDRESS
    return is_loopback_or_any or source_towards(address) == number


def _listen(endpoint: Endpoint, addresses: list[Address], other_jobs: int | None) -> socket.socket:
    host = ""
    if is_loopback(endpoint):
        # IPv4 first: a client that dials a name tries all of its addresses.
        found = sorted(addresses, key=lambda address: address.family != socket.AF_INET)
        host = str(found[0].sockaddr[0])
    if other_jobs is None:
        return listening_socket(host, endpoint.port)
    if other_jobs:
        return bound_socket(host, endpoint.port, is_shared=True)
    # Another program may be there that would share its port too.
    bound_socket(host, endpoint.port).close()
    return listening_socket(host, endpoint.port, is_shared=True)


def is_loopback(endpoint: Endpoint) -> bool:
    """Whether the endpoint says in so many words that it is this machine's alone."""
    name = endpoint.address.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    given = [str(address.sockaddr[0]) for address in numeric(endpoint)]
    return any(number == "::1" or number.startswith("127.") for number in given)
