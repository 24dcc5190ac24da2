"""What a simulated run consists of, as data: made before it starts, printable, shrinkable.

A plan says which hosts there are, how the job is configured, which faults strike when, and
when they stop. Everything else (delays, who is quicker) comes from the seed while it runs.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from holdfast.core.policy.config import JobConfig

LEADER = -1
"""In place of a host's number: whoever leads when the fault strikes."""

FaultKind = Literal[
    "worker fails",
    "worker never retries",
    "agent crashes",
    "node is killed",
    "host crashes",
    "spawner is killed",
    "agent pauses",
    "leader pauses mid-word",
    "host pauses",
    "cut off",
    "cut off from",
    "cut off one way",
    "deaf to register",
    "register down",
    "register mute",
    "register lossy",
    "register stale",
    "register slow",
    "register refuses",
    "register changes its leader",
    "register restarts empty",
    "watch breaks",
    "pushes late",
    "pushes jumbled",
    "connection reset",
    "connection half open",
    "slow network",
    "drain",
    "whole tree is asked",
    "everybody is asked",
    "slow start",
    "slow stop",
    "slow spawner",
    "zygote lost",
    "workers finish",
    "closing asked",
    "released",
    "a liar speaks",
    "all are killed",
    "job stands still",
    "node stands still",
    "node moves unheard",
    "hang is unheard",
    "scaled",
    "saving wanted",
    "job stopped",
    "record slow",
    "restart wanted",
    "restart taken over",
]

HARMLESS: frozenset[FaultKind] = frozenset(
    {
        "worker fails",
        "worker never retries",
        "slow start",
        "slow stop",
        "slow spawner",
        "zygote lost",
        "workers finish",
        "closing asked",
        "agent pauses",
        "leader pauses mid-word",
        "host pauses",
        "register stale",
        "watch breaks",
        "pushes late",
        "pushes jumbled",
        "a liar speaks",
        "job stands still",
        "node stands still",
        "record slow",
    }
)
"""What gives a leader no reason to think that another node is gone."""


class Fault(Struct, frozen=True, omit_defaults=True):
    """Something that goes wrong at some time, on some host, for a while."""

    at: float
    kind: FaultKind
    host: int = 0
    lasts_s: float = 0.0
    """How long it lasts; for what dies, how long until it is started again."""
    other: int = 0
    """A second host, a local rank or a variety, as the kind has it."""

    def __str__(self) -> str:
        who = "the leader's host" if self.host == LEADER else f"host {self.host}"
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.at:.2f} s: {self.kind}, {who}{lasts}"


WAYS_TO_DIE = ("nodes", "power", "agents", "orphan")
"""How all are killed: with all that they started; with their hosts; the agents alone, whose
spawners see to the rest; or with all but one worker of one of them."""
NEW_DISKS_FROM = 700
"""Of a fault's thousand varieties: from this on some hosts lose what was on their disks."""


def loses_locks(fault: Fault, host: int) -> bool:
    """Whether the disk of that host is new when all are started again."""
    return fault.other >= NEW_DISKS_FROM and (fault.other + host) % 3 == 0


class HostPlan(Struct, frozen=True):
    """One host: what its agent is told, and what its clock is like."""

    slots: int = 1
    role: str = "default"
    start_at: float = 0.0
    clock_offset_s: float = 0.0
    clock_rate: float = 1.0
    warm: bool = False
    preload_s: float = 0.5


RegisterKind = Literal["plain", "pushing", "holding", "forgetful"]


class RegisterPlan(Struct, frozen=True):
    """What the register can do, and how long it is waited for."""

    kind: RegisterKind = "plain"
    patience: float = 1 / 3
    """How much of a term an answer may take."""
    clock_rate: float = 1.0


class Strike(Struct, frozen=True):
    """A fault at a point of the protocol instead of a time: it hits whoever gets there."""

    point: int
    """The number of the point, counted from 1 in the order in which they are reached."""
    fault: Fault

    def __str__(self) -> str:
        lasts = f" for {self.fault.lasts_s:.1f} s" if self.fault.lasts_s else ""
        return f"point {self.point}: {self.fault.kind}, whoever leads then{lasts}"


class Plan(Struct, frozen=True):
    """A whole run."""

    seed: int
    profile: str
    config: JobConfig
    hosts: tuple[HostPlan, ...]
    faults: tuple[Fault, ...]
    heal_at: float
    embedded: bool = False
    keeps_record: bool = True
    """Embedded: whether the coordinator's record survives every restart of its host."""
    victims: bool = True
    """Whether workers fail when a peer is lost, instead of hanging."""
    reports_steps: bool = True
    saves: bool = False
    """Whether workers ask if they are to save."""
    breaks: bool = False
    """Whether they end once they have, if the round is to end."""
    enough_nodes: bool = True
    """Whether the job can ever be formed."""
    register: RegisterPlan = RegisterPlan()
    strike: Strike | None = None
