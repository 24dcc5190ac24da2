"""A coordinator that any node can be: found, fenced and handed over through a register."""

from __future__ import annotations

import signal

import pytest

from holdfast.core.node_io import SignalReceived
from holdfast.core.protocol.messages import HeartbeatAnswered
from holdfast.engine.elected import NOT_LEADING

from .by_hand import Node, World, job


@pytest.fixture(params=[True, False], ids=["at once", "later"])
def world(request: pytest.FixtureRequest) -> World:
    return World(at_once=request.param)


def nodes(world: World, count: int = 3, least: int | None = None) -> list[Node]:
    """So many nodes in a round; the first one leads."""
    config = job(count, least)
    made = [world.node(name, config, "elected").start() for name in "abcd"[:count]]
    world.pass_time(10)
    assert len({node.round for node in made}) == 1
    assert all(node.workers for node in made)
    assert [node.leads for node in made] == [True] + [False] * (count - 1)
    return made


def answers(node: Node) -> int:
    sent = node.network.exchanges[0].sent
    return sum(isinstance(message, HeartbeatAnswered) for _, _, message in sent)


def test_the_first_node_leads_and_the_register_says_so(world: World) -> None:
    first, *others = nodes(world)
    document = world.register.document
    assert document is not None
    assert document.leader == "a"
    assert set(document.successors) == {"b", "c"}
    for other in others:
        assert other.network.exchanges[0].closed_because == NOT_LEADING
    assert first.network.exchanges[0].closed_because == ""


def test_a_job_ends_on_all_nodes(world: World) -> None:
    made = nodes(world)
    for node in made:
        node.succeed()
    world.pass_time(10)
    assert [node.outcomes[0].verdict for node in made] == ["succeeded"] * 3


def test_a_leader_that_leaves_hands_over_before_it_is_missed(world: World) -> None:
    """Well before anybody would have taken over for its silence, and the others go on."""
    first, *others = nodes(world, 3, 2)
    number = first.round
    first.engine.post(SignalReceived(signal.SIGTERM))
    world.pass_time(0.5)
    assert first.outcomes
    first.engine.leave()
    world.pass_time(first.engine.config.leases.takeover_s / 2)
    assert not first.engine.is_needed
    first.engine.close()
    (leader,) = [node for node in others if node.leads]
    document = world.register.document
    assert document is not None
    assert document.leader == leader.name
    world.pass_time(20)
    assert [node.round for node in others] == [number + 1] * 2


def test_a_node_that_stepped_down_dismisses_whom_it_had(world: World) -> None:
    first, *_ = nodes(world, 3, 2)
    exchange = first.network.exchanges[0]
    first.engine.post(SignalReceived(signal.SIGTERM))
    world.pass_time(0.5)
    first.engine.leave()
    world.pass_time(1)
    assert exchange.closed_because == NOT_LEADING
    assert not exchange.lines


def test_a_leader_whose_register_is_silent_holds_the_round_and_says_so(world: World) -> None:
    first, *others = nodes(world)
    world.register.is_silent = True
    before = answers(first)
    world.pass_time(first.engine.config.leases.hold_s / 2)
    assert answers(first) > before, "while all of its members answer, they keep their leases"
    assert [node.round for node in (first, *others)] == [1, 1, 1]
    assert all(node.workers for node in (first, *others))


def test_a_leader_whose_register_is_silent_decides_nothing_after_its_term(world: World) -> None:
    first, *others = nodes(world)
    world.register.is_silent = True
    world.pass_time(first.engine.config.leases.term_s + 1)
    sent = [type(message) for _, _, message in first.network.exchanges[0].sent]
    others[0].end(0, 1)
    world.pass_time(1)
    since = first.network.exchanges[0].sent[len(sent) :]
    assert all(isinstance(message, HeartbeatAnswered) for _, _, message in since)
    assert [node.round for node in (first, *others)] == [1, 1, 1]


def test_a_leader_that_is_gone_is_followed_at_once_when_its_tether_ends(world: World) -> None:
    first, *others = nodes(world, 3, 2)
    number, document = first.round, world.register.document
    assert document is not None
    epoch = document.epoch
    first.engine.close()  # As if killed: it writes nothing, and nobody is told.
    for other in others:
        (on_gone,) = other.network.watches.values()
        on_gone()
    world.pass_time(1)
    assert any(node.leads for node in others)
    document = world.register.document
    assert document is not None
    assert document.epoch > epoch
    world.pass_time(30)
    assert [node.round for node in others] == [number + 1] * 2
    assert [len(node.workers) for node in others] == [1, 1]


def test_a_new_line_forgets_the_tether_of_the_old_one(world: World) -> None:
    """It would tell of the end of whoever led before, under the name of the one that leads now."""
    _, other, _ = nodes(world)
    assert len(other.network.watches) == 1
    leader = other.network.lines[0].dialled[-1][0]
    world.has_tethers = False
    world.listening[leader].drop("b")
    world.pass_time(5)
    assert "b" in world.listening[leader].lines
    assert not other.network.watches


def test_close_leaves_nothing(world: World) -> None:
    made = nodes(world)
    for node in made:
        node.engine.close()
    world.pass_time()
    before = [(len(node.order), len(node.coordinated), list(node.said)) for node in made]
    content = world.register.content
    world.pass_time(10_000)
    assert [(len(node.order), len(node.coordinated), node.said) for node in made] == before
    assert world.register.content == content
    for node in made:
        assert node.register.is_closed
        assert not node.network.watches
        assert all(exchange.is_closed for exchange in node.network.exchanges)
