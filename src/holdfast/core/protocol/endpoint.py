"""Endpoints: the addresses of peers, and their text form. No other module parses such a text.

Rules
- `host`, `host:port`, `[ipv6]` or `[ipv6]:port`; lists have commas between.
- No user, no password, no URL. Text before an `@` is not repeated: it may be a secret.
- IPv6 needs its brackets wherever a port may follow; on the command line always, because
  `fe80::1:2` could be meant either way.
"""

from __future__ import annotations

import re

from msgspec import Struct

from holdfast.core.protocol.bounds import PORT_MOST, Address, Port
from holdfast.core.protocol.errors import UsageError


class Endpoint(Struct, frozen=True, omit_defaults=True):
    """An address and port that peers can connect to."""

    address: Address
    port: Port
    serves_store: bool = False
    """PyTorch's store listens there already, so rank 0 need not serve it."""

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"

    @classmethod
    def parse(
        cls, text: str, default_port: int | None = None, *, least: int = 0, bare_ipv6: bool = False
    ) -> Endpoint:
        """Parse an endpoint. Without a default it needs a port, of `least` or more.

        `bare_ipv6` takes IPv6 without brackets, as PyTorch's API does, if a port follows.
        """
        endpoint = text.strip()
        if "@" in endpoint:
            raise UsageError("an endpoint has no user or password in it", "write HOST:PORT only")
        if "://" in endpoint:
            raise UsageError(f"{text!r} is a URL", "write HOST:PORT only")
        name, port = _parts(endpoint, bare_ipv6)
        if port is None and default_port is None:
            raise UsageError(f"{text!r} has no port", "write HOST:PORT")
        address = host(name)
        if port is None:
            return cls(address, default_port or 0)
        if not re.fullmatch(r"[0-9]{1,5}", port) or not least <= int(port) <= PORT_MOST:
            raise UsageError(f"{port!r} is not a port", f"ports go from {least} to {PORT_MOST}")
        return cls(address, int(port))

    @classmethod
    def parse_list(cls, text: str, default_port: int, *, bare_ipv6: bool = False) -> list[Endpoint]:
        """The servers of a list, each once; `UsageError` if there is none."""
        words = filter(None, map(str.strip, text.split(",")))
        endpoints = [cls.parse(one, default_port, bare_ipv6=bare_ipv6) for one in words]
        if not endpoints:
            raise UsageError("no endpoint of a server is given", "write HOST:PORT,HOST:PORT")
        return list(dict.fromkeys(endpoints))


def _parts(endpoint: str, bare_ipv6: bool) -> tuple[str, str | None]:
    """The host, in its brackets, and the port."""
    if endpoint.count(":") > 1 and not endpoint.startswith("["):
        front, _, port = endpoint.rpartition(":")
        if bare_ipv6 and _is_ipv6(front):
            return front, port
        hint = f"put IPv6 in brackets: [{endpoint}]" if _is_ipv6(endpoint) else "write HOST:PORT"
        raise UsageError(f"{endpoint!r} has too many colons", hint)
    matched = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::(.*))?", endpoint)
    return (matched[1], matched[2]) if matched else (endpoint, None)


def host(text: str) -> str:
    """A host name or an address; brackets around IPv6 are taken off."""
    address = text.strip()
    bare = address[1:-1] if address.startswith("[") and address.endswith("]") else address
    if ":" in bare and _is_ipv6(bare):
        return bare
    if not re.fullmatch(r"[\w.-]+", bare) or bare != address:
        raise UsageError(f"{text!r} is not a host", "write a host name, or an IPv4 or IPv6 address")
    return bare


def _is_ipv6(address: str) -> bool:
    from ipaddress import IPv6Address

    try:
        IPv6Address(address)
    except ValueError:
        return False
    return True
