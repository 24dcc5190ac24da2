"""The registry of handlers, with our own in it.

Importing this package registers them, unless somebody has the name. To put another in the place of
one of them, launchers remove it first: `del handler_registry._registry["c10d"]`.
"""

from __future__ import annotations

from holdfast.core.policy.config import BACKENDS, STATIC_BACKEND
from holdfast.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousParameters,
    rendezvous_handler_registry,
)

__all__ = ["get_rendezvous_handler"]

handler_registry = rendezvous_handler_registry


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A handler of the backend that the parameters name (`RendezvousHandlerRegistry`)."""
    return handler_registry.create_handler(params)


def _own_handler(params: RendezvousParameters) -> RendezvousHandler:
    if params.backend == STATIC_BACKEND:
        from holdfast.elastic.rendezvous.static_tcp_rendezvous import create_rdzv_handler

        return create_rdzv_handler(params)
    from holdfast.elastic.rendezvous.holdfast_rendezvous import create_handler

    return create_handler(params)


for _backend in BACKENDS:
    handler_registry._registry.setdefault(_backend, _own_handler)
