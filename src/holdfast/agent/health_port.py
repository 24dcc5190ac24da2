"""The port for health probes and Prometheus (`--health-port`).

Rules
1. Up from before the first round to the agent's end, with or without a coordinator.
2. Reads what is in memory, on the loop; changes nothing, and shows nothing secret. Any host that
   reaches the port is answered.
3. Where the port cannot be opened, a message says so, and the job goes on.

Any answer from `/livez` means that the loop turns. Every path has a short text, and JSON where
`.json` is at its end or the client asks for that (`Accept: application/json`).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import json

from holdfast.agent import sentences
from holdfast.agent.metrics import NodeMetrics
from holdfast.core import health
from holdfast.core.policy import texts
from holdfast.core.policy.config import HealthSettings
from holdfast.core.policy.worker_progress import WorkerProgress
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Endpoint
from holdfast.engine.engine import Engine
from holdfast.observe.exposition import CONTENT_TYPE
from holdfast.observe.history import LiveHistory
from holdfast.observe.journal import Journal
from holdfast.runtime.loop import Cancellable, Loop
from holdfast.transport.http_model import (
    JSON,
    HttpResponse,
    PageRequest,
    Route,
    at_once,
    text_response,
)
from holdfast.transport.http_server import HttpServer

LAG_EVERY_S = 1.0
INDEX = """\
/livez      the agent's loop turns
/readyz     this node is in a formed round
/progressz  how long ago its workers made their last step; ?max_age=600 sets a limit
/metrics    for Prometheus
"""


class HealthPort:
    """Answers, from `open` to `close`."""

    def __init__(
        self,
        engine: Engine,
        worker_progress: Callable[[], list[WorkerProgress]],
        loop: Loop,
        live: LiveHistory,
    ) -> None:
        self._engine, self._worker_progress, self._loop = engine, worker_progress, loop
        self._metrics, self._history = NodeMetrics(engine, worker_progress, live), live
        self._told: set[str] = set()
        self._lag_timer: Cancellable | None = None
        self._due = 0.0
        self._server = HttpServer(loop, self._routes(), self._on_problem, "health")

    def _routes(self) -> dict[str, Route]:
        verdicts = {"/livez": self._live, "/readyz": self._ready, "/progressz": self._progress}
        routes = {"/": Route(get=at_once(lambda request: HttpResponse(INDEX.encode())))}
        for path, verdict in verdicts.items():
            answer = at_once(self._answering(verdict))
            routes[path] = routes[f"{path}.json"] = Route(get=answer, comes_first=True)
        return routes | {"/metrics": Route(get=at_once(self._metrics_page))}

    def open(self, settings: HealthSettings, journal: Journal) -> None:
        """Listen, if that can be; say where, or why not."""
        assert settings.port is not None, "there is no --health-port"
        journal.listeners.append(self._metrics.take)
        try:
            place = Endpoint(*self._server.listen(settings.host, settings.port))
        except OSError as error:
            wanted = Endpoint(settings.host or "::", settings.port)
            self._engine.say(sentences.no_health_port(wanted, error.strerror or str(error)))
            return
        self._engine.say(sentences.health_at(place))
        self._look_at_lag()

    def close(self) -> None:
        if self._lag_timer is not None:
            self._lag_timer.cancel()
        self._server.close()

    def _on_problem(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            self._engine.say(problem)

    def _look_at_lag(self) -> None:
        now = self._loop.now()
        if self._lag_timer is not None:
            self._metrics.lag.observe(max(0.0, now - self._due))
        self._due = now + LAG_EVERY_S
        self._lag_timer = self._loop.call_later(LAG_EVERY_S, self._look_at_lag)

    # What is answered.

    def _live(self, request: PageRequest) -> health.Health:
        return health.liveness(0.0, 0.0)

    def _ready(self, request: PageRequest) -> health.Health:
        return health.readiness(self._engine.state)

    def _progress(self, request: PageRequest) -> health.Health:
        limit = request.query.get("max_age")
        max_age_s = None if limit is None else texts.seconds(limit)
        age_s = self._history.running_s(self._loop.now())
        return health.progress(self._engine.state, self._worker_progress(), age_s, max_age_s)

    def _answering(
        self, verdict: Callable[[PageRequest], health.Health]
    ) -> Callable[[PageRequest], HttpResponse]:
        def answer(request: PageRequest) -> HttpResponse:
            try:
                found = verdict(request)
            except UsageError as error:
                return text_response(400, f"max_age: {error.message}; {error.hint}")
            status = 200 if found.is_well else 503
            wants_json = JSON in request.headers.get("accept", "")
            if not wants_json and not request.path.endswith(".json"):
                return text_response(status, found.words)
            state = self._engine.state
            about = {"run_id": state.config.run_id, "node": state.name}
            facts = {"ok": found.is_well, "words": found.words, **about, **found.facts}
            return HttpResponse(json.encode(facts) + b"\n", status, JSON)

        return answer

    def _metrics_page(self, request: PageRequest) -> HttpResponse:
        return HttpResponse(self._metrics.page().encode("utf-8", "replace"), 200, CONTENT_TYPE)
