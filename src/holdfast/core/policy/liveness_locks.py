"""What a node leaves behind on its machine, and what that proves after its end.

A node keeps a *note*: a file in a folder of its user on a disk of the machine itself. All its
processes (agent, spawner, workers and what they fork) hold a lock on it, as they hold the tether,
so the kernel frees it when the last of them is gone. An agent that is started on the machine later
finds the note, and says of that node what it proves.

Rules
1. A lock that can be taken proves that the node has ended, if it is the lock of that very file (a
   copy has another number on its disk) and the machine has not been started since the note was
   made: a lock of an earlier start is no lock any more.
2. A process that let go of every descriptor holds no lock. As long as one carries the node's marker
   in its environment, as whatever a worker executes does, the node has not ended. Only who looks
   from the same process namespace sees all of them.
3. Another start of the same machine proves that all is gone that ran before. What is in a container
   cannot know its machine (the disk may have come from another one): this proves nothing there.
4. All else proves nothing, and the lease is waited for.
5. What a node says of the end of others is believed, if round and seat are those of a member:
   admission is trust, and an admitted node can end a round in many ways.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from holdfast.core.protocol.bounds import Count, Name, NameOrNone, Number
from holdfast.core.protocol.messages import EndedMember

OUTERMOST = "pid:[4026531836]"
"""The process namespace of a machine itself: the kernel has given it this number since 3.8."""

Verdict = Literal["ended", "may run", "unknown"]


class LockOrigin(Struct, frozen=True):
    """Where a process runs, as far as others have to know who judge its end."""

    machine: NameOrNone = ""
    """Of this machine alone, for ever; empty where nobody knows."""
    start: NameOrNone = ""
    """Of the time since the machine was last started."""
    namespace: NameOrNone = ""
    """In which its processes are numbered."""


class NotedSeat(Struct, frozen=True):
    """The last round that a node was in, and its seat there."""

    instance: Number
    round: Number
    seat: Count


class MachineNote(Struct, frozen=True, omit_defaults=True):
    """What is in the file."""

    job: Annotated[str, Meta(max_length=4096)]
    node: Name
    where: LockOrigin
    file: Number
    """The file's number on its disk."""
    marker: NameOrNone = ""
    """What the environment of whatever its workers execute has."""
    seat: NotedSeat | None = None


class Evidence(Struct, frozen=True):
    """What was found of a note's node."""

    file: int
    """The number of the file that the note was in."""
    is_locked: bool
    marked: int = 0
    """How many processes carry its marker."""


def judge(note: MachineNote, here: LockOrigin, found: Evidence) -> Verdict:
    """Whether that node has ended, for somebody who looks from here."""
    if found.is_locked:
        return "may run"
    same_start = bool(here.start) and note.where.start == here.start
    if not same_start:
        known = bool(here.machine and here.start and note.where.start)
        outside = here.namespace == note.where.namespace == OUTERMOST
        same_machine = note.where.machine == here.machine
        return "ended" if known and outside and same_machine else "unknown"
    if found.file != note.file or note.where.namespace != here.namespace or not here.namespace:
        return "unknown"
    return "may run" if found.marked else "ended"


def as_told(note: MachineNote) -> EndedMember | None:
    """What is told of a node that has ended; None where it never was in a round."""
    if note.seat is None:
        return None
    seat = note.seat
    return EndedMember(note.node, seat.instance, seat.round, seat.seat)
