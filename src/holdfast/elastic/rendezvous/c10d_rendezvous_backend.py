"""A backend in one of PyTorch's stores. Needs PyTorch where `create_backend` makes the store.

The document is one key, in base64. PyTorch's `compare_set` returns what is there afterwards, and
`get` waits for a key that is missing; so a word that no document can be stands for nothing.
"""

from __future__ import annotations

import binascii
import tempfile
from base64 import b64decode, b64encode
from datetime import timedelta
from importlib import import_module
from typing import Any

from holdfast.core.policy.config import DEFAULT_PORT
from holdfast.core.policy.rendezvous_settings import read
from holdfast.elastic.events import NodeState, construct_and_record_rdzv_event
from holdfast.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousParameters,
    RendezvousStateError,
)
from holdfast.elastic.rendezvous.dynamic_rendezvous import (
    READ_TIMEOUT_S,
    RendezvousBackend,
    Token,
    given_in,
)
from holdfast.elastic.rendezvous.utils import (
    _matches_machine_hostname,
    parse_rendezvous_endpoint,
    told_as_value_errors,
)

__all__ = ["C10dRendezvousBackend", "create_backend"]

NOTHING = b"?"
"""Which is not base64, and so no document."""


class C10dRendezvousBackend(RendezvousBackend):
    """One key of a store that has `get` and `compare_set`."""

    def __init__(self, store: Any, run_id: str) -> None:
        if not run_id:
            raise ValueError("a rendezvous needs a run id")
        self._store = store
        self._key = f"torch.rendezvous.{run_id}"
        self._ask("compare_set", self._key, "", NOTHING.decode())

    @property
    def name(self) -> str:
        return "c10d"

    def get_state(self) -> tuple[bytes, Token] | None:
        return _decoded(self._ask("get", self._key))

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        if token and not isinstance(token, bytes):
            found = self.get_state()  # It cannot be a token of ours.
            return None if found is None else (*found, False)
        desired = b64encode(state)
        expected = token or NOTHING
        value = self._ask("compare_set", self._key, expected.decode(), desired.decode())
        found = _decoded(value)
        return None if found is None else (*found, value == desired)

    def _ask(self, call: str, *words: str) -> bytes:
        try:
            answer: bytes = getattr(self._store, call)(*words)
            return answer
        except (ValueError, RuntimeError, TimeoutError) as error:
            raise RendezvousConnectionError(f"the store does not answer: {error}") from error


def _decoded(value: bytes) -> tuple[bytes, Token] | None:
    if value == NOTHING:
        return None
    try:
        return b64decode(value), value
    except binascii.Error as error:
        raise RendezvousStateError(f"what the store holds is damaged: {error}") from error


def create_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, Any]:
    """A backend and the store that it is in.

    `store_type` is `tcp` or `file`; for the first, `read_timeout` is in seconds, and `is_host`
    says whether this process serves it, which is found out where nothing is said.
    """
    try:
        with told_as_value_errors():
            on_disk = read(given_in(params), "store_type") == "file"
            store = _file_store(params) if on_disk else _tcp_store(params)
        return C10dRendezvousBackend(store, params.run_id), store
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        construct_and_record_rdzv_event(params.run_id, said, NodeState.FAILED)
        raise


def _tcp_store(params: RendezvousParameters) -> Any:
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    given = given_in(params)
    timeout_s = read(given, "read_timeout") or READ_TIMEOUT_S
    said = read(given, "is_host")
    is_host = _matches_machine_hostname(host) if said is None else said
    # Another process of this machine may serve it already.
    turns = [True, False] if is_host and said is None else [is_host]
    make = import_module("torch.distributed").TCPStore
    problem: Exception | None = None
    for serves in turns:
        try:
            span = timedelta(seconds=timeout_s)
            return make(host, port, is_master=serves, multi_tenant=True, timeout=span)
        except (ValueError, RuntimeError, TimeoutError) as error:
            problem = error
    raise RendezvousConnectionError(f"no store at {host}:{port}: {problem}") from problem


def _file_store(params: RendezvousParameters) -> Any:
    path = params.endpoint
    try:
        if not path:
            path = tempfile.mkstemp()[1]
        return import_module("torch.distributed").FileStore(path)
    except OSError as error:
        raise RendezvousError(f"no file for the store: {error}") from error
    except (ValueError, RuntimeError) as error:
        raise RendezvousConnectionError(f"no store in {path}: {error}") from error
