"""The jobs of this machine, as a page lists them: those that run, and those that have ended.

One that runs with a dashboard has a page of its own; any other is opened from its journals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.core.protocol.errors import UsageError
from holdfast.dashboard.api import answer
from holdfast.dashboard.pages import PageState
from holdfast.runtime.disk import DiskLane
from holdfast.transport.http_model import HttpReply, PageRequest, Route, text_response

ListJobs = Callable[[], Sequence[Mapping[str, Any]]]
"""`ListedJob` of `frontend/src/model.ts`, each."""
OpenJournals = Callable[[Sequence[str]], PageState]


class JobList:
    """Lists jobs, and opens one. What it takes is done in a lane: agents may be slow to answer."""

    def __init__(
        self,
        lane: DiskLane,
        list_jobs: ListJobs,
        open_journals: OpenJournals,
        show: Callable[[str, PageState], None],
    ) -> None:
        """`show` is given the name of a story, and the story."""
        self._lane, self._list, self._open, self._show = lane, list_jobs, open_journals, show
        self._opened = 0
        self._known: dict[str, tuple[str, ...]] = {}
        """The journals of each job that was listed, by the first of them."""
        self.routes = {"/api/jobs": Route(get=self._give, post=self._open_one)}

    def _give(self, request: PageRequest, reply: HttpReply) -> None:
        def listed(jobs: Sequence[Mapping[str, Any]]) -> None:
            self._known = {one["journals"][0]: one["journals"] for one in jobs if one["journals"]}
            reply(answer(jobs))

        self._lane.do(self._list, listed)

    def _open_one(self, request: PageRequest, reply: HttpReply) -> None:
        journals = self._known.get(request.query.get("journal", ""))
        if journals is None:
            reply(text_response(404, "there is no such job"))
            return

        def read() -> tuple[PageState | None, str]:
            try:
                return self._open(journals), ""
            except (UsageError, OSError) as error:
                return None, f"its journals cannot be read: {error}"

        def show(read: tuple[PageState | None, str]) -> None:
            story, problem = read
            if story is None:
                reply(text_response(422, problem))
                return
            self._opened += 1
            self._show(f"job{self._opened}", story)
            reply(answer({"story": f"job{self._opened}"}))

        self._lane.do(read, show)
