"""A job's story as spans."""

from __future__ import annotations

from typing import Any

from holdfast.core.protocol.model import Outcome
from holdfast.observe.story import StoryEvent
from holdfast.observe.traces import JOB, SpanBegan, SpanEnded, SpanNews, SpanNoted, SpanTeller

SUCCEEDED = Outcome("succeeded", "all workers succeeded", 0)


def story(at: float, kind: Any, round: int = 0, **fields: Any) -> StoryEvent:
    return StoryEvent(at, kind, f"{kind} in words", "n1", round=round, **fields)


RECOVERED = {"stop": 0.5, "form": 0.25, "first step": 1.0}
TROUBLED = [
    story(1.0, "node_started"),
    story(2.0, "round_formed", 1),
    story(3.0, "worker_failed", 1, rank=3, host="vm", reason="it fell"),
    story(3.5, "round_ended", 1, reason="rank 3 fell"),
    story(4.0, "round_formed", 2),
    story(5.25, "recovered", 2, parts_s=RECOVERED),
    story(9.0, "job_finished", 2, reason="all workers succeeded"),
]


def told(*events: StoryEvent, outcome: Outcome = SUCCEEDED) -> list[SpanNews]:
    teller = SpanTeller()
    news = [one for event in events for one in teller.feed(event)]
    return [*news, *teller.finish(outcome, 10.0)]


def test_rounds_lie_in_the_job_and_end_with_their_reason() -> None:
    news = told(*TROUBLED)
    begun = [(one.name, one.parent, one.at) for one in news if isinstance(one, SpanBegan)]
    assert begun[0] == ("round 1", JOB, 2.0)
    ended = {one.key: one for one in news if isinstance(one, SpanEnded)}
    assert ended["round 1"] == SpanEnded("round 1", 3.5, "rank 3 fell")
    assert ended["round 2"] == SpanEnded("round 2", 9.0)
    assert ended[JOB] == SpanEnded(JOB, 10.0)
    failed = next(one for one in news if isinstance(one, SpanNoted) and one.name == "worker_failed")
    assert failed.key == "round 1"
    assert failed.attributes == {
        "holdfast.words": "worker_failed in words",
        "holdfast.node": "vm",
        "holdfast.rank": 3,
        "holdfast.reason": "it fell",
    }


def test_a_recovery_has_its_parts_one_behind_the_other() -> None:
    news = told(*TROUBLED)
    begun = {one.name: one for one in news if isinstance(one, SpanBegan)}
    ended = {one.key: one.at for one in news if isinstance(one, SpanEnded)}
    recovery = begun["recovery"]
    assert (recovery.parent, recovery.at, ended[recovery.key]) == (JOB, 3.5, 5.25)
    parts = [(begun[name].at, ended[begun[name].key]) for name in RECOVERED]
    assert parts == [(3.5, 4.0), (4.0, 4.25), (4.25, 5.25)]
    assert all(begun[name].parent == recovery.key for name in RECOVERED)


def test_every_span_ends_once_and_nothing_is_noted_of_one_that_has_ended() -> None:
    open_spans, over = {JOB}, set[str]()
    for one in told(*TROUBLED[:-1]):
        if isinstance(one, SpanBegan):
            assert one.parent in open_spans
            assert one.key not in open_spans | over
            open_spans.add(one.key)
        else:
            assert one.key in open_spans
        if isinstance(one, SpanEnded):
            open_spans.remove(one.key)
            over.add(one.key)
    assert not open_spans


def test_a_round_that_ended_for_newcomers_is_no_error() -> None:
    news = told(story(1.0, "round_formed", 1), story(2.0, "round_ended", 1, reason="more nodes"))
    assert SpanEnded("round 1", 2.0) in news


def test_a_job_that_failed_says_why() -> None:
    assert told(outcome=Outcome("failed", "it fell", 1)) == [SpanEnded(JOB, 10.0, "it fell")]
