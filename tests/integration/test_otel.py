"""Traces of a real job, as a real receiver of OTLP over HTTP gets them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast.agent.sentences import no_traces, spans_unsent
from holdfast.core.coordinator_io import Explain
from holdfast.core.policy import sentences

from ..free_ports import free_port
from .conftest import StartJob

pytest.importorskip("opentelemetry.sdk", reason="needs pip install 'holdfast[otel]'")
collector = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

FAILS_ONCE = """
import os, sys
import holdfast
holdfast.progress(1)
if os.environ["HOLDFAST_ROUND"] == "1" and os.environ["RANK"] == "1":
    sys.exit(3)
"""
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Receiver:
    """Keeps the spans that it gets, by name, and what they say of whence they come."""

    def __init__(self) -> None:
        self.spans: dict[str, Any] = {}
        self.resource: dict[str, str] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.take(collector.ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def take(self, request: Any) -> None:
        for of_resource in request.resource_spans:
            for named in of_resource.resource.attributes:
                self.resource[named.key] = named.value.string_value
            for of_scope in of_resource.scope_spans:
                self.spans |= {span.name: span for span in of_scope.spans}

    @property
    def environment(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}"}

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def test_rounds_and_recoveries_arrive_as_one_trace(run_job: StartJob, receiver: Receiver) -> None:
    words = ("-n=2", "--max-restarts=1", "--otel", "--rdzv-id=night")
    parent = {"TRACEPARENT": f"00-{TRACE}-{PARENT}-01"}
    job = run_job(*words, script=FAILS_ONCE, env={**receiver.environment, **parent})
    assert job.wait() == 0, job.stderr
    assert "OpenTelemetry" not in job.stderr
    spans = receiver.spans
    assert {"job night", "round 1", "round 2", "recovery", "stop", "form", "spawn"} <= set(spans)
    whole = spans["job night"]
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert whole.parent_span_id.hex() == PARENT
    for name in ("round 1", "round 2", "recovery"):
        assert spans[name].parent_span_id == whole.span_id
        assert whole.start_time_unix_nano <= spans[name].start_time_unix_nano
        assert spans[name].end_time_unix_nano <= whole.end_time_unix_nano
    assert spans["stop"].parent_span_id == spans["recovery"].span_id
    why = spans["round 1"].status.message
    restarts = [told.text for told in job.effects(Explain) if told.topic == "restart"]
    assert restarts == [sentences.and_then(why, sentences.restarting(0.0, 1, 1))]
    assert " 3" in why, "the exit code"
    assert "worker_failed" in {event.name for event in spans["round 1"].events}
    assert not spans["round 2"].status.message
    assert receiver.resource["service.name"] == "holdfast"
    assert receiver.resource["holdfast.run_id"] == "night"


def test_a_collector_that_is_not_there_costs_no_job(run_job: StartJob) -> None:
    nobody = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://user:secret@127.0.0.1:{free_port()}"}
    job = run_job("--otel", script="print('ran')", env=nobody)
    assert job.wait() == 0
    assert job.stdout == "ran\n"
    assert "secret" not in job.stderr
    assert "Traceback" not in job.stderr


def test_an_endpoint_that_is_none_is_said_and_the_job_goes_on(run_job: StartJob) -> None:
    job = run_job("--otel", script="print('ran')", env={"OTEL_EXPORTER_OTLP_ENDPOINT": "nowhere"})
    assert job.wait() == 0
    assert "Traceback" not in job.stderr
    assert f"holdfast: {no_traces(spans_unsent('nowhere'))}\n" in job.stderr
