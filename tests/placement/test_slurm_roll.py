"""Who is in a job, as its nodes' journals tell."""

from __future__ import annotations

import json

from holdfast.placement.slurm_roll import Roll


def header(host: str) -> bytes:
    return json.dumps({"schema": 1, "job": "j", "node": f"{host}-1", "host": host}).encode()


def told(message: dict) -> bytes:
    event = {"type": "Told", "message": message}
    return json.dumps({"machine": "agent", "seq": 1, "event": event, "effects": []}).encode()


def runs(number: int, place: int, size: int) -> bytes:
    at = {"round": number, "restart_count": 0, "group_rank": place, "group_size": size}
    return told({"type": "RunRound", "assignment": at})


def test_a_round_is_told_once_all_its_members_have_noted_it() -> None:
    roll = Roll()
    assert list(roll.read("a", [header("host2"), runs(1, 1, 2)])) == []
    assert list(roll.read("b", [header("host1"), runs(1, 0, 2)])) == [
        "round 1: 2 nodes: host1, host2"
    ]


def test_a_node_that_died_is_in_no_later_round() -> None:
    roll = Roll()
    list(roll.read("a", [header("host1"), runs(1, 0, 2)]))
    list(roll.read("b", [header("host2"), runs(1, 1, 2)]))
    assert list(roll.read("a", [runs(2, 0, 1)])) == ["round 2: 1 node: host1"]


def test_who_stands_by_is_told() -> None:
    said = Roll().read("a", [header("host3"), told({"type": "StandBy", "reason": "full"})])
    assert list(said) == ["host3 stands by"]


def test_the_outcome_is_what_the_coordinator_told() -> None:
    roll = Roll()
    outcome = {"verdict": "failed", "reason": "rank 1 failed", "exit_status": 1}
    list(roll.read("a", [header("host1"), told({"type": "CloseJob", "outcome": outcome})]))
    assert roll.outcome is not None
    assert (roll.outcome.verdict, roll.outcome.exit_status) == ("failed", 1)


def test_what_cannot_be_read_is_passed_over() -> None:
    lines = [header("host1"), b"{", b'{"machine": 3}', told({"type": "RunRound", "assignment": 1})]
    roll = Roll()
    assert list(roll.read("a", [*lines, runs(1, 0, 1)])) == ["round 1: 1 node: host1"]
