"""A backend in etcd, over its v2 API: a face of `registers.etcd_v2`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.core.policy.config import ETCD_PORT
from holdfast.core.policy.rendezvous_settings import read
from holdfast.core.protocol.endpoint import Endpoint
from holdfast.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousStateError,
)
from holdfast.elastic.rendezvous.dynamic_rendezvous import (
    READ_TIMEOUT_S,
    RendezvousBackend,
    Token,
    given_in,
)
from holdfast.elastic.rendezvous.etcd_store import KEEP_S, EtcdStore, settings_of
from holdfast.elastic.rendezvous.utils import parse_rendezvous_endpoint, told_as_value_errors
from holdfast.registers.etcd_v2 import EtcdV2Register
from holdfast.registers.register import RegisterRefused, RegisterSettings, RegisterUnreachable

__all__ = ["EtcdRendezvousBackend", "create_backend"]

T = TypeVar("T")
CERTIFICATES = {"ssl_cert": "cert", "ssl_cert_key": "key", "ca_cert": "cacert"}
KEY_PREFIX, STORE_PREFIX = "/torch/elastic/rendezvous", "/torch/elastic/store"


class EtcdRendezvousBackend(RendezvousBackend):
    """One key of the etcd that `client` asks: a `Client` of python-etcd, or settings of ours."""

    def __init__(
        self, client: Any, run_id: str, key_prefix: str | None = None, ttl: int | None = None
    ) -> None:
        if not run_id:
            raise ValueError("a rendezvous needs a run id")
        keep_s = ttl if ttl and ttl > 0 else KEEP_S
        self._register = EtcdV2Register(settings_of(client, key_prefix or "", run_id, keep_s))
        weakref.finalize(self, self._register.close)

    @property
    def name(self) -> str:
        return "etcd-v2"

    def get_state(self) -> tuple[bytes, Token] | None:
        return _in_pytorchs_words(self._register.get_state)

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        content, now_token, has_set = _in_pytorchs_words(
            lambda: self._register.set_state(state, token)
        )
        return None if now_token is None else (content, now_token, has_set)


def _in_pytorchs_words(call: Callable[[], T]) -> T:
    try:
        return call()
    except RegisterUnreachable as error:
        raise RendezvousConnectionError(f"etcd does not answer: {error}") from error
    except RegisterRefused as error:
        raise RendezvousStateError(f"etcd: {error}") from error


def create_backend(params: RendezvousParameters) -> tuple[EtcdRendezvousBackend, EtcdStore]:
    """A backend and a store.

    The settings: `read_timeout` in seconds, `protocol` (http or https), `ssl_cert`,
    `ssl_cert_key` and `ca_cert`.
    """
    given = given_in(params)
    with told_as_value_errors():
        options = {
            "protocol": read(given, "protocol") or "http",
            "read_timeout": str(read(given, "read_timeout") or READ_TIMEOUT_S),
        }
    options |= {ours: given[theirs] for theirs, ours in CERTIFICATES.items() if theirs in given}
    host, port = parse_rendezvous_endpoint(params.endpoint, ETCD_PORT)
    settings = RegisterSettings("etcd-v2", str(Endpoint(host, port)), "", options)
    backend = EtcdRendezvousBackend(settings, params.run_id, KEY_PREFIX)
    return backend, EtcdStore(settings, STORE_PREFIX)
