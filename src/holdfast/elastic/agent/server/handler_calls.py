"""Calls that a handler may offer besides the methods of a `RendezvousHandler`.

- `wait_for_change(timeout: float) -> bool` blocks until another rendezvous is wanted (nodes wait,
  a member is lost, the job is over) and returns True, or returns False after `timeout` seconds.
  It is called in a thread of the agent, and may be called by two at once.
- `workers_succeeded()`: all workers of this agent have ended well. It goes to the exit barrier.
- `workers_failed(reason: str)`: they have failed for good, and are gone.
- `leave()`: a signal ended them and the agent; the others may go on.

Our own handlers have them. Those of others need not, and nothing depends on it: an agent then
asks every `monitor_interval`, and what has become of it is known when it is gone.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from holdfast.elastic.multiprocessing import SignalException
from holdfast.elastic.rendezvous import RendezvousGracefulExitError
from holdfast.elastic.utils.logging import get_logger

LOOK_UP_S = 1.0
"""The time in which a thread that is not needed any more notices it."""

logger = get_logger(__name__)


def of_changes(handler: Any) -> Callable[[float], object] | None:
    """The handler's call that waits for a change of the group, if it has one."""
    return _found(handler, "wait_for_change")


def tell(handler: Any, what: str, *args: object) -> None:
    """Call this of a handler that has it. Raises only what a signal raised."""
    call = _found(handler, what)
    if call is None:
        return
    try:
        call(*args)
    except SignalException:
        raise
    except Exception as error:  # noqa: BLE001 - the handler is anybody's code
        logger.warning("the handler could not be told of %s: %s", what, error)


def says_that_the_node_may_go(error: Exception) -> bool:
    """Whether that is what a handler means by this; one that was written for PyTorch's too."""
    theirs = sys.modules.get("torch.distributed.elastic.rendezvous.api")
    kinds = (RendezvousGracefulExitError, getattr(theirs, "RendezvousGracefulExitError", None))
    return isinstance(error, tuple(kind for kind in kinds if kind is not None))


def _found(handler: Any, name: str) -> Callable[..., object] | None:
    # Of the class: an object that pretends to have every attribute tells of nothing.
    if not callable(getattr(type(handler), name, None)):
        return None
    call: Callable[..., object] = getattr(handler, name)
    return call


class NewsWatch:
    """Sets `news` when `listen` has heard of something, once, unless it is stopped before.

    `listen` waits for so many seconds at most, and returns something true when it has heard.
    """

    def __init__(self, listen: Callable[[float], object], news: threading.Event) -> None:
        self._listen = listen
        self._news = news
        self._is_over = False
        threading.Thread(target=self._watch, name="holdfast watch", daemon=True).start()

    def stop(self) -> None:
        """Set nothing from now on. The thread ends soon after."""
        self._is_over = True

    def _watch(self) -> None:
        try:
            while not self._is_over:
                if self._listen(LOOK_UP_S):
                    break
        except Exception:
            # The agent looks for itself, and hears then what is wrong.
            logger.debug("%s cannot be waited for", self._listen, exc_info=True)
        if not self._is_over:
            self._news.set()
