"""`holdfast status --json`: everything has a name, and the page that lists them is up to date."""

from __future__ import annotations

import msgspec

from holdfast.cli.jobs import ListedJob
from holdfast.cli.status_json import JobStatus, of_ended, of_running
from holdfast.cli.status_view import Overview
from holdfast.core.protocol.requests import HistoryTold
from holdfast.observe.goodput import Interruption

from .test_status_view import EVENT, JOB, RANKS

LOST = Interruption(
    5.0, 1, 2, "failure", "rank 3 failed", "restarting", (3,), {"stop": 0.5, "form": 0.25}, 4, True
)


def test_all_that_is_known_has_a_name() -> None:
    packed = (msgspec.msgpack.encode(LOST),)
    history = HistoryTold(
        200.0, {"useful": 190.0}, True, interruptions=packed, steps_per_s=0.5, step_age_s=3.0
    )
    seen = Overview(JOB, RANKS, (EVENT,), ("host2",), history)
    told = msgspec.json.decode(msgspec.json.encode(of_running(seen)))
    assert (told["job"], told["stage"], told["round"], told["verdict"]) == (
        "train",
        "running",
        2,
        "",
    )
    assert (told["goodput"], told["steps_per_s"], told["step_age_s"]) == (0.95, 0.5, 3.0)
    assert [node["name"] for node in told["nodes"]] == ["host1", "host2"]
    assert told["nodes"][0]["id"] == "n1"
    assert [(one["rank"], one["node"], one["step"]) for one in told["workers"]] == [
        (0, "host1", 4210),
        (1, "host1", 4100),
    ]
    (lost,) = told["interruptions"]
    assert (lost["ended_by"], lost["is_incident"], lost["cost_s"]) == ("failure", True, 0.75)
    assert told["events"][0]["kind"] == "round_ended"
    assert msgspec.json.decode(msgspec.json.encode(told), type=JobStatus) == of_running(seen)


def test_a_job_that_has_ended_has_the_same_names() -> None:
    told = of_ended(ListedJob("nightly", "not formed", seconds=12.0, reason="too few nodes"))
    assert (told.stage, told.verdict, told.reason) == ("over", "not_formed", "too few nodes")
