"""How an agent and its coordinator reach each other: in one process, or over the network.

`LocalContact` serves a job of one node: the coordinator lives here, and there is no socket.
`NetworkContact` serves a job of several: whoever has the endpoint's claim (`control.sharing`)
hosts the coordinator, the others dial it. Which of the two this node is may change: each time it
dials, it looks.
Where any node can carry the coordinator, `agent.register_contact` takes its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from holdfast.agent.hosting import CoordinatorHost, NothingKept, Surroundings
from holdfast.core.agent_io import AgentEvent, CoordinatorLost, CoordinatorReached, Told
from holdfast.core.beginning import next_life
from holdfast.core.config import JobConfig
from holdfast.core.coordinator_state import CoordinatorState, ledger
from holdfast.core.messages import FromNode, NodeGreeted, NodeJoined, RoundStopped, ToNode
from holdfast.core.model import Endpoint, Tenure
from holdfast.observe.journal import Journal
from holdfast.workers import linux
from holdfast.workers.event_loop import Loop

if TYPE_CHECKING:
    from holdfast.agent.keeping import RecordKeeper
    from holdfast.control.auth import Security
    from holdfast.control.record import Record
    from holdfast.control.server import Server
    from holdfast.control.sharing import Share

DIAL_TIMEOUT_S = 5.0
DESCRIPTORS_PER_NODE, DESCRIPTORS_BESIDES = 3, 256
"""A connection, a tether and the keys of each node; and what a program has open anyway."""


class Owner(Struct):
    """The agent, as far as its contact needs it."""

    config: JobConfig
    loop: Loop
    node: str
    post: Callable[[AgentEvent], None]
    say: Callable[[str], None]
    journal: Journal
    on_tether: Callable[[int], None]
    share_tethers: Callable[[list[int]], None]


class Secrets(Struct, frozen=True):
    """What is in no configuration, because those are written down."""

    token: bytes | None = None
    """By which the nodes of the job know each other."""
    user: str = ""
    password: str = ""
    """For the register."""

    def __repr__(self) -> str:
        return "Secrets(…)"


class Contact(Protocol):
    """What the agent does with it."""

    def dial(self) -> None: ...
    def hang_up(self) -> None: ...
    def send(self, message: FromNode) -> None: ...

    def leave(self) -> None:
        """The agent is done: hand over to others what they need, while `is_needed`."""
        ...

    def close(self) -> None: ...

    @property
    def is_needed(self) -> bool:
        """Whether other nodes still have to learn the outcome from here."""
        ...


def surroundings(owner: Owner) -> Surroundings:
    def tell_agent(message: ToNode, tenure: Tenure) -> None:
        owner.post(Told(message, tenure))

    return Surroundings(owner.loop, owner.node, owner.say, tell_agent, owner.journal.taken)


class LocalContact:
    """The coordinator of a job of one node."""

    is_needed = False

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        state = CoordinatorState(owner.config)
        self._host = CoordinatorHost(state, surroundings(owner), NothingKept())

    def dial(self) -> None:
        self._owner.post(CoordinatorReached(hosting=True))

    def hang_up(self) -> None:
        pass

    def send(self, message: FromNode) -> None:
        self._host.receive(self._owner.node, message)

    def leave(self) -> None:
        pass

    def close(self) -> None:
        self._host.close()


class NetworkContact:
    """The coordinator of a job of several nodes, here or elsewhere."""

    def __init__(self, owner: Owner, token: bytes | None) -> None:
        from holdfast.control.client import Client

        self._owner = owner
        self._security = security_of(owner.config, token)
        self._endpoint = Endpoint.parse(owner.config.rendezvous.endpoint)
        self._host: CoordinatorHost | None = None
        self._keeper: RecordKeeper | None = None
        self._server: Server | None = None
        self._share: Share | None = None
        self._is_here: bool | None = owner.config.is_host
        """Whether the endpoint is on this machine; None while that is not known."""
        self._client = Client(owner.loop, owner.config.run_id, owner.node, self._security, self)
        self._address = owner.config.local_address or ""

    @property
    def is_needed(self) -> bool:
        if self._host is None:
            return False
        return self._host.state.outcome is not None and not self._host.state.retired

    @property
    def store_place(self) -> Endpoint:
        """Where the coordinator's store is found from here."""
        if self._server is None or not self._server.addresses:
            return self._endpoint
        return replace(self._endpoint, port=self._server.addresses[0].port)

    # What the agent does.

    def dial(self) -> None:
        """Host the coordinator if the endpoint is this machine's, and no other node of the job
        on it does; else dial it."""
        from holdfast.control.hosting import is_this_machine

        if self._is_here is None:
            # Looked up once: a name server that is slow must not stop us while workers run.
            self._is_here = is_this_machine(self._endpoint)
        if self._host is None and self._is_here:
            self._host = self._try_to_host()
        if self._host is not None:
            self._address = self._address or self._endpoint.address
            self._owner.post(CoordinatorReached(hosting=True))
            return
        self._client.dial((self._endpoint,), DIAL_TIMEOUT_S)

    def hang_up(self) -> None:
        self._client.close()

    def send(self, message: FromNode) -> None:
        complete = with_address(message, self._address)
        if self._host is not None:
            self._host.receive(self._owner.node, complete)
        else:
            self._client.send(complete)

    def leave(self) -> None:
        pass  # Whoever must still learn the outcome dials this host, and no other.

    def close(self) -> None:
        for part in (self._client, self._host, self._keeper, self._server, self._share):
            if part is not None:
                part.close()

    # What the connection says.

    def on_connected(self, server_nonce: bytes, local_address: str) -> None:
        if not self._owner.config.local_address:
            self._address = local_address
        self._owner.post(CoordinatorReached())

    def on_lost(self, reason: str, permanent: bool) -> None:
        self._owner.post(CoordinatorLost(reason, permanent))

    def on_message(self, instance: int, epoch: int, message: ToNode) -> None:
        self._owner.post(Told(message, Tenure(instance, epoch)))

    def on_tether(self, fd: int) -> None:
        self._owner.on_tether(fd)

    # Hosting.

    def _try_to_host(self) -> CoordinatorHost | None:
        from holdfast.control.hosting import is_loopback
        from holdfast.control.sharing import take_share

        config = self._owner.config
        has_no_tls = self._security.tls is None
        self._share = take_share(self._endpoint, config.run_id, config.is_host, has_no_tls)
        if self._share is None:
            return None
        from holdfast.agent.keeping import RecordKeeper
        from holdfast.control.server import Server
        from holdfast.control.store import KeySpaces

        owner = self._owner
        record = self._record()
        state = self._state(record)
        self._keeper = RecordKeeper(record, owner.node, owner.loop, owner.say)
        host = CoordinatorHost(state, surroundings(owner), self._keeper)
        allow_many_connections(config.max_nodes)
        spaces = KeySpaces()
        self._server = Server(owner.loop, config.run_id, self._security, host, spaces)
        self._keeper.begin(state.tenure, ledger(state))
        self._share.serve(owner.loop, self._server, owner.say)
        host.post, host.keys = self._server, spaces
        here = f"this node is the coordinator, on {self.store_place}"
        if is_loopback(self._endpoint):
            here += ", which other machines cannot reach"
        self._owner.say(here)
        host.begin()
        return host

    def _record(self) -> Record | None:
        """Where an earlier coordinator of this job left what it knew; one node leaves nothing."""
        from holdfast.control.record import Record, default_folder

        config = self._owner.config
        if config.max_nodes == 1:
            return None
        folder = Path(config.snapshot_dir) if config.snapshot_dir else default_folder()
        # Other jobs on this machine may have the same name, but not the same port.
        return Record(folder, f"{self._endpoint.port}-{config.run_id}")

    def _state(self, record: Record | None) -> CoordinatorState:
        """Go on from the record of an earlier coordinator of this job, or begin."""
        config, now = self._owner.config, linux.now()
        written = record.read(config.timeouts.join_s) if record is not None else None
        beginning = next_life(config, written, int(time.time()))
        if record is not None and beginning.ledger is not None and beginning.ledger.round:
            number = beginning.ledger.round
            self._owner.say(f"going on from the record of round {number} ({record.path})")
        self._owner.journal.began(now, beginning)
        return beginning.state(config, now)


def security_of(config: JobConfig, token: bytes | None) -> Security:
    """How this node proves itself to others, and they to it."""
    from holdfast.control.auth import Security, TlsFiles

    files = config.security
    tls = None
    if files.tls_certificate or files.tls_authority:
        tls = TlsFiles(files.tls_certificate, files.tls_key, files.tls_authority)
    return Security(token, tls)


def with_address(message: FromNode, address: str) -> FromNode:
    """Put in the address that peers should use, now that it is known."""
    if not isinstance(message, NodeGreeted | NodeJoined | RoundStopped):
        return message
    endpoint = message.endpoint
    if endpoint is None or endpoint.address:
        return message
    return replace(message, endpoint=replace(endpoint, address=address))


def allow_many_connections(nodes: int) -> None:
    """Raise the limit of open files where so many nodes, and as many to stand by, may need it.

    The spawner of `holdfast run`, and so its workers, keep the usual limit; the process of a
    program that meets through `holdfast.elastic` has it only if the job is a large one.
    """
    import resource

    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 2 * nodes * DESCRIPTORS_PER_NODE + DESCRIPTORS_BESIDES > usual:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
