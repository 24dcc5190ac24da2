"""What a node needs of the world: five ports, behind which the world is real or simulated.

The engine (`engine.engine`) drives the machines of the core over these, and over nothing else. So
`holdfast run`, the rendezvous of `holdfast.elastic`, the simulator and the scenarios are the same
engine with other ports.

    clock      the time, and calls to come
    network    the line to the coordinator, and the exchange where a coordinator is reached
    register   the document by which a coordinator is found and fenced, where several may be one;
               where only the endpoint's host can, the claim to be it and the record on its disk
    processes  the workers of this node, and all that belongs to them
    journal    what happened, for whoever wants to know

What comes back from a port comes by a call, maybe from within the one that asked for it: whoever
takes it lets it wait its turn (`runtime.loop.Inbox`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from holdfast.core.node_io import NodeEffect, NodeEvent
from holdfast.core.protocol.messages import FromNode, ToNode
from holdfast.core.protocol.model import Endpoint, Outcome, Term
from holdfast.runtime.loop import Clock

if TYPE_CHECKING:
    from holdfast.core.coordinator import Beginning, Coordinator
    from holdfast.core.election import ElectionEffect, ElectionEvent, ElectionState
    from holdfast.core.protocol.document import Document
    from holdfast.registers.register_thread import OnReply
    from holdfast.transport.client import LineHandlers
    from holdfast.transport.server import ExchangeHandlers

# The network.


class CoordinatorLine(Protocol):
    """A node's connection to the coordinator: none, one being dialled, or one."""

    def dial(self, endpoints: Sequence[Endpoint], timeout_s: float) -> None:
        """Connect to one of them, in place of what there is.

        `on_connected` or `on_line_lost` follows.
        """
        ...

    def send(self, message: FromNode) -> None:
        """Lost if there is no connection."""
        ...

    def close(self) -> None:
        """End it, silently."""
        ...


class RoundKeys(Protocol):
    """The keys that the nodes of a round share."""

    def open(self, round: int) -> None:
        """The keys of a round can be used from now on, and those of older ones no more."""
        ...

    def end(self, round: int) -> None:
        """They can be used no more; whoever waits for one is told."""
        ...


class Exchange(Protocol):
    """The coordinator's end of all connections."""

    closed_because: str
    """Why nodes are not admitted now, if they are not."""

    @property
    def keys(self) -> RoundKeys | None: ...

    def send(self, node: str, term: Term, message: ToNode) -> bool:
        """Lost if the node has no connection, or has said nothing on it yet."""
        ...

    def drop(self, node: str) -> None:
        """Hang up on a node; nothing more is told about it."""
        ...

    def refuse(self, node: str, kind: str, reason: str) -> None: ...
    def share_tether(self, node: str) -> int | None:
        """A node's tether to us, for others on this machine to hold too."""
        ...

    def dismiss(self) -> None:
        """Hang up on all of them, and go on listening."""
        ...

    def close(self) -> None: ...


class Closable(Protocol):
    def close(self) -> None: ...


class Network(Protocol):
    """How this node reaches others, and they it."""

    def line(self, handlers: LineHandlers) -> CoordinatorLine: ...
    def exchange(self, handlers: ExchangeHandlers) -> Exchange: ...
    def listen(self, exchange: Exchange) -> Endpoint:
        """Have it reached at the endpoint that is returned, one of this node's own."""
        ...

    def watch_end(self, tether: int, on_gone: Callable[[], None]) -> Closable:
        """Called when all that held the other end is proven gone."""
        ...


class Claim(Protocol):
    """The claim to be the coordinator behind an endpoint: this node has it, or another one."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it is reached from here."""
        ...

    def take(self, on_here: Callable[[], None], on_elsewhere: Callable[[], None]) -> None:
        """Find out whose it is, and take it if it can be this node's."""
        ...

    def serve(self, exchange: Exchange) -> None:
        """Have nodes that dial the endpoint reach this from now on."""
        ...

    def close(self) -> None:
        """Give it up."""
        ...


# What is written down.


class RecordPort(Protocol):
    """The record of an embedded coordinator, on its host's disk."""

    def read(self, then: Callable[[Document | None], None]) -> None: ...
    def write(self, document: Document, then: Callable[[str], None]) -> None:
        """`then` with what went wrong, in words; empty if it is written."""
        ...

    def touch(self) -> None:
        """It is still in use."""
        ...

    def remove(self) -> None: ...


class RegisterPort(Protocol):
    """A register that is asked, and answers each request once."""

    @property
    def tells_of_changes(self) -> bool: ...
    @property
    def can_forget(self) -> bool: ...

    def read(self, reply: OnReply) -> None: ...
    def write(
        self, content: bytes, token: int, reply: OnReply, keep_s: float | None = None
    ) -> None: ...
    def watch(self, token: int, tell: OnReply) -> None: ...
    def stop_watching(self) -> None: ...
    def forget_after(self, seconds: float, reply: OnReply) -> None: ...
    def close(self) -> None: ...


# The node itself.


class Processes(Protocol):
    """What runs on this node for the job."""

    def do(self, effect: NodeEffect) -> None:
        """Carry it out; what comes of it is posted to the engine."""
        ...

    def hold_tether(self, tether: int) -> None:
        """Everything on this node holds it: its end means that nothing of the node is left."""
        ...

    def share_tethers(self, tethers: list[int]) -> None:
        """Tethers of other nodes to this one, held here too in place of those before."""
        ...


class JournalPort(Protocol):
    """Who is told of every step."""

    def agent(self, at: float, event: NodeEvent, effects: list[NodeEffect]) -> None: ...
    def began(self, at: float, beginning: Beginning) -> None: ...
    def taken(self, at: float, liveness: Coordinator) -> None: ...
    def election(
        self,
        at: float,
        before: ElectionState,
        event: ElectionEvent,
        effects: list[ElectionEffect],
    ) -> None: ...


def new_instance() -> int:
    """Microseconds of the calendar: agents are started in the same second, by the same command,
    and each may begin the job anew where a register has lost everything."""
    return time.time_ns() // 1000


def answer_nothing(request: bytes, reply: Callable[[bytes], None]) -> None:
    """Of a node that knows nothing of what outsiders ask."""
    reply(b"")


class Ports(Struct):
    """All of them. A job of one node needs no network; of `register` and `claim` there is one."""

    clock: Clock
    processes: Processes
    journal: JournalPort
    say: Callable[[str], None]
    instance: Callable[[], int] = new_instance
    """The number of a job's life of which nothing is known: a later one is larger."""
    finished: Callable[[Outcome], None] = lambda outcome: None
    """Told how it ended, once nothing of the job is left on this node."""
    answer: Callable[[bytes, Callable[[bytes], None]], None] = answer_nothing
    """What this node answers to a request (`core.protocol.requests`), once it is known."""
    network: Network | None = None
    register: RegisterPort | None = None
    claim: Claim | None = None
    record: RecordPort | None = None
