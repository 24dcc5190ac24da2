"""A client of etcd's v2 API with the calls of the package python-etcd, which need not be there.

The calls, their arguments and what they return are that package's; what they raise is in
`etcd_errors`. A call opens a connection of its own, so that any number of threads may use one
client, and a watch keeps nobody waiting.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Any
from urllib.parse import quote, urlencode

from holdfast.core.policy.config import ETCD_PORT
from holdfast.elastic.rendezvous.etcd_errors import (
    EtcdConnectionFailed,
    EtcdException,
    EtcdKeyNotFound,
    EtcdWatchTimedOut,
    error_of,
    raised,
)
from holdfast.registers.http import HttpClient
from holdfast.registers.http_connection import HttpAnswer, HttpRequest
from holdfast.registers.register import (
    Credentials,
    RegisterRefused,
    RegisterSettings,
    RegisterUnreachable,
)

__all__ = ["EtcdClient", "EtcdResult"]

FOREVER_S = 20 * 86400.0
"""What a socket takes for a timeout, and nobody waits for."""
NODE = {
    "key": None,
    "value": None,
    "expiration": None,
    "ttl": None,
    "modifiedIndex": None,
    "createdIndex": None,
    "newKey": False,
    "dir": False,
}
READING = ("recursive", "wait", "waitIndex", "sorted", "quorum")
WRITING = ("prevValue", "prevIndex", "prevExist", "refresh")
DELETING = ("prevValue", "prevIndex")


class EtcdResult:
    """A key as etcd told of it; of a folder, what is in it is among its `leaves`."""

    action: str | None
    key: str
    value: str | None
    expiration: str | None
    ttl: int | None
    modifiedIndex: int  # noqa: N815 - as others read it
    createdIndex: int  # noqa: N815
    newKey: bool  # noqa: N815
    dir: bool
    etcd_index: int = 1
    raft_index: int = 1

    def __init__(
        self,
        action: str | None = None,
        node: Mapping[str, Any] | None = None,
        prevNode: Mapping[str, Any] | None = None,  # noqa: N803
        **others: object,
    ) -> None:
        self.action = action
        for name, default in NODE.items():
            setattr(self, name, (node or {}).get(name, default))
        self._children: list[Mapping[str, Any]] = list((node or {}).get("nodes", ()))
        self._prev_node = EtcdResult(None, prevNode) if prevNode else None
        if self._prev_node is not None and self._prev_node.dir:
            self.dir = True  # The server does not say so when a folder goes.

    def get_subtree(self, leaves_only: bool = False) -> Iterator[EtcdResult]:
        """This and all below it; what has something below it only if asked for."""
        if not self._children or not leaves_only:
            yield self
        for node in self._children:
            yield from EtcdResult(None, node).get_subtree(leaves_only)

    @property
    def leaves(self) -> Iterator[EtcdResult]:
        """All below this that have nothing below them; itself, if it has not."""
        return self.get_subtree(leaves_only=True)

    @property
    def children(self) -> Iterator[EtcdResult]:
        """Another name for `leaves`."""
        return self.leaves

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EtcdResult):
            return False
        return all(getattr(self, name) == getattr(other, name) for name in NODE)

    __hash__ = None  # type: ignore[assignment]  # results can be changed, for `update`

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in ("key", "value"))
        return f"{type(self).__name__}({told}, modifiedIndex={self.modifiedIndex})"


class EtcdClient:
    """Asks one server of etcd."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = ETCD_PORT,
        *,
        read_timeout: float = 60,
        protocol: str = "http",
        cert: str | tuple[str, str] | None = None,
        ca_cert: str | None = None,
        username: str | None = None,
        password: str | None = None,
    ) -> None:
        self.host, self.port, self.protocol = host, port, protocol
        self.read_timeout = read_timeout
        options = {"protocol": protocol, "read_timeout": str(read_timeout)}
        if cert:
            names = ("cert", "key") if isinstance(cert, tuple) else ("cert",)
            options |= zip(names, cert if isinstance(cert, tuple) else (cert,), strict=True)
        if ca_cert:
            options["cacert"] = ca_cert
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.base_uri = f"{protocol}://{place}"
        credentials = Credentials(username or "", password or "")
        self.settings = RegisterSettings("etcd-v2", place, "", options, credentials)
        """The same for a register."""

    # The calls of python-etcd.

    def read(self, key: str, **options: Any) -> EtcdResult:
        """A key, or with `wait=True` its next change; `recursive`, `waitIndex`, `sorted`,
        `quorum` go to the server, `timeout` is in seconds, and 0 waits for ever."""
        query = _query({name: options.get(name) for name in READING})
        timeout_s = options.get("timeout")
        return self._ask(
            HttpRequest("GET", _path(key, query)), timeout_s, bool(options.get("wait"))
        )

    def get(self, key: str) -> EtcdResult:
        """A key."""
        return self.read(key)

    def write(
        self,
        key: str,
        value: object,
        ttl: float | None = None,
        dir: bool = False,
        append: bool = False,
        **conditions: Any,
    ) -> EtcdResult:
        """Set a key, if `prevValue`, `prevIndex` and `prevExist` hold, as far as they are given.

        `dir` makes a folder, `append` a new key in one.
        """
        if dir and value:
            raise raised(EtcdException)("a folder has no value")
        form = {"value": value, "ttl": ttl, "dir": True if dir else None}
        form |= {name: conditions.get(name) for name in WRITING}
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        body = _query(form).encode()
        return self._ask(HttpRequest("POST" if append else "PUT", _path(key), body, headers))

    def set(self, key: str, value: object, ttl: float | None = None) -> EtcdResult:
        """Set a key, whatever is there."""
        return self.write(key, value, ttl=ttl)

    def test_and_set(
        self, key: str, value: object, prev_value: object, ttl: float | None = None
    ) -> EtcdResult:
        """Set a key whose value is `prev_value`; raises `EtcdCompareFailed` if it is not."""
        return self.write(key, value, ttl=ttl, prevValue=prev_value)

    def update(self, obj: EtcdResult) -> EtcdResult:
        """Set a key to what was read and then changed, if nobody else has changed it."""
        index = None if obj.dir else obj.modifiedIndex
        return self.write(
            obj.key, obj.value, ttl=obj.ttl, dir=obj.dir, prevExist=True, prevIndex=index
        )

    def refresh(self, key: str, ttl: float, **conditions: Any) -> EtcdResult:
        """Let a key live for so long, without a word to those who watch it."""
        return self.write(key, None, ttl=ttl, **{**conditions, "prevExist": True, "refresh": True})

    def delete(
        self, key: str, recursive: bool | None = None, dir: bool | None = None, **conditions: Any
    ) -> EtcdResult:
        """Remove a key, or a folder."""
        asked = {"recursive": recursive, "dir": dir}
        asked |= {name: conditions.get(name) for name in DELETING}
        return self._ask(HttpRequest("DELETE", _path(key, _query(asked))))

    def pop(self, key: str, **options: Any) -> EtcdResult | None:
        """Remove a key; what it was."""
        return self.delete(key, **options)._prev_node

    def watch(
        self,
        key: str,
        index: int | None = None,
        timeout: float | None = None,
        recursive: bool | None = None,
    ) -> EtcdResult:
        """The next change of a key, from an index on; raises `EtcdWatchTimedOut`."""
        since = index or None
        return self.read(key, wait=True, waitIndex=since, timeout=timeout, recursive=recursive)

    def eternal_watch(
        self, key: str, index: int | None = None, recursive: bool | None = None
    ) -> Iterator[EtcdResult]:
        """All changes of a key, one after the other."""
        while True:
            change = self.watch(key, index, timeout=0, recursive=recursive)
            index = change.modifiedIndex + 1
            yield change

    def __contains__(self, key: str) -> bool:
        try:
            self.read(key)
        except EtcdKeyNotFound:
            return False
        return True

    @property
    def version(self) -> str:
        """Of the server."""
        return str(self._versions()["etcdserver"])

    @property
    def cluster_version(self) -> str:
        return str(self._versions()["etcdcluster"])

    @property
    def machines(self) -> list[str]:
        """The servers of the cluster."""
        answer = self._answer(HttpRequest("GET", "/v2/machines"), None, False)
        return [machine.strip() for machine in answer.body.decode().split(",")]

    @property
    def key_endpoint(self) -> str:
        return "/v2/keys"

    # How they are asked.

    def _versions(self) -> dict[str, Any]:
        return _decoded(self._answer(HttpRequest("GET", "/version"), None, False))

    def _ask(
        self, request: HttpRequest, timeout_s: float | None = None, is_watch: bool = False
    ) -> EtcdResult:
        answer = self._answer(request, timeout_s, is_watch)
        result = EtcdResult(**_decoded(answer))
        result.newKey = result.newKey or answer.status == 201
        result.etcd_index = int(answer.headers.get("x-etcd-index", 1))
        result.raft_index = int(answer.headers.get("x-raft-index", 1))
        return result

    def _answer(self, request: HttpRequest, timeout_s: float | None, is_watch: bool) -> HttpAnswer:
        allowed_s = self.read_timeout if timeout_s is None else timeout_s
        deadline = monotonic() + (min(allowed_s, FOREVER_S) if allowed_s > 0 else FOREVER_S)
        user = self.settings.credentials
        if user.user and user.password:
            pair = b64encode(f"{user.user}:{user.password}".encode()).decode()
            headers = {**request.headers, "Authorization": f"Basic {pair}"}
            request = HttpRequest(request.method, request.path, request.body, headers)
        http = HttpClient(self.settings)
        try:
            answer = http.ask(request, deadline, lambda answer: answer)
        except (RegisterUnreachable, RegisterRefused) as error:
            is_late = is_watch and monotonic() >= deadline
            kind = raised(EtcdWatchTimedOut if is_late else EtcdConnectionFailed)
            raise kind(str(error)) from error
        finally:
            http.close()
        if answer.status not in (200, 201):
            raise error_of(answer.status, _decoded(answer))
        return answer


def _path(key: str, query: str = "") -> str:
    path = f"/v2/keys/{quote(key.removeprefix('/'))}"
    return f"{path}?{query}" if query else path


def _query(asked: Mapping[str, object]) -> str:
    """What was given, in the words of the API."""
    words = {True: "true", False: "false"}
    given = {name: value for name, value in asked.items() if value is not None}
    return urlencode(
        {name: words[value] if isinstance(value, bool) else value for name, value in given.items()}
    )


def _decoded(answer: HttpAnswer) -> dict[str, Any]:
    """The object in an answer; a refusal may be no more than a text."""
    try:
        decoded = json.loads(answer.body)
    except ValueError:
        decoded = None
    if isinstance(decoded, dict):
        return decoded
    text = answer.body.decode("utf-8", "replace").strip()
    if answer.status in (200, 201):
        raise raised(EtcdException)(f"what etcd answered cannot be read: {text[:200]}")
    return {"message": text}
