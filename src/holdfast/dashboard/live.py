"""The dashboard of a job that runs."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.dashboard.desk import Desk
from holdfast.dashboard.feed import Feed
from holdfast.dashboard.guard import Guard
from holdfast.dashboard.open_pages import ALIVE_S, OpenPages
from holdfast.dashboard.shown import Shown
from holdfast.dashboard.site import Site
from holdfast.dashboard.source import Source
from holdfast.runtime.loop import Clock
from holdfast.transport.http_model import HttpResponse


def live_site(
    clock: Clock,
    source: Source,
    guard: Guard,
    files: Mapping[str, HttpResponse],
    alive_s: float = ALIVE_S,
) -> Site:
    """All that its server answers."""
    shown = Shown()
    pages = OpenPages(clock, shown, alive_s)
    feed = Feed(clock, source, shown, pages.tell)
    pages.on_first, pages.on_none = feed.begin, feed.rest
    site = Site(guard, shown, pages, files)
    site.add(Desk(clock, source).routes)
    return site
