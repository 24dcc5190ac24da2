"""Visitors: programs that ask about the job, and are answered by any of its agents.

A visitor comes through the channel of an agent on its machine, where the kernel says who it is, or
over the network with the job's token (`transport.server`). From then on both are the same: a
connection on which questions come in, and answers go out as they become known.

    visitor ─▶ QuestionAsked          (its own numbers, any number of them at a time)
            ◀─ PassAnswer …           (one for each node that answers)
            ◀─ SettleQuestion         (no further answer comes)

Rules
1. A visitor that is gone is forgotten, with its questions.
2. What a visitor does not read is bounded (`transport.connection`); then it is hung up on.
3. There are at most `VISITORS_MOST` that came through the channel.
4. Nothing here wakes an agent that nobody visits, and nothing is loaded in it.
"""

from __future__ import annotations

import errno
import socket

from holdfast.core.protocol.messages import PassAnswer, QuestionAsked, SettleQuestion
from holdfast.node.questions import Questions
from holdfast.runtime.loop import Loop
from holdfast.transport.connection import Ending, FramedConnection
from holdfast.transport.frames import FRAME_LIMIT, Decoder, encode

VISITORS_MOST = 64
"""As many as come over the network (`transport.server`)."""
_asked: Decoder[QuestionAsked] = Decoder(QuestionAsked)


class Visits:
    """All visitors of one node."""

    def __init__(self, loop: Loop, questions: Questions) -> None:
        self._loop, self._questions = loop, questions
        self._visitors: dict[FramedConnection, Visitor] = {}
        self._came_here: set[FramedConnection] = set()
        """Those that came through the channel."""

    def admit_here(self) -> int:
        """A visitor came through the channel. Returns the descriptor that it is to have.

        Raises `OSError` where there is no room for it.
        """
        if len(self._came_here) >= VISITORS_MOST:
            raise OSError(errno.EUSERS, f"{VISITORS_MOST} others look at this job already")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection = FramedConnection(self._loop, ours, _not_yet, self._on_ended)
        self._came_here.add(connection)
        connection.allow_frames_up_to(FRAME_LIMIT)
        self.admit(connection)
        return theirs.detach()

    def admit(self, connection: FramedConnection) -> None:
        """Take a connection on which a visitor may speak now. Its owner says when it has ended."""
        visitor = self._visitors[connection] = Visitor(connection, self._questions)
        connection.on_frame = visitor.on_frame

    def ended(self, connection: FramedConnection) -> None:
        self._came_here.discard(connection)
        visitor = self._visitors.pop(connection, None)
        if visitor is not None:
            self._questions.drop(visitor)

    def _on_ended(self, connection: FramedConnection, ending: Ending) -> None:
        self.ended(connection)

    def close(self) -> None:
        for connection in self._visitors:
            connection.close()
        self._visitors.clear()
        self._came_here.clear()


class Visitor:
    """One of them, as the asker of its questions."""

    def __init__(self, connection: FramedConnection, questions: Questions) -> None:
        self._connection, self._questions = connection, questions

    def on_frame(self, connection: FramedConnection, payload: bytes | bytearray) -> None:
        self._questions.ask(self, _asked.decode(payload))

    def on_answer(self, number: int, node: str, answer: bytes) -> None:
        self._connection.send(encode(PassAnswer(number, node, answer)))

    def on_settled(self, settled: SettleQuestion) -> None:
        self._connection.send(encode(settled))


def _not_yet(connection: FramedConnection, payload: bytes | bytearray) -> None:
    raise AssertionError("it has an owner before it is read")
