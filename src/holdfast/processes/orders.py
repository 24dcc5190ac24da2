"""What it takes to start a process, and how that is said to the spawner."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from holdfast.processes import failures
from holdfast.processes.commands import ERROR_WRITER, Launch
from holdfast.processes.stdlib_only.private_messages import Execute, Fork, InCommon, WarmWorker

PROCESSES_PER_REQUEST = 50
"""Five descriptors each at most; one message may carry 253."""


class ProcessOrder(Struct, frozen=True):
    """One process to be started."""

    name: str
    """What the spawner calls it when it tells of it."""
    launch: Launch
    arguments: list[str]
    environment: dict[str, str]
    descriptors: list[int]
    """Its standard streams, and what its node holds (`tethers`); the sender closes them."""
    cpus: tuple[int, ...] | None = None
    learns: bool = False
    """Whether it tells what it imports, if it is forked from a zygote."""


def to_execute(order: ProcessOrder) -> tuple[Execute, list[int]]:
    """Start it cold: fork and exec."""
    environment = order.environment
    if order.launch.interpreter:
        environment = environment | failures.hook_environment(environment)
    argv = order.launch.command(order.arguments)
    request = Execute(name=order.name, argv=argv, env=environment, cpus=order.cpus)
    return request, order.descriptors


def to_fork(
    orders: list[ProcessOrder], shared: dict[str, str], spawner: int
) -> Iterator[tuple[Fork, list[int]]]:
    """Start them warm: have the zygote fork them, as many as one message can carry at once."""
    common = InCommon(shared_env=shared, spawner=spawner, error_writer=ERROR_WRITER)
    for first in range(0, len(orders), PROCESSES_PER_REQUEST):
        part = orders[first : first + PROCESSES_PER_REQUEST]
        descriptors = [descriptor for order in part for descriptor in order.descriptors]
        workers = [_forked(order, shared) for order in part]
        yield Fork(common=common, workers=workers), descriptors


def _forked(order: ProcessOrder, shared: dict[str, str]) -> WarmWorker:
    """All but what is common. A request for many workers must stay small enough to be sent
    without waiting for its reader: the spawner never waits for anybody."""
    own = {name: text for name, text in order.environment.items() if shared.get(name) != text}
    return WarmWorker(
        name=order.name,
        kind=order.launch.kind,
        target=order.launch.target,
        interpreter=order.launch.interpreter,
        command=order.launch.options(order.arguments),
        argv=order.launch.argv(order.arguments),
        env=own,
        learns=order.learns,
        descriptors=len(order.descriptors),
        cpus=order.cpus,
    )
