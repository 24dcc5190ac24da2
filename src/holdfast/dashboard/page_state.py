"""What all pages of one server see, and what each of them has heard of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from holdfast.dashboard.changes import Column, changed_columns, changed_items
from holdfast.dashboard.wire import (
    DashboardShown,
    IncidentShown,
    JobShown,
    LaneShown,
    LedgerShown,
    LogLineShown,
    NodeShown,
    SegmentShown,
    message,
)
from holdfast.observe.story import StoryEvent
from holdfast.transport.http_model import HttpStream


class WorkersShown(Struct, frozen=True):
    """All workers at one moment, a column for each thing that is known of them."""

    at: float
    base_step: int
    """What a worker's own step is told as the difference to."""
    count: int
    columns: Mapping[str, Column]
    notes: Sequence[str] = ("",)
    """What the numbers of the column `note` mean."""


class PageState(Struct):
    """Everything that a page shows, as it is now."""

    job: JobShown | None = None
    nodes: list[NodeShown] = field(default_factory=list)
    workers: WorkersShown | None = None
    events: list[StoryEvent] = field(default_factory=list)
    incidents: list[IncidentShown] = field(default_factory=list)
    segments: list[SegmentShown] = field(default_factory=list)
    lanes: list[LaneShown] = field(default_factory=list)
    ledger: LedgerShown | None = None
    dashboards: Sequence[DashboardShown] = ()
    lines: Sequence[LogLineShown] = ()
    """The last lines of workers, once the job has ended."""
    trouble: str = ""
    """Why the job cannot be asked right now."""

    def clear(self) -> None:
        """Know nothing again."""
        fresh = PageState()
        for name in self.__struct_fields__:
            setattr(self, name, getattr(fresh, name))


class Subscriber:
    """One page, and what it has heard."""

    def __init__(self) -> None:
        self.stream: HttpStream | None = None
        self._sent: dict[str, object] = {"trouble": "", "dashboards": (), "lines": ()}
        self._lists: dict[str, list[Any]] = {}
        self._workers: WorkersShown | None = None
        self._events = 0

    def send(self, data: bytes) -> None:
        if self.stream is not None and data:
            self.stream.send(data)

    def tell(self, state: PageState) -> None:
        """All that it has not heard. A page that does not read is told when it does again."""
        if self.stream is not None and self.stream.has_room:
            self.send(self.news(state))

    def news(self, state: PageState) -> bytes:
        """All that it has not heard, as messages."""
        told = [
            self._whole("job", state.job),
            self._listed("nodes", state.nodes),
            self._events_of(state),
            self._listed("segments", state.segments),
            self._listed("lanes", state.lanes),
            self._listed("incidents", state.incidents),
            self._whole("ledger", state.ledger),
            self._whole("dashboards", state.dashboards),
            self._workers_of(state.workers),
            self._whole("lines", state.lines),
        ]
        if state.trouble != self._sent["trouble"]:
            self._sent["trouble"] = state.trouble
            told.append(message("trouble", {"words": state.trouble}))
        return b"".join(told)

    def _whole(self, name: str, now: object) -> bytes:
        """What is small is told as a whole when it differs."""
        if now is None or now == self._sent.get(name):
            return b""
        self._sent[name] = now
        return message(name, now)

    def _listed(self, name: str, now: Sequence[Any]) -> bytes:
        change = changed_items(self._lists.get(name, []), now)
        if change is None:
            return b""
        self._lists[name] = list(now)
        return message(name, change)

    def _events_of(self, state: PageState) -> bytes:
        news = state.events[self._events :]
        self._events = len(state.events)
        return message("events", news) if news else b""

    def _workers_of(self, now: WorkersShown | None) -> bytes:
        before, self._workers = self._workers, now
        if now is None or now is before:
            return b""
        known = before.columns if before is not None and before.count == now.count else {}
        columns = changed_columns(known, now.columns)
        news = {
            "at": now.at,
            "base_step": now.base_step,
            "count": now.count,
            "columns": columns,
            "notes": now.notes,
        }
        return message("ranks", news)
