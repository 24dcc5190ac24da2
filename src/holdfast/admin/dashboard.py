"""The dashboard of an agent: its server, its key, and what it may ask.

Rules
1. Nothing of it is loaded without `--dashboard`, and then beside the loop.
2. It answers for the whole job, through the coordinator, whichever node that is.
3. Its key is random, and in no log: a terminal is shown the whole link, anything else is not.
   A user who may ask the job anyway learns it with `holdfast dashboard RUN`.
4. Where it cannot listen, a message says so, and the job goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.core.policy.config import DashboardSettings
from holdfast.core.protocol.messages import RequestMade
from holdfast.core.protocol.model import Outcome
from holdfast.core.protocol.requests import Answer, DashboardTold, JobRequest, pack, read_answer
from holdfast.engine.engine import Engine
from holdfast.runtime.loop import Loop

if TYPE_CHECKING:
    from holdfast.dashboard.feed import Feed
    from holdfast.dashboard.site import Site
    from holdfast.dashboard.source import AwaitedResponse, Recipients
    from holdfast.transport.http_model import HttpResponse
    from holdfast.transport.http_server import HttpServer

ALL_ADDRESSES = ("0.0.0.0", "::")


class AgentSource:
    """Asks the job as any outsider would, without leaving the agent."""

    def __init__(self, engine: Engine) -> None:
        self.node, self._requests = engine.node, engine.requests

    def ask(
        self,
        request: JobRequest,
        pending: AwaitedResponse,
        of: Recipients = "coordinator",
        nodes: Sequence[str] = (),
    ) -> None:
        # It needs no number: each request has its own `AwaitedResponse`.
        self._requests.ask(pending, RequestMade(0, pack(request), of, tuple(nodes)))


class AgentDashboard:
    """Serves the page of one agent."""

    def __init__(
        self,
        engine: Engine,
        loop: Loop,
        say: Callable[[str], None],
        answer: Callable[[bytes, Callable[[bytes], None]], None],
    ) -> None:
        """`answer` is how this node answers a request itself."""
        self._engine, self._loop, self._say, self._answer = engine, loop, say, answer
        self._source = AgentSource(engine)
        self._server: HttpServer | None = None
        self._site: Site | None = None
        self._feed: Feed | None = None
        self.address: DashboardTold | None = None
        """Its address and key."""

    def open(self, settings: DashboardSettings, files: Mapping[str, HttpResponse]) -> None:
        """Listen, and say where. For the loop: all that it needs has been loaded (`load`)."""
        from holdfast.dashboard.auth import new_key
        from holdfast.dashboard.site import live_site
        from holdfast.transport.http_server import HttpServer

        key = new_key()
        self._site, self._feed = live_site(self._loop, self._source, key, files)
        server = HttpServer(self._loop, self._site.routes, self._say)
        try:
            host, port = _listen(server, settings, self._say)
        except OSError as error:
            server.close()
            self._say(f"there is no dashboard: {error.strerror} ({settings.host})")
            return
        self._server = server
        self.address = DashboardTold(f"http://{_shown_host(host)}:{port}/", key)
        self._say(f"dashboard: {self._link_for_console()}")

    def _link_for_console(self) -> str:
        assert self.address is not None, "it is open"
        if os.isatty(2):
            return self.address.link
        run = self._engine.config.run_id
        return f"{self.address.url} (its key: holdfast dashboard {run})"

    def close(self, outcome: Outcome) -> None:
        """The job is over: pages that are open learn how, and are let go."""
        if self._site is not None and self._feed is not None:
            self._feed.end(outcome, self._answer_of)
            self._site.close()
        if self._server is not None:
            self._server.close()

    def _answer_of(self, request: JobRequest) -> Answer | None:
        """What this node knows at once."""
        answers: list[bytes] = []
        self._answer(pack(request), answers.append)
        return read_answer(answers[0]) if answers else None


def load() -> Mapping[str, HttpResponse]:
    """Import the dashboard's own modules, and read its page. For a lane."""
    from holdfast.dashboard.site import read_page

    return read_page()


def _listen(
    server: HttpServer, settings: DashboardSettings, say: Callable[[str], None]
) -> tuple[str, int]:
    """At the port that was asked for; where another has it, at any: a second agent on a machine."""
    try:
        return server.listen(settings.host, settings.port or 0)
    except OSError as error:
        from errno import EADDRINUSE

        if error.errno != EADDRINUSE:
            raise
        say(f"port {settings.port} is taken, so the dashboard has another one")
        return server.listen(settings.host, 0)


def _shown_host(host: str) -> str:
    """A host that a browser can go to: `0.0.0.0` is none."""
    if host in ALL_ADDRESSES:
        return os.uname().nodename
    return f"[{host}]" if ":" in host else host
