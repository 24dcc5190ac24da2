"""Reading the endpoints and settings of a rendezvous."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.core.policy import texts
from holdfast.core.protocol.endpoint import Endpoint
from holdfast.core.protocol.errors import UsageError

__all__ = ["parse_rendezvous_endpoint"]


@contextmanager
def told_as_value_errors() -> Iterator[None]:
    """A user's mistake, in our words with their hint, as the error that PyTorch's users catch."""
    try:
        yield
    except UsageError as error:
        raise ValueError("; ".join(filter(None, (error.message, error.hint)))) from None


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """Host and port of `host`, `host:port`, `[ipv6]` or `[ipv6]:port`.

    Nothing is localhost. Without brackets, the last colon is the one before the port.
    ValueError for what is neither.
    """
    with told_as_value_errors():
        said = (endpoint or "").strip() or "localhost"
        place = Endpoint.parse(said, default_port, bare_ipv6=True)
    return place.address, place.port


def static_master(endpoint: str) -> tuple[str, int]:
    """The master that the endpoint of static nodes names; ValueError without it or its port."""
    if not endpoint.strip():
        raise ValueError(
            "static nodes need a master: --master-addr and --master-port, or an endpoint HOST:PORT"
        )
    try:
        place = Endpoint.parse(endpoint, bare_ipv6=True)
    except UsageError as error:
        raise ValueError(f"the endpoint of static nodes: {error}") from None
    return place.address, place.port


def _parse_rendezvous_config(config_str: str) -> dict[str, str]:
    """The settings of `key=value,key=value`; ValueError for what is not of that form."""
    with told_as_value_errors():
        return texts.pairs(config_str)


def _matches_machine_hostname(host: str) -> bool:
    """Whether `host` is this machine: found out by binding to its addresses."""
    from holdfast.transport.own_endpoint import is_this_machine

    return is_this_machine(Endpoint(host, 0)) is True
