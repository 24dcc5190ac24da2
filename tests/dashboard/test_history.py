"""Rounds and incidents, put together from events."""

from __future__ import annotations

from typing import Any

from holdfast.dashboard.history import RoundHistory
from holdfast.observe.story import Kind, StoryEvent


def told(*events: StoryEvent) -> RoundHistory:
    history = RoundHistory()
    history.take(events)
    return history


def event(at: float, kind: Kind, words: str = "", **fields: Any) -> StoryEvent:
    return StoryEvent(at, kind, words or kind, "n1", **fields)


def test_a_round_goes_on_until_it_ends() -> None:
    history = told(event(1, "round_formed", "round 1 begins: 4 ranks", round=1))
    (only,) = history.rounds
    assert (only.number, only.began, only.ended, only.words) == (
        1, 1, None, "round 1 begins: 4 ranks",
    )  # fmt: skip


def test_a_failure_is_an_incident_that_a_recovery_ends() -> None:
    history = told(
        event(1, "round_formed", round=1),
        event(5, "worker_failed", "rank 3 was killed", round=1, rank=3, reason="SIGKILL"),
        event(5.1, "round_ended", round=1, reason="a worker failed"),
        event(5.2, "decision", "restart 1 of 3", round=1, decision="restart"),
        event(5.3, "round_formed", round=2),
    )
    (incident,) = history.incidents
    assert (incident.at, incident.words, incident.cause) == (5, "rank 3 was killed", "SIGKILL")
    assert (incident.ranks, incident.decision, incident.recovered_s) == (
        [3], "restart 1 of 3", None,
    )  # fmt: skip
    assert [one.ended_by for one in history.rounds] == ["failure", ""]
    parts = {"stop": 0.1, "form": 0.2, "spawn": 0.05}
    history.take([event(6, "recovered", round=2, parts_s=parts)])
    (incident,) = history.incidents
    assert incident.recovered_s == sum(parts.values())
    assert [part.name for part in incident.phases] == list(parts)


def test_a_lost_node_is_the_cause_though_its_peers_failed_first() -> None:
    history = told(
        event(1, "round_formed", round=1),
        event(5, "worker_failed", "rank 1: connection reset", round=1, rank=1),
        event(6, "node_lost", "n2 was lost", round=1, node="n2"),
        event(6.1, "round_ended", round=1),
    )
    assert history.rounds[0].ended_by == "loss"
    assert history.incidents[0].words == "n2 was lost"


def test_a_round_that_ends_for_a_newcomer_is_no_incident() -> None:
    history = told(
        event(1, "round_formed", round=1),
        event(5, "node_joined", round=1),
        event(6, "round_ended", round=1, reason="n3 joined"),
    )
    assert not history.incidents
    assert (history.rounds[0].ended_by, history.rounds[0].ending) == ("change", "n3 joined")


def test_what_is_told_after_the_end_of_a_round_still_belongs_to_it() -> None:
    history = told(
        event(1, "round_formed", round=1),
        event(5, "round_ended", round=1),
        event(5.1, "worker_failed", "rank 2 failed", round=1, rank=2),
        event(5.2, "worker_failed", "rank 0 failed", round=1, rank=0),
    )
    (incident,) = history.incidents
    assert (incident.words, incident.ranks) == ("rank 2 failed", [0, 2])
    assert history.rounds[0].ended_by == "failure"


def test_the_last_round_ends_with_the_job() -> None:
    history = told(
        event(1, "round_formed", round=1), event(9, "job_finished", "the job succeeded", round=1)
    )
    assert (history.rounds[0].ended, history.rounds[0].ended_by) == (9, "success")


def test_one_recovery_ends_all_that_it_followed() -> None:
    history = told(
        event(1, "round_formed", round=1),
        event(2, "worker_failed", round=1, rank=0),
        event(2.1, "round_ended", round=1),
        event(3, "round_formed", round=2),
        event(4, "worker_failed", round=2, rank=1),
        event(4.1, "round_ended", round=2),
        event(5, "round_formed", round=3),
        event(6, "recovered", round=3, parts_s={"stop": 1.0}),
    )
    assert [one.recovered_s for one in history.incidents] == [1.0, 1.0]


def test_a_round_that_two_nodes_tell_is_one() -> None:
    formed = event(1, "round_formed", round=1)
    assert len(told(formed, formed).rounds) == 1
