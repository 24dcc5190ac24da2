"""The table of metrics, and what is counted of a journal's steps at known times."""

from __future__ import annotations

import re

import pytest

from holdfast.core.node.io import StepReported, Told
from holdfast.core.protocol.messages import CloseJob, StopRound
from holdfast.core.protocol.model import Outcome
from holdfast.observe.exposition import Histogram, exposition
from holdfast.observe.metrics import METRICS, JobCounts

from .test_recoveries import ENDED_WELL, FIRST_ROUND, RECOVERY, Happening, announced, exited, steps
from .test_recoveries import started as born

UNITS = ("_seconds", "_bytes", "_ratio", "_per_second", "_seconds_total")


def fed(*happenings: Happening) -> JobCounts:
    counts = JobCounts(-1.0)
    for step in steps(*happenings):
        counts.take(step)
    return counts


def value(counts: JobCounts, name: str, *labels: str, now: float = 20.0) -> float:
    found = counts.samples(now)[name][labels]
    assert not isinstance(found, Histogram)
    return found


def test_names_are_by_the_conventions() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"(holdfast|process)_[a-z_]+[a-z]", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith("."), metric.name
        if metric.kind == "histogram":
            assert metric.name.endswith(UNITS), metric.name
        assert not {"run_id", "node"} & set(metric.labels)


def test_all_that_is_counted_is_in_the_table() -> None:
    assert "holdfast_goodput_ratio" in exposition(METRICS, fed(*FIRST_ROUND).samples(1.0), {})


def test_time_is_useful_from_the_first_step_to_the_failure() -> None:
    counts = fed(*FIRST_ROUND, *RECOVERY)
    spent = {
        activity: value(counts, "holdfast_time_seconds_total", activity)
        for activity in ("waiting", "starting", "running", "useful", "stopping")
    }
    # Until round 1 and from 10.5 to 11.5; to 0.2 and from 11.5 to 15.5; from 0.5 to 10 and from
    # 15.5 to 20; from 10 to 10.5. From 0.2 to 0.5 nobody knew that there would be a step.
    told = {"waiting": 2.0, "starting": 4.2, "running": 0.3, "useful": 14.0, "stopping": 0.5}
    assert spent == pytest.approx(told)
    assert value(counts, "holdfast_goodput_ratio") == pytest.approx(14.0 / 21.0)
    assert value(counts, "holdfast_rounds_total") == 2


def test_workers_that_never_say_a_step_are_useful_once_they_all_exist() -> None:
    counts = fed((0.0, announced(1)), (1.0, born(1, 0)), (2.0, born(1, 1)))
    assert value(counts, "holdfast_time_seconds_total", "starting") == 2.0
    assert value(counts, "holdfast_time_seconds_total", "running") == 18.0
    assert value(counts, "holdfast_goodput_ratio") == 18.0 / 21.0
    assert counts.round_began_at == 2.0


def test_ends_are_counted_by_what_became_of_the_worker() -> None:
    counts = fed(*FIRST_ROUND, *RECOVERY, (18.0, exited(2, 0, ENDED_WELL)))
    name = "holdfast_worker_exits_total"
    assert [value(counts, name, how) for how in ("failed", "stopped", "succeeded")] == [1, 1, 1]


def test_a_round_that_another_node_ended_is_no_failure_here() -> None:
    counts = fed(*FIRST_ROUND, (10.0, Told(StopRound(1, "elsewhere"))), (10.5, exited(1, 0)))
    assert value(counts, "holdfast_worker_exits_total", "failed") == 0
    assert value(counts, "holdfast_worker_exits_total", "stopped") == 1


def test_a_recovery_is_observed_with_its_parts_once_it_is_over() -> None:
    assert fed(*FIRST_ROUND, *RECOVERY[:-2]).samples(20.0)["holdfast_recovery_seconds"]
    counts = fed(*FIRST_ROUND, *RECOVERY, (16.5, StepReported(2, 0, 2)))
    whole = counts.samples(20.0)["holdfast_recovery_seconds"][()]
    assert isinstance(whole, Histogram)
    assert (sum(whole.counts), whole.sum) == (1, 5.5)
    parts = counts.samples(20.0)["holdfast_recovery_phase_seconds"]
    sums = {name: part.sum for (name,), part in parts.items() if isinstance(part, Histogram)}
    assert sums == {"stop": 0.5, "form": 1.0, "spawn": 2.0, "first_step": 2.0}


def test_nothing_is_spent_after_the_end() -> None:
    over = (11.0, Told(CloseJob(Outcome("succeeded", "all workers succeeded", 0))))
    counts = fed(*FIRST_ROUND, over)
    name = "holdfast_time_seconds_total"
    early, late = (value(counts, name, "useful", now=now) for now in (12.0, 500.0))
    assert early == late == 10.5
