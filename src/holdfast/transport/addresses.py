"""The addresses of this machine at which peers could reach it, best first.

Rules
- Every interface that is up counts, IPv4 and IPv6. Link-local IPv6 is left out: it means
  nothing without the name of an interface.
- First comes the address from which the coordinator was reached, since that path works. Then
  interfaces of the machine; then bridges and the like, whose addresses are often the same on
  every machine. Loopback is there only if nothing else is.

How it works: `getifaddrs` of the C library, read through ctypes.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from holdfast.core.protocol.model import Endpoint
from holdfast.transport.resolving import Address, addresses_of

ANY_PORT = 9
_UP = 0x1
_LOOPBACK = 0x8
_LOCAL_ONLY_PREFIXES = ("docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "lxc", "podman")
_WHERE_IN_SOCKADDR: dict[int, tuple[int, int]] = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}
"""The offset and the length of the address in the structure of each family."""


class InterfaceAddress(Struct, frozen=True):
    """One address of one interface."""

    interface: str
    flags: int
    family: int
    address: str

    @property
    def is_usable(self) -> bool:
        return bool(self.flags & _UP) and not self.address.lower().startswith("fe80:")

    @property
    def is_loopback(self) -> bool:
        return bool(self.flags & _LOOPBACK)

    @property
    def is_local_only(self) -> bool:
        """Whether it is likely that only this machine knows it."""
        return (
            self.interface.startswith(_LOCAL_ONLY_PREFIXES)
            or os.path.isdir(f"/sys/class/net/{self.interface}/bridge")
            or self.address.startswith("169.254.")
        )


def usable_addresses() -> tuple[str, ...]:
    """All addresses that peers may try, best first."""
    usable = [found for found in interface_addresses() if found.is_usable]
    reachable = [found for found in usable if not found.is_loopback] or usable
    reachable.sort(key=lambda found: (found.is_local_only, found.family != socket.AF_INET))
    return tuple(dict.fromkeys(found.address for found in reachable))


def address_towards(endpoints: Iterable[Endpoint]) -> str:
    """The address of this machine from which those places are reached, or its best one.

    Resolves names, which may block. Nothing is sent.
    """
    for endpoint in endpoints:
        with contextlib.suppress(OSError):
            for address in addresses_of(endpoint):
                found = source_towards(address)
                if found and not found.startswith(("127.", "::1")):
                    return found
    return next(iter(usable_addresses()), "127.0.0.1")


def source_towards(address: Address) -> str:
    """The address that the kernel would send from; empty where there is no way. Sends nothing."""
    with contextlib.suppress(OSError), socket.socket(address.family, socket.SOCK_DGRAM) as probe:
        number, _, *scope = address.sockaddr
        probe.connect((number, ANY_PORT, *scope))
        return str(probe.getsockname()[0]).partition("%")[0]
    return ""


def interface_addresses() -> list[InterfaceAddress]:
    """Every address of every interface, in the kernel's order."""
    import ctypes

    class Entry(ctypes.Structure):
        pass

    Entry._fields_ = [
        ("next", ctypes.POINTER(Entry)),
        ("name", ctypes.c_char_p),
        ("flags", ctypes.c_uint),
        ("address", ctypes.c_void_p),
        ("netmask", ctypes.c_void_p),
        ("destination", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
    ]
    library = ctypes.CDLL(None, use_errno=True)
    library.freeifaddrs.argtypes = [ctypes.POINTER(Entry)]
    first = ctypes.POINTER(Entry)()
    if library.getifaddrs(ctypes.byref(first)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot list the interfaces: {os.strerror(number)}")
    try:
        return list(_read(first))
    finally:
        library.freeifaddrs(first)


def _read(pointer: Any) -> Iterator[InterfaceAddress]:
    while pointer:
        entry = pointer.contents
        if entry.address:
            family, text = _address_at(entry.address)
            if text:
                yield InterfaceAddress(os.fsdecode(entry.name), entry.flags, family, text)
        pointer = entry.next


def _address_at(location: int) -> tuple[int, str]:
    """The family and the text of a `struct sockaddr`; no text for other families."""
    import ctypes

    family = ctypes.c_ushort.from_address(location).value
    offset, size = _WHERE_IN_SOCKADDR.get(family, (0, 0))
    if not size:
        return family, ""
    return family, socket.inet_ntop(family, ctypes.string_at(location + offset, size))
