"""Messages that are refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.core.coordinator.coordinated_job import running

from holdfast.core import coordinator as livenesses
from holdfast.core.coordinator import Coordinator, JobEnd, coordinator_of
from holdfast.core.coordinator_io import Refuse
from holdfast.core.objections import INSTANCE_MOST, LEAP
from holdfast.core.protocol.messages import (
    ClosingWanted,
    FromNode,
    Heartbeat,
    NodeDraining,
    NodeGreeted,
    NodeLeft,
    RoundStopped,
    Seen,
    WorkersFailed,
    WorkersProgressed,
)
from holdfast.core.protocol.model import Endpoint, ExitStatus, Failure, NodeInfo, Outcome, Term

PLACE = Endpoint("10.0.0.1", 4000)
FAILURE = Failure("b", "host-b", 0, 2, "default", 7, ExitStatus(code=1), 1.0)


@pytest.fixture
def liveness() -> Coordinator:
    """Nodes `a` and `b` run the first round, with two workers each."""
    liveness = coordinator_of(running("a", "b", at_most=3).state)
    liveness.greeted |= {"a", "b"}
    return liveness


def greeting(node: str, **details: object) -> NodeGreeted:
    return replace(NodeGreeted(NodeInfo(node, f"host-{node}", slots=2)), **details)


def kinds(liveness: Coordinator, node: str, message: FromNode) -> list[str]:
    """Why the node is refused, if it is."""
    effects = livenesses.receive(liveness, node, message, 1001.0)
    return [effect.kind for effect in effects if isinstance(effect, Refuse)]


def test_a_word_that_is_refused_is_no_step_and_renews_no_lease(liveness: Coordinator) -> None:
    assert kinds(liveness, "z", greeting("a")) == ["name"]
    assert liveness.taken == []
    assert "z" not in liveness.leases.watches


def test_a_node_greets_before_it_says_anything_else_on_every_connection(
    liveness: Coordinator,
) -> None:
    assert kinds(liveness, "z", NodeDraining("why not")) == ["greeting"]
    assert kinds(liveness, "z", Heartbeat(1)) == []
    assert kinds(liveness, "b", NodeDraining("it is asked to go")) == []
    livenesses.disconnected(liveness, "b", 1001.0)
    assert kinds(liveness, "b", WorkersProgressed(1, 5)) == ["greeting"]
    assert kinds(liveness, "b", greeting("b")) == []
    assert kinds(liveness, "b", WorkersProgressed(1, 5)) == []


def test_after_the_end_nobody_is_refused(liveness: Coordinator) -> None:
    liveness.state.end = JobEnd(Outcome("failed", "over", 1), set(), "told")
    assert kinds(liveness, "z", NodeLeft("bye")) == []


def test_a_node_tells_of_its_own_failures_on_ranks_that_it_was_given(liveness: Coordinator) -> None:
    assert kinds(liveness, "b", WorkersFailed(1, (replace(FAILURE, node="a"),))) == ["failure"]
    assert kinds(liveness, "b", WorkersFailed(1, (replace(FAILURE, rank=0),))) == ["failure"]
    other = RoundStopped(1, (replace(FAILURE, rank=1),), PLACE)
    assert kinds(liveness, "b", other) == ["failure"]
    assert liveness.state.group.round is not None
    assert liveness.state.group.round.is_whole
    assert kinds(liveness, "b", WorkersFailed(1, (FAILURE,))) == []
    assert liveness.state.group.round is not None
    assert liveness.state.group.round.stop is not None
    assert liveness.state.group.round.stop.cause.kind == "failure"


def test_a_wish_to_close_is_for_no_success_and_blames_nobody_else(liveness: Coordinator) -> None:
    assert kinds(liveness, "b", ClosingWanted(Outcome("succeeded", "", 0))) == ["closing"]
    blame = Outcome("failed", "", 1, replace(FAILURE, node="a"))
    assert kinds(liveness, "b", ClosingWanted(blame)) == ["failure"]
    assert kinds(liveness, "b", greeting("b", closing=blame)) == ["failure"]
    assert liveness.state.group.closing is None
    assert kinds(liveness, "b", ClosingWanted(Outcome("failed", "enough", 1, FAILURE))) == []


@pytest.mark.parametrize(
    ("seen", "can_be"),
    [
        (Seen(Term(1, 1), 1), True),
        (Seen(Term(1, 1), 1 + LEAP), True),
        (Seen(Term(1, 1), 2 + LEAP), False),
        (Seen(Term(1, 1 + LEAP), 1), True),
        (Seen(Term(1, 2 + LEAP), 1), False),
        (Seen(Term(2, LEAP), 1), True),
        (Seen(Term(2, 1 + LEAP), 1), False),
        (Seen(Term(INSTANCE_MOST, 1), 1), True),
        (Seen(Term(INSTANCE_MOST + 1, 1), 1), False),
    ],
)
def test_a_memory_is_believed_as_far_as_it_can_be_true(
    liveness: Coordinator, seen: Seen, can_be: bool
) -> None:
    assert kinds(liveness, "z", greeting("z", seen=seen)) == ([] if can_be else ["memory"])


def test_whoever_counts_on_from_the_highest_instance_is_not_a_liar(liveness: Coordinator) -> None:
    liveness.state.term = Term(INSTANCE_MOST + 7, 1)
    assert kinds(liveness, "z", greeting("z", seen=Seen(Term(INSTANCE_MOST + 7, 1), 1))) == []
