"""TLS on the loop, for jobs that asked for it.

Rules
- With TLS, everything is inside it, and there are no tethers. The end of a connection is told by
  TCP and not by TLS: a process that is killed signs nothing any more, and an attacker on the path
  can send a FIN in its name. So no end would prove anything, and a node's death is known when its
  lease is over.
- Files that cannot be used are a `UsageError`, at start.
- A client that does not speak TLS is heard as far as it takes to tell it why it is refused.

`ssl` is imported where used: a job without TLS never pays for it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.protocol.errors import UsageError
from holdfast.runtime.loop import Cancellable, Loop
from holdfast.transport import sentences
from holdfast.transport.auth import TlsFiles
from holdfast.transport.connection import Stream, words_for
from holdfast.transport.frames import ProtocolError

if TYPE_CHECKING:
    import ssl

FIRST_BYTE = b"\x16"
"""Of a client that speaks TLS; no frame begins with it."""


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
    """TLS's own handshake on a connection, of either side.

    `on_ready(self, stream)` or `on_failed(self, error)` is called once, and nothing after `close`.
    A server is handed the socket itself where the client does not speak TLS.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        context: ssl.SSLContext,
        on_ready: Callable[[TlsHandshake, Stream], None],
        on_failed: Callable[[TlsHandshake, ProtocolError], None],
        dialled: str | None = None,
    ) -> None:
        """`dialled` is the address by which a client knows the server; a server gives none."""
        self._loop, self._socket, self._context = loop, sock, context
        self._on_ready, self._on_failed = on_ready, on_failed
        self._dialled = dialled
        self._secured: ssl.SSLSocket | None = None
        self._number = sock.fileno()
        self._soon: Cancellable | None = None
        self._is_open = True
        if dialled is None:
            loop.add_reader(self._number, self._look)
        else:
            self._soon = loop.call_soon(self._go_on)

    def _look(self) -> None:
        """See whether a client speaks TLS, without taking a byte."""
        try:
            first = self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if first == FIRST_BYTE:
            self._go_on()
        elif first:
            self._wait_no_more()
            self._is_open = False
            self._on_ready(self, self._socket)
        else:
            self._fail("the connection was closed before a word")

    def _go_on(self) -> None:
        import ssl

        self._wait_no_more()
        try:
            if self._secured is None:
                self._secured = self._context.wrap_socket(
                    self._socket,
                    server_side=self._dialled is None,
                    server_hostname=self._dialled,
                    do_handshake_on_connect=False,
                )
            self._secured.do_handshake()
        except ssl.SSLWantReadError:
            self._loop.add_reader(self._number, self._go_on)
        except ssl.SSLWantWriteError:
            self._loop.add_writer(self._number, self._go_on)
        except ssl.SSLCertVerificationError as error:
            self._fail(sentences.bad_certificate(error.verify_message))
        except ssl.SSLError as error:
            self._fail(f"TLS failed ({(error.reason or 'unknown').replace('_', ' ').lower()})")
        except OSError as error:
            self._fail(f"TLS failed: {words_for(error)}")
        except ValueError as error:  # The address is no name that a certificate has.
            self._fail(str(error))
        else:
            self._is_open = False
            self._on_ready(self, TlsStream(self._secured))

    def _fail(self, reason: str) -> None:
        self.refuse(ProtocolError("tls", reason))

    def refuse(self, error: ProtocolError) -> None:
        self.close()
        self._on_failed(self, error)

    def _wait_no_more(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        self._loop.remove_reader(self._number)
        self._loop.remove_writer(self._number)

    def close(self) -> None:
        """Give up without a word."""
        if self._is_open:
            self._is_open = False
            self._wait_no_more()
            (self._secured or self._socket).close()
