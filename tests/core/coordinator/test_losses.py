"""Which node a job is said to have been lost with."""

from __future__ import annotations

import pytest

from holdfast.core.membership import NodeGone, NodeSuspected
from holdfast.core.policy import sentences
from holdfast.core.protocol.messages import NodeLeft
from holdfast.core.protocol.model import Blame

from .coordinated_job import Job, outcome, running


def ended_for(job: Job) -> Blame:
    """What a job is said to have ended for, in which nobody came for the one that is missing."""
    ended = outcome(job.wake(600.0))
    assert ended.verdict == "not_formed"
    assert ended.blame is not None
    assert ended.reason.endswith(sentences.not_formed("", ended.blame.who))
    return ended.blame


@pytest.mark.parametrize(
    ("ended", "kind", "sure"),
    [(True, "killed agent", "certain"), (False, "lost host or network", "likely")],
)
def test_a_job_that_could_not_go_on_says_with_which_node_it_was_lost(
    ended: bool, kind: str, sure: str
) -> None:
    job = running("a", "b")
    job.take(NodeGone("b", "so it is", ended=ended))
    job.stop("a")
    found = ended_for(job)
    assert (found.kind, found.who, found.certainty) == (kind, "host-b (ranks 2 to 3)", sure)


def test_what_is_proven_later_replaces_what_was_suspected() -> None:
    job = running("a", "b")
    job.take(NodeSuspected("b", "it has been silent for 3.0 s"))
    job.take(NodeGone("b", "all its processes have ended", ended=True))
    job.stop("a")
    assert ended_for(job).kind == "killed agent"


def test_the_first_node_that_was_lost_is_named() -> None:
    job = running("a", "b", "c")
    job.take(NodeGone("c", "silent"))
    job.take(NodeGone("b", "all its processes have ended", ended=True))
    job.stop("a")
    assert ended_for(job).who.startswith("host-c")


def test_a_node_that_says_why_it_leaves_is_believed() -> None:
    job = running("a", "b")
    job.hear("b", NodeLeft("the spawner on host-b was killed", kind="killed spawner"))
    job.stop("a")
    found = ended_for(job)
    assert (found.kind, found.certainty) == ("killed spawner", "certain")
    assert found.why == "the spawner on host-b was killed"


def test_another_round_makes_the_loss_forgotten() -> None:
    job = running("a", "b")
    job.take(NodeGone("b", "silent"))
    job.stop("a")
    assert job.state.group.loss is not None
    job.join("c")
    assert job.state.group.round_number == 2
    assert job.state.group.loss is None
