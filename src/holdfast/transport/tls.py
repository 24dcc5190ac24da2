"""TLS on the loop, for jobs that asked for it.

Rules
- With TLS, everything is inside it but the tether. A TLS server writes on every connection
  it accepts, and on a tether nothing may ever be written: unread bytes would turn the FIN of
  a dying node into a reset. Nor would TLS add anything there, since the end of a connection
  is told by TCP and not by TLS: a process that is killed signs nothing any more, and an
  attacker on the path can send a FIN in its name. So with TLS a tether's end proves nothing, and
  a node's death is known when its lease is over (`transport.server`, `engine.elected`).
- Files that cannot be used are a `UsageError`, at start.

How it works: a server looks at the first byte without taking it. TLS begins with 0x16 and a
frame with 0x00. `ssl` is imported where used: a job without TLS never pays for it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.protocol.errors import UsageError
from holdfast.runtime.loop import Cancellable, Loop
from holdfast.transport.auth import TlsFiles
from holdfast.transport.connection import Stream, words_for
from holdfast.transport.frames import ProtocolError

if TYPE_CHECKING:
    import ssl

_TLS_HANDSHAKE = b"\x16"


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """The context of a coordinator; raises `UsageError` for files that cannot be used."""
    import ssl

    if files.certificate is None:
        raise UsageError("TLS needs the coordinator's certificate", "name its file and its key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, files)
    if files.authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # Nobody resumes a session here.
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """The context of an agent that dials; raises `UsageError` for files that cannot be used."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = files.check_names
    _load(context, files)
    if files.authority is None:
        context.load_default_certs()
    return context


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    import ssl

    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if files.certificate is not None:
            context.load_cert_chain(files.certificate, files.key)
        if files.authority is not None:
            context.load_verify_locations(files.authority)
    except (OSError, ValueError) as error:
        named = ", ".join(
            path for path in (files.certificate, files.key, files.authority) if path is not None
        )
        raise UsageError(
            f"the TLS files cannot be used ({named}): {error}", "they must be PEM files"
        ) from None


class TlsStream:
    """A TLS socket that behaves as a plain non-blocking one."""

    __slots__ = ("_socket", "_waits")

    def __init__(self, sock: ssl.SSLSocket) -> None:
        import ssl

        self._socket = sock
        self._waits = (ssl.SSLWantReadError, ssl.SSLWantWriteError)

    def fileno(self) -> int:
        return self._socket.fileno()

    def recv(self, size: int, /) -> bytes:
        """Everything that is decrypted already, since the selector cannot see it waiting."""
        try:
            received = self._socket.recv(size)
        except self._waits:
            raise BlockingIOError from None
        while self._socket.pending():
            received += self._socket.recv(self._socket.pending())
        return received

    def send(self, data: bytes | memoryview, /) -> int:
        try:
            return self._socket.send(data)
        except self._waits:
            raise BlockingIOError from None

    def shutdown(self, how: int, /) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()


class TlsHandshake:
    """Goes through TLS's own handshake; then `on_ready(stream)` or `on_failed(reason)`, once."""

    def __init__(
        self,
        loop: Loop,
        sock: ssl.SSLSocket,
        on_ready: Callable[[Stream], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._loop, self._socket = loop, sock
        self._on_ready, self._on_failed = on_ready, on_failed
        self._number = sock.fileno()
        self._soon: Cancellable | None = loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        import ssl

        self._wait_no_more()
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            self._loop.add_reader(self._number, self._go_on)
        except ssl.SSLWantWriteError:
            self._loop.add_writer(self._number, self._go_on)
        except ssl.SSLCertVerificationError as error:
            self._fail(f"the certificate is not accepted: {error.verify_message}")
        except ssl.SSLError as error:
            self._fail(f"TLS failed ({(error.reason or 'unknown').replace('_', ' ').lower()})")
        except OSError as error:
            self._fail(f"TLS failed: {words_for(error)}")
        else:
            self._on_ready(TlsStream(self._socket))

    def _fail(self, reason: str) -> None:
        self._socket.close()
        self._on_failed(reason)

    def _wait_no_more(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        self._loop.remove_reader(self._number)
        self._loop.remove_writer(self._number)

    def close(self) -> None:
        """Give up without a word."""
        if self._socket.fileno() >= 0:
            self._wait_no_more()
            self._socket.close()


class Arrival:
    """An accepted connection of which it is not known yet whether it speaks TLS.

    `on_ready(self, stream, is_secure)` or `on_failed(self, error)` is called once, and nothing
    after `close`.
    """

    __slots__ = ("_context", "_handshake", "_loop", "_on_failed", "_on_ready", "_socket", "is_open")

    kind = ""
    """It has not said for what it comes."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        context: ssl.SSLContext,
        on_ready: Callable[[Arrival, Stream, bool], None],
        on_failed: Callable[[Arrival, ProtocolError], None],
    ) -> None:
        self._loop, self._socket, self._context = loop, sock, context
        self._on_ready, self._on_failed = on_ready, on_failed
        self._handshake: TlsHandshake | None = None
        self.is_open = True
        loop.add_reader(sock.fileno(), self._look)

    def _look(self) -> None:
        try:
            first = self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._loop.remove_reader(self._socket.fileno())
        if first == _TLS_HANDSHAKE:
            self._begin_tls()
        elif first:
            self.is_open = False
            self._on_ready(self, self._socket, False)
        else:
            self._failed("the connection was closed before a word")

    def _begin_tls(self) -> None:
        try:
            wrapped = self._context.wrap_socket(
                self._socket, server_side=True, do_handshake_on_connect=False
            )
        except OSError:  # The peer reset the connection meanwhile.
            self._failed("the connection was reset before TLS began")
            return
        self._handshake = TlsHandshake(self._loop, wrapped, self._secured, self._failed)

    def _secured(self, stream: Stream) -> None:
        self.is_open = False
        self._on_ready(self, stream, True)

    def _failed(self, reason: str) -> None:
        self.refuse(ProtocolError("tls", reason))

    def refuse(self, error: ProtocolError) -> None:
        self.close()
        self._on_failed(self, error)

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if self._handshake is not None:
            self._handshake.close()
        elif self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
