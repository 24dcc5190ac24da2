"""Visiting a job: how a verb, or any program, asks it something.

    with visit_here("my-job") as job:
        for node, answer in job.ask(StacksAsked(), of="all"):
            …

For programs that have nothing else to do meanwhile: calls wait, each with its patience. An agent's
own parts ask through its engine instead (`node.questions`).

Rules
1. A visit ends with `VisitError` where the job is gone or does not answer, and says so in words.
2. Answers are given as they come; after the last one, `missing` says who did not answer.
3. Here, only jobs of this user (for root: all) answer; elsewhere, whoever has the token may ask.
"""

from __future__ import annotations

import os
import re
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.document import decode
from holdfast.core.protocol.errors import HoldfastError
from holdfast.core.protocol.messages import PassAnswer, QuestionAsked, SettleQuestion
from holdfast.core.protocol.model import Endpoint
from holdfast.core.protocol.questions import Answer, NotKnown, Question, pack, read_answer
from holdfast.node.secrets import Secrets, security_of
from holdfast.processes.bare.wire import VISIT
from holdfast.runtime.loop import EventLoop
from holdfast.transport.auth import ConnectionSecurity
from holdfast.transport.connection import Ending, FramedConnection
from holdfast.transport.dialling import DialFailed, Dialling, Identity, Won
from holdfast.transport.frames import FRAME_LIMIT, Decoder, encode
from holdfast.worker.channel import PACKET_LIMIT, address_of

if TYPE_CHECKING:
    import ssl

CHANNEL_PATIENCE_S = 10.0
NO_JOB = "\0"
"""What no job is called: whoever is asked for it says which one it is, and opens no door."""
ANSWER_PATIENCE_S = 60.0
"""More than an agent takes to give up."""
_CHANNEL = re.compile(r" (@holdfast-(\d+)-[0-9a-f]{16})$")
_told: Decoder[PassAnswer | SettleQuestion] = Decoder(PassAnswer | SettleQuestion)


class VisitError(HoldfastError):
    """The job cannot be asked, or does not answer; why, in words."""


class AgentDoor(Struct):
    """An agent on this machine that would answer, as it says itself."""

    run_id: str
    node: str = ""
    is_open: bool = False
    """Whether its job is the one that was asked for; a descriptor comes along then."""
    pid: int = 0
    channel: str = ""


class Visit:
    """One conversation with a job."""

    def __init__(self, loop: EventLoop, connection: FramedConnection, run_id: str) -> None:
        self.run_id = run_id
        self.missing: tuple[str, ...] = ()
        """Who did not answer the last question, by name; the first of them, if there are many."""
        self._loop, self._connection = loop, connection
        self._heard: deque[PassAnswer | SettleQuestion] = deque()
        self._number = 0
        self._ended = ""
        connection.on_frame, connection.on_ended = self._on_frame, self._on_ended

    def ask(
        self,
        question: Question,
        of: Literal["coordinator", "all", "some"] = "coordinator",
        nodes: Sequence[str] = (),
        patience_s: float = ANSWER_PATIENCE_S,
    ) -> Iterator[tuple[str, Answer]]:
        """What nodes answer, each with its name, as it comes. Raises `VisitError`."""
        self._number += 1
        self.missing = ()
        asked = QuestionAsked(self._number, pack(question), of, tuple(nodes))
        self._connection.send(encode(asked))
        while True:
            told = self._next(patience_s)
            if told.number != self._number:
                continue  # Of a question whose asker did not listen to the end.
            if isinstance(told, SettleQuestion):
                self.missing = told.missing
                if told.refused:
                    raise VisitError(told.refused)
                return
            yield told.node, read_answer(told.answer)

    def ask_coordinator(self, question: Question) -> Answer:
        """Its one answer. Raises `VisitError` where it has none."""
        for _, answer in self.ask(question):
            if isinstance(answer, NotKnown):
                raise VisitError(answer.reason)
            return answer
        raise VisitError("the coordinator did not answer")

    def pause(self, seconds: float) -> None:
        """Wait that long, or until the job hangs up. Raises `VisitError` then."""
        over: list[bool] = []
        self._loop.call_later(seconds, over.append, True)
        self._loop.run_until(lambda: bool(over or self._ended))
        if self._ended:
            raise VisitError(self._ended)

    def close(self) -> None:
        self._connection.close()
        self._loop.close()

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _next(self, patience_s: float) -> PassAnswer | SettleQuestion:
        given_up: list[bool] = []
        timer = self._loop.call_later(patience_s, given_up.append, True)
        self._loop.run_until(lambda: bool(self._heard or self._ended or given_up))
        timer.cancel()
        if self._heard:
            return self._heard.popleft()
        raise VisitError(self._ended or f"the job has not answered for {patience_s:g} s")

    def _on_frame(self, connection: FramedConnection, payload: bytes | bytearray) -> None:
        self._heard.append(_told.decode(payload))

    def _on_ended(self, connection: FramedConnection, ending: Ending) -> None:
        # An agent that ends closes in order: its job is over, or it has left.
        self._ended = "the job has ended" if ending.clean else ending.reason


# Jobs on this machine.


def doors_here(wanted: str = "") -> list[AgentDoor]:
    """The agents on this machine that would answer, of one job or of all; nothing is asked yet."""
    with open("/proc/net/unix", encoding="ascii", errors="replace") as file:
        channels = (_CHANNEL.search(line.rstrip("\n")) for line in file)
        found = {one[1]: int(one[2]) for one in channels if one is not None}
    doors = []
    for channel, pid in found.items():
        door, _ = _knock(channel, NO_JOB)
        if door is not None and wanted in ("", door.run_id):
            door.channel, door.pid = channel, pid
            doors.append(door)
    return doors


def visit_here(wanted: str = "") -> Visit:
    """Visit the job of that name on this machine; without one, the only one there is.

    Raises `VisitError`.
    """
    doors = {door.run_id: door for door in doors_here()}
    running = ", ".join(sorted(doors))
    if not doors:
        raise VisitError("no job of yours runs on this machine")
    if wanted and wanted not in doors:
        raise VisitError(f"no job called {wanted!r} runs on this machine: {running}")
    if not wanted and len(doors) > 1:
        raise VisitError(f"several jobs run on this machine, so name one: {running}")
    return enter(doors[wanted or next(iter(doors))])


def enter(door: AgentDoor) -> Visit:
    """Visit a job through this agent of it. Raises `VisitError`."""
    _, connected = _knock(door.channel, door.run_id)
    if connected is None:
        raise VisitError(f"{door.run_id} has just ended")
    loop = EventLoop()
    connected.setblocking(False)
    connection = FramedConnection(loop, connected, _unheard, _unheard)
    connection.allow_frames_up_to(FRAME_LIMIT)
    return Visit(loop, connection, door.run_id)


def _knock(channel: str, run_id: str) -> tuple[AgentDoor | None, socket.socket | None]:
    """Whose door it is, and the way in if it is the one that is meant."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as knocking:
        knocking.settimeout(CHANNEL_PATIENCE_S)
        try:
            knocking.connect(address_of(channel))
            knocking.send(msgspec.json.encode({VISIT: run_id}))
            packet, descriptors, _, _ = socket.recv_fds(knocking, PACKET_LIMIT, 1)
            door = msgspec.json.decode(packet, type=AgentDoor) if packet else None
        except (OSError, msgspec.DecodeError):
            return None, None
    given = [socket.socket(fileno=number) for number in descriptors]
    return door, given[0] if given else None


# Jobs elsewhere.


def visit_at(
    endpoints: Sequence[Endpoint],
    run_id: str,
    security: ConnectionSecurity,
) -> Visit:
    """Visit a job at an agent's endpoint, with its token if it has one. Raises `VisitError`."""
    loop = EventLoop()
    ends: list[Won | DialFailed] = []
    name = f"visitor-{os.getpid()}"
    identity = Identity(run_id, name, security, kind="visitor")
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
        raise VisitError(won.reason)
    return Visit(loop, won.connection, run_id)


def visit_elsewhere(config: JobConfig, secrets: Secrets) -> Visit:
    """Visit a job where its nodes meet. Raises `VisitError`, or `UsageError` for what is wrong."""
    security = security_of(config, secrets.token)
    if config.rendezvous.is_embedded:
        places: tuple[Endpoint, ...] = (Endpoint.parse(config.rendezvous.endpoint),)
    else:
        places = _written_places(config, secrets)
    return visit_at(places, config.run_id, security)


def _written_places(config: JobConfig, secrets: Secrets) -> tuple[Endpoint, ...]:
    """Where agents of the job can be dialled, as its register says; the coordinator's first."""
    from holdfast.node.meeting import settings_of
    from holdfast.registers.opening import open_register
    from holdfast.registers.register import RegisterRefused, RegisterUnreachable

    try:
        found = open_register(settings_of(config, secrets)).get_state()
        document = decode(found[0]) if found else None
    except (RegisterUnreachable, RegisterRefused, msgspec.DecodeError) as error:
        raise VisitError(f"the register cannot be read: {error}") from None
    if document is None or not document.places:
        raise VisitError(f"no job called {config.run_id!r} is written down there")
    leader = document.leader
    return tuple(sorted(document.places.values(), key=lambda p: p != document.places.get(leader)))


def _tls(security: ConnectionSecurity) -> ssl.SSLContext | None:
    if security.tls is None:
        return None
    from holdfast.transport.tls import client_context

    return client_context(security.tls)


def _unheard(connection: FramedConnection, what: object) -> None:
    raise AssertionError("a visit is its connection's owner from the start")
