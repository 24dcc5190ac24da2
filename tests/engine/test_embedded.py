"""A coordinator at an endpoint's host: its claim, its record, and how another life goes on."""

from __future__ import annotations

import pytest

from holdfast.core.border import Dial
from holdfast.core.protocol.messages import RunRound
from holdfast.engine import sentences

from .by_hand import MEETING, Node, World, job


@pytest.fixture(params=[True, False], ids=["at once", "later"])
def world(request: pytest.FixtureRequest) -> World:
    return World(at_once=request.param)


def two(world: World) -> tuple[Node, Node]:
    """Two nodes in a round; the first one has the claim."""
    config = job(2)
    host = world.node("a", config, "embedded").start()
    other = world.node("b", config, "embedded").start()
    world.pass_time()
    return host, other


def test_one_node_has_the_claim_and_the_other_dials_it(world: World) -> None:
    host, other = two(world)
    assert (host.leads, other.leads) == (True, False)
    assert other.network.lines[0].dialled == [(MEETING,)]
    assert (host.round, other.round) == (1, 1)


def test_a_job_ends_on_all_nodes_and_its_host_is_needed_until_all_know(world: World) -> None:
    host, other = two(world)
    host.succeed()
    assert not host.outcomes, "the other one still works"
    other.succeed()
    world.pass_time(100)
    assert [node.outcomes[0].verdict for node in (host, other)] == ["succeeded"] * 2
    assert not host.engine.is_needed
    assert world.disk.document is None, "the record of a job that everybody knows the end of"


def test_nobody_hears_a_coordinator_before_its_record_is_written(world: World) -> None:
    world.disk.waits = True
    host = world.node("a", job(2), "embedded").start()
    other = world.node("b", job(2), "embedded").start()
    assert not world.listening
    assert not host.leads
    world.disk.answer()
    assert host.leads
    assert world.disk.document is not None
    world.pass_time(10)
    assert (host.round, other.round) == (1, 1)


def test_a_round_is_in_the_record_before_anybody_runs_it(world: World) -> None:
    host = world.node("a", job(2), "embedded").start()
    world.disk.waits = True
    other = world.node("b", job(2), "embedded").start()
    told = [message for _, _, message in host.network.exchanges[-1].sent]
    assert not any(isinstance(message, RunRound) for message in told)
    assert (host.round, other.round) == (0, 0)
    world.disk.answer()
    assert world.disk.document is not None
    assert world.disk.document.ledger.round == 1
    assert (host.round, other.round) == (1, 1)


def test_a_record_that_cannot_be_written_is_told_once_and_stops_nothing(world: World) -> None:
    world.disk.problem = "the disk is full"
    host, other = two(world)
    other.end(0, 1)
    assert (host.round, other.round) == (2, 2)
    assert [text for text in host.said if "the disk is full" in text] == [
        sentences.knows_less("the disk is full")
    ]


def test_a_record_that_fails_again_is_told_again(world: World) -> None:
    world.disk.problem = "the disk is full"
    host, other = two(world)
    for problem in ("", "the disk is gone"):
        world.disk.problem = problem
        other.end(0, 1)
        world.pass_time(30)
    assert (host.round, other.round) == (3, 3)
    assert [text for text in host.said if "the disk is" in text] == [
        sentences.knows_less("the disk is full"),
        sentences.knows_less("the disk is gone"),
    ]


def test_a_node_that_takes_the_claim_over_goes_on_above_what_was(world: World) -> None:
    host, other = two(world)
    before = host.engine.link.coordinating
    assert before is not None
    term, exchange = before.state.term, host.network.exchanges[-1]
    host.engine.close()
    assert exchange.is_closed
    world.pass_time(60)
    now = other.engine.link.coordinating
    assert now is not None
    assert now.state.term > term
    assert now.state.group.round_number >= 1
    assert sentences.from_record(1) in other.said


def test_a_host_whose_job_is_over_keeps_its_place_for_those_who_have_not_heard(
    world: World,
) -> None:
    host, other = two(world)
    exchange = host.network.exchanges[-1]
    exchange.is_mute = True
    for node in (host, other):
        node.succeed()
    assert host.outcomes
    assert not other.outcomes
    assert host.engine.is_needed
    exchange.is_mute = False
    exchange.drop("b")
    world.pass_time(60)
    assert other.outcomes[0].verdict == "succeeded"
    assert not host.engine.is_needed


def test_it_looks_for_its_place_once_however_often_it_is_to_dial(world: World) -> None:
    world.disk.waits = True
    host = world.node("a", job(2), "embedded").start()
    for _ in range(3):
        host.engine.routes[Dial](Dial())
    assert host.claim.takes == 1
    world.disk.answer()
    assert host.leads
    assert len(host.network.exchanges) == 1


def test_a_node_that_is_closed_while_its_record_is_read_opens_nothing(world: World) -> None:
    world.disk.waits = True
    host = world.node("a", job(2), "embedded").start()
    host.engine.close()
    world.disk.answer()
    world.pass_time(1000)
    assert not host.leads
    assert not host.network.exchanges
    assert not world.listening
    assert world.owner == ""


def test_close_leaves_nothing(world: World) -> None:
    host, other = two(world)
    for node in (host, other):
        node.engine.close()
    world.pass_time()
    assert not world.listening
    assert world.owner == ""
    assert all(exchange.is_closed for exchange in host.network.exchanges)
    before = len(host.order), len(host.coordinated), list(host.said)
    sent = len(host.network.exchanges[-1].sent)
    world.pass_time(10_000)
    assert (len(host.order), len(host.coordinated), host.said) == before
    assert len(host.network.exchanges[-1].sent) == sent
