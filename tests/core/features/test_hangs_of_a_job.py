"""When a whole job hangs, and whom the coordinator has ended for it."""

from __future__ import annotations

from msgspec.structs import replace
from tests.core.coordinator.coordinated_job import Job, failure, running

from holdfast.core.coordinator_io import CoordinatorEffect, Explain, Tell
from holdfast.core.policy import sentences
from holdfast.core.policy.config import Oversight
from holdfast.core.protocol.messages import (
    FrameGroup,
    RoundReport,
    TellHang,
    WorkersResumed,
    WorkersStalled,
    WorkersSucceeded,
)


def hanging(*nodes: str, hang: str = "restart") -> Job:
    job = running(*nodes)
    oversight = Oversight(hang=hang)  # type: ignore[arg-type]
    job.state.config = replace(job.state.config, oversight=oversight)
    return job


def told_of(effects: list[CoordinatorEffect]) -> dict[str, bool]:
    """The nodes that were told of a hang, and whether to end a worker."""
    return {
        effect.node: effect.message.ends
        for effect in effects
        if isinstance(effect, Tell) and isinstance(effect.message, TellHang)
    }


def test_a_job_hangs_when_all_nodes_are_stalled_and_not_before() -> None:
    job = hanging("a", "b", "c", hang="warn")
    assert job.hear("a", WorkersStalled(1)) == []
    assert job.hear("b", WorkersStalled(1)) == []
    assert told_of(job.hear("c", WorkersStalled(1))) == {"a": False, "b": False, "c": False}


def test_who_moves_again_clears_all() -> None:
    job = hanging("a", "b")
    job.hear("a", WorkersStalled(1))
    job.hear("a", WorkersResumed(1))
    assert job.hear("b", WorkersStalled(1)) == []
    assert told_of(job.hear("a", WorkersStalled(1))) != {}


def test_it_is_told_once_for_each_stall() -> None:
    job = hanging("a", hang="warn")
    assert told_of(job.hear("a", WorkersStalled(1))) == {"a": False}
    assert job.hear("a", WorkersStalled(1)) == []
    job.hear("a", WorkersResumed(1))
    assert told_of(job.hear("a", WorkersStalled(1))) == {"a": False}


def test_a_node_that_has_finished_is_not_waited_for() -> None:
    job = hanging("a", "b", hang="warn")
    job.hear("a", WorkersStalled(1))
    assert told_of(job.hear("b", WorkersSucceeded(1))) == {"a": False}


def again(job: Job, node: str, seat: int) -> None:
    """On a fresh connection."""
    job.greet(node, RoundReport(1, seat, len(job.state.members), "running"))


def waiting(*ranks: int) -> WorkersStalled:
    return WorkersStalled(1, (FrameGroup(ranks, "all_reduce", "train.py:41"),), 300.0)


def loading(rank: int) -> WorkersStalled:
    waits_for = "waiting for a file on /data"
    return WorkersStalled(1, (FrameGroup((rank,), "load_batch", "data.py:88", waits_for),), 310.0)


def test_the_odd_one_of_all_nodes_is_ended() -> None:
    job = hanging("a", "b", "c")
    job.hear("a", waiting(0))
    job.hear("b", waiting(1))
    effects = job.hear("c", loading(2))
    assert told_of(effects) == {"a": False, "b": False, "c": True}
    assert [
        effect.message.rank
        for effect in effects
        if isinstance(effect, Tell) and isinstance(effect.message, TellHang)
    ] == [None, None, 2]


def test_where_all_are_is_said_once_where_the_coordinator_is() -> None:
    job = hanging("a", "b", hang="warn")
    job.hear("a", waiting(0))
    said = [one.text for one in job.hear("b", loading(1)) if isinstance(one, Explain)]
    waits = "rank 0 on host-a waits in all_reduce at train.py:41"
    loads = "rank 1 on host-b is in load_batch at data.py:88, waiting for a file on /data"
    assert said == [sentences.hang_of_nodes(2, 300.0, f"{waits}; {loads}", [])]
    again(job, "b", 1)
    assert not [one for one in job.hear("b", loading(1)) if isinstance(one, Explain)]


def test_what_a_node_said_on_a_connection_that_broke_is_forgotten() -> None:
    job = hanging("a", "b", hang="warn")
    job.hear("a", waiting(0))
    again(job, "a", 0)
    assert job.hear("b", waiting(1)) == [], "it may have moved, unheard"
    assert told_of(job.hear("a", waiting(0))) == {"a": False, "b": False}


def test_a_node_that_may_not_have_heard_is_told_again_and_the_others_are_not() -> None:
    job = hanging("a", "b")
    job.hear("a", waiting(0))
    assert told_of(job.hear("b", loading(1))) == {"a": False, "b": True}
    again(job, "b", 1)
    assert told_of(job.hear("b", loading(1))) == {"b": True}


def test_without_one_that_stands_out_the_first_node_ends_one() -> None:
    job = hanging("a", "b")
    job.hear("b", WorkersStalled(1))
    assert told_of(job.hear("a", WorkersStalled(1))) == {"a": True, "b": False}


def test_a_job_that_never_said_how_far_it_is_is_told_of_and_not_restarted() -> None:
    job = hanging("a", "b")
    job.hear("a", WorkersStalled(1, never_reported=True))
    assert told_of(job.hear("b", WorkersStalled(1))) == {"a": False, "b": False}


def silent(stalled: WorkersStalled, **more: bool) -> WorkersStalled:
    return replace(stalled, never_reported=True, needs_cause=True, **more)


def test_workers_that_never_spoke_count_soon_where_one_is_in_no_collective() -> None:
    job = hanging("a", "b", "c")
    assert job.hear("a", silent(waiting(0))) == []
    assert job.hear("b", silent(waiting(1))) == []
    assert told_of(job.hear("c", silent(loading(2)))) == {"a": False, "b": False, "c": True}


def test_workers_that_never_spoke_do_not_count_soon_where_most_are_elsewhere_or_all_wait() -> None:
    job = hanging("a", "b", "c")
    job.hear("a", silent(waiting(0)))
    job.hear("b", silent(loading(1)))
    assert job.hear("c", silent(loading(2))) == []
    job = hanging("a", "b")
    job.hear("a", silent(waiting(0)))
    assert job.hear("b", silent(waiting(1))) == []


def test_workers_that_never_spoke_count_soon_where_one_is_in_another_collective() -> None:
    job = hanging("a", "b", "c")
    job.hear("a", silent(waiting(0)))
    job.hear("b", silent(waiting(1)))
    other = WorkersStalled(1, (FrameGroup((2,), "barrier", "train.py:50"),), 300.0)
    assert told_of(job.hear("c", silent(other))) == {"a": False, "b": False, "c": True}


def test_all_that_are_left_wait_for_a_rank_that_has_ended() -> None:
    job = hanging("a", "b")
    job.hear("a", silent(waiting(0)))
    assert told_of(job.hear("b", silent(waiting(1), has_early_end=True))) == {"a": True, "b": False}


def test_what_was_said_before_a_node_finished_has_to_be_said_again() -> None:
    job = hanging("a", "b", "c")
    job.hear("a", silent(waiting(0)))
    job.hear("c", silent(waiting(2)))
    assert told_of(job.hear("b", WorkersSucceeded(1))) == {}, "it may have released them"
    job.hear("a", silent(waiting(0)))
    effects = job.hear("c", silent(waiting(2)))
    assert told_of(effects) == {"a": True, "c": False}
    (said,) = (one.text for one in effects if isinstance(one, Explain))
    assert said.endswith("; all workers on host-b had ended with exit code 0")


def test_a_round_that_ends_hangs_no_more() -> None:
    job = hanging("a", "b")
    job.hear("a", WorkersStalled(1))
    job.fail("a", failure(0))
    assert told_of(job.hear("b", WorkersStalled(1))) == {}


def test_words_on_another_round_or_of_a_stranger_count_for_nothing() -> None:
    job = hanging("a", "b")
    job.join("c")
    assert job.hear("a", WorkersStalled(2)) == []
    assert job.hear("c", WorkersStalled(1)) == []
    assert job.hear("c", WorkersResumed(1)) == []
