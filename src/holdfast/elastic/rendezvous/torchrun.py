"""Holdfast's rendezvous inside the stock launcher: `torchrun --rdzv-backend=holdfast`.

PyTorch finds `handler_maker` through the entry point `holdfast` of the group `torchrun.handlers`.
What it gets is a handler of PyTorch's own kind that passes everything on to one of ours, and tells
the errors in PyTorch's classes. This module needs PyTorch; it is loaded by nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from holdfast.elastic.rendezvous import api
from holdfast.elastic.rendezvous.holdfast_rendezvous import create_handler


@cache
def handler_maker() -> Callable[[Any], Any]:
    """What PyTorch registers: a maker of handlers from its own parameters."""
    theirs = import_module("torch.distributed.elastic.rendezvous")

    class HoldfastHandler(theirs.RendezvousHandler):  # type: ignore[misc, name-defined]
        def __init__(self, params: Any) -> None:
            own = api.RendezvousParameters(
                params.backend,
                params.endpoint,
                params.run_id,
                params.min_nodes,
                params.max_nodes,
                params.local_addr,
                **params.config,
            )
            self._handler = create_handler(own)

        def get_backend(self) -> str:
            return self._handler.get_backend()

        @property
        def use_agent_store(self) -> bool:
            return self._handler.use_agent_store

        def next_rendezvous(self) -> Any:
            try:
                met = self._handler.next_rendezvous()
            except api.RendezvousError as error:
                raise getattr(theirs, type(error).__name__)(str(error)) from error
            place = met.bootstrap_store_info
            assert place is not None, "our handlers always say where"
            where = theirs.RendezvousStoreInfo(place.master_addr, place.master_port)
            return theirs.RendezvousInfo(met.store, met.rank, met.world_size, where)

        def is_closed(self) -> bool:
            return self._handler.is_closed()

        def set_closed(self) -> None:
            self._handler.set_closed()

        def num_nodes_waiting(self) -> int:
            return self._handler.num_nodes_waiting()

        def get_run_id(self) -> str:
            return self._handler.get_run_id()

        def shutdown(self) -> bool:
            return self._handler.shutdown()

    return HoldfastHandler
