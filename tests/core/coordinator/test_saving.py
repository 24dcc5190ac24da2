"""All nodes of a round are told to save before one leaves it, and at which step."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.coordinator.io import CoordinatorEffect
from holdfast.core.coordinator.leases import NodeGone
from holdfast.core.protocol.messages import (
    NodeDraining,
    SaveHeard,
    SaveNow,
    Standing,
    StopRound,
    WorkersSaved,
)

from .coordinated_job import Job, running, told

WHY = "SIGTERM was sent to its agent"
REASON = f"host-b is leaving: {WHY}"
DRAIN = NodeDraining(WHY, 20.0)


def steps(effects: list[CoordinatorEffect]) -> dict[str, int | None]:
    """Who is told to save, and where."""
    words = told(effects)
    return {node: word.step for node, word in words.items() if isinstance(word, SaveNow)}


def stopped(effects: list[CoordinatorEffect]) -> set[str]:
    return {node for node, word in told(effects).items() if isinstance(word, StopRound)}


def draining() -> Job:
    """Of three nodes two would do, and b is asked to leave."""
    job = running("a", "b", "c", at_most=3)
    job.state.config = replace(job.state.config, min_nodes=2)
    assert steps(job.hear("b", DRAIN)) == {"a": None, "b": None, "c": None}
    return job


def test_all_members_are_told_with_the_time_that_there_is() -> None:
    job = running("a", "b")
    word = SaveNow(1, REASON, 20.0, None, "host-b")
    assert told(job.hear("b", DRAIN)) == {"a": word, "b": word}


def test_all_save_at_the_furthest_step_once_everybody_has_said_its_own() -> None:
    job = draining()
    assert steps(job.hear("a", SaveHeard(1, True, 41))) == {}
    assert steps(job.hear("b", SaveHeard(1, True, 42))) == {}
    assert steps(job.hear("c", SaveHeard(1, True, 40))) == {"a": 42, "b": 42, "c": 42}


def test_the_node_is_let_out_when_all_have_saved() -> None:
    job = draining()
    for node in "abc":
        job.hear(node, SaveHeard(1, True, 7))
    assert stopped(job.hear("a", WorkersSaved(1))) == set()
    assert stopped(job.hear("c", WorkersSaved(1))) == set()
    assert stopped(job.hear("b", WorkersSaved(1))) == {"a", "b", "c"}


def test_where_nobody_listens_nobody_waits() -> None:
    job = draining()
    job.hear("a", SaveHeard(1))
    job.hear("b", SaveHeard(1))
    assert stopped(job.hear("c", SaveHeard(1))) == {"a", "b", "c"}


def test_the_wait_is_over_when_the_time_is() -> None:
    job = draining()
    job.hear("a", SaveHeard(1, True, 7))
    assert stopped(job.wake(19.9)) == set()
    assert stopped(job.wake(0.1)) == {"a", "b", "c"}


def test_whoever_can_wait_least_decides_how_long() -> None:
    job = draining()
    job.now += 2.0
    words = told(job.hear("c", NodeDraining(WHY, 5.0)))
    assert {word.within_s for word in words.values() if isinstance(word, SaveNow)} == {5.0}
    assert steps(job.hear("a", NodeDraining(WHY, 60.0))) == {}
    assert stopped(job.wake(5.0)) == {"a", "b", "c"}


def test_a_loss_ends_the_round_though_others_save() -> None:
    job = draining()
    job.hear("a", SaveHeard(1, True, 7))
    assert stopped(job.take(NodeGone("c", "all its processes have ended"))) == {"a", "b"}


def test_a_member_with_a_new_connection_is_told_again_and_waited_for() -> None:
    job = draining()
    for node in "abc":
        job.hear(node, SaveHeard(1, True, 7))
    standing = Standing(1, 0, 3, "running")
    assert steps(job.greet("a", standing)) == {"a": 7}
    job.hear("b", WorkersSaved(1))
    assert stopped(job.hear("c", WorkersSaved(1))) == set()
    job.hear("a", SaveHeard(1, True, 7))
    assert stopped(job.hear("a", WorkersSaved(1))) == {"a", "b", "c"}


def test_a_step_that_is_decided_does_not_change() -> None:
    job = draining()
    for node in "abc":
        job.hear(node, SaveHeard(1, True, 7))
    assert job.hear("a", SaveHeard(1, True, 99)) == []


def test_whoever_stops_its_workers_already_is_not_waited_for() -> None:
    job = running("a", "b", "c", at_most=3)
    job.state.config = replace(job.state.config, min_nodes=2)
    words = told(job.hear("b", NodeDraining(WHY, at_once=True)))
    assert words == {node: StopRound(1, REASON, "host-b", goes_on=True) for node in "abc"}


def test_where_too_few_stay_nobody_says_that_the_job_goes_on() -> None:
    """An engine that is told so does not start it again."""
    job = running("a", "b")
    words = told(job.hear("b", NodeDraining(WHY, at_once=True)))
    assert words == {node: StopRound(1, REASON, "host-b", goes_on=False) for node in "ab"}


def test_where_everybody_leaves_that_is_said() -> None:
    job = running("a", "b")
    job.hear("b", NodeDraining(WHY))
    words = told(job.hear("a", NodeDraining(WHY)))
    assert {word.goes_on for word in words.values() if isinstance(word, StopRound)} == {False}


def test_nobody_else_can_say_that_it_has_saved() -> None:
    job = draining()
    job.join("d")
    assert job.hear("d", SaveHeard(1, True, 10**9)) == []
    job.hear("a", SaveHeard(1, True, 7))
    job.hear("b", SaveHeard(1, True, 7))
    assert steps(job.hear("c", SaveHeard(1, True, 7)))["a"] == 7


def test_who_has_left_ends_the_round_where_nobody_saves_or_leaves_any_more() -> None:
    """The node that was to leave, and the coordinator that knew of it, are gone."""
    job = running("a", "b")
    effects = job.hear("a", WorkersSaved(1, left=True))
    assert stopped(effects) == {"a", "b"}
    assert isinstance(told(effects)["b"], StopRound)
    assert "have ended" in told(effects)["b"].reason


def test_who_has_left_waits_while_others_save() -> None:
    job = draining()
    for node in "abc":
        job.hear(node, SaveHeard(1, True, 7))
    assert stopped(job.hear("a", WorkersSaved(1, left=True))) == set()
    assert stopped(job.hear("c", WorkersSaved(1))) == set()
    assert stopped(job.hear("b", WorkersSaved(1))) == {"a", "b", "c"}


def test_a_greeting_tells_it_too() -> None:
    job = running("a", "b")
    assert stopped(job.greet("b", Standing(1, 1, 2, "left"))) == {"a", "b"}
