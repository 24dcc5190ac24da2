"""What pages hear of a job, and what the job is asked for it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.dashboard.made_up import MadeUpJob
from tests.dashboard.served import Served

from holdfast.core.protocol.model import Outcome
from holdfast.core.protocol.requests import (
    DashboardTold,
    JobAsked,
    LogBlock,
    LogsAsked,
    LogsTold,
    RanksAsked,
)
from holdfast.dashboard import source
from holdfast.dashboard.wire import WORKER_STATES
from holdfast.observe.goodput import Interruption, Segment
from holdfast.observe.history import NodeHistory, NodeRun
from holdfast.observe.story import Kind, StoryEvent

Serve = Callable[[MadeUpJob], Served]


def event(kind: Kind, words: str, by: str = "n0-id", **fields: object) -> StoryEvent:
    return StoryEvent(1000.0, kind, words, by, **fields)  # type: ignore[arg-type]


def test_a_page_is_told_of_the_job_its_nodes_and_all_workers(serve: Serve) -> None:
    stream = serve(MadeUpJob(nodes=2, slots=3)).ask("/api/stream")
    ranks = stream.until_told("ranks")
    job, nodes = stream.until_told("job"), stream.until_told("nodes")
    assert (job["run"], job["state"], job["ranks"]) == ("made-up", "running", 6)
    assert (job["served_by"], job["coordinator"]) == ("n0", "n0")
    assert [node["name"] for node in nodes] == ["n0", "n1"]
    assert [node["coordinator"] for node in nodes] == [True, False]
    assert ranks["count"] == 6
    assert ranks["columns"]["pid"] == [10_000 + rank for rank in range(6)]


def test_an_event_that_only_a_later_version_knows_is_left_out(serve: Serve) -> None:
    job = MadeUpJob()
    served = serve(job)
    stream = served.ask("/api/stream")
    stream.until_told("ranks")
    job.tell(event("blessing", "a kind of tomorrow"), event("said", "hello"))  # type: ignore[arg-type]
    assert [one["words"] for one in stream.until_told("events")] == ["hello"]


def test_while_nobody_watches_nothing_is_asked(serve: Serve) -> None:
    job = MadeUpJob()
    served = serve(job)
    served.run_for_a_while(3 * source.LEAST_INTERVAL_S)
    assert not job.asked
    stream = served.ask("/api/stream")
    stream.until_told("ranks")
    stream.close()
    served.until(lambda: served.server.connections == 0)
    before = len(job.asked)
    served.run_for_a_while(3 * source.LEAST_INTERVAL_S)
    assert len(job.asked) == before


def test_two_pages_cost_the_job_no_more_than_one(serve: Serve) -> None:
    job = MadeUpJob()
    served = serve(job)
    one, two = served.ask("/api/stream"), served.ask("/api/stream")
    for stream in (one, two):
        served.until(lambda: len(one.messages()["ranks"]) > 3)
        stream.until_told("job")
    asked = sum(isinstance(request, RanksAsked) for request in job.asked)
    told = min(len(one.messages()["ranks"]), len(two.messages()["ranks"]))
    assert asked <= told + 2


def test_only_what_changed_is_told_again(serve: Serve) -> None:
    stream = serve(MadeUpJob()).ask("/api/stream")
    first = stream.until_told("ranks")
    later = stream.until_told("ranks", lambda told: told["at"] > first["at"])
    assert "pid" in stream.messages()["ranks"][0]["columns"]
    assert "pid" not in later["columns"]
    assert len(stream.messages()["nodes"]) == 1


def test_events_and_incidents_are_told_as_they_come(serve: Serve) -> None:
    job = MadeUpJob()
    served = serve(job)
    stream = served.ask("/api/stream")
    stream.until_told("ranks")
    job.tell(event("round_formed", "round 1 begins", round=1))
    assert stream.until_told("events")[0]["words"] == "round 1 begins"
    job.interruptions = [
        Interruption(5.0, 1, 2, "failure", "rank 2 was killed", "", (2,), {"stop": 0.1}, 3, False),
        Interruption(9.0, 2, 3, "newcomers", "n9 waits", "", (), {"stop": 0.1}, 0, True),
    ]
    job.tell(
        event("worker_failed", "rank 2 was killed", round=1, rank=2),
        event("round_ended", "round 1 ends", round=1),
    )
    incidents = stream.until_told("incidents")
    assert len(incidents) == 1, "a change that somebody wished for is none"
    assert incidents[0]["words"] == "rank 2 was killed"
    failed = stream.until_told("ranks", lambda told: 6 in told["columns"].get("state", []))
    assert failed["count"] == 8


def test_who_comes_later_is_told_everything(serve: Serve) -> None:
    job = MadeUpJob()
    served = serve(job)
    job.segments = [Segment("useful", 1.0, 2.0, 1)]
    job.histories = {"n1-id": NodeHistory(1.0, 2.0, [NodeRun(1, 1.0)])}
    job.tell(event("round_formed", "round 1 begins", round=1))
    served.ask("/api/stream").until_told("events")
    late = served.ask("/api/stream")
    assert late.until_told("events")[0]["words"] == "round 1 begins"
    assert late.until_told("segments") == [{"part": "useful", "start": 1.0, "end": 2.0, "round": 1}]
    lane = {
        "node": "n1",
        "start": 1.0,
        "end": None,
        "runs": [{"round": 1, "start": 1.0, "end": None}],
    }
    assert late.until_told("lanes") == [lane]


def test_a_page_that_is_opened_again_sees_nothing_of_what_was_true_then(serve: Serve) -> None:
    job = MadeUpJob()
    served = serve(job)
    job.tell(event("round_formed", "round 1 begins", round=1))
    first = served.ask("/api/stream")
    first.until_told("events")
    first.until_told("ledger")
    first.close()
    served.until(lambda: served.server.connections == 0)
    job.refusal = "this node has no coordinator right now"
    again = served.ask("/api/stream")
    again.until_told("trouble")
    assert set(again.messages()) <= {"hello", "alive", "trouble"}
    job.refusal = ""
    assert again.until_told("events")[0]["words"] == "round 1 begins"
    assert again.until_told("ranks")["columns"]["pid"][0] == 10_000


def test_workers_that_have_ended_are_finished_while_others_run(serve: Serve) -> None:
    job = MadeUpJob(nodes=2, slots=2)
    job.ended = {1, 2}
    states = serve(job).ask("/api/stream").until_told("ranks")["columns"]["state"]
    assert [WORKER_STATES[state] for state in states] == [
        "running",
        "finished",
        "finished",
        "running",
    ]


def test_a_step_that_takes_several_times_as_long_as_usual_is_late(serve: Serve) -> None:
    job = MadeUpJob()
    served = serve(job)
    stream = served.ask("/api/stream")
    stream.until_told("ledger")
    assert stream.until_told("job", lambda told: told["stepped_at"])["state"] == "running"
    job.began -= 600.0
    job.stalled_at = time.monotonic() - 60.0
    told = stream.until_told("job", lambda told: told["state"] == "late")
    assert told["words"] == "Round 1 runs, but no worker makes a step."
    late = WORKER_STATES.index("late")
    ranks = stream.until_told("ranks", lambda told: late in told["columns"].get("state", []))
    assert ranks["at"] - ranks["columns"]["stepped"][0] == pytest.approx(60.0, abs=5.0)


def test_a_job_that_hangs_is_said_to_whether_or_not_it_reports_steps(serve: Serve) -> None:
    job = MadeUpJob()
    stream = serve(job).ask("/api/stream")
    stream.until_told("ranks")
    job.tell(event("hang", "the job hangs: no worker of round 1 moves", round=1))
    told = stream.until_told("job", lambda told: told["state"] == "late")
    assert told["words"] == "The job hangs: no worker of round 1 moves."
    job.tell(event("moving_again", "they are progressing again", round=1))
    stream.until_told("job", lambda told: told["state"] == "running")


@pytest.mark.parametrize(
    ("outcome", "state", "words", "workers"),
    [
        (Outcome("succeeded", "all", 0), "succeeded", "The job has succeeded.", "finished"),
        (Outcome("failed", "rank 1", 1), "failed", "The job has failed.", "absent"),
        (Outcome("interrupted", "stopped by ada", 143), "stopped", "Stopped by ada.", "absent"),
        (Outcome("interrupted", "SIGINT", 130), "stopped", "The job was interrupted.", "absent"),
    ],
)
def test_the_last_that_pages_hear_is_how_it_ended_and_what_was_written_last(
    serve: Serve, outcome: Outcome, state: str, words: str, workers: str
) -> None:
    job = MadeUpJob()
    served = serve(job)
    stream = served.ask("/api/stream")
    stream.until_told("ranks")
    written = LogsTold((LogBlock(1.0, 2, 2, b"the last words\n"),), 1)
    served.feed.end(outcome, lambda request: written if isinstance(request, LogsAsked) else None)
    told = stream.until_told("job", lambda told: told["outcome"])
    assert (told["state"], told["words"], told["actions"]) == (state, words, [])
    (line,) = stream.until_told("lines")
    assert (line["rank"], line["stream"], line["text"]) == (2, "err", "the last words")
    states = stream.until_told("ranks", lambda told: "state" in told["columns"])
    assert {WORKER_STATES[one] for one in states["columns"]["state"]} == {workers}


def test_another_coordinator_tells_on_and_nothing_is_told_twice(serve: Serve) -> None:
    job = MadeUpJob()
    job.tell(event("round_formed", "round 1 begins", round=1))
    served = serve(job)
    stream = served.ask("/api/stream")
    stream.until_told("events")
    job.waiting.clear()
    job.coordinator = "n1"
    job.events = [
        event("round_formed", "round 1 begins", by="n1-id", round=1),
        event("takeover", "n1 is the coordinator now", by="n1-id", round=1, node="n1-id"),
    ]
    stream.until_told("events", lambda told: told[0]["kind"] == "takeover")
    told = [one["kind"] for events in stream.messages()["events"] for one in events]
    assert told == ["round_formed", "takeover"]


def test_a_job_that_cannot_be_asked_is_said_so_and_asked_again(serve: Serve) -> None:
    job = MadeUpJob()
    job.refusal = "this node has no coordinator right now"
    stream = serve(job).ask("/api/stream")
    assert stream.until_told("trouble") == job.refusal
    job.refusal = ""
    stream.until_told("ranks")
    assert stream.until_told("trouble", lambda told: not told) == ""


def test_a_large_job_is_asked_for_all_of_its_nodes_less_often(serve: Serve) -> None:
    job = MadeUpJob(nodes=2500, slots=1)
    stream = serve(job).ask("/api/stream")
    assert stream.until_told("ranks")["count"] == 2500
    firsts = [request.first_node for request in job.asked if isinstance(request, JobAsked)]
    assert firsts[:2] == [0, 2000]
    assert source.interval_s(2500) > source.interval_s(10)


def test_the_end_of_the_job_and_its_reason_are_told(serve: Serve) -> None:
    job = MadeUpJob()
    job.stage, job.outcome = "over", Outcome("failed", "rank 1 failed too often", 1)
    told = serve(job).ask("/api/stream").until_told("job")
    assert (told["state"], told["words"]) == ("failed", "The job has failed.")
    assert told["outcome"]["reason"] == "rank 1 failed too often"


def test_a_page_learns_where_else_it_can_go(serve: Serve) -> None:
    job = MadeUpJob()
    job.dashboards["n1"] = DashboardTold("http://10.0.0.2:8470/", "its-key")
    told = serve(job).ask("/api/stream").until_told("dashboards")
    assert told == [{"node": "n1", "url": "http://10.0.0.2:8470/", "key": "its-key"}]


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)//:1/",
        "http://user@10.0.0.2:8470/",
        "http://10.0.0.2:8470/elsewhere",
        "http://10.0.0.2:8470/#key=",
        "http://10.0.0.2/",
        "http://n1\u202e:8470/",
        " http://10.0.0.2:8470/",
    ],
)
def test_what_is_no_address_of_a_dashboard_becomes_no_link(serve: Serve, url: str) -> None:
    job = MadeUpJob()
    job.dashboards["n0"] = DashboardTold(url, "its-key")
    job.dashboards["n1"] = DashboardTold("http://[fd00::2]:8470/", "its-key")
    told = serve(job).ask("/api/stream").until_told("dashboards")
    assert [one["node"] for one in told] == ["n1"]


def test_where_the_time_went_is_told_the_useful_part_first(serve: Serve) -> None:
    told = serve(MadeUpJob()).ask("/api/stream").until_told("ledger")
    assert told["total_s"] == 100.0
    assert (told["parts"][0]["name"], told["parts"][0]["seconds"]) == ("useful", 97.5)


def test_a_slow_worker_is_shown_as_slow(serve: Serve) -> None:
    job = MadeUpJob(nodes=1, slots=4)
    job.slow = {3}
    states = serve(job).ask("/api/stream").until_told("ranks")["columns"]["state"]
    assert states == [2, 2, 2, 3]
