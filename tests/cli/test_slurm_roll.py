"""Who is in a job, as its nodes' journals tell."""

from __future__ import annotations

import msgspec

from holdfast.cli.slurm_roll import Roll
from holdfast.core.node_io import Told
from holdfast.core.protocol.messages import CloseJob, RunRound, StandBy, ToNode
from holdfast.core.protocol.model import Assignment, Endpoint, Outcome, Ranks
from holdfast.observe.journal import NodeStep


def header(host: str) -> bytes:
    return msgspec.json.encode({"schema": 2, "job": "j", "node": f"{host}-1", "host": host})


def told(message: ToNode) -> bytes:
    return msgspec.json.encode(NodeStep(1, 0.5, Told(message), []))


def runs(number: int, place: int, size: int) -> bytes:
    ranks, master = (Ranks(0, place, place),), Endpoint("host1", 29500)
    return told(RunRound(Assignment(number, 0, place, size, size, size, ranks, master)))


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
    said = Roll().read("a", [header("host3"), told(StandBy("full"))])
    assert list(said) == ["host3 stands by"]


def test_the_outcome_is_what_the_coordinator_told() -> None:
    roll = Roll()
    outcome = Outcome("failed", "rank 1 failed", 1)
    list(roll.read("a", [header("host1"), told(CloseJob(outcome))]))
    assert roll.outcome is not None
    assert (roll.outcome.verdict, roll.outcome.exit_status) == ("failed", 1)


def test_what_cannot_be_read_is_passed_over() -> None:
    newer = b'{"machine": "agent", "seq": 1, "at": 0, "event": {"type": "Unheard"}, "effects": []}'
    lines = [header("host1"), b"{", b'{"machine": 3}', b"\xff", newer]
    roll = Roll()
    assert list(roll.read("a", [*lines, runs(1, 0, 1)])) == ["round 1: 1 node: host1"]
