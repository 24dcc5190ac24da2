"""The table of metrics, and what is counted of a journal's steps at known times."""

from __future__ import annotations

import re

import pytest

from holdfast.core.node_io import StallOver, StepReported, StragglerFound, Told
from holdfast.core.protocol.messages import CloseJob, StopRound, TellHang
from holdfast.core.protocol.model import Outcome
from holdfast.observe.exposition import Histogram, exposition
from holdfast.observe.history import LiveHistory
from holdfast.observe.journal import SCHEMA, ClockPair, JournalHeader
from holdfast.observe.metrics import METRICS, job_samples, node_samples

from .test_recoveries import (
    ENDED_WELL,
    FIRST_ROUND,
    JOB,
    RECOVERY,
    Happening,
    announced,
    exited,
    steps,
)
from .test_recoveries import started as born

HEADER = JournalHeader(SCHEMA, "job", "here-1", "here", "", JOB, ClockPair(0.0, 0.0))
UNITS = ("_seconds", "_bytes", "_ratio", "_per_second", "_seconds_total")


def fed(*happenings: Happening) -> LiveHistory:
    live = LiveHistory(HEADER)
    for step in steps(*happenings):
        live.feed(step)
    return live


def value(live: LiveHistory, name: str, *labels: str, now: float = 20.0) -> float:
    found = (node_samples(live) | job_samples(live, now))[name][labels]
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
    assert "holdfast_goodput_ratio" in exposition(METRICS, job_samples(fed(*FIRST_ROUND), 1.0), {})


def test_a_stall_is_counted_once_and_seen_while_it_lasts() -> None:
    counts = fed(
        *FIRST_ROUND,
        (9.0, StepReported(1, 0, 10)),
        (14.0, Told(TellHang(1))),
        (14.5, Told(TellHang(1))),
    )
    assert value(counts, "holdfast_coordinator_stalled") == 1
    assert value(counts, "holdfast_coordinator_hangs_total") == 1
    assert value(counts, "holdfast_coordinator_step_age_seconds") == 11.0
    again = fed(
        *FIRST_ROUND,
        (9.0, StepReported(1, 0, 10)),
        (14.0, Told(TellHang(1))),
        (15.0, StallOver(1)),
        (19.0, StepReported(1, 0, 11)),
        (24.0, Told(TellHang(1))),
        (25.0, StragglerFound(1, "rank 1 is slow")),
    )
    assert value(again, "holdfast_coordinator_hangs_total", now=26.0) == 2
    assert value(again, "holdfast_coordinator_step_age_seconds", now=26.0) == 7.0
    assert value(again, "holdfast_coordinator_steps_per_second", now=26.0) > 0
    assert value(again, "holdfast_stragglers_total", now=26.0) == 1


def test_time_is_spent_as_the_ledger_says_and_steps_done_again_were_not_useful() -> None:
    again: list[Happening] = [(9.0, StepReported(1, 0, 10)), *RECOVERY[:6]]
    counts = fed(*FIRST_ROUND, *again, (15.5, StepReported(2, 1, 6)))
    spent = {name: s for (name,), s in job_samples(counts, 20.0)["holdfast_time_seconds"].items()}
    # Of ten steps from 0.5 to 10 the second round does five again; it steps from 15.5 to 20.
    known = {"useful": 4.75 + 4.5, "lost_steps": 4.75, "stop": 0.5, "form": 1.0}
    known |= {"spawn": 0.2 + 2.0, "first_step": 0.3 + 2.0}
    assert spent == pytest.approx(dict.fromkeys(spent, 0.0) | known)
    assert value(counts, "holdfast_goodput_ratio") == pytest.approx(9.25 / 20.0)
    assert value(counts, "holdfast_rounds_total") == 2


def test_workers_that_never_say_a_step_are_useful_once_they_all_exist() -> None:
    counts = fed((0.0, announced(1)), (1.0, born(1, 0)), (2.0, born(1, 1)))
    assert value(counts, "holdfast_time_seconds", "spawn") == 2.0
    assert value(counts, "holdfast_time_seconds", "useful") == 18.0
    assert value(counts, "holdfast_goodput_ratio") == 18.0 / 20.0


def test_before_anything_has_happened_nothing_is_spent() -> None:
    assert value(fed(), "holdfast_goodput_ratio", now=5000.0) == 0.0
    assert sum(job_samples(fed(), 5000.0)["holdfast_time_seconds"].values()) == 0.0  # type: ignore[arg-type]


def test_ends_are_counted_by_what_became_of_the_worker() -> None:
    counts = fed(*FIRST_ROUND, *RECOVERY, (18.0, exited(2, 0, ENDED_WELL)))
    name = "holdfast_worker_exits_total"
    assert [value(counts, name, how) for how in ("failed", "stopped", "succeeded")] == [1, 1, 1]


def test_a_round_that_another_node_ended_is_no_failure_here() -> None:
    counts = fed(*FIRST_ROUND, (10.0, Told(StopRound(1, "elsewhere"))), (10.5, exited(1, 0)))
    assert value(counts, "holdfast_worker_exits_total", "failed") == 0
    assert value(counts, "holdfast_worker_exits_total", "stopped") == 1


def test_a_recovery_is_observed_with_its_parts_once_it_is_over() -> None:
    assert node_samples(fed(*FIRST_ROUND, *RECOVERY[:-2]))["holdfast_recovery_seconds"]
    counts = fed(*FIRST_ROUND, *RECOVERY, (16.5, StepReported(2, 0, 2)))
    whole = node_samples(counts)["holdfast_recovery_seconds"][()]
    assert isinstance(whole, Histogram)
    assert (sum(whole.counts), whole.sum) == (1, 5.5)
    parts = node_samples(counts)["holdfast_recovery_phase_seconds"]
    sums = {name: part.sum for (name,), part in parts.items() if isinstance(part, Histogram)}
    assert sums == {"stop": 0.5, "form": 1.0, "spawn": 2.0, "first_step": 2.0}


def test_nothing_is_useful_after_the_end() -> None:
    over = (11.0, Told(CloseJob(Outcome("succeeded", "all workers succeeded", 0))))
    counts = fed(*FIRST_ROUND, over)
    early, late = (
        value(counts, "holdfast_time_seconds", "useful", now=now) for now in (12.0, 500.0)
    )
    assert early == late == 10.5
