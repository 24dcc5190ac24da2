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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from holdfast.agent.hosting import CoordinatorHost, NothingKept, Surroundings
from holdfast.core.agent_io import AgentEvent, CoordinatorLost, CoordinatorReached, Told
from holdfast.core.beginning import next_life
from holdfast.core.config import JobConfig
from holdfast.core.coordinator_state import CoordinatorState, ledger
from holdfast.core.errors import UsageError
from holdfast.core.messages import FromNode, NodeGreeted, NodeJoined, RoundStopped, ToNode
from holdfast.core.model import Endpoint, Tenure
from holdfast.observe.journal import Journal
from holdfast.workers import linux
from holdfast.workers.event_loop import Loop

if TYPE_CHECKING:
    from holdfast.agent.disk import Disk
    from holdfast.agent.keeping import RecordKeeper
    from holdfast.control.auth import Security
    from holdfast.control.looking import Looking
    from holdfast.control.record import Record
    from holdfast.control.resolving import Address, Lookup
    from holdfast.control.server import Server
    from holdfast.control.sharing import Share
    from holdfast.core.document import Document

DIAL_TIMEOUT_S = 5.0
DESCRIPTORS_PER_NODE, DESCRIPTORS_BESIDES = 3, 256
"""A connection, a tether and the keys of each node; and what a program has open anyway."""
RECORD_WAITS = "the running round goes on; what the coordinator decides anew waits for it"


class Owner(Struct):
    """The agent, as far as its contact needs it."""

    config: JobConfig
    loop: Loop
    node: str
    post: Callable[[AgentEvent], None]
    say: Callable[[str], None]
    journal: Journal
    disk: Disk
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
        from holdfast.agent.line import Line

        self._owner = owner
        self._security = security_of(owner.config, token)
        self._endpoint = Endpoint.parse(owner.config.rendezvous.endpoint)
        self._host: CoordinatorHost | None = None
        self._keeper: RecordKeeper | None = None
        self._server: Server | None = None
        self._share: Share | None = None
        self._is_here: bool | None = owner.config.is_host
        """Whether the endpoint is on this machine; None while that is not known."""
        self._elsewhere: tuple[Address, ...] = ()
        """Addresses of the endpoint that are not this machine's, where others are."""
        self._has_asked = False
        """Nobody answered there when we last dialled."""
        self._looking: Looking | None = None
        self._client = Line(owner, self._security, self)
        self._address = owner.config.local_address or ""
        self._is_opening = self._is_closed = False
        """Whether it is being found out if this node is to host, and the record is read."""
        self._lookup: Lookup | None = None

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
        on it does; else dial it. Where it may be another's as well, dial first."""
        if self._host is not None:
            self._reach_here()
        elif self._is_here is False:
            self._dial()
        elif not self._is_opening:
            self._is_opening = True
            self._look_up()

    def _dial(self) -> None:
        self._is_opening = False
        self._client.dial((self._endpoint,), DIAL_TIMEOUT_S, self._refuse)

    def _refuse(self, error: UsageError) -> None:
        raise error

    def _reach_here(self) -> None:
        self._address = self._address or self._endpoint.address
        self._owner.post(CoordinatorReached(hosting=True))

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
        self._is_closed = True
        self._client.close()
        if self._lookup is not None:
            self._lookup.close()
        self._close_host()

    def _close_host(self) -> None:
        hosting = (self._looking, self._host, self._keeper, self._server, self._share)
        for part in hosting:
            if part is not None:
                part.close()
        self._looking = self._host = self._keeper = self._server = self._share = None

    # What the connection says.

    def on_connected(self, server_nonce: bytes, local_address: str) -> None:
        if not self._owner.config.local_address:
            self._address = local_address
        self._has_asked = False
        self._owner.post(CoordinatorReached())

    def on_lost(self, reason: str, permanent: bool) -> None:
        self._owner.post(CoordinatorLost(reason, permanent))

    def on_message(self, instance: int, epoch: int, message: ToNode) -> None:
        self._owner.post(Told(message, Tenure(instance, epoch)))

    def on_tether(self, fd: int) -> None:
        self._owner.on_tether(fd)

    # Hosting.

    def _look_up(self) -> None:
        """Find the endpoint's addresses, which may take a name server a while."""
        from holdfast.control.resolving import Lookup, numeric

        addresses = numeric(self._endpoint)
        if addresses:
            self._on_addresses(self._endpoint, addresses)
        else:
            self._lookup = Lookup(self._owner.loop, self._endpoint, self._on_addresses)

    def _on_addresses(self, endpoint: Endpoint, addresses: list[Address]) -> None:
        from holdfast.control.hosting import place_of
        from holdfast.control.sharing import take_share

        self._lookup = None
        if self._is_here is None:
            place = place_of(addresses)
            self._is_here, self._elsewhere = place.is_here, place.elsewhere
        is_asking = bool(self._elsewhere) and not self._has_asked
        self._has_asked = True
        config, has_no_tls = self._owner.config, self._security.tls is None
        if self._is_here and not is_asking:
            self._share = take_share(endpoint, config.run_id, config.is_host, has_no_tls, addresses)
        if self._share is None:
            self._dial()
        elif config.max_nodes == 1:
            self._open(None, None)  # Its coordinator dies with it: there is nothing to go on from.
        else:
            folder = self._record_folder()
            lane = self._owner.disk.lane("record", str(folder), RECORD_WAITS)
            lane.do(partial(self._read_record, folder), lambda found: self._open(*found))

    def _record_folder(self) -> Path:
        from holdfast.control.record import default_folder

        named = self._owner.config.snapshot_dir
        return Path(named) if named else default_folder()

    def _read_record(self, folder: Path) -> tuple[Record, Document | None]:
        """What an earlier coordinator of this job left. Waits for the disk."""
        from holdfast.control.record import Record

        config = self._owner.config
        # Other jobs on this machine may have the same name, but not the same port.
        record = Record(folder, f"{self._endpoint.port}-{config.run_id}")
        return record, record.read(config.timeouts.join_s)

    def _open(self, record: Record | None, written: Document | None) -> None:
        """Make the coordinator; nobody hears of it before it is written under which tenure."""
        if self._is_closed:
            return
        from holdfast.agent.keeping import RecordKeeper
        from holdfast.control.server import Server
        from holdfast.control.store import KeySpaces

        owner, config = self._owner, self._owner.config
        state = self._state(record, written)
        keeper: NothingKept | RecordKeeper = NothingKept()
        if record is not None:
            lane = owner.disk.lane("record")
            keeper = self._keeper = RecordKeeper(record, lane, owner.node, owner.loop, owner.say)
        host = CoordinatorHost(state, surroundings(owner), keeper)
        allow_many_connections(config.max_nodes)
        spaces = KeySpaces()
        self._server = Server(owner.loop, config.run_id, self._security, host, spaces)
        self._server.own_node = owner.node
        host.post, host.keys = self._server, spaces
        if self._keeper is None:
            self._serve(host)
        else:
            self._keeper.begin(state.tenure, ledger(state), partial(self._serve, host))

    def _serve(self, host: CoordinatorHost) -> None:
        from holdfast.control.hosting import is_loopback

        if self._is_closed:
            return
        assert self._share is not None, "a coordinator was opened without a place"
        assert self._server is not None, "a coordinator was opened without a server"
        if self._elsewhere:
            self._look_for_others(self._server)
        self._share.serve(self._owner.loop, self._server, self._owner.say)
        self._host, self._is_opening = host, False
        here = f"this node is the coordinator, on {self.store_place}"
        if is_loopback(self._endpoint):
            here += ", which other machines cannot reach"
        self._owner.say(here)
        host.begin()
        self._reach_here()

    def _look_for_others(self, server: Server) -> None:
        """The endpoint may be meant for another machine: give way when that one is there."""
        from holdfast.control.dialling import Identity
        from holdfast.control.looking import Looking

        owner = self._owner
        identity = Identity(owner.config.run_id, owner.node, self._security)
        server.give_way_to_the_sure()
        self._looking = Looking(owner.loop, identity, self._elsewhere, server.nonce, self._give_way)

    def _give_way(self, other: Address) -> None:
        """Another machine hosts this job too. Its nodes find that one as if we had died."""
        if self.is_needed:
            return  # The job is over, and this is where they learn how.
        self._close_host()
        self._has_asked = False
        self.on_lost(f"another machine is the coordinator, at {other}", permanent=False)

    def _state(self, record: Record | None, written: Document | None) -> CoordinatorState:
        """Go on from the record of an earlier coordinator of this job, or begin."""
        config, now = self._owner.config, linux.now()
        beginning = next_life(config, written, int(time.time()))
        if record is not None and beginning.ledger is not None and beginning.ledger.round:
            number = beginning.ledger.round
            self._owner.say(f"going on from the record of round {number} ({record.path})")
        if record is not None and record.unbelieved:
            self._owner.say(f"going on without the record: {record.unbelieved}")
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
