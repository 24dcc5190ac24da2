"""What the live line says, step by step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.coordinator_io import Explain, Heard
from holdfast.core.node_io import (
    AllGone,
    CoordinatorLost,
    CoordinatorReached,
    NodeStarted,
    StartZygote,
    StepReported,
    Told,
    WorkerStarted,
    ZygoteReady,
)
from holdfast.core.policy.config import JobConfig, Program
from holdfast.core.protocol.messages import RunRound, StopRound, Welcomed, WorkersSucceeded
from holdfast.core.protocol.model import Assignment, Endpoint, Ranks
from holdfast.observe.history import History
from holdfast.observe.journal import CoordinatorStep, NodeStep
from holdfast.observe.summary import live_line

JOB = JobConfig("job", Program("script", "train.py"), slots=2, max_nodes=2)
WIDE = 200


def feed(view: History, step: NodeStep | CoordinatorStep) -> None:
    view.feed("here", step.at, step)


def run(at: float, number: int, restarts: int = 0) -> NodeStep:
    ranks = (Ranks(0, 0, 0), Ranks(1, 1, 1))
    word = RunRound(Assignment(number, restarts, 0, 2, 4, 4, ranks, Endpoint("here", 1)))
    return NodeStep(1, at, Told(word), [])


def running() -> History:
    view = History(JOB)
    for step in (
        NodeStep(1, 0.0, NodeStarted(), []),
        run(2.0, 1),
        NodeStep(1, 2.1, WorkerStarted(1, 0, 7), []),
        NodeStep(1, 2.2, WorkerStarted(1, 1, 8), []),
    ):
        feed(view, step)
    return view


def test_while_modules_are_imported_the_limit_has_a_bar() -> None:
    view = History(JOB)
    feed(view, NodeStep(1, 0.0, NodeStarted(), [StartZygote(("import torch",))]))
    said = live_line(view, 30.0, WIDE)
    assert said == (
        "holdfast | importing modules, once for all workers | [#####-----] 0:30 of 1:00"
    )
    feed(view, NodeStep(1, 31.0, ZygoteReady(("torch",)), []))
    assert "importing" not in live_line(view, 32.0, WIDE)


def test_what_is_waited_for_is_said_with_how_long_it_can_last() -> None:
    view = History(JOB)
    feed(view, NodeStep(1, 0.0, NodeStarted(), []))
    waits = Explain("waiting for 1 more", topic="waiting", within_s=600.0)
    feed(view, CoordinatorStep(1, 10.0, Heard("n", WorkersSucceeded(0)), [waits]))
    feed(view, NodeStep(1, 11.0, Told(Welcomed(waiting="waiting for 1 more")), []))
    assert (
        live_line(view, 70.0, WIDE) == "holdfast | waiting for 1 more | [#---------] 1:00 of 10:00"
    )


def test_a_job_that_runs_has_its_round_ranks_steps_and_their_rate() -> None:
    view = running()
    assert live_line(view, 65.0, WIDE) == "holdfast | round 1 | 4 ranks on 2 nodes | 1:05"
    feed(view, NodeStep(1, 10.0, StepReported(1, 0, 100), []))
    feed(view, NodeStep(1, 14.0, StepReported(1, 0, 110), []))
    assert live_line(view, 15.0, WIDE) == (
        "holdfast | round 1 | 4 ranks on 2 nodes | step 110, 2.5/s | 0:15"
    )


def test_a_restart_is_shown_from_the_stop_to_the_next_steps() -> None:
    view = running()
    feed(view, NodeStep(1, 10.0, StepReported(1, 0, 100), []))
    feed(view, NodeStep(1, 20.0, Told(StopRound(1, "rank 1 failed")), []))
    assert "stopping the workers | [#---------] 0:03 of 0:30" in live_line(view, 23.0, WIDE)
    feed(view, NodeStep(1, 24.0, AllGone(), []))
    assert "forming the next round | 0:01" in live_line(view, 25.0, WIDE)
    pause = Explain("restart 1 of 3", topic="restart", pause_s=4.0)
    feed(view, CoordinatorStep(1, 25.0, Heard("n", WorkersSucceeded(0)), [pause]))
    assert "a pause before the restart | [#####-----] 0:02 of 0:04" in live_line(view, 27.0, WIDE)
    feed(view, run(29.0, 2, restarts=1))
    assert "starting the workers" in live_line(view, 29.5, WIDE)
    for local_rank in (0, 1):
        feed(view, NodeStep(1, 30.0, WorkerStarted(2, local_rank, 9), []))
    assert "round 2 | 4 ranks on 2 nodes | 1 restart | no step yet | 0:05" in live_line(
        view, 35.0, WIDE
    )
    feed(view, NodeStep(1, 36.0, StepReported(2, 0, 90), []))
    assert live_line(view, 37.0, WIDE).endswith("step 90 | 1 restart | 0:37")


def test_a_coordinator_that_cannot_be_reached_is_shown_with_the_lease() -> None:
    view = running()
    feed(view, NodeStep(1, 10.0, CoordinatorLost("reset"), []))
    assert "no contact with the coordinator | [#####-----] 0:05 of 0:10" in live_line(
        view, 15.0, WIDE
    )
    feed(view, NodeStep(1, 16.0, CoordinatorReached(), []))
    assert "no contact" not in live_line(view, 17.0, WIDE)


@given(st.integers(0, 120), st.text(max_size=80))
def test_it_is_never_wider_than_the_terminal_and_plain(width: int, reason: str) -> None:
    view = History(JOB)
    feed(view, NodeStep(1, 0.0, NodeStarted(), []))
    waits = Explain(reason, topic="waiting")
    feed(view, CoordinatorStep(1, 1.0, Heard("n", WorkersSucceeded(0)), [waits]))
    said = live_line(view, 9.0, width)
    assert len(said) < max(width, 1)
    assert said.isascii()
    assert said.isprintable()
