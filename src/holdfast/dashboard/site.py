"""The paths of a dashboard.

GET  /              the page; /page.js, /page.css
GET  /api/stream    how the job is, as server-sent events
GET  /api/…         what is asked of the job besides
POST /api/actions   something is wanted of it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.dashboard.guard import SAFE_HEADERS, Guard
from holdfast.dashboard.page_files import read_page
from holdfast.dashboard.shown import Shown, Watcher
from holdfast.dashboard.watchers import Watchers
from holdfast.dashboard.wire import JobShown
from holdfast.transport.http_model import (
    EVENTS,
    Handler,
    HttpReply,
    HttpResponse,
    PageRequest,
    Route,
)


class Site:
    """What a dashboard's server answers."""

    def __init__(self, guard: Guard, shown: Shown, watchers: Watchers) -> None:
        """Reads the page: for a thread that may wait for a disk."""
        self._guard, self._shown, self._watchers = guard, shown, watchers
        self._page = read_page()
        self.routes = {
            path: Route(get=self.guarded(self._give_page, open_to_all=True)) for path in self._page
        }
        self.routes["/api/stream"] = Route(get=self.guarded(self._stream))

    def add(self, routes: Mapping[str, Route]) -> None:
        """More paths, for those who have the key."""
        for path, route in routes.items():
            self.routes[path] = Route(
                route.get and self.guarded(route.get),
                route.post and self.guarded(route.post),
                route.body_most,
            )

    def guarded(self, handler: Handler, *, open_to_all: bool = False) -> Handler:
        def handle(request: PageRequest, reply: HttpReply) -> None:
            refusal = self._guard.refusal(request, open_to_all=open_to_all)
            if refusal is None:
                handler(request, reply)
            else:
                reply(refusal)

        return handle

    def _give_page(self, request: PageRequest, reply: HttpReply) -> None:
        reply(self._page[request.path])

    def _stream(self, request: PageRequest, reply: HttpReply) -> None:
        watcher = Watcher()
        begin = HttpResponse(content_type=EVENTS, headers=SAFE_HEADERS)
        watcher.stream = reply.stream(
            begin, lambda: watcher.tell(self._shown), lambda: self._watchers.remove(watcher)
        )
        if watcher.stream is not None:
            self._watchers.add(watcher)

    def tell_the_end(self, ended: Callable[[JobShown], JobShown]) -> None:
        """The last that pages hear of a job that was live."""
        if self._shown.job is not None:
            self._shown.job = ended(self._shown.job)
            self._watchers.tell()

    def close(self) -> None:
        self._watchers.close()
