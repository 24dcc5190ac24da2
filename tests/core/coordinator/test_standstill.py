"""When a whole job hangs, and whom the coordinator has ended for it."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.coordinator.io import CoordinatorEffect, Tell
from holdfast.core.policy.config import Oversight
from holdfast.core.protocol.messages import (
    TellHang,
    WorkersMoved,
    WorkersStood,
    WorkersSucceeded,
)

from .coordinated_job import Job, failure, running


def hanging(*nodes: str, hang: str = "restart") -> Job:
    job = running(*nodes)
    oversight = Oversight(hang=hang)  # type: ignore[arg-type]
    job.state.config = replace(job.state.config, oversight=oversight)
    return job


def told_of(effects: list[CoordinatorEffect]) -> dict[str, bool]:
    """Who was told of a hang, and whether to end a worker."""
    return {
        effect.node: effect.message.ends
        for effect in effects
        if isinstance(effect, Tell) and isinstance(effect.message, TellHang)
    }


def test_a_job_hangs_when_all_nodes_stand_still_and_not_before() -> None:
    job = hanging("a", "b", "c", hang="warn")
    assert job.hear("a", WorkersStood(1)) == []
    assert job.hear("b", WorkersStood(1)) == []
    assert told_of(job.hear("c", WorkersStood(1))) == {"a": False, "b": False, "c": False}


def test_who_moves_again_clears_all() -> None:
    job = hanging("a", "b")
    job.hear("a", WorkersStood(1))
    job.hear("a", WorkersMoved(1))
    assert job.hear("b", WorkersStood(1)) == []
    assert told_of(job.hear("a", WorkersStood(1))) != {}


def test_it_is_told_once_for_each_standstill() -> None:
    job = hanging("a", hang="warn")
    assert told_of(job.hear("a", WorkersStood(1))) == {"a": False}
    assert job.hear("a", WorkersStood(1)) == []
    job.hear("a", WorkersMoved(1))
    assert told_of(job.hear("a", WorkersStood(1))) == {"a": False}


def test_a_node_that_has_finished_is_not_waited_for() -> None:
    job = hanging("a", "b", hang="warn")
    job.hear("a", WorkersStood(1))
    assert told_of(job.hear("b", WorkersSucceeded(1))) == {"a": False}


def test_a_worker_is_ended_where_one_stands_out() -> None:
    job = hanging("a", "b", "c")
    job.hear("a", WorkersStood(1))
    job.hear("b", WorkersStood(1))
    told = told_of(job.hear("c", WorkersStood(1, stands_out=True)))
    assert told == {"a": False, "b": False, "c": True}


def test_without_one_that_stands_out_the_first_node_ends_one() -> None:
    job = hanging("a", "b")
    job.hear("b", WorkersStood(1))
    assert told_of(job.hear("a", WorkersStood(1))) == {"a": True, "b": False}


def test_a_job_that_never_said_how_far_it_is_is_told_of_and_not_restarted() -> None:
    job = hanging("a", "b")
    job.hear("a", WorkersStood(1, never_spoke=True))
    assert told_of(job.hear("b", WorkersStood(1))) == {"a": False, "b": False}


def test_a_round_that_ends_hangs_no_more() -> None:
    job = hanging("a", "b")
    job.hear("a", WorkersStood(1))
    job.fail("a", failure(0))
    assert told_of(job.hear("b", WorkersStood(1))) == {}


def test_words_on_another_round_or_of_a_stranger_count_for_nothing() -> None:
    job = hanging("a", "b")
    job.join("c")
    assert job.hear("a", WorkersStood(2)) == []
    assert job.hear("c", WorkersStood(1)) == []
    assert job.hear("c", WorkersMoved(1)) == []
