"""Lines of workers, to a page: what they wrote last, and what they go on to write.

Rules
1. All nodes are asked once for what they have; it is sent in the order of time, the last
   `LINES_MOST` of it.
2. Then each node is followed by itself, so that none waits for another; of a large job all
   together, once a second.
3. A page that does not read is not sent more: nobody is asked until it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from holdfast.core.protocol.bounds import SLOTS_MOST
from holdfast.core.protocol.requests import WAIT_MOST_S, LogsAsked, LogsTold
from holdfast.dashboard.auth import SAFE_HEADERS
from holdfast.dashboard.ranks import parse_ranks
from holdfast.dashboard.source import AwaitedResponse, Source
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
EACH_MOST = 16
"""So many nodes are followed one by one."""
TOGETHER_S = 1.0
RETRY_S = 1.0
ALIVE_S = 5.0


class LinesWanted(Struct, frozen=True):
    """What somebody wants to see."""

    ranks: tuple[int, ...] = ()
    words: str = ""
    follow: bool = False

    def is_meant(self, line: LogLineShown) -> bool:
        return self.words in line.text.lower()


def wanted_of(request: PageRequest) -> LinesWanted | None:
    """None where its ranks are none, or too many."""
    ranks = parse_ranks(request.query.get("ranks", ""))
    if ranks is None or len(ranks) > SLOTS_MOST:
        return None
    words = request.query.get("grep", "").lower()
    return LinesWanted(tuple(sorted(ranks)), words, bool(request.query.get("follow")))


def lines_of(maker: LineMaker, node: str, told: LogsTold) -> list[LogLineShown]:
    """The lines that end in what a node has told."""
    return [
        LogLineShown(at, rank, "err" if block.stream == 2 else "out", text)
        for block in told.blocks
        for at, rank, text in maker.take(node, block)
    ]


class LogReader:
    """One page that reads logs."""

    def __init__(self, clock: Clock, source: Source, wanted: LinesWanted) -> None:
        self._clock, self._source, self._wanted = clock, source, wanted
        self.stream: HttpStream | None = None
        self._lines = LineMaker()
        self._last: dict[str, int] = {}
        self._cancels: dict[str, Callable[[], None]] = {}
        self._held: dict[str, Callable[[], None]] = {}
        """What goes on when the page reads again."""

    def begin(self) -> None:
        self._ask("", (), 0.0, self._on_first)

    def close(self) -> None:
        """The page has gone."""
        for cancel in self._cancels.values():
            cancel()
        self._cancels.clear()
        self._held.clear()

    def on_room(self) -> None:
        held, self._held = self._held, {}
        for go_on in held.values():
            go_on()

    def _ask(
        self,
        name: str,
        nodes: Sequence[str],
        wait_s: float,
        then: Callable[[AwaitedResponse], None],
    ) -> None:
        pending = AwaitedResponse(then)
        self._cancels[name] = pending.cancel
        request = LogsAsked(dict(self._last), self._wanted.ranks, wait_s)
        self._source.ask(request, pending, "some" if nodes else "all", nodes)

    def _on_first(self, answers: AwaitedResponse) -> None:
        if answers.problem:
            self._send("refused", {"words": answers.problem})
            self._end()
            return
        self._send("lines", self._lines_of(answers)[-LINES_MOST:])
        if not self._wanted.follow:
            self._end()
            return
        self._stay_alive()
        names = list(answers.by_node)
        if len(names) > EACH_MOST:
            self._follow("", TOGETHER_S)
        else:
            for name in names:
                self._follow(name, WAIT_MOST_S)

    def _follow(self, name: str, wait_s: float) -> None:
        if self.stream is None or not self.stream.has_room:
            self._held[name] = partial(self._follow, name, wait_s)
            return
        self._ask(name, (name,) if name else (), wait_s, partial(self._on_more, name, wait_s))

    def _on_more(self, name: str, wait_s: float, answers: AwaitedResponse) -> None:
        if answers.problem:
            go_on = partial(self._follow, name, wait_s)
            self._cancels[name] = self._clock.call_later(RETRY_S, go_on).cancel
            return
        lines = self._lines_of(answers)
        if lines:
            self._send("lines", lines)
        self._follow(name, wait_s)

    def _lines_of(self, answers: AwaitedResponse) -> list[LogLineShown]:
        found: list[LogLineShown] = []
        for node, told in answers.by_node.items():
            if not isinstance(told, LogsTold):
                continue
            self._last[node] = told.last
            found += filter(self._wanted.is_meant, lines_of(self._lines, node, told))
        return sorted(found, key=lambda line: line.at)

    def _stay_alive(self) -> None:
        self._send("alive", {})
        self._cancels["alive"] = self._clock.call_later(ALIVE_S, self._stay_alive).cancel

    def _send(self, kind: str, data: object) -> None:
        if self.stream is not None:
            self.stream.send(message(kind, data))

    def _end(self) -> None:
        if self.stream is not None:
            self.stream.close()


def read_logs(clock: Clock, source: Source, request: PageRequest, reply: HttpReply) -> None:
    """A page wants to read logs."""
    wanted = wanted_of(request)
    if wanted is None:
        reply(text_response(400, f"write ranks as numbers: 3, or 0-7; {SLOTS_MOST} at the most"))
        return
    reader = LogReader(clock, source, wanted)
    begin = HttpResponse(content_type=EVENTS, headers=SAFE_HEADERS)
    reader.stream = reply.stream(begin, reader.on_room, reader.close)
    if reader.stream is not None:
        reader.begin()
