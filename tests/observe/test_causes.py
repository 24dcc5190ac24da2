"""What caused what, across nodes: from the journals of simulated clusters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tools.journals.explaining import story, the_end
from tools.simulator import make_plan, simulate
from tools.simulator.everywhere import Case
from tools.simulator.plan import Plan

from holdfast.core.coordinator_io import Heard
from holdfast.core.node_io import Told
from holdfast.core.protocol.messages import CloseJob, RunRound, StopRound
from holdfast.observe.causes import JournalRead, StepId, causes
from holdfast.observe.journal import ElectionStep, NodeStep, Step, read

ROOTS = {
    *("NodeStarted", "SpawnerReady", "ElectionStarted", "LivenessLockTaken", "EndedFound"),
    *("WorkerExited", "SignalReceived", "ClosingAsked", "Released"),
    *("CoordinatorLost", "LeaseRanOut", "LeaderTetherEnded", "LoopDelayed"),
    *("NodeSuspected", "NodeGone", "ZygoteLost", "SpawnerLost", "ImportsLearned"),
    *("LivenessLockTaken", "EndedFound", "ClockRead"),
    # Of renewals, and of the steps that workers report, only some are written.
    *("RegisterWrote", "RegisterUnclear", "RegisterRead", "ElectionTimerFired"),
    "WorkersProgressed",
}


def simulated(folder: Path, play: Callable[[Path], object]) -> list[JournalRead]:
    play(folder)
    return [read(path) for path in sorted(folder.glob("*.jsonl"))]


def _simulate(plan: Plan, folder: Path) -> object:
    return simulate(plan, journals=folder)


def kind(step: Step) -> str:
    if isinstance(step, ElectionStep):
        return str(step.event["type"])
    event = getattr(step, "event", step)
    return type(event.message if isinstance(event, Heard) else event).__name__


def told(journals: list[JournalRead], message: type) -> list[StepId]:
    """The lines in which a node is told that."""
    return [
        StepId(header.node, step.seq)
        for header, steps in journals
        for step in steps
        if isinstance(step, NodeStep)
        and isinstance(step.event, Told)
        and isinstance(step.event.message, message)
    ]


def test_a_failed_job_is_traced_to_the_worker_that_failed_first(tmp_path: Path) -> None:
    plan = make_plan(2, "deaths")
    journals = simulated(tmp_path, lambda folder: simulate(plan, journals=folder))
    end = the_end(journals)
    assert end is not None
    way = story(journals, end)
    assert "WorkerExited (round=1, local_rank=0" in way[0]
    assert "heard WorkersFailed (round=1)" in way[1]
    assert "told StopRound (round=1" in way[2]
    assert "told CloseJob" in way[-1]


def test_a_takeover_is_traced_to_the_death_of_the_last_leader(tmp_path: Path) -> None:
    case = Case.named("steady round/plain/its node is killed/33")
    journals = simulated(tmp_path, lambda folder: case.play(journals=folder))
    because = causes(journals)
    began = [
        StepId(header.node, step.seq)
        for header, steps in journals
        for step in steps
        if kind(step) == "CoordinatorBegan"
    ]
    ways = [story(journals, line) for line in began]
    assert any("ElectionStarted" in way[0] for way in ways), "the first coordinator"
    assert any("LeaderTetherEnded" in way[0] for way in ways), "the one that took over"
    for line in told(journals, RunRound):
        assert because[line] is not None


def test_a_node_is_told_by_another_one(tmp_path: Path) -> None:
    plan = make_plan(4, "workers")
    journals = simulated(tmp_path, lambda folder: simulate(plan, journals=folder))
    because = causes(journals)
    words = [*told(journals, RunRound), *told(journals, StopRound), *told(journals, CloseJob)]
    speakers = {cause.node for line in words if (cause := because[line]) is not None}
    assert len(speakers) == 1, "one coordinator"
    assert {line.node for line in words} > speakers, "that told others too"


@pytest.mark.parametrize("profile", ["", "leader", "drains", "embedded", "deaths", "sleep"])
def test_whatever_has_no_cause_may_have_none(profile: str, tmp_path: Path) -> None:
    for seed in range(4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        plan = make_plan(seed, profile)
        journals = simulated(folder, partial(_simulate, plan))
        because = causes(journals)
        lines = {StepId(h.node, step.seq): step for h, steps in journals for step in steps}
        assert because.keys() == lines.keys()
        roots = {kind(lines[line]) for line, cause in because.items() if cause is None}
        assert roots <= ROOTS, f"seed {seed}"
        assert all(_leads_to_a_root(because, line) for line in lines)


def _leads_to_a_root(because: dict[StepId, StepId | None], line: StepId) -> bool:
    for _ in because:
        cause = because[line]
        if cause is None:
            return True
        line = cause
    return False  # It goes in circles.


def test_a_line_that_is_nowhere_has_no_story() -> None:
    with pytest.raises(KeyError):
        story([], StepId("nobody", 1))
