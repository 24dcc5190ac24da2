"""What passes between an agent and its workers when they are to save (`core.features.saving.node`).

The agent shows it on a page that its workers can read (`drain_page`), and those that wait hear over
the channel that there is news. What they say of it becomes an event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from holdfast.core.node_io import NO_STEP, NodeEvent, SaveAnswered, SavingAnswer, ShowSaving
from holdfast.processes.channel_server import Answer, ChannelServer
from holdfast.processes.drain_page import DrainPage
from holdfast.worker.draining import KEY, NEWS

ANSWERS: dict[str, SavingAnswer] = {
    "listens": "listens",
    "waits": "waits",
    "told": "told",
    "saved": "saved",
    "goes on": "goes on",
}
"""What a worker may say about saving."""


class SavingNews:
    """The page of a node, made when the first worker listens or is to be shown something."""

    def __init__(self, post: Callable[[NodeEvent], None], signals: Iterable[str]) -> None:
        """`signals` ask a node to leave."""
        self._post = post
        self._signals = signals
        self._page: DrainPage | None = None

    def show(self, effect: ShowSaving, channel: ChannelServer) -> None:
        self._shown().show(effect)
        channel.tell_news(NEWS)

    def hide(self, channel: ChannelServer) -> None:
        self.clear()
        channel.tell_news(NEWS)

    def take(self, round: int, local_rank: int, message: Mapping[str, object]) -> Answer | None:
        """A worker asks for the page, or says how it stands with saving."""
        said, step, serial = message[KEY], message.get("step"), message.get("serial")
        answer = ANSWERS.get(said) if isinstance(said, str) else None
        if answer is None:
            return None
        at = step if type(step) is int else NO_STEP
        of = serial if type(serial) is int else 0
        self._post(SaveAnswered(round, local_rank, answer, at, of))
        return Answer(NEWS, self._shown().descriptor) if answer == "listens" else None

    def clear(self) -> None:
        """For the workers of the next round."""
        if self._page is not None:
            self._page.clear()

    def close(self) -> None:
        if self._page is not None:
            self._page.close()

    def _shown(self) -> DrainPage:
        if self._page is None:
            self._page = DrainPage(self._signals)
        return self._page
