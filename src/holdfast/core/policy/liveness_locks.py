"""Liveness locks: how a node's end is proven on its own machine.

A node keeps a *liveness lock*: a locked file in a folder of its user on a disk of the machine. All
its processes (agent, spawner, workers and their children) hold the lock, as they hold the tether,
so the kernel frees it when the last of them is gone. An agent that is started on the machine later
finds the file, and reports what it proves.

Rules
1. A lock that can be taken proves that the node has ended, if it is the lock of that very file (a
   copy has another number on its disk) and the machine has not been restarted since the file was
   made: a lock of an earlier start is no lock any more.
2. A process that closed every descriptor holds no lock. As long as one carries the node's marker
   in its environment, as all children of workers do, the node has not ended. Only an observer
   in the same process namespace sees all of them.
3. A restart of the machine proves that all earlier processes are gone. A container
   cannot know its machine (the disk may have come from another one): this proves nothing there.
4. Nothing else is proof, and the lease is waited for.
5. A node's report of the end of others is believed, if round and seat are those of a member:
   admission is trust, and an admitted node can end a round in many ways.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from holdfast.core.protocol.bounds import Count, Name, NameOrNone, Number
from holdfast.core.protocol.messages import EndedMember

OUTERMOST = "pid:[4026531836]"
"""The process namespace of a machine itself: the kernel has given it this number since 3.8."""

LockVerdict = Literal["ended", "may run", "unknown"]


class LockOrigin(Struct, frozen=True):
    """The environment of a process, as far as a judge of its end has to know."""

    machine: NameOrNone = ""
    """The machine's identity; empty if unknown."""
    start: NameOrNone = ""
    """The machine's present boot."""
    namespace: NameOrNone = ""
    """Its process namespace."""


class RecordedSeat(Struct, frozen=True):
    """The node's last round, and its seat there."""

    instance: Number
    round: Number
    seat: Count


class LockRecord(Struct, frozen=True, omit_defaults=True):
    """The content of the file."""

    job: Annotated[str, Meta(max_length=4096)]
    node: Name
    where: LockOrigin
    file: Number
    """The file's number on its disk."""
    marker: NameOrNone = ""
    """The marker in the environment of all processes that its workers execute."""
    seat: RecordedSeat | None = None


class Evidence(Struct, frozen=True):
    """What was found of a liveness lock's node."""

    file: int
    """The number of the file found."""
    is_locked: bool
    marked: int = 0
    """How many processes carry its marker."""


def judge(record: LockRecord, here: LockOrigin, found: Evidence) -> LockVerdict:
    """Whether that node has ended, as seen from here."""
    if found.is_locked:
        return "may run"
    same_start = bool(here.start) and record.where.start == here.start
    if not same_start:
        known = bool(here.machine and here.start and record.where.start)
        outside = here.namespace == record.where.namespace == OUTERMOST
        same_machine = record.where.machine == here.machine
        return "ended" if known and outside and same_machine else "unknown"
    if found.file != record.file or record.where.namespace != here.namespace or not here.namespace:
        return "unknown"
    return "may run" if found.marked else "ended"


def ended_member(record: LockRecord) -> EndedMember | None:
    """The report on a node that has ended; None if it never was in a round."""
    if record.seat is None:
        return None
    seat = record.seat
    return EndedMember(record.node, seat.instance, seat.round, seat.seat)
