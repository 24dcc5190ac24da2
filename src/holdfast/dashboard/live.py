"""The dashboard of a job that runs."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.dashboard.api import PageApi
from holdfast.dashboard.auth import PageAuth
from holdfast.dashboard.feed import Feed
from holdfast.dashboard.pages import ALIVE_S, Pages, PageState
from holdfast.dashboard.site import Site
from holdfast.dashboard.source import Source
from holdfast.runtime.loop import Clock
from holdfast.transport.http_model import HttpResponse


def live_site(
    clock: Clock,
    source: Source,
    auth: PageAuth,
    files: Mapping[str, HttpResponse],
    alive_s: float = ALIVE_S,
) -> tuple[Site, Feed]:
    """All that its server answers, and what asks the job for it."""
    state = PageState()
    pages = Pages(clock, state, alive_s)
    feed = Feed(clock, source, state, pages.tell)
    pages.on_first, pages.on_none = feed.begin, feed.rest
    site = Site(auth, state, pages, files)
    site.add(PageApi(clock, source).routes)
    return site, feed
