"""A dashboard of its own: of journals on a disk, served to this machine until somebody ends it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from holdfast.dashboard.guard import Guard, new_key
from holdfast.dashboard.open_pages import OpenPages
from holdfast.dashboard.page_files import read_page
from holdfast.dashboard.site import Site
from holdfast.dashboard.still import still_shown
from holdfast.observe.causes import JournalRead
from holdfast.runtime.loop import EventLoop
from holdfast.transport.http_server import LOOPBACK, HttpServer


def serve_journals(
    journals: Sequence[JournalRead], port: int, say_link: Callable[[str], None]
) -> None:
    """Until a signal comes. OSError where the port cannot be had."""
    loop = EventLoop()
    ended: list[int] = []
    shown = still_shown(journals)
    key = new_key()
    site = Site(Guard(key), shown, OpenPages(loop, shown), read_page())
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
