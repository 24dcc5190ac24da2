"""What it takes to start a process, and how that is said to the spawner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from holdfast.agent.commands import ERROR_WRITER, Launch
from holdfast.workers import failures

PROCESSES_PER_REQUEST = 60
"""Four descriptors each at most; one message may carry 253."""

Request = tuple[dict[str, Any], list[int]]


class Order(Struct, frozen=True):
    """One process to be started."""

    name: str
    """What the spawner calls it when it tells of it."""
    launch: Launch
    arguments: list[str]
    environment: dict[str, str]
    descriptors: list[int]
    """Its standard streams, and the tether if there is one; the sender closes them."""
    cpus: tuple[int, ...] | None = None
    learns: bool = False
    """Whether it tells what it imports, if it is forked from a zygote."""


def to_execute(order: Order) -> Request:
    """Start it cold: fork and exec."""
    environment = order.environment
    if order.launch.interpreter:
        environment = environment | failures.hook_environment(environment)
    request = {
        "do": "exec",
        "id": order.name,
        "argv": order.launch.command(order.arguments),
        "env": environment,
        "cpus": order.cpus,
    }
    return request, order.descriptors


def to_fork(orders: list[Order], shared: dict[str, str], spawner: int) -> Iterator[Request]:
    """Start them warm: have the zygote fork them, as many as one message can carry at once."""
    common = {"shared_env": shared, "spawner": spawner, "error_writer": ERROR_WRITER}
    for first in range(0, len(orders), PROCESSES_PER_REQUEST):
        part = orders[first : first + PROCESSES_PER_REQUEST]
        descriptors = [descriptor for order in part for descriptor in order.descriptors]
        workers = [_forked(order, shared) for order in part]
        yield {"do": "fork", "common": common, "workers": workers}, descriptors


def _forked(order: Order, shared: dict[str, str]) -> dict[str, Any]:
    """All but what is common. A request for many workers must stay small enough to be sent
    without waiting for its reader: the spawner never waits for anybody."""
    own = {name: text for name, text in order.environment.items() if shared.get(name) != text}
    return {
        "id": order.name,
        "kind": order.launch.kind,
        "target": order.launch.target,
        "interpreter": order.launch.interpreter,
        "command": order.launch.options(order.arguments),
        "argv": order.launch.argv(order.arguments),
        "learn": order.learns,
        "env": own,
        "descriptors": len(order.descriptors),
        "cpus": order.cpus,
    }
