"""A client that goes through the handshake as any node does, and then says what it likes."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from holdfast.core.protocol.model import Endpoint
from holdfast.transport.auth import OPEN
from holdfast.transport.frames import FrameReader, ProtocolError
from holdfast.transport.handshake import ClientSide, read_refusal, tether_opening

ANSWER_S = 20.0


class Attacker:
    """One admitted connection, with its tether. Blocking, with a deadline."""

    def __init__(self, endpoint: Endpoint, job: str, node: str) -> None:
        self.refusal = ""
        self._reader = FrameReader(1 << 20)
        self._socket = self._connect(endpoint)
        self._tether: socket.socket | None = None
        try:
            self._tether = self._come_in(endpoint, job, node)
        except BaseException:
            self.close()
            raise

    def _come_in(self, endpoint: Endpoint, job: str, node: str) -> socket.socket:
        side = ClientSide(job, node, "control", OPEN)
        self._socket.sendall(side.opening())
        side.read_challenge(self._next())
        self._socket.sendall(side.prove())
        side.read_welcome(self._next())
        tether = self._connect(endpoint)
        tether.sendall(tether_opening(job, node, side.ticket))
        return tether

    def say(self, payload: bytes) -> None:
        """Raises OSError once the server has hung up."""
        self._socket.sendall(struct.pack("!I", len(payload)) + payload)

    def hear(self) -> list[bytes]:
        """All that has come, without waiting. Notes a refusal, raises OSError at the end."""
        self._socket.setblocking(False)
        frames = []
        try:
            while received := self._socket.recv(1 << 16):
                self._reader.feed(received)
                while (payload := self._reader.take()) is not None:
                    frames.append(bytes(payload))
            raise ConnectionResetError
        except BlockingIOError:
            return frames
        finally:
            self._socket.settimeout(ANSWER_S)
            for payload in frames:
                if error := read_refusal(payload):
                    self.refusal = error.reason

    def why_refused(self) -> str:
        """What the server said before it hung up; empty while it has not."""
        self._socket.settimeout(ANSWER_S)
        with suppress(OSError, ProtocolError):
            while not (error := read_refusal(self._next())):
                pass
            self.refusal = error.reason
        return self.refusal

    def close(self) -> None:
        self._socket.close()
        if self._tether is not None:
            self._tether.close()

    def _connect(self, endpoint: Endpoint) -> socket.socket:
        return socket.create_connection((endpoint.address, endpoint.port), ANSWER_S)

    def _next(self) -> bytes:
        while (payload := self._reader.take()) is None:
            received = self._socket.recv(1 << 16)
            if not received:
                raise ConnectionResetError("the server hung up")
            self._reader.feed(received)
        return bytes(payload)
