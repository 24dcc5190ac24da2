"""A job as OpenTelemetry spans, made of the events of its story.

    job                      from the agent's start to its end
    ├── round 1              announced → stopped; the workers that failed in it, its first step
    ├── recovery             known → stepping again
    │   ├── stop · form · spawn · first step
    └── round 2

Rules
1. A span is reported when it begins and when it ends, under a name of its own (`key`), and never
   after its end.
2. An event without a span of its own belongs to the round in which it happened, else to the job.
3. Each node reports its own: spans of several nodes of a job belong together by `holdfast.run_id`,
   and are in one trace where all agents were started with the same TRACEPARENT.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from holdfast.core.protocol.model import Outcome
from holdfast.observe.story import StoryEvent

JOB = "job"
Attributes = dict[str, str | int | float]


class SpanBegan(Struct, frozen=True):
    """Times are in seconds since 1970."""

    key: str
    name: str
    at: float
    parent: str = JOB
    attributes: Attributes = field(default_factory=dict)


class SpanNoted(Struct, frozen=True):
    """An event within the span."""

    key: str
    name: str
    at: float
    attributes: Attributes


class SpanEnded(Struct, frozen=True):
    """The end of a span; `problem` in words, if it did not end well."""

    key: str
    at: float
    problem: str = ""


SpanNews = SpanBegan | SpanNoted | SpanEnded
TROUBLE = ("worker_failed", "node_lost", "node_suspected", "lease_ended", "hang")


class SpanTeller:
    """Follows the events of one node's story."""

    def __init__(self) -> None:
        self._round = ""
        self._is_troubled = False

    def feed(self, event: StoryEvent) -> Iterator[SpanNews]:
        """Its spans and events, in order."""
        if event.kind == "round_formed":
            yield from self._end_round(event.at, "")
            self._round, self._is_troubled = f"round {event.round}", False
            named: Attributes = {"holdfast.round": event.round}
            yield SpanBegan(self._round, self._round, event.at, attributes=named)
        elif event.kind == "recovered":
            yield from _recovery(event)
        self._is_troubled = self._is_troubled or event.kind in TROUBLE
        yield SpanNoted(self._round or JOB, event.kind, event.at, _attributes(event))
        if event.kind in ("round_ended", "job_finished"):
            problem = event.reason if self._is_troubled else ""
            yield from self._end_round(event.at, problem)

    def finish(self, outcome: Outcome, at: float) -> Iterator[SpanNews]:
        """The agent ends."""
        yield from self._end_round(at, "")
        yield SpanEnded(JOB, at, "" if outcome.verdict == "succeeded" else outcome.reason)

    def _end_round(self, at: float, problem: str) -> Iterator[SpanNews]:
        if self._round:
            yield SpanEnded(self._round, at, problem)
        self._round = ""


def _recovery(event: StoryEvent) -> Iterator[SpanNews]:
    """A recovery, reported when it is over: its parts lie one behind the other, up to now."""
    key = f"recovery into round {event.round}"
    at = event.at - sum(event.parts_s.values())
    yield SpanBegan(key, "recovery", at, attributes={"holdfast.round": event.round})
    for part, seconds in event.parts_s.items():
        yield SpanBegan(f"{key}: {part}", part, at, parent=key)
        at += seconds
        yield SpanEnded(f"{key}: {part}", at)
    yield SpanEnded(key, event.at)


def _attributes(event: StoryEvent) -> Attributes:
    known: Attributes = {"holdfast.words": event.words}
    if event.host:
        known["holdfast.node"] = event.host
    if event.rank is not None:
        known["holdfast.rank"] = event.rank
    if event.reason:
        known["holdfast.reason"] = event.reason
    return known
