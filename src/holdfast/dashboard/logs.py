"""Lines of workers for a page: the last ones, and those that follow.

Rules
1. All nodes are asked together, again and again; lines are sent in the order of time, at first the
   last `LINES_MOST`.
2. A page that does not read is not sent more: no node is asked until it has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from holdfast.core.protocol.bounds import SLOTS_MOST
from holdfast.core.protocol.requests import LogsAsked, LogsTold
from holdfast.dashboard.auth import SAFE_HEADERS
from holdfast.dashboard.source import AwaitedResponse, Source, interval_s
from holdfast.dashboard.wire import LogLineShown, message
from holdfast.observe.log_lines import LineMaker
from holdfast.runtime.loop import Clock
from holdfast.transport.http_model import (
    EVENTS,
    HttpReply,
    HttpResponse,
    HttpStream,
    PageRequest,
    text_response,
)

LINES_MOST = 3000
LINES_KEPT = 1500
"""Of a job that has ended."""
RANKS_MOST = 10_000
_RANKS = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


def parse_ranks(text: str) -> frozenset[int] | None:
    """`3`, `0-7` or `1,4,8-11`; empty for all; None for anything else (`frontend/src/words.ts`)."""
    found: set[int] = set()
    for part in re.split(r"[\s,]+", text.strip()):
        if not part:
            continue
        match = _RANKS.fullmatch(part.replace("–", "-"))
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= RANKS_MOST:
            return None
        found.update(range(first, last + 1))
    return frozenset(found) if len(found) <= RANKS_MOST else None


def lines_of(maker: LineMaker, node: str, told: LogsTold) -> list[LogLineShown]:
    """The lines that end in a node's answer."""
    return [
        LogLineShown(at, rank, "err" if block.stream == 2 else "out", text)
        for block in told.blocks
        for at, rank, text in maker.take(node, block)
    ]


class LogReader:
    """One page that reads logs: of these ranks, or of all, the lines with these words."""

    def __init__(
        self, clock: Clock, source: Source, ranks: Collection[int], words: str, *, follow: bool
    ) -> None:
        self._clock, self._source, self._follow = clock, source, follow
        self._ranks, self._words = tuple(sorted(ranks)), words.lower()
        self.stream: HttpStream | None = None
        self._lines = LineMaker()
        self._last: dict[str, int] = {}
        """By the name of each node, the number of its last block here."""
        self._has_begun = self._is_waiting_for_room = False
        self._cancel: Callable[[], object] = lambda: None

    def ask(self) -> None:
        """Ask for lines that are not here yet."""
        assert self.stream is not None, "a reader has a stream before it asks"
        self._is_waiting_for_room = not self.stream.has_room
        if not self._is_waiting_for_room:
            pending = AwaitedResponse(self._on_answers)
            self._cancel = pending.cancel
            request = LogsAsked(dict(self._last), self._ranks)
            self._source.ask(request, pending, "all")

    def close(self) -> None:
        """The page has gone."""
        self._cancel()

    def on_room(self) -> None:
        """The page has read all."""
        if self._is_waiting_for_room:
            self.ask()

    def _on_answers(self, answers: AwaitedResponse) -> None:
        assert self.stream is not None, "as above"
        lines = self._lines_of(answers)[-LINES_MOST:]
        is_first, self._has_begun = not self._has_begun, True
        if answers.problem and is_first:
            self.stream.send(message("refused", answers.problem))
        elif lines or is_first:
            self.stream.send(message("lines", lines))
        else:
            self.stream.send(message("alive", {}))
        if (answers.problem and is_first) or not self._follow:
            self.stream.close()
        else:
            again_s = interval_s(len(answers.by_node))
            self._cancel = self._clock.call_later(again_s, self.ask).cancel

    def _lines_of(self, answers: AwaitedResponse) -> list[LogLineShown]:
        found: list[LogLineShown] = []
        for node, told in answers.by_node.items():
            if isinstance(told, LogsTold):
                self._last[node] = told.last
                found += lines_of(self._lines, node, told)
        found = [line for line in found if self._words in line.text.lower()]
        return sorted(found, key=lambda line: line.at)


def read_logs(clock: Clock, source: Source, request: PageRequest, reply: HttpReply) -> None:
    """Send a page the lines that it wants."""
    ranks = parse_ranks(request.query.get("ranks", ""))
    if ranks is None or len(ranks) > SLOTS_MOST:
        reply(text_response(400, f"write ranks as numbers: 3, or 0-7; {SLOTS_MOST} at the most"))
        return
    words, follow = request.query.get("grep", ""), bool(request.query.get("follow"))
    reader = LogReader(clock, source, ranks, words, follow=follow)
    begin = HttpResponse(content_type=EVENTS, headers=SAFE_HEADERS)
    reader.stream = reply.stream(begin, reader.on_room, reader.close)
    if reader.stream is not None:
        reader.ask()
