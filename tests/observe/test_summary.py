"""A job in a few numbers, and the two lines that are made of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.coordinator_io import Heard
from holdfast.core.node_io import NodeStarted, StepReported, Told, WorkerStarted
from holdfast.core.policy.config import JobConfig, Program
from holdfast.core.protocol.messages import RunRound, StopRound, WorkersProgressed
from holdfast.core.protocol.model import Assignment, Endpoint, Outcome, Ranks
from holdfast.observe.history import LiveHistory
from holdfast.observe.journal import ClockPair, CoordinatorStep, JournalHeader, NodeStep
from holdfast.observe.summary import (
    Summary,
    closing,
    is_overdue,
    length,
    progress,
    rate,
    summarize,
)

WELL = Outcome("succeeded", "all workers succeeded", 0)
ROUND_2 = "round 2, 8 ranks on 2 nodes, step 1,228, 2.1 steps/s, 1 restart"
BUSY = Summary(615.2, 2, True, 2, 8, 1, 1228, 1229, 2.1, 0.4, 0.998)


def run(at: float, number: int, restarts: int = 0) -> NodeStep:
    ranks = (Ranks(0, 0, 0),)
    word = RunRound(Assignment(number, restarts, 0, 2, 8, 8, ranks, Endpoint("here", 1)))
    return NodeStep(1, at, Told(word), [])


def followed(*steps: NodeStep | CoordinatorStep) -> LiveHistory:
    config = JobConfig("job", Program("script", "train.py"), max_nodes=2)
    clock = ClockPair(100.0, 1_000_000.0)
    live = LiveHistory(JournalHeader(1, "job", "n", "here", "2026", config, clock))
    for step in (NodeStep(1, 100.0, NodeStarted(), []), *steps):
        live.feed(step)
    return live


def test_before_the_first_round_only_the_time_is_known() -> None:
    assert summarize(followed(), 130.0) == Summary(30.0)


def test_rounds_steps_and_goodput_of_a_job_with_a_restart() -> None:
    running = followed(
        run(102.0, 1),
        NodeStep(1, 102.0, WorkerStarted(1, 0, 7), []),
        NodeStep(1, 110.0, StepReported(1, 0, 10), []),
        CoordinatorStep(1, 130.0, Heard("other", WorkersProgressed(1, 50)), []),
        NodeStep(1, 131.0, Told(StopRound(1, "rank 0 was killed")), []),
        run(132.0, 2, restarts=1),
        NodeStep(1, 132.0, WorkerStarted(2, 0, 8), []),
        NodeStep(1, 140.0, StepReported(2, 0, 51), []),
        NodeStep(1, 150.0, StepReported(2, 0, 71), []),
    )
    known = summarize(running, 160.0)
    assert (known.seconds, known.round, known.nodes, known.ranks) == (60.0, 2, 2, 8)
    assert (known.restarts, known.step, known.steps) == (1, 71, 62)
    assert (known.steps_per_s, known.step_age_s) == (2.0, 10.0)
    assert known.goodput == pytest.approx((21.0 + 20.0) / 60.0)


def test_where_nobody_reports_a_step_there_is_no_goodput() -> None:
    known = summarize(followed(run(102.0, 1)), 160.0)
    assert (known.steps, known.goodput, known.is_running) == (None, None, True)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (BUSY, f"running for 10 min 15 s, {ROUND_2}"),
        (Summary(300.0, 1, True, 1, 1), "running for 5 min, round 1, 1 rank"),
        (Summary(60.0), "waiting for nodes for 1 min"),
    ],
)  # fmt: skip
def test_a_line_of_progress(known: Summary, words: str) -> None:
    assert progress(known) == words


def test_a_job_that_stands_still_says_since_when() -> None:
    said = progress(replace(BUSY, step_age_s=240.0))
    assert "the last one 4 min ago" in said
    assert "steps/s" not in said


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (WELL, "succeeded in 10 min 15 s"),
        (Outcome("failed", "rank 1 failed", 1), "failed after 10 min 15 s"),
        (Outcome("interrupted", "Ctrl-C", 130), "interrupted after 10 min 15 s"),
        (Outcome("not_formed", "too few nodes", 1), "gave up after 10 min 15 s"),
        (Outcome("interrupted", "USR1", 1, asked="node"), "left the job, which goes on, after 10"),
    ],
)
def test_the_closing_line_begins_with_how_the_job_ended(outcome: Outcome, words: str) -> None:
    assert closing(outcome, BUSY, "").startswith(words)


def test_the_closing_line_has_what_is_known() -> None:
    said = closing(WELL, BUSY, "my job")
    assert said.endswith(
        ", 1,229 steps, 1 restart, goodput 99.8 %; report: holdfast report 'my job'"
    )
    assert closing(WELL, Summary(12.3), "") == "succeeded in 12 s"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min"), (300.0, "5 min")),
        *((3599.7, "1 h"), (11520.0, "3 h 12 min"), (90000.0, "1 d 1 h")),
    ],
)
def test_lengths_have_two_parts_at_most(seconds: float, words: str) -> None:
    assert length(seconds) == words


@pytest.mark.parametrize(
    ("each_second", "words"),
    [
        (0.0213, "0.021"),
        (2.13, "2.1"),
        (31.4, "31.4"),
        (99.6, "99.6"),
        (99.97, "100"),
        (1010.2, "1,010"),
    ],
)
def test_rates_have_no_exponent(each_second: float, words: str) -> None:
    assert rate(each_second) == words


@pytest.mark.parametrize(
    ("age_s", "steps_per_s", "overdue"),
    [
        (4.0, 20.0, False),
        (6.0, 20.0, True),
        (40.0, 0.1, False),
        (60.0, 0.1, True),
        (600.0, None, False),
        (None, 20.0, False),
    ],
)
def test_a_step_is_overdue_after_a_few_usual_ones(
    age_s: float | None, steps_per_s: float | None, overdue: bool
) -> None:
    assert is_overdue(age_s, steps_per_s) is overdue
