"""A register in etcd over the v2 API, for clusters that have nothing newer.

Rules
1. The document is the key `<prefix>/<run id>`, in base64, and the token its `modifiedIndex`.
   Writes name the index that they replace (`prevIndex`), or that nothing may be there.
2. Reads go through a majority (`quorum=true`).
3. Each write lets the key live for `keep_s` more.
4. A refused write does not say what is there, so it is read. Finding exactly our own content
   means that a first try, of which no answer came, was successful.
5. How the document is followed is in `registers.followed`.

How it works: GET and PUT with JSON answers. A GET with `wait=true` is left open until there is an
event. The index of that event is where the next one begins, so that nothing is lost between them.
There is no liveness of the holder: v2 keys have a time to live each, and no leases.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from math import ceil
from time import monotonic
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from holdfast.registers.etcd import folder_of
from holdfast.registers.followed import FollowedRegister, KnownDocument
from holdfast.registers.http import (
    HttpAnswer,
    HttpClient,
    HttpConnection,
    HttpRequest,
    Unavailable,
)
from holdfast.registers.register import (
    Credentials,
    RegisterRefused,
    RegisterSettings,
    RegisterUnreachable,
    Token,
)

NOT_FOUND, COMPARE_FAILED, EXISTS_ALREADY = 100, 101, 105
INDEX_CLEARED = 401
REQUEST_CODES = range(100, 300)
"""Errors that lie in what was asked, or in who asked."""
NOT_THE_STATE_MEANT = (NOT_FOUND, COMPARE_FAILED, EXISTS_ALREADY)
NO_INDEX = 2**63 - 1
"""An index that no key has."""


class _Node(Struct, frozen=True):
    value: str | None = None
    index: int = msgspec.field(name="modifiedIndex", default=0)


class _Answer(Struct, frozen=True):
    """A node, or an error."""

    action: str = ""
    node: _Node | None = None
    code: int = msgspec.field(name="errorCode", default=0)
    message: str = ""
    index: int = 0
    """Of the whole store."""


_answers = msgspec.json.Decoder(_Answer)
"""Made here, in one thread, as in `etcd_gateway`."""


class EtcdV2Register(FollowedRegister):
    """One document in etcd's v2 store. For one thread at a time; `close` is for any."""

    def __init__(self, settings: RegisterSettings) -> None:
        super().__init__(settings, HttpClient(settings))
        self._path = f"/v2/keys{quote(folder_of(settings))}"
        self._headers = _headers(settings.credentials)
        self._keep_s = ceil(settings.keep_s)
        self._index = 0
        """Of the whole store, up to which the document is known."""
        self._poll: HttpConnection | None = None

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool]:
        """Set it. Where the document itself is gone, `(b"", None, False)`."""
        with self._in_use:
            deadline = self._http.deadline()
            has_set = self._write(state, token, self._keep_s, deadline)
            is_certain = has_set or not self._http.was_sent_before
            if not has_set:
                self._read(deadline)
                has_set = self._known is not None and self._known.content == state
            if not (has_set or is_certain):
                # What is there may be over what an earlier, unanswered try of ours wrote.
                raise RegisterUnreachable("a write was overtaken, or never done")
            if self._known is None:
                return b"", None, False
            return self._known.content, self._known.token, has_set

    def forget_after(self, seconds: float) -> None:
        """Write the same once more, with so long to live.

        Does nothing where the document is not the one that was last seen here.
        """
        with self._in_use:
            deadline = self._http.deadline()
            if self._known is None:
                self._read(deadline)
            if self._known is not None:
                known = self._known
                self._write(known.content, known.token, max(1, ceil(seconds)), deadline)

    def keep_for(self, seconds: float) -> None:
        """Let what is written from now on live so long."""
        self._keep_s = max(1, ceil(seconds))

    def close(self) -> None:
        """Give up the connections; waiting calls end with an error."""
        self._http.interrupt()
        with self._in_use:
            self._http.close()
            self._poll = None

    # --- asking ---------------------------------------------------------------------------

    def _read(self, deadline: float) -> None:
        answer = self._ask("GET", {"quorum": "true"}, b"", deadline)
        if answer.code and answer.code != NOT_FOUND:
            raise RegisterRefused(answer.message)
        self._index = answer.index
        self._known = None if answer.node is None else _document(answer.node)

    def _write(self, state: bytes, token: Token | None, ttl_s: int, deadline: float) -> bool:
        """Whether the document was set, as far as this answer tells."""
        if token is None:
            condition = {"prevExist": "false"}
        else:
            index = token if isinstance(token, int) and token > 0 else NO_INDEX
            condition = {"prevIndex": str(index)}
        form = urlencode({"value": b64encode(state).decode(), "ttl": str(ttl_s)}).encode()
        answer = self._ask("PUT", condition, form, deadline)
        if answer.code in NOT_THE_STATE_MEANT:
            return False
        if answer.node is None:
            raise RegisterRefused(answer.message)
        self._known = KnownDocument(state, answer.node.index)
        self._has_written = True
        return True

    def _ask(self, method: str, query: dict[str, str], body: bytes, deadline: float) -> _Answer:
        return self._http.ask(self._request(method, query, body), deadline, _read_answer)

    def _request(self, method: str, query: dict[str, str], body: bytes = b"") -> HttpRequest:
        headers = dict(self._headers)
        if body:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        return HttpRequest(method, f"{self._path}?{urlencode(query)}", body, headers)

    # --- waiting --------------------------------------------------------------------------

    def _take_event(self, deadline: float) -> bool | None:
        """The result of the open GET; there is one at a time."""
        poll = self._polling()
        try:
            line = poll.line(deadline)
            answer = None if line is None else _decoded(line)
        except OSError as error:
            raise RegisterUnreachable(f"the wait on {poll.endpoint} was lost: {error}") from None
        if answer is None:
            return None
        self._stop_watching()
        if answer.node is not None:
            self._follow(answer.node)
            return False
        if answer.code != INDEX_CLEARED:
            raise RegisterUnreachable(f"the wait on {poll.endpoint} ended: {answer.message}")
        self._read(self._http.deadline())  # Too much has happened elsewhere for its memory.
        return True

    def _follow(self, node: _Node) -> None:
        self._index = node.index
        if self._known is not None and node.index < self._known.token:
            return  # We have written since.
        # An event without a value is the end of the key.
        self._known = None if node.value is None else _document(node)

    def _polling(self) -> HttpConnection:
        """The open GET, for the first event after what is known."""
        if self._poll is None:

            def check(connection: HttpConnection, status: int, until: float) -> None:
                if status >= 500:
                    raise Unavailable(f"answered {status} to a wait")

            request = self._request("GET", {"wait": "true", "waitIndex": str(self._index + 1)})
            self._poll = self._http.begin(request, self._http.deadline(), check)
            self._heard_at = monotonic()
        return self._poll

    def _stop_watching(self) -> None:
        if self._poll is not None:
            self._http.drop(self._poll)
            self._poll = None


def _headers(credentials: Credentials) -> dict[str, str]:
    if not credentials.user:
        return {}
    pair = f"{credentials.user}:{credentials.password}".encode()
    return {"Authorization": f"Basic {b64encode(pair).decode()}"}


def _document(node: _Node) -> KnownDocument:
    try:
        return KnownDocument(b64decode(node.value or "", validate=True), node.index)
    except ValueError:
        raise RegisterRefused("the key holds something that no register wrote") from None


def _read_answer(answer: HttpAnswer) -> _Answer:
    """Errors that say something about the document are answers; raises all others."""
    if answer.status == 404 and not answer.body.startswith(b"{"):
        raise RegisterRefused("the server does not offer etcd's v2 API (--enable-v2)")
    if answer.status >= 500 or 300 <= answer.status < 400:
        raise Unavailable(f"answered {answer.status}")
    decoded = _decoded(answer.body)
    if decoded.code in REQUEST_CODES and decoded.code not in NOT_THE_STATE_MEANT:
        raise RegisterRefused(f"the server refused: {decoded.message}")
    if decoded.code not in (0, *NOT_THE_STATE_MEANT):
        raise Unavailable(f"cannot serve now ({decoded.message})")
    index = answer.headers.get("x-etcd-index", "")
    return msgspec.structs.replace(decoded, index=int(index) if index.isdecimal() else 0)


def _decoded(body: bytes) -> _Answer:
    if not body:
        raise Unavailable("the server ended it")
    try:
        return _answers.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unavailable(f"answered something that is not etcd's ({error})") from None
