"""The dashboard of a job that runs."""

from __future__ import annotations

from holdfast.dashboard.desk import Desk
from holdfast.dashboard.feed import Feed
from holdfast.dashboard.guard import Guard
from holdfast.dashboard.shown import Shown
from holdfast.dashboard.site import Site
from holdfast.dashboard.source import Source
from holdfast.dashboard.watchers import Watchers
from holdfast.runtime.loop import Clock


def live_site(clock: Clock, source: Source, guard: Guard) -> Site:
    """All that its server answers."""
    shown = Shown()
    watchers = Watchers(clock, shown)
    feed = Feed(clock, source, shown, watchers.tell)
    watchers.on_first, watchers.on_none = feed.begin, feed.rest
    site = Site(guard, shown, watchers)
    site.add(Desk(source).routes)
    return site
