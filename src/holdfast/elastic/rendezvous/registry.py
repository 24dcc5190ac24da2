"""Handlers by name, those of other packages included.

Rules
- What was registered in this process comes first, then our own backends, then what installed
  packages offer in the group `torchrun.handlers`: a function that returns a maker of handlers.
- Importing this module registers our own, unless somebody has the name. To put another in the
  place of one of them, launchers remove it first: `del handler_registry._registry["c10d"]`.
- A package is loaded when its handler is asked for, and not before. One that cannot be loaded
  is no concern of those who ask for another.
"""

from __future__ import annotations

from holdfast.core.policy.config import BACKENDS, STATIC_BACKEND
from holdfast.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousHandlerCreator,
    RendezvousParameters,
    rendezvous_handler_registry,
)

__all__ = ["get_rendezvous_handler"]

HANDLER_GROUP = "torchrun.handlers"

handler_registry = rendezvous_handler_registry


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A handler of the backend that the parameters name.

    ValueError if there is none, or its package cannot be loaded; RuntimeError if the handler
    is of another backend.
    """
    return handler_registry.create_handler(params)


def own_creator(backend: str) -> RendezvousHandlerCreator | None:
    """The maker of handlers for one of our own backends, if it is one."""
    return _own_handler if backend in BACKENDS else None


def _own_handler(params: RendezvousParameters) -> RendezvousHandler:
    if params.backend == STATIC_BACKEND:
        from holdfast.elastic.rendezvous.static_tcp_rendezvous import create_rdzv_handler

        return create_rdzv_handler(params)
    from holdfast.elastic.rendezvous.holdfast_rendezvous import create_handler

    return create_handler(params)


def installed_creator(backend: str) -> RendezvousHandlerCreator | None:
    """The maker of handlers that an installed package offers under this name, if any."""
    from importlib.metadata import entry_points

    for offer in entry_points(group=HANDLER_GROUP, name=backend):
        try:
            creator: RendezvousHandlerCreator = offer.load()()
        except Exception as error:
            raise ValueError(
                f"the backend {backend!r} of {offer.value} cannot be loaded: {error}"
            ) from error
        return creator
    return None


for _backend in BACKENDS:
    handler_registry._registry.setdefault(_backend, _own_handler)
