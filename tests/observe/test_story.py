"""What happened in words: from steps by hand, and from whole simulated clusters."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from tools.simulator import make_plan, simulate

from holdfast.core.coordinator_io import Explain, Heard, Tell, Write
from holdfast.core.node_io import (
    AllGone,
    KillEverything,
    NodeEffect,
    NodeStarted,
    Report,
    Say,
    SignalWorkers,
    StartWorkers,
    StepReported,
    Told,
    WorkerExited,
    WorkerStarted,
)
from holdfast.core.policy.config import JobConfig, Program
from holdfast.core.protocol.document import Ledger
from holdfast.core.protocol.messages import (
    CloseJob,
    RunRound,
    StopRound,
    TellHang,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import (
    Assignment,
    Endpoint,
    ErrorDetail,
    ExitStatus,
    Outcome,
    Ranks,
)
from holdfast.observe.journal import (
    SCHEMA,
    ClockPair,
    ClockRead,
    CoordinatorStep,
    Gap,
    JournalHeader,
    NodeStep,
    Step,
    read,
)
from holdfast.observe.story import Kind, StoryEvent, Storyteller

JOB = JobConfig("job", Program("script", "train.py"), slots=2)
HEADER = JournalHeader(
    SCHEMA, "job", "here-1", "here", "2026-01-31T12:00:00+0000", JOB, ClockPair(100.0, 5000.0)
)
FAILED = ExitStatus(code=1)


def assignment(number: int, restarts: int = 0) -> Assignment:
    ranks = (Ranks(0, 0, 0), Ranks(1, 1, 1))
    return Assignment(number, restarts, 0, 1, 2, 2, ranks, Endpoint("here", 1))


def run(at: float, number: int, restarts: int = 0) -> NodeStep:
    word = RunRound(assignment(number, restarts))
    starts = StartWorkers(assignment(number, restarts), (0, 1), warm=False)
    return NodeStep(1, at, Told(word), [starts])


def told(*steps: Step, header: JournalHeader = HEADER) -> list[StoryEvent]:
    teller = Storyteller(header)
    return [event for step in steps for event in teller.feed(step)]


def kinds(events: list[StoryEvent]) -> list[Kind]:
    return [event.kind for event in events]


def test_a_failure_and_the_recovery_from_it_with_its_parts() -> None:
    stop = Told(StopRound(1, "rank 1 on here ended with exit code 1 (ValueError: no)"))
    error = ErrorDetail(message="ValueError: no\nmore")
    events = told(
        NodeStep(1, 100.0, NodeStarted(), []),
        run(101.0, 1),
        NodeStep(3, 101.5, StepReported(1, 0, 7), []),
        NodeStep(4, 110.0, WorkerExited(1, 1, 12, FAILED, error), []),
        NodeStep(5, 110.0, stop, [Say("round 1 ends: …"), SignalWorkers(15, (0,))]),
        NodeStep(6, 110.1, WorkerExited(1, 0, 11, ExitStatus(signal=15)), []),
        NodeStep(7, 110.2, AllGone(), []),
        run(110.5, 2, 1),
        NodeStep(9, 110.6, WorkerStarted(2, 0, 13), []),
        NodeStep(10, 110.7, WorkerStarted(2, 1, 14), []),
        NodeStep(11, 111.7, StepReported(2, 0, 8), []),
    )
    assert kinds(events) == [
        "node_started",
        "round_formed",
        "first_step",
        "worker_failed",
        "round_ended",
        "round_formed",
        "first_step",
        "recovered",
    ]
    failed, ended, again, recovered = events[3], events[4], events[5], events[-1]
    assert failed.words == "rank 1 on here ended with exit code 1 (ValueError: no)"
    assert (failed.rank, failed.host, failed.round, failed.at) == (1, "here", 1, 5010.0)
    assert failed.reason == "ValueError: no"
    assert ended.words == "round 1 ends: …", "as the console says it"
    assert again.words == "round 2 begins: 2 ranks, after 1 restart"
    assert recovered.parts_s == pytest.approx(
        {"stop": 0.2, "form": 0.3, "spawn": 0.2, "first step": 1.0}
    )
    assert "recovered in 1700 ms" in recovered.words


def test_a_worker_that_is_ended_for_the_hang_has_failed_and_does_not_end_its_round() -> None:
    ends: list[NodeEffect] = [Say("ending rank 1 for it (--hang restart)"), SignalWorkers(9, (1,))]
    events = told(
        run(101.0, 1),
        NodeStep(2, 200.0, Told(TellHang(1, ends=True)), [Say("the job hangs: …"), *ends]),
        NodeStep(3, 200.1, WorkerExited(1, 1, 12, ExitStatus(signal=9)), []),
    )
    assert kinds(events) == ["round_formed", "hang", "hang", "worker_failed"]


def test_a_worker_that_was_stopped_has_not_failed() -> None:
    events = told(
        run(101.0, 1),
        NodeStep(2, 102.0, Told(StopRound(1, "a node was lost")), [SignalWorkers(15, (0, 1))]),
        NodeStep(3, 103.0, WorkerExited(1, 0, 1, ExitStatus(signal=15)), [KillEverything()]),
    )
    assert kinds(events) == ["round_formed", "round_ended"]


def test_both_machines_of_one_node_tell_a_thing_once() -> None:
    word = RunRound(assignment(1))
    failed = Outcome("failed", "all restarts were used", 1)
    events = told(
        CoordinatorStep(1, 101.0, Heard("here-1", WorkersSucceeded(0)), [Tell("here-1", word)]),
        run(101.0, 1),
        CoordinatorStep(
            3, 102.0, Heard("here-1", WorkersSucceeded(0)), [Write(4, Ledger(1, 1, outcome=failed))]
        ),
        CoordinatorStep(
            4, 103.0, Heard("here-1", WorkersSucceeded(0)), [Tell("here-1", CloseJob(failed))]
        ),
        NodeStep(5, 103.0, Told(CloseJob(failed)), []),
    )
    assert kinds(events) == ["round_formed", "decision", "job_finished"]
    assert events[1].decision == "give up"
    assert events[2].words == "the job failed: all restarts were used"


def test_what_the_coordinator_explains_is_a_decision_a_wait_or_just_said() -> None:
    explains = [
        Explain("rank 0 failed; restarting (1 of 3)", topic="restart"),
        Explain("waiting for 1 more node", topic="waiting"),
        Explain("all nodes reported"),
    ]
    events = told(CoordinatorStep(1, 101.0, Heard("here-1", WorkersSucceeded(0)), [*explains]))
    assert kinds(events) == ["decision", "waiting", "said"]
    assert [event.words for event in events] == [one.text for one in explains]
    assert events[0].decision == "restart"


def test_the_end_of_all_workers_is_told() -> None:
    done: list[NodeEffect] = [Report(WorkersSucceeded(1))]
    events = told(run(101.0, 1), NodeStep(2, 102.0, WorkerExited(1, 1, 1, ExitStatus(0)), done))
    assert kinds(events) == ["round_formed", "workers_done"]


def test_time_follows_a_clock_that_was_set() -> None:
    events = told(
        NodeStep(1, 101.0, NodeStarted(), []),
        ClockRead(2, 102.0, 9000.0),
        NodeStep(3, 102.5, Told(CloseJob(Outcome("succeeded", "done", 0))), []),
    )
    assert [event.at for event in events] == [5001.0, 9000.5]


def test_what_a_long_journal_has_lost_is_told() -> None:
    (event,) = told(Gap(5, 12))
    assert (event.kind, event.seq) == ("gap", 5)
    assert "12 lines" in event.words


def test_nothing_that_another_machine_says_can_begin_a_line_or_move_a_cursor() -> None:
    events = told(
        run(101.0, 1),
        NodeStep(2, 102.0, Told(StopRound(1, "bad\x1b[2J\nholdfast: all is well")), []),
    )
    assert "\n" not in events[-1].words
    assert "\x1b" not in events[-1].words


@pytest.mark.parametrize("profile", ["", "leader", "drains", "embedded", "deaths", "workers"])
def test_whole_clusters_are_told_and_every_event_is_sound(profile: str, tmp_path: Path) -> None:
    seen: set[Kind] = set()
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        simulate(make_plan(seed, profile), journals=folder)
        for path in folder.glob("*.jsonl"):
            header, steps = read(path)
            events = told(*steps, header=header)
            seen |= set(kinds(events))
            assert all(event.kind in get_args(Kind) and event.words for event in events)
            assert all(event.by == header.node and event.seq for event in events)
            assert kinds(events).count("job_finished") <= 1
            formed = [event.round for event in events if event.kind == "round_formed"]
            assert formed == sorted(set(formed)), "each round begins once"
    assert {"node_started", "round_formed"} <= seen
