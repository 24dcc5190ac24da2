"""etcd's v3 API as its servers offer it over HTTP: calls, leases, watches.

Rules
1. An answer is judged by its gRPC code, never by its words. What another server might answer
   better (no leader, a learner, overload) is asked of the next one.
2. A token that is not valid any more (the server restarted, the users changed, five minutes
   passed) is renewed once; then the server means it, and it is `RegisterRefused`.
3. Nothing that the user must not see is in an error: the server's words are, ours are not.

How it works: POST with JSON to `/v3/…`. Keys and values are base64, numbers of 64 bits come as
strings, and what is zero is left out. An answer of several messages has one on each line.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from holdfast.registers.http import HttpAnswer, HttpClient, HttpConnection, HttpRequest, Unavailable
from holdfast.registers.register import RegisterRefused, RegisterSettings, RegisterUnreachable

INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED = 3, 5, 7
FAILED_PRECONDITION, UNAUTHENTICATED = 9, 16
TOKEN_NOT_VALID = (INVALID_ARGUMENT, UNAUTHENTICATED)
TOLD_BY_ALL = (*TOKEN_NOT_VALID, NOT_FOUND, PERMISSION_DENIED, FAILED_PRECONDITION)

Message = Mapping[str, Any]
Result = TypeVar("Result")


class NotFound(RegisterRefused):
    """The lease that the call named does not exist."""


class _CallFailed(Exception):
    """The server answered with an error that any other would answer with too."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class EtcdHeader(Struct, frozen=True):
    """The header of each answer."""

    revision: int = 0
    raft_term: int = 0


class Pair(Struct, frozen=True):
    """A key and its value."""

    key: bytes = b""
    value: bytes = b""
    mod_revision: int = 0


class RangeAnswer(Struct, frozen=True):
    """The keys that there are."""

    header: EtcdHeader = EtcdHeader()
    kvs: list[Pair] = []


class TxnResponse(Struct, frozen=True):
    """The answer to one part of a transaction; only ranges are of interest."""

    response_range: RangeAnswer | None = None


class TxnAnswer(Struct, frozen=True):
    """The branch of a transaction that was taken, and its results."""

    header: EtcdHeader = EtcdHeader()
    succeeded: bool = False
    responses: list[TxnResponse] = []


class LeaseAnswer(Struct, frozen=True):
    """A lease that was granted, or kept alive: then without TTL if it is gone."""

    header: EtcdHeader = EtcdHeader()
    lease: int = msgspec.field(name="ID", default=0)
    ttl_s: int = msgspec.field(name="TTL", default=0)


class KeyEvent(Struct, frozen=True):
    """A key that was put or deleted."""

    kv: Pair = Pair()
    type: str = "PUT"


class WatchAnswer(Struct, frozen=True):
    """A piece of news. One that is cancelled is the last."""

    header: EtcdHeader = EtcdHeader()
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    events: list[KeyEvent] = []


class _AuthAnswer(Struct, frozen=True):
    token: str = ""


class _Failure(Struct, frozen=True):
    """An error. Before 3.6 its code is spelt otherwise within a stream."""

    code: int = 0
    grpc_code: int = 0
    message: str = ""
    error: _Failure | str = ""
    """The error itself where a stream failed before it began; before 3.6, the message again."""


class _LeaseLine(Struct, frozen=True):
    result: LeaseAnswer = LeaseAnswer()
    error: _Failure | None = None


class _WatchLine(Struct, frozen=True):
    result: WatchAnswer = WatchAnswer()
    error: _Failure | None = None


ANSWERS = (RangeAnswer, TxnAnswer, LeaseAnswer, _AuthAnswer, _Failure, _LeaseLine, _WatchLine)
_decoders: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind, strict=False) for kind in ANSWERS
}
"""Made here, in one thread: msgspec crashes if two threads first meet a type at the same time."""


class Gateway:
    """The servers of one etcd. For one thread; `http.interrupt` is for any."""

    def __init__(self, settings: RegisterSettings) -> None:
        self.http = HttpClient(settings)
        self._credentials = settings.credentials
        self._token: str | None = None
        """None before anybody was asked for one, empty where the server has no users."""

    def call(self, path: str, message: Message, kind: type[Result], deadline: float) -> Result:
        """One request, one answer. Raises `NotFound` and what registers raise."""
        if self._credentials.user and self._token is None:
            self._authenticate(deadline)
        try:
            return self._ask(path, message, kind, deadline)
        except _CallFailed as failure:
            if failure.code not in TOKEN_NOT_VALID:
                raise _final(failure) from None
            if not self._credentials.user:
                raise RegisterRefused(f"{failure} (none was given)") from None
        self._authenticate(deadline)
        try:
            return self._ask(path, message, kind, deadline)
        except _CallFailed as failure:
            raise _final(failure) from None

    def keep_alive(self, lease: int, deadline: float) -> LeaseAnswer:
        """Without TTL if there is no such lease."""
        message = {"ID": str(lease)}
        return self.call("/v3/lease/keepalive", message, _LeaseLine, deadline).result

    def watch(self, create_request: Message, deadline: float) -> EtcdWatch:
        """News from now on. Call something else before, for a token that is valid."""

        def check(connection: HttpConnection, status: int, until: float) -> None:
            if status != 200:
                raise Unavailable(f"answered {status} to a watch")
            line = connection.line(until)
            if line is None:
                raise TimeoutError
            first = _watch_answer(line)
            if first.canceled:
                raise Unavailable(f"cancelled a watch ({first.cancel_reason})")

        # Without a leader the server would be silent; so it says so, and ends the stream.
        headers = {**self._headers(), "Grpc-Metadata-hasleader": "true"}
        body = msgspec.json.encode({"create_request": create_request})
        request = HttpRequest("POST", "/v3/watch", body, headers)
        return EtcdWatch(self.http, self.http.begin(request, deadline, check))

    def _ask(self, path: str, message: Message, kind: type[Result], deadline: float) -> Result:
        def read(answer: HttpAnswer) -> Result:
            return _read(answer, kind)

        request = HttpRequest("POST", path, msgspec.json.encode(message), self._headers())
        return self.http.ask(request, deadline, read)

    def _headers(self) -> Mapping[str, str]:
        return {"Authorization": self._token} if self._token else {}

    def _authenticate(self, deadline: float) -> None:
        self._token = None
        name, password = self._credentials.user, self._credentials.password
        message = {"name": name, "password": password}
        try:
            answer = self._ask("/v3/auth/authenticate", message, _AuthAnswer, deadline)
        except _CallFailed as failure:
            if failure.code != FAILED_PRECONDITION:
                raise RegisterRefused(f"user {name!r} is not accepted: {failure}") from None
            self._token = ""
        else:
            self._token = answer.token


class EtcdWatch:
    """A stream of news, which outlives the timeouts of its reader."""

    def __init__(self, http: HttpClient, connection: HttpConnection) -> None:
        self._http, self._connection = http, connection

    def next(self, deadline: float) -> WatchAnswer | None:
        """The next piece of news; None when the time is over."""
        try:
            line = self._connection.line(deadline)
            return None if line is None else _watch_answer(line)
        except OSError as error:
            where = self._connection.endpoint
            raise RegisterUnreachable(f"the watch on {where} was lost: {error}") from None

    def close(self) -> None:
        self._http.drop(self._connection)


class Lease:
    """A lease of ours: granted when first needed, and again when it is gone."""

    def __init__(self, gateway: Gateway, ttl_s: int) -> None:
        self._gateway, self.ttl_s = gateway, ttl_s
        self.number: int | None = None
        self.raft_term = 0
        """In which it was last granted or kept alive."""
        self._renewed_at = 0.0

    def is_due(self) -> bool:
        """Whether a third of the lease has passed since its last renewal was sent."""
        return self.number is None or monotonic() - self._renewed_at > self.ttl_s / 3

    def renew(self, deadline: float) -> int:
        """Its number, once it lasts the whole of its time from some moment within this call."""
        asked_at = monotonic()
        answer = None
        if self.number is not None:
            answer = self._gateway.keep_alive(self.number, deadline)
        if answer is None or answer.ttl_s <= 0:
            message = {"TTL": str(self.ttl_s)}
            answer = self._gateway.call("/v3/lease/grant", message, LeaseAnswer, deadline)
        self.number, self.raft_term = answer.lease, answer.header.raft_term
        self._renewed_at = asked_at
        return answer.lease

    def revoke(self, deadline: float) -> None:
        """Let go of it, and of the keys that are attached to it."""
        if self.number is None:
            return
        message = {"ID": str(self.number)}
        self.number = None
        try:
            self._gateway.call("/v3/lease/revoke", message, LeaseAnswer, deadline)
        except NotFound:
            pass  # It went by itself.


def _read(answer: HttpAnswer, kind: type[Result]) -> Result:
    if answer.status == 200:
        decoded = _decoded(answer.body, kind)
        if isinstance(decoded, _LeaseLine) and decoded.error is not None:
            raise _error_for(decoded.error)
        return decoded
    try:
        failure = _decoders[_Failure].decode(answer.body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise _told_in_plain_words(answer) from None
    raise _error_for(failure)


def _decoded(body: bytes, kind: type[Result]) -> Result:
    try:
        answer: Result = _decoders[kind].decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unavailable(f"answered something that is not etcd's ({error})") from None
    return answer


def _told_in_plain_words(answer: HttpAnswer) -> Exception:
    """Errors of the HTTP server in front of the API, and of what may stand in front of it."""
    words = " ".join(answer.body[:200].decode("utf-8", "replace").split())
    if answer.status == 404:
        return RegisterRefused("the server does not offer etcd's v3 API over HTTP")
    # A user's name taken from a certificate is the one thing that this API cannot do (400); a
    # name of the server that it does not list as its own is refused too (421).
    if answer.status in (400, 401, 403, 421):
        return RegisterRefused(f"the server refused: {words}")
    return Unavailable(f"answered {answer.status}: {words}")


def _error_for(failure: _Failure) -> Exception:
    if isinstance(failure.error, _Failure):
        return _error_for(failure.error)
    code = failure.code or failure.grpc_code
    if code in TOLD_BY_ALL:
        return _CallFailed(code, failure.message)
    return Unavailable(f"cannot serve now ({failure.message})")


def _final(failure: _CallFailed) -> Exception:
    if failure.code == NOT_FOUND:
        return NotFound(str(failure))
    if failure.code == FAILED_PRECONDITION:
        return RegisterUnreachable(str(failure))
    return RegisterRefused(str(failure))


def _watch_answer(line: bytes) -> WatchAnswer:
    if not line:
        raise Unavailable("the server ended it")
    message = _decoded(line, _WatchLine)
    if message.error is not None:
        raise Unavailable(f"the server ended it ({message.error.message})")
    return message.result
