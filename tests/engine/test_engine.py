"""The engine: one step after the other, each carried out before the next, whoever answers when."""

from __future__ import annotations

import signal
from typing import get_args

import pytest

from holdfast.core.coordinator_io import CoordinatorEffect
from holdfast.core.election import ElectionEffect
from holdfast.core.node_io import (
    Dial,
    EndSpawner,
    Finish,
    HangUp,
    KnowEnded,
    Report,
    Say,
    SignalReceived,
    WakeNode,
)

from .by_hand import Node, World, job

OWN = Report | WakeNode | Dial | HangUp | KnowEnded | Say | Finish
"""What the engine carries out itself; the rest is for the processes."""


def steps_of(node: Node) -> list[tuple[object, list[object], list[object]]]:
    """Each event, what was decided of it for the processes, and what these did before the next."""
    steps: list[tuple[object, list[object], list[object]]] = []
    for kind, what in node.order:
        if kind == "step":
            event, effects = what
            wanted = [effect for effect in effects if not isinstance(effect, OWN)]
            steps.append((event, wanted, []))
        else:
            steps[-1][2].append(what)
    return steps


@pytest.fixture(params=[True, False], ids=["at once", "later"])
def world(request: pytest.FixtureRequest) -> World:
    return World(at_once=request.param)


def test_a_job_of_one_node_runs_to_its_end(world: World) -> None:
    node = world.node("a", job()).start()
    assert node.workers
    node.succeed()
    (outcome,) = node.outcomes
    assert outcome.verdict == "succeeded"
    assert node.engine.outcome == outcome
    assert not node.engine.is_needed


@pytest.mark.parametrize("way", ["alone", "embedded", "elected"])
def test_every_effect_is_taken_by_somebody(way: str) -> None:
    node = World().node("a", job(1), way).start()
    assert node.leads
    of_election = get_args(ElectionEffect) if way == "elected" else ()
    wanted = {*get_args(CoordinatorEffect), *get_args(OWN), *of_election}
    assert wanted <= node.engine.routes.keys()


def test_every_effect_is_carried_out_before_the_next_event_in_the_order_decided(
    world: World,
) -> None:
    """What answers from within the call that asked waits, or effects of two steps would mix."""
    node = world.node("a", job()).start()
    node.end(0, 1)
    node.succeed()
    steps = steps_of(node)
    assert len(steps) > 10
    for event, wanted, done in steps:
        assert done == wanted, event


def test_it_decides_the_same_whether_it_is_answered_at_once_or_later() -> None:
    seen = []
    for at_once in (True, False):
        world = World(at_once=at_once)
        node = world.node("a", job()).start()
        node.end(0, 1)
        node.succeed()
        seen.append(node.done)
    assert seen[0] == seen[1]


def test_the_end_is_told_once_after_all_else_has_ended(world: World) -> None:
    node = world.node("a", job()).start()
    node.engine.post(SignalReceived(signal.SIGTERM))
    world.pass_time(100)
    assert len(node.outcomes) == 1
    assert isinstance(node.done[-1], EndSpawner)
    assert not node.workers


def test_a_timer_that_is_set_again_takes_the_place_of_the_one_before(world: World) -> None:
    """The grace of a round that was stopped must not cut that of the next one short."""
    config = job(slots=2)
    grace_s = config.timeouts.shutdown_s
    node = world.node("a", config).start()
    node.end(0, 1)
    assert (node.round, len(node.workers)) == (2, 2)
    world.pass_time(grace_s - 1)
    node.ignores_signals = True
    node.end(0, 1)
    struck_at = world.clock.now()
    world.pass_time(2 * grace_s)
    at = [at for at, name in node.fired if name == "grace"]
    assert at == [struck_at + grace_s]


def test_after_close_no_timer_fires_and_nothing_is_sent(world: World) -> None:
    node = world.node("a", job())
    node.ignores_signals = True
    node.start()
    node.engine.post(SignalReceived(signal.SIGTERM))
    world.pass_time()
    node.engine.close()
    before = list(node.order), list(node.said)
    world.pass_time(10_000)
    assert (node.order, node.said) == before
