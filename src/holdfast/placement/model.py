"""The input of detecting a scheduler, and its results.

Rules
- A variable that is empty is not set.
- A number that cannot be one, or that another variable contradicts, is refused and never guessed
  at: a node that believes in a wrong rank waits for others, or takes another's place.
- Who hosts the meeting is told by rank, never by comparing names: a machine has many.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from holdfast.core.protocol.bounds import COUNT_MOST
from holdfast.core.protocol.errors import UsageError

Reader = Callable[[str], str | None]
"""The text of a small file, or None where it cannot be read."""

COMMAND = "holdfast run …"
"""Stands in a hint for the command that the user gave, which is not known here."""
HOST_NAME_FILE = "/proc/sys/kernel/hostname"
HOSTS_FILE = "/etc/hosts"
_LOOPBACK = ("127.", "::1")
_PORTS_BEGIN, _PORTS = 20000, 9371
"""Below the ports that the kernel gives out by itself, and below 29400 and 29500. The number of
them is prime, so that neighbouring jobs and steps have different ones."""
_STEPS_APART = 31


class Placement(Struct, frozen=True, kw_only=True):
    """This node's place in its job, as far as the scheduler tells it."""

    scheduler: str
    """The scheduler's name, as people say it."""
    where: str
    """Scheduler, job and step: what a sentence about it begins with."""
    nodes: int | None = None
    """Their number; None where only the user knows."""
    rank: int | None = None
    """This node's place among them."""
    workers: int | None = None
    """The number of workers on this node; None: as many as there are accelerators."""
    host: str = ""
    """The machine where all meet; empty where the scheduler does not say."""
    port: int | None = None
    """None: the usual one."""
    is_host: bool | None = None
    """Whether the meeting is on this node; None: find out from the address."""
    run_id: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    """From which variables each of `nodes`, `rank`, `workers`, `endpoint`, `run_id` was read."""
    at_a_loss: str = ""
    """What the scheduler does to an elastic job that loses a node, if it spoils it, and how to tell
    it not to."""
    host_for_pmi: str = ""
    """This machine's name, for rank 0 to tell the others through a process manager where `host` is
    not known; empty where there is no such manager."""
    cannot_meet: PlacementRefusal | None = None
    """The refusal to give where the nodes need a place to meet, and `host` is not known."""


class PlacementRefusal(Struct, frozen=True):
    """Why what the scheduler placed cannot work, and what would: `COMMAND` in it is the user's
    own."""

    scheduler: str
    message: str
    hint: str


class Circumstances(Struct, frozen=True):
    """All that may be known of where we are."""

    variables: Mapping[str, str]
    read: Reader

    def text(self, name: str) -> str:
        """The value of a variable; empty if it is not set."""
        return self.variables.get(name, "").strip()

    def first_set(self, *names: str) -> str:
        """The first of these variables that is set; empty if none is."""
        return next((name for name in names if self.text(name)), "")

    def number(self, name: str, *, least: int = 0, most: int = COUNT_MOST) -> int | None:
        """The number that a variable is; None if it is not set. Raises `UsageError`."""
        text = self.text(name)
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise contradiction(f"{name}={text[:40]} is not a number")
        if not least <= int(text) <= most:
            raise contradiction(f"{name}={text} is not between {least} and {most}")
        return int(text)

    def needed(self, name: str, *, least: int = 0) -> int:
        """The number that a variable is, which has to be there. Raises `UsageError`."""
        number = self.number(name, least=least)
        if number is None:
            raise contradiction(f"{name} is missing")
        return number

    def place(self, rank: str, nodes: str) -> tuple[int, int]:
        """The rank and the number of nodes that these two variables are, if they agree."""
        count = self.needed(nodes, least=1)
        place = self.needed(rank)
        if place >= count:
            raise contradiction(f"{rank}={place} does not exist among {nodes}={count} nodes")
        return place, count

    def lines(self, path: str) -> list[str]:
        """The lines of a file that are not empty; none where it cannot be read."""
        return [line.strip() for line in (self.read(path) or "").splitlines() if line.strip()]

    def host_name(self) -> str:
        return (self.read(HOST_NAME_FILE) or "").strip()

    def own_address(self) -> str:
        """The address by which the hosts file knows this machine; else its name."""
        own = self.host_name()
        for line in self.lines(HOSTS_FILE):
            address, *names = line.partition("#")[0].split() or [""]
            if own in names and not address.startswith(_LOOPBACK):
                return address
        return own


def contradiction(problem: str) -> UsageError:
    """An error: the scheduler's variables contradict each other."""
    return UsageError(
        problem,
        "say where this node stands (--nnodes, --node-rank, --rdzv-endpoint), "
        "or --no-detect to run on this machine alone",
    )


def several_on_a_node(starter: str, count: int, command: str) -> UsageError:
    """The scheduler started more than one agent on this machine."""
    return UsageError(
        f"{starter} started {count} agents on this node, where one is enough: "
        "it starts all the workers of its node",
        f"{command} (or --standalone, for jobs that have nothing to do with each other)",
    )


def port_of_numbers(job: int, step: int = 0) -> int:
    """A port for one step of one job: those near it, on the same machine, have others."""
    return _PORTS_BEGIN + (job * _STEPS_APART + step) % _PORTS


def port_of_name(name: str) -> int:
    """The same where a job has a name and no number: the same on all machines."""
    return _PORTS_BEGIN + zlib.crc32(name.encode()) % _PORTS


def as_id(*parts: object) -> str:
    """A name for the job that can be part of a directory's name."""
    name = "-".join(str(part) for part in parts)
    return "".join(letter if letter.isalnum() or letter in "_.-" else "-" for letter in name)[:150]
