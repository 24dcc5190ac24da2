"""The paths of a dashboard, and the two kinds of it: of a running job, and of journals.

GET  /              the page, as it was built from `frontend/`; /page.js, /page.css
GET  /api/stream    how the job is, as server-sent events; ?story=…: of a job that was opened
GET  /api/logs      lines of workers, also as server-sent events
GET  /api/stacks    where workers are in their code
POST /api/actions   a command for the job
GET  /api/jobs      the jobs of this machine, where a dashboard lists them
POST /api/jobs      open one of them
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.core.protocol.errors import UsageError
from holdfast.dashboard.api import answer, page_routes
from holdfast.dashboard.auth import SAFE_HEADERS, fits, new_key
from holdfast.dashboard.feed import Feed
from holdfast.dashboard.pages import ALIVE_S, Pages, PageState
from holdfast.dashboard.source import Source
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import Clock, EventLoop
from holdfast.transport.http_model import (
    Handler,
    HttpReply,
    HttpResponse,
    PageRequest,
    Route,
    text_response,
)
from holdfast.transport.http_server import LOOPBACK, HttpServer

FOLDER = Path(__file__).parent / "page"
TYPES = {
    "index.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
}


def read_page(folder: Path = FOLDER) -> dict[str, HttpResponse]:
    """The answer at each path of the page. For a lane of `runtime.disk`: it reads files."""
    answers = {
        f"/{name}": HttpResponse(
            (folder / name).read_bytes(), content_type=content_type, headers=SAFE_HEADERS
        )
        for name, content_type in TYPES.items()
    }
    return {**answers, "/": answers["/index.html"]}


class Site:
    """The answers of a dashboard's server."""

    def __init__(self, key: str, pages: Pages, files: Mapping[str, HttpResponse]) -> None:
        """`files` are those of the page (`read_page`): they are for everybody, and tell nothing."""
        self._key, self._files = key, files
        self._stories = {"": pages}
        self.routes = {path: Route(get=self._give_page) for path in files}
        self.add({"/api/stream": Route(get=self._stream)})

    def add(self, routes: Mapping[str, Route]) -> None:
        """More paths, for requests with the key."""
        for path, route in routes.items():
            self.routes[path] = Route(
                route.get and self._authorized(route.get),
                route.post and self._authorized(route.post),
                route.body_most,
            )

    def _authorized(self, handler: Handler) -> Handler:
        def handle(request: PageRequest, reply: HttpReply) -> None:
            if fits(self._key, request):
                handler(request, reply)
            else:
                reply(text_response(401, "the key is missing or does not fit"))

        return handle

    def _give_page(self, request: PageRequest, reply: HttpReply) -> None:
        reply(self._files[request.path])

    def add_story(self, name: str, pages: Pages) -> None:
        """A job that was opened; one of that name is replaced."""
        if name in self._stories:
            self._stories[name].close()
        self._stories[name] = pages

    def _stream(self, request: PageRequest, reply: HttpReply) -> None:
        pages = self._stories.get(request.query.get("story", ""))
        if pages is None:
            reply(text_response(404, "this job is not open any more: choose it again"))
        else:
            pages.open(reply)

    def close(self) -> None:
        for pages in self._stories.values():
            pages.close()


# A job that runs.


def live_site(
    clock: Clock,
    source: Source,
    key: str,
    files: Mapping[str, HttpResponse],
    alive_s: float = ALIVE_S,
) -> tuple[Site, Feed]:
    """The site of a running job, and what keeps its pages up to date."""
    state = PageState()
    pages = Pages(clock, state, alive_s)
    feed = Feed(clock, source, state, pages.tell)
    pages.on_first, pages.on_none = feed.begin, feed.rest
    site = Site(key, pages, files)
    site.add(page_routes(clock, source))
    return site, feed


# Journals, and the jobs of a machine.


class Machine(NamedTuple):
    """The jobs of this machine, from which a page can choose."""

    list_jobs: Callable[[], Sequence[Mapping[str, Any]]]
    """`ListedJob` of `frontend/src/model.ts`, each."""
    open_journals: Callable[[Sequence[str]], PageState]


class JobList:
    """Lists jobs, and opens one. It works in a lane: agents may be slow to answer."""

    def __init__(
        self, loop: EventLoop, machine: Machine, show: Callable[[str, PageState], None]
    ) -> None:
        """`show` is called with the name of a job's first journal, and its story."""
        self._lane = Disk(loop, lambda words: None).lane("jobs")
        self._machine, self._show = machine, show
        self._known: dict[str, tuple[str, ...]] = {}
        """The journals of each job that was listed, by the first of them."""
        self.routes = {"/api/jobs": Route(get=self._give, post=self._open_one)}

    def _give(self, request: PageRequest, reply: HttpReply) -> None:
        def listed(jobs: Sequence[Mapping[str, Any]]) -> None:
            self._known = {one["journals"][0]: one["journals"] for one in jobs if one["journals"]}
            reply(answer(jobs))

        self._lane.do(self._machine.list_jobs, listed)

    def _open_one(self, request: PageRequest, reply: HttpReply) -> None:
        name = request.query.get("journal", "")
        journals = self._known.get(name)
        if journals is None:
            reply(text_response(404, "there is no such job"))
            return

        def read() -> tuple[PageState | None, str]:
            try:
                return self._machine.open_journals(journals), ""
            except (UsageError, OSError) as error:
                return None, f"its journals cannot be read: {error}"

        def show(read: tuple[PageState | None, str]) -> None:
            story, problem = read
            if story is None:
                reply(text_response(422, problem))
            else:
                self._show(name, story)
                reply(answer({"story": name}))

        self._lane.do(read, show)


def journal_site(
    loop: EventLoop, state: PageState, key: str, machine: Machine | None = None
) -> Site:
    """The site of a job's journals, or one on which the jobs of a machine can be chosen."""

    def pages(shown: PageState) -> Pages:
        return Pages(loop, shown, lists_jobs=machine is not None)

    site = Site(key, pages(state), read_page())
    if machine is not None:
        jobs = JobList(loop, machine, lambda name, story: site.add_story(name, pages(story)))
        site.add(jobs.routes)
    return site


def serve(
    state: PageState, port: int, say_link: Callable[[str], None], machine: Machine | None = None
) -> None:
    """Serve a `journal_site` to this machine until a signal comes. OSError for a taken port."""
    loop = EventLoop()
    ended: list[int] = []
    key = new_key()
    site = journal_site(loop, state, key, machine)
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
