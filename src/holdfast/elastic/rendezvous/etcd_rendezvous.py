"""The backend `etcd`: here it is etcd's v3 API, and the rendezvous is the dynamic one."""

from __future__ import annotations

from holdfast.elastic.rendezvous.api import RendezvousHandler, RendezvousParameters
from holdfast.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from holdfast.elastic.rendezvous.holdfast_rendezvous import create_handler

__all__ = ["EtcdRendezvousHandler", "create_rdzv_handler"]

EtcdRendezvousHandler = DynamicRendezvousHandler


def create_rdzv_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A handler. The settings are those of the dynamic one, and `timeout` (of joining),
    `etcd_prefix`, `protocol`, `cacert`, `cert` and `key`."""
    return create_handler(params)
