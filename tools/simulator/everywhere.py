"""A leader struck at every point of the protocol, one after the other: not only where seeds fall.

A few stories are played once, to see when whoever leads (or wants to) sends a frame, asks the
register, or takes in its answer. Then each is played again for every such point and every way to
lose a leader, which strikes exactly there: before the frame is out, between two requests. Every
promise has to hold, and the job has to come to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from tools.simulator.cluster import Run, simulate
from tools.simulator.plan import (
    LEADER,
    Fault,
    FaultKind,
    HostPlan,
    Plan,
    RegisterKind,
    RegisterPlan,
    Strike,
)

from holdfast.core.policy import timing
from holdfast.core.policy.config import (
    JobConfig,
    Leases,
    Program,
    Rendezvous,
    RestartPolicy,
    Timeouts,
)

Store = RegisterKind | Literal["embedded"]
STORES: tuple[Store, ...] = ("plain", "pushing", "holding", "forgetful", "embedded")
AT_S = 5.0
"""When what a story is about happens."""
AFTERWARDS_S = 18.0
"""How long faults may last after that."""
HUNG_S = 1000.0
LOSSES: dict[str, Fault] = {
    "its node is killed": Fault(0.0, "node is killed", lasts_s=3.0),
    "its agent is killed": Fault(0.0, "agent crashes", lasts_s=3.0),
    "its host loses power": Fault(0.0, "host crashes", lasts_s=9.0),
    "it sleeps beyond its term": Fault(0.0, "agent pauses", lasts_s=5.5),
    "it sleeps beyond its lease": Fault(0.0, "agent pauses", lasts_s=13.0),
    "it is cut off from the register": Fault(0.0, "deaf to register", lasts_s=12.0),
    "it is cut off from the nodes": Fault(0.0, "cut off", lasts_s=12.0),
    "it is cut off from everything": Fault(0.0, "cut off", lasts_s=12.0, other=1),
}
OF_A_REGISTER: frozenset[FaultKind] = frozenset({"deaf to register"})


class Story(Struct, frozen=True):
    """What happens while the leader is struck."""

    faults: tuple[Fault, ...] = ()
    between: tuple[float, float] = (AT_S - 0.5, AT_S + 3.0)
    """When the points of interest are reached."""
    nodes: tuple[int, int] = (3, 3)
    hosts: int = 3
    late: bool = False
    """The last host comes when the others are at work."""
    slow: tuple[int, ...] = ()
    """Hosts that are too slow for a seat: the first one leads, the next would follow it."""


STORIES: dict[str, Story] = {
    "start": Story(between=(0.0, 2.5)),
    "steady round": Story(),
    "worker failure": Story((Fault(AT_S, "worker fails", 1),)),
    "scale up": Story(nodes=(2, 4), hosts=4, late=True),
    "drain": Story((Fault(AT_S, "drain", 1, 60.0),), nodes=(2, 3), hosts=4),
    "node loss": Story((Fault(AT_S, "node is killed", 2, 60.0),), nodes=(2, 3)),
    "leader loss": Story((Fault(AT_S, "node is killed", LEADER, 60.0),), nodes=(2, 4), hosts=4),
    "leader drains": Story((Fault(AT_S, "drain", LEADER, 60.0),), nodes=(2, 4), hosts=4),
    "leader is a spare": Story(nodes=(3, 3), hosts=4, slow=(0,)),
    "spares follow, the round is held": Story(
        (Fault(AT_S, "deaf to register", 0, 60.0), Fault(AT_S, "deaf to register", 3, 60.0)),
        (AT_S + 2.0, AT_S + 8.0),
        nodes=(1, 2),
        hosts=4,
        slow=(1, 2),
    ),
    "leader is deaf": Story(
        (Fault(AT_S, "deaf to register", LEADER, 60.0),), (AT_S + 2.0, AT_S + 6.0), (2, 4), 4
    ),
    "closing": Story((Fault(AT_S, "workers finish"),)),
}


class Case(Struct, frozen=True):
    """One story, with its leader lost at one point."""

    story: str
    store: Store
    loss: str
    point: int

    def __str__(self) -> str:
        return f"{self.story}/{self.store}/{self.loss}/{self.point}"

    @staticmethod
    def named(name: str) -> Case:
        story, store, loss, point = name.split("/")
        return Case(story, store, loss, int(point))  # type: ignore[arg-type]

    def plan(self) -> Plan:
        plan = base(self.story, self.store)
        return replace(plan, strike=Strike(self.point, LOSSES[self.loss]))

    def play(self, *, story: bool = False, journals: Path | None = None) -> Run:
        return simulate(self.plan(), story=story, journals=journals)


def base(name: str, store: Store) -> Plan:
    """A story without a loss."""
    told = STORIES[name]
    embedded = store == "embedded"
    return Plan(
        seed=1,
        profile=f"{name}, {store}",
        config=_config(told, embedded),
        hosts=tuple(_host(told, number) for number in range(told.hosts)),
        faults=told.faults,
        heal_at=AT_S + AFTERWARDS_S,
        embedded=embedded,
        register=RegisterPlan("plain" if store == "embedded" else store),
    )


def _config(told: Story, embedded: bool) -> JobConfig:
    return JobConfig(
        "job",
        Program("script", "train.py"),
        min_nodes=told.nodes[0],
        max_nodes=told.nodes[1],
        rendezvous=Rendezvous(backend="holdfast" if embedded else "etcd"),
        restarts=RestartPolicy(max_restarts=3, fruitless_rounds_limit=0),
        timeouts=Timeouts(
            shutdown_s=1.0,
            unkillable_s=0.6,
            preload_s=1.5,
            join_s=60.0,
            last_call_s=1.0,
            scale_up_delay_s=0.4,
            min_round_s=1.0,
            drain_s=1.5,
            close_s=6.0,
        ),
        leases=timing.derive(Leases(), {"hold_s": 15.0}),
    ).validate()


def _host(told: Story, number: int) -> HostPlan:
    late = told.late and number == told.hosts - 1
    slow = number in told.slow
    return HostPlan(
        start_at=AT_S - 1.0 if late else 0.1 * number,
        clock_offset_s=1000.0 * (number + 1),
        clock_rate=1.0 + 0.002 * (number % 3 - 1),
        warm=slow,
        preload_s=HUNG_S if slow else 0.5,
    )


@cache
def points(story: str, store: Store) -> tuple[int, ...]:
    """The numbers of the points of interest, in the order in which they are reached."""
    first, last = STORIES[story].between
    times = simulate(base(story, store)).points
    return tuple(number for number, at in enumerate(times, 1) if first <= at <= last)


def cases(*stories: str, at_most: int = 0) -> Iterator[Case]:
    """All points of these stories, or of all; or so many of each, spread evenly."""
    for story in stories or STORIES:
        for store in STORES:
            for loss, fault in LOSSES.items():
                if store == "embedded" and fault.kind in OF_A_REGISTER:
                    continue
                for point in _spread(points(story, store), at_most):
                    yield Case(story, store, loss, point)


def _spread(numbers: tuple[int, ...], at_most: int) -> tuple[int, ...]:
    if not at_most or len(numbers) <= at_most:
        return numbers
    return tuple(numbers[index * len(numbers) // at_most] for index in range(at_most))
