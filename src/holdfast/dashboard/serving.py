"""A dashboard of its own: of journals on a disk, or of those that somebody drops onto its page.

It is served to this machine until somebody ends it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from holdfast.dashboard.dropped import DropBox
from holdfast.dashboard.guard import Guard, new_key
from holdfast.dashboard.open_pages import OpenPages
from holdfast.dashboard.page_files import read_page
from holdfast.dashboard.shown import Shown
from holdfast.dashboard.site import Site
from holdfast.dashboard.still import still_shown
from holdfast.observe.causes import JournalRead
from holdfast.runtime.loop import Clock, EventLoop
from holdfast.transport.http_server import LOOPBACK, HttpServer


def journal_site(clock: Clock, shown: Shown, guard: Guard) -> Site:
    """All that its server answers. What is shown may be nothing yet."""
    site = Site(guard, shown, OpenPages(clock, shown, opens_journals=True), read_page())

    def show(name: str, story: Shown) -> None:
        site.add_story(name, story, OpenPages(clock, story, opens_journals=True))

    site.add(DropBox(show).routes)
    return site


def serve_journals(
    journals: Sequence[JournalRead], port: int, say_link: Callable[[str], None]
) -> None:
    """Until a signal comes. OSError where the port cannot be had."""
    loop = EventLoop()
    ended: list[int] = []
    key = new_key()
    site = journal_site(loop, still_shown(journals) if journals else Shown(), Guard(key))
    server = HttpServer(loop, site.routes, lambda problem: None)
    try:
        host, taken = server.listen(LOOPBACK, port)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.append, number)
        say_link(f"http://{host}:{taken}/#key={key}")
        loop.run_until(lambda: bool(ended))
    finally:
        site.close()
        server.close()
        loop.close()
