"""A node that did not pass its check: it tells the coordinator, if it can, and goes."""

from __future__ import annotations

import pytest

from holdfast.core import node as agent
from holdfast.core.features.of_node import new_node
from holdfast.core.node import Timer
from holdfast.core.node_io import (
    CoordinatorLost,
    CoordinatorReached,
    EndSpawner,
    Finish,
    NodeEffect,
    NodeEvent,
    NodeStarted,
    NodeTimerFired,
    ReserveEndpoint,
    Say,
    SpawnerEnded,
    StartZygote,
)
from holdfast.core.policy.config import JobConfig, Program
from holdfast.core.protocol.messages import NodeGreeted, NodeJoined, NodeLeft
from holdfast.core.protocol.model import Outcome

from .test_contact import reports

FULL = "/data has 12 MB left"


def life(*events: NodeEvent, least: int = 1) -> list[NodeEffect]:
    config = JobConfig("job", Program("script", "x"), min_nodes=least, max_nodes=2)
    state = new_node(config, "here-1", "here")
    started = NodeStarted(unfit=FULL)
    return [effect for event in (started, *events) for effect in agent.step(state, event, 5.0)]


def outcome(effects: list[NodeEffect]) -> Outcome:
    (finish,) = [effect for effect in effects if isinstance(effect, Finish)]
    return finish.outcome


def test_it_greets_says_why_it_stays_out_and_is_never_ready() -> None:
    effects = life(CoordinatorReached(), SpawnerEnded())
    said = reports(effects)
    assert [type(one) for one in said] == [NodeGreeted, NodeLeft]
    assert said[1] == NodeLeft(FULL, unfit=True)
    assert not any(isinstance(one, NodeJoined) for one in said)
    assert Say(f"this node stays out: {FULL}") in effects
    assert not any(isinstance(one, ReserveEndpoint | StartZygote) for one in effects)
    assert outcome(effects).exit_status == 4


@pytest.mark.parametrize(
    "event", [CoordinatorLost("no such name", permanent=True), NodeTimerFired(Timer.UNFIT)]
)
def test_it_goes_even_if_nobody_is_reached(event: NodeEvent) -> None:
    effects = life(event)
    assert any(isinstance(effect, EndSpawner) for effect in effects)
    assert outcome(life(event, SpawnerEnded())).reason == f"here stays out: {FULL}"


@pytest.mark.parametrize(("least", "asked"), [(1, "node"), (2, "")])
def test_engines_are_told_whether_the_job_can_do_without_it(least: int, asked: str) -> None:
    assert outcome(life(CoordinatorReached(), SpawnerEnded(), least=least)).asked == asked
