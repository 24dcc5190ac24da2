"""HTTP/1.1 to whichever of several servers answers: blocking, and never longer than allowed.

Rules
1. The endpoint that answered last is asked first. One that is silent for `endpoint_timeout_s`,
   or cannot be reached, or says that it cannot serve now, is passed over for the next, once
   through the list; the last of them may use what is left of the call's time.
2. Every wait counts towards one deadline: the look-up of a name, the connection, TLS, each byte of
   the answer: a server that trickles gains nothing.
3. The connection is kept. That it was closed while idle is nobody's business: it is opened anew.
4. No answer is `RegisterUnreachable`. Only if every endpoint turned us away (certificates, no
   TLS) is it `RegisterRefused`.
5. Whatever is wrong with an answer is an `OSError`; then the connection can only be closed. Only
   the timeout of a line leaves everything as it was, so that a stream can be read on later.
6. An answer has bounds: it is held in memory. It says where it ends, since one that just stops
   cannot be told from a whole one.
7. `interrupt` may come from any thread, and makes a blocked call end soon.

How it works: h11 reads and writes HTTP and knows no sockets; the socket, with its timeout, is ours.
`http.client` is not used: it brings `ssl` and `email` to jobs without TLS, counts time for each
`recv` alone, and cannot go on reading a stream after a timeout, which a watch does all day.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

import h11
from msgspec import Struct

from holdfast.core.policy.config import ETCD_PORT
from holdfast.core.policy.rendezvous_settings import read
from holdfast.core.protocol.model import Endpoint
from holdfast.registers.register import RegisterRefused, RegisterSettings, RegisterUnreachable
from holdfast.transport.auth import TlsFiles
from holdfast.transport.connection import configure, words_for
from holdfast.transport.resolving import Address, addresses_within
from holdfast.transport.tls import client_context

if TYPE_CHECKING:
    import ssl

Result = TypeVar("Result")

LONGEST_HEAD = 64 * 1024
LONGEST_BODY = 1024 * 1024
WITHOUT_BODY = (204, 304)


class Unavailable(OSError):
    """The endpoint answered, but cannot serve now, or not in a way that can be understood."""


class HttpRequest(Struct, frozen=True):
    """A request, for any of the endpoints."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = {}


class HttpAnswer(Struct, frozen=True):
    """A response. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpConnection:
    """A connection to one endpoint: one answer after another, or an answer line by line."""

    def __init__(self, endpoint: Endpoint, sock: socket.socket) -> None:
        self.endpoint = endpoint
        self._socket = sock
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
        self._body = bytearray()

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can be used again: the response is complete, and last."""
        is_over = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        return is_over and not self._http.trailing_data[0]

    def ask(self, request: HttpRequest, deadline: float) -> HttpAnswer:
        """The whole answer."""
        status, headers = self.begin(request, deadline)
        while self._body_is_due():
            self._read_body(deadline)
        return HttpAnswer(status, headers, bytes(self._body))

    def begin(self, request: HttpRequest, deadline: float) -> tuple[int, Mapping[str, str]]:
        """Send the request; the status and the headers of the answer, of which the body is due."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        self._body.clear()
        self._send(self._encoded(request), deadline)
        while not isinstance(head := self._next_event(deadline), h11.Response):
            pass  # "100 Continue" and its like announce the answer.
        headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
        says_its_end = headers.keys() & {"content-length", "transfer-encoding"}
        if not says_its_end and head.status_code not in WITHOUT_BODY:
            raise Unavailable("the answer does not say where it ends")
        return head.status_code, headers

    def line(self, deadline: float) -> bytes | None:
        """The next line of the body; None when the time is over, b"" at its end."""
        while (end := self._body.find(b"\n")) < 0:
            if not self._body_is_due():
                return b""
            try:
                self._read_body(deadline)
            except TimeoutError:
                return None
        line = bytes(self._body[: end + 1])
        del self._body[: end + 1]
        return line

    def _encoded(self, request: HttpRequest) -> bytes:
        headers = {"Host": str(self.endpoint), **request.headers}
        if request.body or request.method != "GET":
            headers["Content-Length"] = str(len(request.body))
        try:
            head = h11.Request(
                method=request.method, target=request.path, headers=list(headers.items())
            )
            parts = (head, h11.Data(data=request.body), h11.EndOfMessage())
            return b"".join(self._http.send(part) for part in parts)
        except (h11.LocalProtocolError, UnicodeEncodeError):
            # Not in their words, which have the header in them: it may be a password.
            raise Unavailable("cannot be asked with a header that HTTP does not allow") from None

    def _send(self, data: bytes, deadline: float) -> None:
        self._socket.settimeout(seconds_until(deadline))
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise
        except OSError:
            # What the server said before it hung up tells more: that a certificate is missing.
            self._receive(deadline)
            raise

    def _body_is_due(self) -> bool:
        return self._http.their_state is h11.SEND_BODY

    def _read_body(self, deadline: float) -> None:
        """Take in a piece of the body, or its end."""
        event = self._next_event(deadline)
        if isinstance(event, h11.Data):
            self._body += event.data
        if len(self._body) > LONGEST_BODY:
            raise Unavailable("the answer is too long")

    def _next_event(self, deadline: float) -> object:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(self._receive(deadline))
        except h11.RemoteProtocolError as error:
            is_endless = error.error_status_hint == 431
            problem = "has a head that is too long" if is_endless else "is not proper HTTP"
            raise Unavailable(f"the answer {problem}") from None
        return event

    def _receive(self, deadline: float) -> bytes:
        self._socket.settimeout(seconds_until(deadline))
        received = self._socket.recv(64 * 1024)
        if not received:
            raise ConnectionResetError("the connection was closed by the server")
        return received

    def interrupt(self) -> None:
        """Wake the thread that waits for it, from any thread."""
        try:
            # Not TLS's own `shutdown`, which pulls the TLS state away from the reader.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            pass  # It is not connected any more.

    def close(self) -> None:
        self._socket.close()


def seconds_until(deadline: float) -> float:
    """For a socket's timeout; raises `TimeoutError` when there are none left."""
    left_s = deadline - monotonic()
    if left_s <= 0:
        raise TimeoutError("did not answer in time")
    return left_s


class HttpClient:
    """Asks the endpoints of a register. For one thread; `interrupt` is for any."""

    def __init__(self, settings: RegisterSettings) -> None:
        options = settings.options
        self._endpoints = Endpoint.parse_list(settings.endpoint, ETCD_PORT)
        self._call_timeout_s = settings.call_timeout_s
        timeout_s = read(options, "read_timeout")
        self._endpoint_timeout_s: float = timeout_s or settings.endpoint_timeout_s
        self._tls = _tls_context(options)
        self._addresses: dict[Endpoint, list[Address]] = {}
        self._kept: HttpConnection | None = None
        self._streams: set[HttpConnection] = set()
        self._is_interrupted = False
        self._was_answered = False
        self._sent = 0

    def deadline(self) -> float:
        """By when a call that begins now has to end."""
        return monotonic() + self._call_timeout_s

    def ask(
        self, request: HttpRequest, deadline: float, read: Callable[[HttpAnswer], Result]
    ) -> Result:
        """Return `read` of the first answer for which it does not raise `Unavailable`."""

        def attempt(endpoint: Endpoint, until: float) -> Result:
            return read(self._exchange(endpoint, request, until))

        self._sent = 0
        return self._try_each(attempt, deadline)

    @property
    def was_sent_before(self) -> bool:
        """Whether an earlier, unanswered try of the last request may have taken effect."""
        return self._sent > 1

    def begin(
        self,
        request: HttpRequest,
        deadline: float,
        check: Callable[[HttpConnection, int, float], None],
    ) -> HttpConnection:
        """A connection of its own on which the answer has begun; the caller closes it.

        `check` is given the connection, the status, and a deadline for looking at the first lines.
        """

        def attempt(endpoint: Endpoint, until: float) -> HttpConnection:
            connection = self._connect(endpoint, until)
            self._streams.add(connection)
            try:
                self._check_open()
                status, _ = connection.begin(request, until)
                check(connection, status, until)
            except BaseException:
                self.drop(connection)
                raise
            return connection

        return self._try_each(attempt, deadline)

    def drop(self, stream: HttpConnection) -> None:
        """Close what `begin` gave."""
        self._streams.discard(stream)
        stream.close()

    def let_go(self) -> None:
        """Keep no connection until the next call: there may be thousands of us."""
        self._drop_kept()

    def interrupt(self) -> None:
        """From any thread: calls end soon, and raise `RegisterUnreachable` from now on."""
        self._is_interrupted = True
        for connection in (self._kept, *self._streams):
            if connection is not None:
                connection.interrupt()

    def resume(self) -> None:
        """Allow calls again."""
        self._is_interrupted = False
        self._drop_kept()

    def close(self) -> None:
        """Close all connections. Not while a call is under way."""
        self._is_interrupted = True
        self._drop_kept()
        for stream in tuple(self._streams):
            self.drop(stream)

    def _try_each(self, attempt: Callable[[Endpoint, float], Result], deadline: float) -> Result:
        failures: list[str] = []
        refusals = 0
        asked = tuple(self._endpoints)
        for endpoint in asked:
            if self._is_interrupted:
                raise RegisterUnreachable("the register is closed")
            left_for_others = len(asked) - len(failures) > 1
            until = min(deadline, monotonic() + self._endpoint_timeout_s)
            try:
                result = attempt(endpoint, until if left_for_others else deadline)
            except OSError as error:
                self._drop_kept()
                refusals += self._is_refusal(error)
                failures.append(f"{endpoint}: {_reason(error)}{self._hint(error)}")
            else:
                self._was_answered = True
                self._endpoints.remove(endpoint)
                self._endpoints.insert(0, endpoint)
                return result
        if refusals == len(asked):
            raise RegisterRefused("; ".join(failures))
        raise RegisterUnreachable("; ".join(failures))

    def _exchange(self, endpoint: Endpoint, request: HttpRequest, until: float) -> HttpAnswer:
        kept = self._kept
        if kept is not None and kept.endpoint == endpoint:
            try:
                return self._ask(kept, request, until)
            except TimeoutError:
                raise
            except OSError:
                if self._is_interrupted:
                    raise
        self._drop_kept()
        self._kept = connection = self._connect(endpoint, until)
        self._check_open()
        return self._ask(connection, request, until)

    def _check_open(self) -> None:
        """To be called once a new connection can be seen by `interrupt`."""
        if self._is_interrupted:
            raise Unavailable("was given up")

    def _ask(self, connection: HttpConnection, request: HttpRequest, until: float) -> HttpAnswer:
        self._sent += 1
        answer = connection.ask(request, until)
        if not connection.is_reusable:
            self._drop_kept()
        return answer

    def _drop_kept(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _is_refusal(self, error: OSError) -> bool:
        """Whether either side refused TLS itself, rather than the connection being cut."""
        if self._tls is None:
            return False
        import ssl

        return type(error) in (ssl.SSLError, ssl.SSLCertVerificationError)

    def _hint(self, error: OSError) -> str:
        """The likely reason why an endpoint hangs up, if no endpoint ever answered."""
        if self._was_answered:
            return ""
        if self._tls is None:
            return " (does it require TLS?)" if isinstance(error, ConnectionResetError) else ""
        import ssl

        is_cut_off = isinstance(error, ConnectionResetError | ssl.SSLEOFError)
        return " (does it speak TLS?)" if is_cut_off else ""

    def _connect(self, endpoint: Endpoint, until: float) -> HttpConnection:
        addresses = self._addresses.pop(endpoint, None)
        addresses = addresses or addresses_within(endpoint, seconds_until(until))
        for number, address in enumerate(addresses):
            # A share for each, so that one address that swallows packets leaves time for others.
            share = (until - monotonic()) / (len(addresses) - number)
            try:
                sock = self._open(address, monotonic() + share)
            except OSError:
                if number == len(addresses) - 1:
                    raise
            else:
                # Remembered while they work, so that an outage of names does not matter.
                self._addresses[endpoint] = addresses
                return HttpConnection(endpoint, sock)
        raise OSError("has no address")

    def _open(self, address: Address, until: float) -> socket.socket:
        sock = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            configure(sock)
            sock.settimeout(seconds_until(until))
            sock.connect(address.sockaddr)
            if self._tls is None:
                return sock
            sock.settimeout(seconds_until(until))
            return self._tls.wrap_socket(sock, server_hostname=address.endpoint.address)
        except BaseException:
            sock.close()
            raise


def _reason(error: OSError) -> str:
    """The error of the endpoint in words, without anything of what was sent."""
    verify_message = getattr(error, "verify_message", "")
    if verify_message:
        return f"the certificate is not accepted: {verify_message}"
    if isinstance(error, TimeoutError):
        return "did not answer in time"
    reason = getattr(error, "reason", None)
    if isinstance(reason, str) and reason:
        return f"TLS failed ({reason.replace('_', ' ').lower()})"
    return words_for(error) if error.errno is not None else str(error)


def _tls_context(options: Mapping[str, str]) -> ssl.SSLContext | None:
    """The TLS context; None without TLS. Raises `UsageError` for files that cannot be used."""
    authority = options.get("cacert") or options.get("ca_cert")
    certificate = options.get("cert") or options.get("ssl_cert")
    key = options.get("key") or options.get("ssl_cert_key")
    if read(options, "protocol") != "https" and not (authority or certificate):
        return None
    return client_context(TlsFiles(certificate, key, authority))
