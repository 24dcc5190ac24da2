"""Holdfast's rendezvous inside the stock launcher: `torchrun --rdzv-backend=holdfast`.

PyTorch finds `handler_maker` through the entry point `holdfast` of the group `torchrun.handlers`.
What it gets is a handler of ours that is one of PyTorch's own kind too: what came of a meeting, and
the errors, it tells in PyTorch's classes. This module needs PyTorch; it is loaded by nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

from holdfast.elastic.rendezvous import api
from holdfast.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from holdfast.elastic.rendezvous.holdfast_rendezvous import handler_of_kind


@cache
def handler_maker() -> Callable[[Any], Any]:
    """The entry point for PyTorch: a maker of handlers from its own parameters."""
    theirs = import_module("torch.distributed.elastic.rendezvous")

    class HoldfastHandler(DynamicRendezvousHandler, theirs.RendezvousHandler):  # type: ignore[misc, name-defined]
        def next_rendezvous(self) -> Any:
            try:
                met = super().next_rendezvous()
            except api.RendezvousError as error:
                raise getattr(theirs, type(error).__name__)(str(error)) from error
            place = met.bootstrap_store_info
            assert place is not None, "our handlers always say where"
            where = theirs.RendezvousStoreInfo(place.master_addr, place.master_port)
            return theirs.RendezvousInfo(met.store, met.rank, met.world_size, where)

    # PyTorch's parameters have all that is asked of ours.
    return partial(handler_of_kind, HoldfastHandler)
