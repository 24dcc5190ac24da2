"""A dashboard of its own: of journals on a disk, or of those that somebody drops onto its page.

It is served to this machine until somebody ends it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from holdfast.dashboard.auth import PageAuth, new_key
from holdfast.dashboard.page_files import read_page
from holdfast.dashboard.page_state import PageState
from holdfast.dashboard.site import Site
from holdfast.dashboard.static import static_page
from holdfast.dashboard.subscribers import Subscribers
from holdfast.dashboard.uploaded import Uploads
from holdfast.observe.causes import JournalRead
from holdfast.runtime.loop import Clock, EventLoop
from holdfast.transport.http_server import LOOPBACK, HttpServer


def journal_site(clock: Clock, state: PageState, auth: PageAuth) -> Site:
    """All that its server answers. What is shown may be nothing yet."""
    site = Site(auth, state, Subscribers(clock, state, opens_journals=True), read_page())

    def show(name: str, story: PageState) -> None:
        site.add_story(name, story, Subscribers(clock, story, opens_journals=True))

    site.add(Uploads(show).routes)
    return site


def serve_journals(
    journals: Sequence[JournalRead], port: int, say_link: Callable[[str], None]
) -> None:
    """Until a signal comes. OSError where the port cannot be had."""
    loop = EventLoop()
    ended: list[int] = []
    key = new_key()
    site = journal_site(loop, static_page(journals) if journals else PageState(), PageAuth(key))
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
