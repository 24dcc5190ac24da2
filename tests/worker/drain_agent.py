"""An agent that asks workers to save, as a plain server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from typing import Any

from holdfast.core.node_io import ShowSaving
from holdfast.processes.channel_server import Answer, ChannelServer
from holdfast.processes.saving_page import DrainPage
from holdfast.runtime.local_peer import LocalPeer
from holdfast.worker.draining import KEY, NEWS

DEADLINE_S = 60


class Agent:
    """Serves the channel in a thread, as an agent does, and notes what is said."""

    def __init__(self, signals: Iterable[str] = ()) -> None:
        self.page = DrainPage(signals)
        self.heard: list[dict[str, Any]] = []
        self._said = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self.server = ChannelServer(self._loop, self._hear)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def _hear(self, _peer: LocalPeer, message: dict[str, Any]) -> Answer | None:
        if KEY not in message:
            return None  # Of somebody else in this process, who found the channel too.
        with self._said:
            self.heard.append(message)
            self._said.notify_all()
        return Answer(NEWS, self.page.descriptor) if message[KEY] == "listens" else None

    def until_heard(self, *answers: str) -> None:
        with self._said:
            heard = self._said.wait_for(lambda: self.answers() == list(answers), DEADLINE_S)
        assert heard, self.answers()

    def answers(self) -> list[str]:
        return [message[KEY] for message in self.heard]

    def show(
        self,
        step: int | None = None,
        within_s: float = DEADLINE_S,
        serial: int = 1,
        leaves: bool = True,
    ) -> None:
        until = time.clock_gettime(time.CLOCK_BOOTTIME) + within_s
        self.page.show(ShowSaving(until, "b is leaving", step, serial, leaves))
        self._loop.call_soon_threadsafe(self.server.tell_news, NEWS)

    def hide(self) -> None:
        self.page.clear()
        self._loop.call_soon_threadsafe(self.server.tell_news, NEWS)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self.server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.page.close()
