"""A backend in etcd, over its v2 API: a face of `control.registers.etcd_v2`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.control.registers.etcd_v2 import EtcdV2Register
from holdfast.control.registers.register import RegisterRefused, RegisterUnreachable
from holdfast.core.config import ETCD_PORT
from holdfast.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousStateError,
)
from holdfast.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, Token
from holdfast.elastic.rendezvous.etcd_client import EtcdClient
from holdfast.elastic.rendezvous.etcd_store import KEEP_S, EtcdStore, settings_of
from holdfast.elastic.rendezvous.utils import parse_rendezvous_endpoint

__all__ = ["EtcdRendezvousBackend", "create_backend"]

T = TypeVar("T")
READ_TIMEOUT_S = 60
KEY_PREFIX, STORE_PREFIX = "/torch/elastic/rendezvous", "/torch/elastic/store"


class EtcdRendezvousBackend(RendezvousBackend):
    """One key of the etcd that `client` asks, an `EtcdClient` or a `Client` of python-etcd."""

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
    timeout_s = params.get_as_int("read_timeout", READ_TIMEOUT_S)
    if timeout_s is None or timeout_s <= 0:
        raise ValueError("the read timeout has to be above zero")
    protocol = params.get("protocol", "http").strip().lower()
    if protocol not in ("http", "https"):
        raise ValueError(f"the protocol {protocol!r} is neither http nor https")
    host, port = parse_rendezvous_endpoint(params.endpoint, ETCD_PORT)
    certificate, key = params.get("ssl_cert"), params.get("ssl_cert_key")
    client = EtcdClient(
        host,
        port,
        read_timeout=timeout_s,
        protocol=protocol,
        cert=(certificate, key) if certificate and key else certificate,
        ca_cert=params.get("ca_cert"),
    )
    backend = EtcdRendezvousBackend(client, params.run_id, KEY_PREFIX)
    return backend, EtcdStore(client, STORE_PREFIX)
