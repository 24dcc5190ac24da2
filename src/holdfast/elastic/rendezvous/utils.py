"""How endpoints and settings of a rendezvous are written."""

from __future__ import annotations

import re

__all__ = ["parse_rendezvous_endpoint"]

_PORT_MAX = (1 << 16) - 1


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """Host and port of `host`, `host:port`, `[ipv6]` or `[ipv6]:port`.

    Nothing is localhost. Without brackets, the last colon is the one before the port.
    ValueError for what is neither.
    """
    place = (endpoint or "").strip()
    if not place:
        return "localhost", default_port
    if "@" in place:  # Whatever is before it is not repeated.
        shown = place.rpartition("@")[2]
        raise ValueError(f"before {shown!r} is a user or password, which no endpoint has")
    host, port = place, default_port
    if ":" in place and not (place.startswith("[") and place.endswith("]")):
        host, _, said = place.rpartition(":")
        port = _port(said, place)
    if len(host) > 1 and host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not re.fullmatch(r"[\w.:-]+", host):
        raise ValueError(f"{host!r} in {place!r} is neither a name nor an address of a host")
    if host == ":":
        raise ValueError(f"{place!r} has no port that can be told: write [{place}] or [{place}]:0")
    return host, port


def _port(said: str, place: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", said, re.ASCII) or int(said) > _PORT_MAX:
        raise ValueError(f"{said!r} in {place!r} is not a port: they go from 0 to {_PORT_MAX}")
    return int(said)


def _parse_rendezvous_config(config_str: str) -> dict[str, str]:
    """The settings of `key=value,key=value`; ValueError for what is not of that form."""
    settings: dict[str, str] = {}
    for item in config_str.split(",") if config_str.strip() else ():
        key, _, value = (part.strip() for part in item.partition("="))
        if not key:
            raise ValueError(f"{config_str!r} is not of the form key=value,key=value")
        if not value:
            raise ValueError(f"the setting {key} has no value")
        settings[key] = value
    return settings


def _matches_machine_hostname(host: str) -> bool:
    """Whether `host` is this machine: found out by binding to its addresses."""
    from holdfast.control.hosting import is_this_machine
    from holdfast.core.model import Endpoint

    return is_this_machine(Endpoint(host, 0)) is True
