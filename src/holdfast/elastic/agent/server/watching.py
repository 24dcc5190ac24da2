"""Hearing of something when it happens, from anything that can be waited for.

An agent looks at its workers and its group every `monitor_interval`. What it can wait for, it
need not wait so long for: a `NewsWatch` does that in a thread, and sets `news`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.elastic.utils.logging import get_logger

LOOK_UP_S = 1.0
"""The time in which a thread that is not needed any more notices it."""

logger = get_logger(__name__)


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
