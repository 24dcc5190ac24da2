"""How the job is, as its coordinator knows it."""

from __future__ import annotations

from holdfast.core.coordinator import Coordinator, begin, coordinator_of, receive
from holdfast.core.features.overview import overview
from holdfast.core.policy.config import JobConfig, Program
from holdfast.core.protocol.messages import (
    NodeDraining,
    NodeGreeted,
    WorkersProgressed,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import Endpoint, NodeInfo
from holdfast.core.protocol.requests import NODES_TOLD_MOST, JobAsked, JobTold


def job(nodes: int, at_least: int, at_most: int) -> Coordinator:
    config = JobConfig(
        "job", Program("script", "train.py"), min_nodes=at_least, max_nodes=at_most, slots=2
    )
    liveness = coordinator_of(begin(config), "n0")
    for number in range(nodes):
        info = NodeInfo(f"n{number}", f"host{number}", slots=2)
        greeting = NodeGreeted(info, endpoint=Endpoint("10.0.0.1", 1000 + number))
        receive(liveness, info.node, greeting, 0.0)
    return liveness


def seen(liveness: Coordinator, now: float = 3.0, first: int = 0) -> JobTold:
    return overview(liveness, JobAsked(first), now)


def written(liveness: Coordinator) -> Coordinator:
    from holdfast.core.coordinator import run_step
    from holdfast.core.coordinator_io import Written

    run_step(liveness, Written(liveness.state.version), 1.0)
    return liveness


def test_a_job_that_waits_says_for_what() -> None:
    told = seen(job(1, 2, 2))
    assert (told.stage, told.round, told.world_size) == ("waiting", 0, 0)
    assert told.waiting == "1 of at least 2 nodes; waiting for 1 more"
    assert [node.condition for node in told.nodes] == ["ready"]


def test_a_running_job_shows_its_nodes_with_their_ranks() -> None:
    liveness = written(job(2, 2, 2))
    receive(liveness, "n1", WorkersProgressed(1, 41), 2.0)
    told = seen(liveness, 3.0)
    assert (told.stage, told.round, told.world_size, told.step) == ("running", 1, 4, 41)
    assert told.round_age_s == 2.0
    assert told.waiting == ""
    assert told.coordinator == "host0"
    assert [(one.name, one.group_rank, one.first_rank) for one in told.nodes] == [
        ("host0", 0, 0),
        ("host1", 1, 2),
    ]
    assert [node.heard_s for node in told.nodes] == [3.0, 3.0]


def test_what_a_node_does_is_said_in_a_word_or_two() -> None:
    liveness = written(job(3, 2, 2))
    receive(liveness, "n0", WorkersSucceeded(1), 2.0)
    receive(liveness, "n1", NodeDraining("asked to leave by SIGTERM"), 2.0)
    told = {one.node: (one.condition, one.note) for one in seen(liveness).nodes}
    assert told["n0"] == ("finished", "")
    assert told["n1"] == ("leaving", "asked to leave by SIGTERM")
    assert told["n2"][0] == "standing by"


def test_a_large_job_is_told_in_parts() -> None:
    liveness = job(NODES_TOLD_MOST + 5, NODES_TOLD_MOST + 10, NODES_TOLD_MOST + 10)
    first, rest = seen(liveness), seen(liveness, first=NODES_TOLD_MOST)
    assert first.node_count == rest.node_count == NODES_TOLD_MOST + 5
    assert len(first.nodes) == NODES_TOLD_MOST
    assert len({one.node for one in (*first.nodes, *rest.nodes)}) == NODES_TOLD_MOST + 5
