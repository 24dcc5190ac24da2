"""A node's part in requests about the job: those that are asked here, and those put to it.

An outsider who asks here gets its answers from the coordinator, which may be this very node. The
core keeps account of who has answered (`core.features.requests`); here each request has
the one who waits for it.

Rules
1. Whoever asks is told exactly once that no further answer comes, whatever happens: the coordinator
   says so, or is lost, or has not answered for too long.
2. After `drop`, nothing more is told to that asker.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.features.requests import PATIENCE_S
from holdfast.core.protocol.messages import (
    CloseRequest,
    ForwardRequest,
    FromNode,
    OfRequests,
    PassResponse,
    RequestAnswered,
    RequestMade,
)
from holdfast.engine.ports import Ports
from holdfast.runtime.loop import Cancellable

COORDINATOR_PATIENCE_S = PATIENCE_S + 5.0
"""It settles everything before that, if it is there."""
NO_COORDINATOR = "this node has no coordinator right now; ask again in a moment"


class Asker(Protocol):
    """Who waits for answers."""

    def on_answer(self, number: int, node: str, answer: bytes) -> None: ...
    def on_settled(self, settled: CloseRequest) -> None: ...


class Waiting(Struct):
    """A request that was asked here."""

    asker: Asker
    number: int
    """The asker's own."""
    timer: Cancellable


class Requests:
    """All that is asked on one node, or of it."""

    def __init__(self, ports: Ports, send: Callable[[FromNode], None]) -> None:
        """`send` reaches the coordinator, if there is one."""
        self._ports, self._send = ports, send
        self._last_number = 0
        self._waiting: dict[int, Waiting] = {}
        self._is_reached = False

    def ask(self, asker: Asker, request: RequestMade) -> None:
        """Have it answered; `asker` is told, maybe from within."""
        if not self._is_reached:
            asker.on_settled(CloseRequest(request.number, NO_COORDINATOR))
            return
        self._last_number += 1
        number = self._last_number
        give_up = partial(self._settle, number, CloseRequest(0, NO_COORDINATOR))
        timer = self._ports.clock.call_later(COORDINATOR_PATIENCE_S, give_up)
        self._waiting[number] = Waiting(asker, request.number, timer)
        self._send(replace(request, number=number))

    def told(self, message: OfRequests) -> None:
        """The coordinator said this."""
        match message:
            case ForwardRequest():
                reply = partial(self._reply, message.number)
                self._ports.answer(message.request, reply)
            case PassResponse():
                waiting = self._waiting.get(message.number)
                if waiting is not None:
                    waiting.asker.on_answer(waiting.number, message.node, message.answer)
            case CloseRequest():
                self._settle(message.number, message)

    def reached(self) -> None:
        """There is a coordinator."""
        self._is_reached = True

    def lost(self, reason: str) -> None:
        """The coordinator is gone, and with it every request that it was asked."""
        self._is_reached = False
        for number in list(self._waiting):
            self._settle(number, CloseRequest(0, f"the coordinator was lost: {reason}"))

    def drop(self, asker: Asker) -> None:
        """Nobody is there any more who would want to know."""
        for number, waiting in list(self._waiting.items()):
            if waiting.asker is asker:
                self._waiting.pop(number).timer.cancel()

    def close(self) -> None:
        for waiting in self._waiting.values():
            waiting.timer.cancel()
        self._waiting.clear()

    def _reply(self, number: int, answer: bytes) -> None:
        self._send(RequestAnswered(number, answer))

    def _settle(self, number: int, settled: CloseRequest) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.asker.on_settled(replace(settled, number=waiting.number))
