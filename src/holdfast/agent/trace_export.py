"""Hands a job's spans to OpenTelemetry, beside the loop (`--otel`, `pip install holdfast[otel]`).

Rules
1. The loop never waits for it: the SDK is imported, used and ended in a lane of its own, and sends
   in a thread of its own. Where its collector does not answer, the agent's end waits for two
   seconds at most, and spans are lost.
2. Where, how and how much is sent is the SDK's matter, and that of its own variables: among them
   OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER.
3. A trace that was begun elsewhere goes on here: TRACEPARENT.
4. A problem is reported once, and the job goes on.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any

from holdfast import __version__
from holdfast.agent import sentences
from holdfast.core.protocol.bounds import cut
from holdfast.core.protocol.model import Outcome
from holdfast.observe.journal import Journal, Step
from holdfast.observe.story import Storyteller
from holdfast.observe.traces import JOB, SpanBegan, SpanEnded, SpanNews, SpanNoted, SpanTeller
from holdfast.runtime.disk import DiskLane

FLUSH_S = 1.5
"""How long the last spans may take; the lane is given up a little later (`runtime.disk`)."""
SENT_EVERY_MS = 1000.0
LOADED_FIRST = (
    "requests",
    "google.protobuf.descriptor_pool",
    "opentelemetry.sdk.trace.export",
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)
"""Modules that the SDK needs: each takes a part of a second."""


class TraceExport:
    """The spans of one node, from the beginning to the end.

    On the loop, but for the methods that it hands to its lane (`_do`): these alone use the SDK.
    """

    def __init__(self, journal: Journal, lane: DiskLane, say: Callable[[str], None]) -> None:
        self._lane, self._say, self._header = lane, say, journal.header
        self._story, self._teller = Storyteller(journal.header), SpanTeller()
        self._is_settled = False
        """Whether it is known how it went."""
        self._is_broken = False
        """A problem was found, in the lane: nothing is tried after it."""
        self._unsent = UnsentSpans(logging.ERROR)
        self._spans: dict[str, Any] = {}
        self._provider: Any = None
        self._tracer: Any = None
        self._around: Any = None
        """The trace that goes on here, if one does."""
        for package in LOADED_FIRST:
            self._do(partial(_load, package))
        self._do(partial(self._open, time.time()))
        journal.listeners.append(self._take)

    def _take(self, step: Step) -> None:
        for event in self._story.feed(step):
            self._send(self._teller.feed(event))

    def finish(self, outcome: Outcome) -> None:
        self._send(self._teller.finish(outcome, time.time()))
        self._do(self._close)
        self._lane.do(lambda: True, self._settle)

    def say_if_given_up(self) -> None:
        """Call when the wait for the rest is over."""
        if not self._is_settled:
            self._on_problem(sentences.UNSENT_AT_END)

    def _settle(self, _: bool) -> None:
        self._is_settled = True

    def _send(self, news: Iterable[SpanNews]) -> None:
        told = tuple(news)
        if told:
            self._do(partial(self._tell, told))

    def _do(self, work: Callable[[], str | None]) -> None:
        """Do it in the lane; what it returns or raises is a problem."""
        self._lane.do(partial(self._guarded, work), self._on_problem)

    def _on_problem(self, problem: str) -> None:
        self._is_settled = True
        self._say(sentences.no_traces(problem))

    # In the lane.

    def _guarded(self, work: Callable[[], str | None]) -> str | None:
        """A new problem, if there is one: a job does not end for want of its traces."""
        if self._is_broken:
            return None
        try:
            problem = work()
        except Exception as error:  # noqa: BLE001 - packages of others, set up by variables
            problem = f"{type(error).__name__}: {error}"
        self._is_broken = problem is not None
        return problem

    def _open(self, at: float) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._unsent.listen()
        about = {"holdfast.run_id": self._header.job, "holdfast.node": self._header.host}
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "holdfast"}
        resource = Resource.create({**named, **about})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=SENT_EVERY_MS)
        )
        self._tracer = self._provider.get_tracer("holdfast", __version__)
        carrier = {"traceparent": os.environ.get("TRACEPARENT", "")}
        self._around = TraceContextTextMapPropagator().extract(carrier)
        self._begin(SpanBegan(JOB, f"job {self._header.job}", at))

    def _tell(self, news: tuple[SpanNews, ...]) -> None:
        for told in news:
            match told:
                case SpanBegan():
                    self._begin(told)
                case SpanNoted():
                    if told.key in self._spans:
                        self._spans[told.key].add_event(told.name, told.attributes, _ns(told.at))
                case SpanEnded():
                    self._end(told)

    def _begin(self, told: SpanBegan) -> None:
        from opentelemetry.trace import set_span_in_context

        parent = self._spans.get(told.parent)
        context = self._around if parent is None else set_span_in_context(parent)
        self._spans[told.key] = self._tracer.start_span(
            told.name, context, attributes=told.attributes, start_time=_ns(told.at)
        )

    def _end(self, told: SpanEnded) -> None:
        from opentelemetry.trace import Status, StatusCode

        span = self._spans.pop(told.key, None)
        if span is None:
            return
        if told.problem:
            span.set_status(Status(StatusCode.ERROR, cut(told.problem)))
        span.end(_ns(told.at))

    def _close(self) -> str | None:
        """Send what is left; what could not be sent, in words."""
        # It tries again and again, for longer than it was told to.
        flushing = threading.Thread(target=self._provider.force_flush, daemon=True)
        flushing.start()
        flushing.join(FLUSH_S)
        if not flushing.is_alive() and not self._unsent.are_known:
            return None
        where = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get(
            "OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318"
        )
        return sentences.spans_unsent(_without_secrets(where))


class UnsentSpans(logging.Handler):
    """Takes the SDK's errors, which would write tracebacks onto the console."""

    are_known = False

    def listen(self) -> None:
        for name in ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal"):
            logging.getLogger(name).addHandler(self)
            logging.getLogger(name).propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.are_known = True


def _load(package: str) -> None:
    import_module(package)


def _without_secrets(url: str) -> str:
    """A password may stand before the host."""
    scheme, mark, rest = url.rpartition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
