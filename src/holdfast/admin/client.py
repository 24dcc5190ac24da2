"""The client of running jobs: sends requests, for verbs and for other programs.

    with connect_here("my-job") as job:
        for node, answer in job.ask(StacksAsked(), of="all"):
            …

Calls block, each with a timeout of its own. An agent's own parts send requests through its engine
instead (`engine.requests`).

Rules
1. A call raises `AdminError`, with the reason, where the job is gone or does not answer.
2. Answers are yielded as they arrive; after the last one, `missing` has the nodes without one.
3. On this machine a user reaches only jobs of their own, and root those of all users; from
   elsewhere the job's token is needed. Any user can listen under a name that looks like an agent's,
   so the owner of a socket is asked of the kernel before anything is sent. For root, its own jobs
   come before others of the same name.
4. All agents of this machine are asked at once, with one timeout.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec import Struct

from holdfast.admin import sentences
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.document import decode
from holdfast.core.protocol.errors import HoldfastError
from holdfast.core.protocol.messages import CloseRequest, PassResponse, RequestMade
from holdfast.core.protocol.model import Endpoint
from holdfast.core.protocol.requests import Answer, JobRequest, NotKnown, pack, read_answer
from holdfast.engine.secrets import Secrets, security_of
from holdfast.processes.stdlib_only.wire import ADMIN_SESSION
from holdfast.runtime.local_peer import ROOT, LocalPeer, peer_of, user_of
from holdfast.runtime.loop import EventLoop
from holdfast.transport.auth import ConnectionSecurity
from holdfast.transport.connection import Ending, FramedConnection
from holdfast.transport.dialling import DialFailed, Dialling, Identity, Won
from holdfast.transport.frames import FRAME_LIMIT, Decoder, encode
from holdfast.worker.channel import PACKET_LIMIT, address_of

if TYPE_CHECKING:
    import ssl

CHANNEL_PATIENCE_S = 10.0
USERS_SHOWN = 4
NO_JOB = "\0"
"""A name that no job has: an agent that is asked for it answers with its own job's name."""
ANSWER_PATIENCE_S = 60.0
"""More than an agent takes to give up."""
_CHANNEL = re.compile(r" 00010000 \w+ \w+ +(\d+) (@holdfast-(\d+)-[0-9a-f]{16})$")
"""The end of a line of `/proc/net/unix` about a listening socket."""
_told: Decoder[PassResponse | CloseRequest] = Decoder(PassResponse | CloseRequest)


class AdminError(HoldfastError):
    """The job cannot be asked, or does not answer, with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(clean(reason))  # It may be the job's own words.


class JobNotFound(AdminError):
    """No job of that name runs on this machine."""


class LocalAgent(Struct):
    """An agent on this machine, by its own answer."""

    run_id: str
    node: str = ""
    nodes: int = 0
    ranks: int = 0
    """Of its present round."""
    is_open: bool = False
    """Whether its job is the one asked for; a descriptor comes with the answer then."""
    problem: str = ""
    """Why it cannot let the client in, though its job was asked for."""
    pid: int = 0
    channel: str = ""
    uid: int = -1
    """Its user, from the kernel."""


class Listening(NamedTuple):
    """A listening socket with a name like an agent's."""

    channel: str
    pid: int
    """The agent's, from the name."""
    inode: int


class AdminClient:
    """One conversation with a job."""

    def __init__(self, loop: EventLoop, connection: FramedConnection, run_id: str) -> None:
        self.run_id = run_id
        self.missing: tuple[str, ...] = ()
        """Names of the nodes that did not answer the last request; the first of them, if many."""
        self._loop, self._connection = loop, connection
        self._heard: deque[PassResponse | CloseRequest] = deque()
        self._number = 0
        self._ended = ""
        connection.on_frame, connection.on_ended = self._on_frame, self._on_ended

    def ask(
        self,
        request: JobRequest,
        of: Literal["coordinator", "all", "some"] = "coordinator",
        nodes: Sequence[str] = (),
        patience_s: float = ANSWER_PATIENCE_S,
    ) -> Iterator[tuple[str, Answer]]:
        """Yield the nodes' answers, with their names, as they arrive. Raises `AdminError`."""
        self._number += 1
        self.missing = ()
        asked = RequestMade(self._number, pack(request), of, tuple(nodes))
        self._connection.send(encode(asked))
        while True:
            told = self._next(patience_s)
            if told.number != self._number:
                continue  # An answer to an earlier request, which was not read to its end.
            if isinstance(told, CloseRequest):
                self.missing = told.missing
                if told.refused:
                    raise AdminError(told.refused)
                return
            yield told.node, read_answer(told.answer)

    def ask_coordinator(self, request: JobRequest) -> Answer:
        """Return the coordinator's answer. Raises `AdminError` where it has none."""
        for _, answer in self.ask(request):
            if isinstance(answer, NotKnown):
                raise AdminError(answer.reason)
            return answer
        raise AdminError(sentences.NO_COORDINATOR)

    def pause(
        self,
        seconds: float,
        readable: int | None = None,
        read: Callable[[], None] = lambda: None,
        done: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait that long, or until `done`; call `read` when the descriptor is readable.

        Raises `AdminError` when the job closes the connection.
        """
        over: list[bool] = []
        timer = self._loop.call_later(seconds, over.append, True)
        if readable is not None:
            self._loop.add_reader(readable, read)
        try:
            self._loop.run_until(lambda: bool(over or self._ended or done()))
        finally:
            timer.cancel()
            if readable is not None:
                self._loop.remove_reader(readable)
        if self._ended:
            raise AdminError(self._ended)

    def close(self) -> None:
        self._connection.close()
        self._loop.close()

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _next(self, patience_s: float) -> PassResponse | CloseRequest:
        given_up: list[bool] = []
        timer = self._loop.call_later(patience_s, given_up.append, True)
        self._loop.run_until(lambda: bool(self._heard or self._ended or given_up))
        timer.cancel()
        if self._heard:
            return self._heard.popleft()
        raise AdminError(self._ended or sentences.silent(patience_s))

    def _on_frame(self, connection: FramedConnection, payload: bytes | bytearray) -> None:
        self._heard.append(_told.decode(payload))

    def _on_ended(self, connection: FramedConnection, ending: Ending) -> None:
        # An agent that ends closes in order: its job is over, or it has left.
        self._ended = "the job has ended" if ending.clean else ending.reason


# Jobs on this machine.


def local_agents(wanted: str = "") -> list[LocalAgent]:
    """The agents on this machine that answer, of one job or of all.

    Raises `AdminError` where root asks for one job, and several other users have one of that name.
    """
    agents = [agent for agent in _agents(_listening()) if wanted in ("", agent.run_id)]
    return _of_one_user(wanted, agents) if wanted else agents


def connect_here(wanted: str = "") -> AdminClient:
    """Connect to the job of that name on this machine; without one, the only one there is.

    Raises `AdminError`.
    """
    found, listening = [], _listening()
    for agent in _agents(listening):
        if wanted == agent.run_id and agent.uid == os.geteuid():
            return connect_to(agent)  # No need to wait for the others.
        found.append(agent)
    if not found:
        raise JobNotFound(sentences.no_own_job(_other_users(listening)))
    jobs = {(agent.run_id, agent.uid): agent for agent in found}
    running = sorted(_display_name(*job) for job in jobs)
    if wanted:
        found = _of_one_user(wanted, [agent for agent in found if agent.run_id == wanted])
        if not found:
            raise JobNotFound(sentences.no_such_job(wanted, running))
    elif len(jobs) > 1:
        raise AdminError(sentences.several_jobs(running))
    return connect_to(found[0])


def connect_to(agent: LocalAgent) -> AdminClient:
    """Connect to a job through this agent of it. Raises `AdminError`."""
    listening = Listening(agent.channel, agent.pid, 0)
    for _, answer, connected in _ask_agents([listening], agent.run_id, agent.uid):
        if connected is not None:
            return _client_on(connected, agent.run_id)
        if answer.problem:
            raise AdminError(f"{answer.problem}: try again later")
    raise AdminError(sentences.just_ended(agent.run_id))


def _client_on(connected: socket.socket, run_id: str) -> AdminClient:
    loop = EventLoop()
    connected.setblocking(False)
    connection = FramedConnection(loop, connected, _not_yet, _not_yet)
    connection.allow_frames_up_to(FRAME_LIMIT)
    return AdminClient(loop, connection, run_id)


def _of_one_user(wanted: str, agents: list[LocalAgent]) -> list[LocalAgent]:
    """This user's, if there are any. Raises `AdminError` where they are of several users."""
    own = [agent for agent in agents if agent.uid == os.geteuid()]
    users = {agent.uid for agent in agents}
    if not own and len(users) > 1:
        raise AdminError(sentences.jobs_of_several(sorted(map(user_of, users)), wanted))
    return own or agents


def _display_name(run_id: str, uid: int) -> str:
    name = run_id if run_id.isprintable() else repr(run_id)
    return name if uid == os.geteuid() else f"{name} (of {user_of(uid)})"


def _other_users(listening: Sequence[Listening]) -> list[str]:
    """For a user whose job was started as another user."""
    users = set()
    for one in listening:
        with contextlib.suppress(OSError), _connected(one.channel) as connected:
            users.add(peer_of(connected).uid)
    users.discard(os.geteuid())
    return sorted(map(user_of, sorted(users)[:USERS_SHOWN]))


# Finding agents: the owner of each socket, and its job.


def _listening() -> list[Listening]:
    """All sockets of this network namespace with names like an agent's."""
    with open("/proc/net/unix", encoding="ascii", errors="replace") as file:
        channels = (_CHANNEL.search(line.rstrip("\n")) for line in file)
        return [Listening(one[2], int(one[3]), int(one[1])) for one in channels if one]


def _agents(listening: Sequence[Listening]) -> Iterator[LocalAgent]:
    """The agents that answer, with their jobs, as the answers arrive."""
    for one, agent, connected in _ask_agents(listening, NO_JOB):
        if connected is not None:
            connected.close()
        agent.channel, agent.pid = one.channel, one.pid
        yield agent


def _ask_agents(
    listening: Sequence[Listening], run_id: str, uid: int | None = None
) -> Iterator[tuple[Listening, LocalAgent, socket.socket | None]]:
    """Yield each agent that answers, and the connection that it gives if its job is `run_id`.

    Only agents of this user are asked, by root those of all; and only those of `uid`, if given.
    """
    deadline = time.monotonic() + CHANNEL_PATIENCE_S
    asked: dict[socket.socket, tuple[Listening, int]] = {}
    try:
        for one, connected in _connections(listening, deadline):
            peer = peer_of(connected)
            asked[connected] = (one, peer.uid)
            is_meant = _may_be_asked(peer) and uid in (None, peer.uid)
            if not is_meant or not _is_sent(connected, run_id):
                del asked[connected]
                connected.close()
        while ready := _readable(asked, deadline):
            for answering in ready:
                one, uid = asked.pop(answering)
                with answering:
                    agent, way_in = _answer_of(answering)
                if agent is not None:
                    agent.uid = uid
                    yield one, agent, way_in
    finally:
        for unanswered in asked:
            unanswered.close()


def _connections(
    listening: Sequence[Listening], deadline: float
) -> Iterator[tuple[Listening, socket.socket]]:
    """Yield a connection to each, first to those whose queue has room."""
    crowded = []
    for one in listening:
        try:
            yield one, _connected(one.channel)
        except BlockingIOError:
            crowded.append(one)
        except OSError:
            pass  # It has ended.
    # Other users can have filled the queue of an agent of ours. Their own names are not waited for.
    for one in filter(_is_process_of_ours, crowded):
        with contextlib.suppress(OSError):
            yield one, _connected(one.channel, max(deadline - time.monotonic(), 0.001))


def _connected(channel: str, patience_s: float = 0.0) -> socket.socket:
    """Connect. Raises `BlockingIOError` where the queue has no room in that time."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if patience_s > 0.0:  # A timeout of Python's would not wait for room.
            seconds, rest = divmod(patience_s, 1.0)
            limit = struct.pack("ll", int(seconds), int(rest * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        else:
            sock.setblocking(False)
        sock.connect(address_of(channel))
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _is_process_of_ours(one: Listening) -> bool:
    """Whether a process that this user may inspect has that very socket."""
    folder = f"/proc/{one.pid}/fd"
    try:
        for number in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"{folder}/{number}") == f"socket:[{one.inode}]":
                    return True
    except OSError:
        pass  # It is another user's, or has ended.
    return False


def _may_be_asked(peer: LocalPeer) -> bool:
    return peer.is_of_this_user or os.geteuid() == ROOT


def _is_sent(connected: socket.socket, run_id: str) -> bool:
    try:
        connected.send(msgspec.json.encode({ADMIN_SESSION: run_id}), socket.MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def _readable(asked: Iterable[socket.socket], deadline: float) -> list[socket.socket]:
    with selectors.DefaultSelector() as selector:
        for sock in asked:
            selector.register(sock, selectors.EVENT_READ, sock)
        if not selector.get_map():
            return []
        return [key.data for key, _ in selector.select(max(0.0, deadline - time.monotonic()))]


def _answer_of(answering: socket.socket) -> tuple[LocalAgent | None, socket.socket | None]:
    """The agent's answer, and the connection that came with it, if one did."""
    try:
        packet, descriptors, _, _ = socket.recv_fds(answering, PACKET_LIMIT, 1)
    except OSError:
        return None, None
    given = [socket.socket(fileno=number) for number in descriptors]
    try:
        agent = msgspec.json.decode(packet, type=LocalAgent)
    except msgspec.DecodeError:
        for one in given:
            one.close()
        return None, None
    return agent, given[0] if given else None


# Jobs elsewhere.


def connect_at(
    endpoints: Sequence[Endpoint],
    run_id: str,
    security: ConnectionSecurity,
) -> AdminClient:
    """Connect to a job at an agent's endpoint, with its token if it has one. Raises
    `AdminError`."""
    loop = EventLoop()
    ends: list[Won | DialFailed] = []
    name = f"client-{os.getpid()}"
    identity = Identity(run_id, name, security, kind="admin")
    dialling = Dialling(loop, identity, ends.append, ends.append)
    dialling.start(endpoints, CHANNEL_PATIENCE_S, _tls(security))
    try:
        loop.run_until(lambda: bool(ends))
    except BaseException:
        dialling.close()
        loop.close()
        raise
    won = ends[0]
    if isinstance(won, DialFailed):
        loop.close()
        raise AdminError(won.reason)
    return AdminClient(loop, won.connection, run_id)


def connect_elsewhere(config: JobConfig, secrets: Secrets) -> AdminClient:
    """Connect to a job where its nodes meet. Raises `AdminError`, or `UsageError` for what is
    wrong."""
    security = security_of(config, secrets.token)
    if config.rendezvous.is_embedded:
        places: tuple[Endpoint, ...] = (Endpoint.parse(config.rendezvous.endpoint),)
    else:
        places = _written_endpoints(config, secrets)
    return connect_at(places, config.run_id, security)


def _written_endpoints(config: JobConfig, secrets: Secrets) -> tuple[Endpoint, ...]:
    """The addresses of the job's agents, from its register; the coordinator's first."""
    from holdfast.engine.network import settings_of
    from holdfast.registers.opening import open_register
    from holdfast.registers.register import RegisterRefused, RegisterUnreachable

    try:
        found = open_register(settings_of(config, secrets)).get_state()
        document = decode(found[0]) if found else None
    except (RegisterUnreachable, RegisterRefused, msgspec.DecodeError) as error:
        raise AdminError(f"the register cannot be read: {error}") from None
    if document is None or not document.addresses:
        raise AdminError(f"no job called {config.run_id!r} is written down there")
    leader = document.leader
    return tuple(
        sorted(document.addresses.values(), key=lambda p: p != document.addresses.get(leader))
    )


def _tls(security: ConnectionSecurity) -> ssl.SSLContext | None:
    if security.tls is None:
        return None
    from holdfast.transport.tls import client_context

    return client_context(security.tls)


def _not_yet(connection: FramedConnection, what: object) -> None:
    raise AssertionError("a client is its connection's owner from the start")
