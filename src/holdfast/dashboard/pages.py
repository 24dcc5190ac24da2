"""The content of all pages of one server, and the open pages with what each of them was told.

A page is told how often it hears something. Where it hears nothing for more than twice as long, it
takes its connection for dead, and tries another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from holdfast.dashboard import wire
from holdfast.dashboard.auth import SAFE_HEADERS
from holdfast.observe.goodput import Segment
from holdfast.observe.story import StoryEvent
from holdfast.runtime.loop import Cancellable, Clock
from holdfast.transport.http_model import EVENTS, HttpReply, HttpResponse, HttpStream

ALIVE_S = 5.0
WHOLE = (
    "job", "nodes", "segments", "lanes", "incidents", "ledger", "dashboards", "lines", "trouble",
)  # fmt: skip
"""Parts of a page's content that are sent as a whole when they differ."""
Column = Sequence[float | int | None]


class WorkersShown(Struct, frozen=True):
    """All workers at one moment, a column for each fact about them."""

    at: float
    base_step: int
    """A worker's own step is sent as the difference to this one."""
    count: int
    columns: Mapping[str, Column]
    notes: Sequence[str] = ("",)
    """The meaning of the numbers of the column `note`."""


class PageState(Struct):
    """The present content of a page. Its parts are replaced, not changed; `events` only grows."""

    job: wire.JobShown | None = None
    nodes: list[wire.NodeShown] = []
    workers: WorkersShown | None = None
    events: list[StoryEvent] = []
    incidents: list[wire.IncidentShown] = []
    segments: list[Segment] = []
    lanes: list[wire.LaneShown] = []
    ledger: wire.LedgerShown | None = None
    dashboards: list[wire.DashboardShown] = []
    lines: list[wire.LogLineShown] = []
    """The last lines of workers, once the job has ended."""
    trouble: str = ""
    """Why the job cannot be asked right now."""

    def clear(self) -> None:
        fresh = PageState()
        for name in self.__struct_fields__:
            setattr(self, name, getattr(fresh, name))


class OpenPage:
    """One page, and what it was told."""

    def __init__(self) -> None:
        self.stream: HttpStream | None = None
        fresh = PageState()
        self._told: dict[str, object] = {name: getattr(fresh, name) for name in WHOLE}
        self._workers: WorkersShown | None = None
        self._events = 0

    def send(self, data: bytes) -> None:
        if self.stream is not None and data:
            self.stream.send(data)

    def tell(self, state: PageState) -> None:
        """Send all news. A page that does not read gets them when it does again."""
        if self.stream is not None and self.stream.has_room:
            self.send(self.news(state))

    def news(self, state: PageState) -> bytes:
        """All that this page was not told yet, as messages."""
        now = {name: getattr(state, name) for name in WHOLE}
        news = [wire.message(name, part) for name, part in now.items() if part != self._told[name]]
        self._told = now
        if len(state.events) > self._events:
            news.append(wire.message("events", state.events[self._events :]))
        self._events = len(state.events)
        news.append(self._news_of_workers(state.workers))
        return b"".join(news)

    def _news_of_workers(self, now: WorkersShown | None) -> bytes:
        before, self._workers = self._workers, now
        if now is None or now is before:
            return b""
        known = before.columns if before is not None else {}
        changed = {
            name: column for name, column in now.columns.items() if column != known.get(name)
        }
        return wire.message(
            "ranks",
            {
                "at": now.at,
                "base_step": now.base_step,
                "count": now.count,
                "columns": changed,
                "notes": now.notes,
            },
        )


class Pages:
    """All open pages of one content. Without any, nothing here runs."""

    def __init__(
        self, clock: Clock, state: PageState, alive_s: float = ALIVE_S, *, lists_jobs: bool = False
    ) -> None:
        """`lists_jobs`: the jobs of this machine can be chosen from these pages."""
        self._clock, self._state, self._alive_s = clock, state, alive_s
        self._lists_jobs = lists_jobs
        self.on_first: Callable[[], object] = lambda: None
        """Called when the first page is opened."""
        self.on_none: Callable[[], object] = lambda: None
        """Called when the last one is gone."""
        self._open: set[OpenPage] = set()
        self._timer: Cancellable | None = None

    def open(self, reply: HttpReply) -> None:
        """Begin the stream of a new page."""
        page = OpenPage()
        begin = HttpResponse(content_type=EVENTS, headers=SAFE_HEADERS)
        page.stream = reply.stream(
            begin, lambda: page.tell(self._state), lambda: self._remove(page)
        )
        if page.stream is None:
            return
        self._open.add(page)
        hello = {"at": time.time(), "alive_s": self._alive_s, "lists_jobs": self._lists_jobs}
        page.send(wire.message("hello", hello))
        page.tell(self._state)
        if len(self._open) == 1:
            self._stay_alive()
            self.on_first()

    def _remove(self, page: OpenPage) -> None:
        if page in self._open:
            self._open.remove(page)
            self._end_if_none()

    def tell(self) -> None:
        """Send all news to all pages."""
        for page in self._open:
            page.tell(self._state)

    def close(self) -> None:
        for page in self._open:
            if page.stream is not None:
                page.stream.close()
        if self._open:
            self._open.clear()
            self._end_if_none()

    def _end_if_none(self) -> None:
        if self._open:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self.on_none()

    def _stay_alive(self) -> None:
        for page in self._open:
            page.send(wire.message("alive", {}))
        self._timer = self._clock.call_later(self._alive_s, self._stay_alive)
