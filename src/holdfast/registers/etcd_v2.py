"""A register in etcd over the v2 API, for clusters that have nothing newer.

Rules
1. The document is the key `<prefix>/<run id>`, in base64, and the token its `modifiedIndex`.
   Writes name the index that they replace (`prevIndex`), or that nothing may be there.
2. Reads go through a majority (`quorum=true`).
3. Each write lets the key live for `keep_s` more.
4. A refused write does not say what is there, so it is read. Finding exactly our own content
   means that a first try, of which no answer came, was successful.

How it works: GET and PUT with JSON answers. There is no liveness of the holder, since v2 keys have
a time to live each and no leases. Changes cannot be waited for: the register has to be asked.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from math import ceil
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from holdfast.registers.etcd import folder_of
from holdfast.registers.http import HttpAnswer, HttpClient, HttpRequest, Unavailable
from holdfast.registers.register import (
    Credentials,
    RegisterRefused,
    RegisterSettings,
    RegisterUnreachable,
    Token,
)

NOT_FOUND, COMPARE_FAILED, EXISTS_ALREADY = 100, 101, 105
REQUEST_CODES = range(100, 300)
"""Errors that lie in what was asked, or in who asked."""
NOT_THE_STATE_MEANT = (NOT_FOUND, COMPARE_FAILED, EXISTS_ALREADY)
NO_INDEX = 2**63 - 1
"""An index that no key has."""


class _Node(Struct, frozen=True):
    value: str = ""
    index: int = msgspec.field(name="modifiedIndex", default=0)


class _Answer(Struct, frozen=True):
    """A node, or an error."""

    node: _Node | None = None
    code: int = msgspec.field(name="errorCode", default=0)
    message: str = ""


_answers = msgspec.json.Decoder(_Answer)
"""Made here, in one thread, as in `etcd_gateway`."""


class EtcdV2Register:
    """One document in etcd's v2 store. For one thread at a time."""

    def __init__(self, settings: RegisterSettings) -> None:
        self._http = HttpClient(settings)
        self._path = f"/v2/keys{quote(folder_of(settings))}"
        self._headers = _headers(settings.credentials)
        self._keep_s = ceil(settings.keep_s)
        self._known: tuple[bytes, Token] | None = None
        """What was last read or written here."""
        self._has_written = False

    def get_state(self) -> tuple[bytes, Token] | None:
        found = self._read(self._http.deadline())
        if not self._has_written:
            self._http.let_go()  # A node that does not write reads rarely.
        return found

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool]:
        """Set it. Where the document itself is gone, `(b"", None, False)`."""
        deadline = self._http.deadline()
        index = self._write(state, token, self._keep_s, deadline)
        if index is not None:
            self._known, self._has_written = (state, index), True
            return state, index, True
        is_certain = not self._http.was_sent_before
        found = self._read(deadline)
        if found is not None and found[0] == state:
            return *found, True
        if not is_certain:
            # What is there may be over what an earlier, unanswered try of ours wrote.
            raise RegisterUnreachable("a write was overtaken, or never done")
        return (b"", None, False) if found is None else (*found, False)

    def forget_after(self, seconds: float) -> None:
        """Write the same once more, with so long to live.

        Does nothing where the document is not the one that was last seen here.
        """
        deadline = self._http.deadline()
        known = self._known or self._read(deadline)
        if known is not None:
            self._write(*known, max(1, ceil(seconds)), deadline)

    def close(self) -> None:
        """Give up the connection."""
        self._http.close()

    def _read(self, deadline: float) -> tuple[bytes, Token] | None:
        answer = self._ask("GET", {"quorum": "true"}, b"", deadline)
        if answer.code and answer.code != NOT_FOUND:
            raise RegisterRefused(answer.message)
        self._known = None if answer.node is None else _document(answer.node)
        return self._known

    def _write(self, state: bytes, token: Token | None, ttl_s: int, deadline: float) -> int | None:
        """The index of the document if it was set, as far as this answer tells; else None."""
        if token is None:
            condition = {"prevExist": "false"}
        else:
            index = token if isinstance(token, int) and token > 0 else NO_INDEX
            condition = {"prevIndex": str(index)}
        form = urlencode({"value": b64encode(state).decode(), "ttl": str(ttl_s)}).encode()
        answer = self._ask("PUT", condition, form, deadline)
        if answer.code in NOT_THE_STATE_MEANT:
            return None
        if answer.node is None:
            raise RegisterRefused(answer.message)
        return answer.node.index

    def _ask(self, method: str, query: dict[str, str], body: bytes, deadline: float) -> _Answer:
        headers = dict(self._headers)
        if body:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        request = HttpRequest(method, f"{self._path}?{urlencode(query)}", body, headers)
        return self._http.ask(request, deadline, _read_answer)


def _headers(credentials: Credentials) -> dict[str, str]:
    if not credentials.user:
        return {}
    pair = f"{credentials.user}:{credentials.password}".encode()
    return {"Authorization": f"Basic {b64encode(pair).decode()}"}


def _document(node: _Node) -> tuple[bytes, Token]:
    try:
        return b64decode(node.value, validate=True), node.index
    except ValueError:
        raise RegisterRefused("the key holds something that no register wrote") from None


def _read_answer(answer: HttpAnswer) -> _Answer:
    """Errors that say something about the document are answers; raises all others."""
    if answer.status == 404 and not answer.body.startswith(b"{"):
        raise RegisterRefused("the server does not offer etcd's v2 API (--enable-v2)")
    if answer.status >= 500 or 300 <= answer.status < 400:
        raise Unavailable(f"answered {answer.status}")
    try:
        decoded = _answers.decode(answer.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unavailable(f"answered something that is not etcd's ({error})") from None
    if decoded.code in REQUEST_CODES and decoded.code not in NOT_THE_STATE_MEANT:
        raise RegisterRefused(f"the server refused: {decoded.message}")
    if decoded.code not in (0, *NOT_THE_STATE_MEANT):
        raise Unavailable(f"cannot serve now ({decoded.message})")
    return decoded
