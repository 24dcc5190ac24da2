"""A dashboard of its own: of this machine's jobs, or of journals.

It is served to this machine until somebody ends it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import NamedTuple

from holdfast.dashboard.auth import PageAuth, new_key
from holdfast.dashboard.job_list import JobList, ListJobs, OpenJournals
from holdfast.dashboard.page_files import read_page
from holdfast.dashboard.pages import Pages, PageState
from holdfast.dashboard.site import Site
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import EventLoop
from holdfast.transport.http_server import LOOPBACK, HttpServer


class Machine(NamedTuple):
    """What can be looked at here: its jobs, and their journals."""

    list_jobs: ListJobs
    open_journals: OpenJournals


def journal_site(
    loop: EventLoop, state: PageState, auth: PageAuth, machine: Machine | None = None
) -> Site:
    """All that its server answers. Where nothing is shown, the jobs of a machine are listed."""

    def pages(shown: PageState) -> Pages:
        return Pages(loop, shown, lists_jobs=machine is not None)

    def show(name: str, story: PageState) -> None:
        site.add_story(name, story, pages(story))

    site = Site(auth, state, pages(state), read_page())
    if machine is not None:
        lane = Disk(loop, lambda words: None).lane("jobs")
        site.add(JobList(lane, machine.list_jobs, machine.open_journals, show).routes)
    return site


def serve(
    state: PageState, port: int, say_link: Callable[[str], None], machine: Machine | None = None
) -> None:
    """Until a signal comes. OSError where the port cannot be had."""
    loop = EventLoop()
    ended: list[int] = []
    key = new_key()
    site = journal_site(loop, state, PageAuth(key), machine)
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
