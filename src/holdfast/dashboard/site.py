"""The paths of a dashboard.

GET  /              the page; /page.js, /page.css
GET  /api/stream    how the job is, as server-sent events; ?story=…: of a job that was opened
GET  /api/…         what is asked of the job besides
POST /api/actions   something is wanted of it
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.dashboard.auth import SAFE_HEADERS, PageAuth
from holdfast.dashboard.pages import OpenPage, Pages, PageState
from holdfast.transport.http_model import (
    EVENTS,
    Handler,
    HttpReply,
    HttpResponse,
    PageRequest,
    Route,
    text_response,
)

STORIES_KEPT = 8


class Site:
    """What a dashboard's server answers."""

    def __init__(
        self,
        auth: PageAuth,
        state: PageState,
        pages: Pages,
        files: Mapping[str, HttpResponse],
    ) -> None:
        """`files` are those of the page (`page_files.read_page`)."""
        self._auth, self._state, self._pages, self._files = auth, state, pages, files
        self._stories: dict[str, tuple[PageState, Pages]] = {}
        self.routes = {
            path: Route(get=self.authorized(self._give_page, open_to_all=True)) for path in files
        }
        self.routes["/api/stream"] = Route(get=self.authorized(self._stream))

    def add(self, routes: Mapping[str, Route]) -> None:
        """More paths, for those who have the key."""
        for path, route in routes.items():
            self.routes[path] = Route(
                route.get and self.authorized(route.get),
                route.post and self.authorized(route.post),
                route.body_most,
            )

    def authorized(self, handler: Handler, *, open_to_all: bool = False) -> Handler:
        def handle(request: PageRequest, reply: HttpReply) -> None:
            refusal = self._auth.refusal(request, open_to_all=open_to_all)
            if refusal is None:
                handler(request, reply)
            else:
                reply(refusal)

        return handle

    def _give_page(self, request: PageRequest, reply: HttpReply) -> None:
        reply(self._files[request.path])

    def add_story(self, name: str, state: PageState, pages: Pages) -> None:
        """What else can be looked at here; of too many, the oldest is forgotten."""
        self._stories[name] = (state, pages)
        if len(self._stories) > STORIES_KEPT:
            _, old = self._stories.pop(next(iter(self._stories)))
            old.close()

    def _stream(self, request: PageRequest, reply: HttpReply) -> None:
        name = request.query.get("story", "")
        told = self._stories.get(name) if name else (self._state, self._pages)
        if told is None:
            reply(text_response(404, "these journals are not here any more: open them again"))
            return
        state, pages = told
        page = OpenPage()
        begin = HttpResponse(content_type=EVENTS, headers=SAFE_HEADERS)
        page.stream = reply.stream(begin, lambda: page.tell(state), lambda: pages.remove(page))
        if page.stream is not None:
            pages.add(page)

    def close(self) -> None:
        for _, pages in self._stories.values():
            pages.close()
        self._pages.close()
