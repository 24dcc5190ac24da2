"""A job on one screen."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.cli.sentences import no_step
from holdfast.cli.status_view import Overview, painted, render, size
from holdfast.core.protocol.model import Outcome
from holdfast.core.protocol.requests import (
    HistoryTold,
    JobTold,
    NodeOverview,
    RankOverview,
    RanksTold,
)
from holdfast.observe.story import StoryEvent

JOB = JobTold(
    run_id="train", stage="running", round=2, world_size=4, round_age_s=192.0, coordinator="host1",
    min_nodes=1, max_nodes=4, restarts=1, max_restarts=3, step=40, waiting="",
    nodes=(
        NodeOverview("n1", "host1", "host1", "in the round", 0, 0, 2, 0.4),
        NodeOverview("n2", "host2", "host2", "silent", 1, 2, 2, 7.0, "no heartbeat for 7 s"),
    ),
    node_count=2,
)  # fmt: skip
RANKS = {
    "host1": RanksTold(
        "host1",
        (
            RankOverview(0, 0, 11, "running", 4210, 0.1, 12.5, "", 1.0, 2_000_000_000),
            RankOverview(1, 1, 12, "running", 4100, 0.3, 5.0, "checkpoint", 0.5, 1_000_000_000),
        ),
        accelerators=("GPU 0: 87 %, 31.2 of 81.6 GB",),
    )
}
EVENT = StoryEvent(1_794_970_042.1, "round_ended", "round 1 ends: \x1b[2Jrank 3 failed", "n1")


def test_a_screen_says_how_the_job_is_and_who_is_missing() -> None:
    history = HistoryTold(200.0, {"useful": 195.0, "stop": 5.0}, steps_per_s=12.0, step_age_s=0.1)
    page = render(Overview(JOB, RANKS, (EVENT,), ("host2",), history))
    assert page.splitlines()[:6] == [
        "train: running, round 2 for 3 min 12 s",
        "  4 ranks on 2 nodes (1 to 4 wanted); the coordinator is on host1",
        "  step 4,210, 12.5 steps/s, the last one 0.1 s ago",
        "  restarts: 1 of 3",
        "  goodput: 97.5% of 3 min 20 s",
        "! no answer from host2",
    ]
    rows = [line.split() for line in page.splitlines() if line[2:].startswith("host")]
    assert rows[0][:5] == ["host1", "0-1", "in", "the", "round"]
    assert rows[1][:4] == ["!", "host2", "2-3", "silent"]
    assert "  host2: no heartbeat for 7 s" in page


def test_nodes_that_stand_by_run_no_ranks() -> None:
    others = tuple(replace(JOB.nodes[0], name=f"spare{k}", condition="standing by",
                           group_rank=None, first_rank=None) for k in range(2))  # fmt: skip
    job = replace(JOB, world_size=2, nodes=(JOB.nodes[0], *others), node_count=3)
    assert (
        render(Overview(job, {}))
        .splitlines()[1]
        .startswith("  2 ranks on 1 node (1 to 4 wanted), 2 more nodes;")
    )


def late(**ages: float) -> Overview:
    """Workers whose last step is so long ago, in a job of a step a second."""
    workers = tuple(
        RankOverview(rank, rank, 10 + rank, "running", 7, age_s)
        for rank, age_s in enumerate(ages.values())
    )
    history = HistoryTold(200.0, {"useful": 200.0}, steps_per_s=1.0)
    return Overview(JOB, {"host1": RanksTold("host1", workers)}, history=history)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (late(a=4.0, b=4.9), None),
        (late(a=4.0, b=60.0), no_step([1], 2, "1 min")),
        (late(a=75.0, b=60.0), no_step([0, 1], 2, "1 min")),
        (late(a=75.0, b=60.0, c=0.1), no_step([0, 1], 3, "1 min")),
    ],
)
def test_a_job_that_hangs_does_not_look_healthy(seen: Overview, said: str | None) -> None:
    lines = render(seen).splitlines()
    marked = [line for line in lines if line.startswith("! ") and "host" not in line]
    assert marked == ([f"! {said}"] if said is not None else [])
    assert all(f"\x1b[33m{line}\x1b[0m" in painted(render(seen)) for line in marked)


def test_where_there_is_no_room_what_matters_least_is_left_out() -> None:
    told = replace(RANKS["host1"], accelerators=())
    seen = Overview(JOB, {"host1": told})
    whole = render(seen).splitlines()
    heading = next(line for line in whole if line.startswith("  node"))
    assert heading.split() == ["node", "ranks", "is", "step", "steps/s", "last", "cpu", "memory",
                               "heard"]  # fmt: skip
    narrow = render(seen, width=60).splitlines()
    heading = next(line for line in narrow if line.startswith("  node"))
    assert heading.split()[:5] == ["node", "ranks", "is", "step", "steps/s"]
    assert "memory" not in heading
    assert all(len(line) <= 60 for line in narrow if "host1" in line and "coord" not in line)


def test_what_comes_from_others_moves_no_cursor() -> None:
    assert "\x1b" not in render(Overview(JOB, RANKS, (EVENT,)))


def test_no_word_of_others_begins_a_line() -> None:
    hostile = "x\n  succeeded: all workers succeeded\r\x1b[2J"
    node = replace(JOB.nodes[0], name=hostile, condition=hostile, note=hostile)
    outcome = Outcome("failed", hostile, 1)
    job = replace(JOB, run_id=hostile, coordinator=hostile, waiting=hostile, nodes=(node,))
    told = replace(RANKS["host1"], accelerators=(hostile,))
    seen = Overview(replace(job, outcome=outcome), {hostile: told}, (EVENT,), (hostile,))
    usual = render(Overview(replace(JOB, outcome=outcome), RANKS, (EVENT,), ("h",)))
    page = render(seen)
    assert all(line.isprintable() for line in page.splitlines())
    assert not any(line.startswith("  succeeded") for line in page.splitlines())
    assert abs(len(page.splitlines()) - len(usual.splitlines())) <= 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round": 0, "world_size": 0, "stage": "waiting", "waiting": "1 of 2 nodes"},
         ["train: waiting for the first round", "  waiting: 1 of 2 nodes"]),
        ({"stage": "waiting"}, ["train: between rounds 2 and 3"]),
        ({"stage": "over", "outcome": Outcome("failed", "rank 1 failed", 1)},
         ["train: over, after round 2", "  failed: rank 1 failed"]),
    ],
)  # fmt: skip
def test_every_stage_has_its_words(change: dict[str, object], words: list[str]) -> None:
    page = render(Overview(replace(JOB, **change), {}))
    assert all(line in page.splitlines() for line in words)


def test_a_large_job_fits_on_a_screen() -> None:
    node = JOB.nodes[0]
    many = tuple(replace(node, name=f"host{k}") for k in range(500))
    page = render(Overview(replace(JOB, nodes=many, node_count=500), {}))
    assert "  and 460 more nodes" in page.splitlines()
    assert len(page.splitlines()) < 60


def test_sizes_are_in_the_larger_unit() -> None:
    assert (size(31_400_000), size(1_250_000_000)) == ("31 MB", "1.2 GB")
