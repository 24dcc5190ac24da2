"""How a round is stopped, whatever it takes, and how a node ends."""

from __future__ import annotations

import signal

import msgspec
import pytest
from msgspec import structs

from holdfast.core.node import Phase
from holdfast.core.node_io import (
    AllGone,
    CloseRound,
    ClosingAsked,
    CoordinatorReached,
    EndpointReserved,
    EndSpawner,
    Finish,
    KillEverything,
    KillSpawner,
    KillZygote,
    LauncherLost,
    ListStuck,
    ModuleRejected,
    NodeEvent,
    NodeStarted,
    NodeTimerFired,
    ProcessesStuck,
    Released,
    Report,
    ReserveEndpoint,
    SignalReceived,
    SignalWorkers,
    SpawnerEnded,
    SpawnerLost,
    StepReported,
    Told,
    WakeNode,
    WorkerStarted,
    ZygoteLost,
    ZygoteReady,
)
from holdfast.core.policy import sentences
from holdfast.core.protocol.messages import (
    CloseJob,
    ClosingWanted,
    FromNode,
    NodeGreeted,
    NodeLeft,
    RoundStopped,
    StopRound,
)
from holdfast.core.protocol.model import ExitStatus, Outcome

from .agent_life import (
    PORT,
    SUCCEEDED,
    TERMINATED,
    Life,
    exited,
    run_round,
    running,
    said,
    stopping,
    waiting,
    without_words,
)


def test_stopping_is_the_signal_then_the_grace() -> None:
    life = running()
    life.take(exited(1))
    effects = life.take(Told(StopRound(1, "rank 1 was killed")))
    assert without_words(effects) == [SignalWorkers(signal.SIGTERM, (0,)), WakeNode("grace", 30.0)]
    assert said(effects) == "", "the coordinator is here, and says it"


def test_after_the_last_exit_everything_below_is_killed_without_waiting_for_the_grace() -> None:
    life = stopping()
    effects = life.take(exited(0, TERMINATED))
    assert effects == [KillEverything(1), WakeNode("unkillable", 10.0)]
    assert life.take(NodeTimerFired("grace")) == []


def test_after_the_grace_come_the_names_and_sigkill() -> None:
    life = stopping()
    effects = life.take(NodeTimerFired("grace"))
    assert without_words(effects) == [KillEverything(1), WakeNode("unkillable", 10.0)]
    assert said(effects) == sentences.not_stopped([0], 30.0)


def test_a_round_has_stopped_when_nothing_is_left_and_the_next_port_is_held() -> None:
    life = stopping()
    life.take(exited(0, TERMINATED))
    assert life.take(AllGone(1)) == [CloseRound(), ReserveEndpoint()]
    (report,) = life.take(EndpointReserved(PORT))
    assert isinstance(report, Report)
    assert isinstance(report.message, RoundStopped)
    told = {one.rank: one.stopped_by_us for one in report.message.failures}
    assert told == {1: False, 0: True}


def test_what_was_asked_for_an_earlier_round_is_not_taken_for_an_answer_of_this_one() -> None:
    life = stopping()
    life.take(exited(0, TERMINATED), AllGone(1), EndpointReserved(PORT), run_round(2))
    assert life.take(AllGone(1)) == []
    life.take(Told(StopRound(2, "a node has joined")))
    assert life.take(AllGone(1)) == []
    assert life.state.workers, "workers of round 2 still run"


def test_what_the_end_of_the_lease_has_killed_is_asked_for_all_the_same() -> None:
    life = stopping()
    assert KillEverything(1) in life.take(exited(0, TERMINATED))
    assert life.take(AllGone(0)) == []
    assert life.take(AllGone(1)) == [CloseRound(), ReserveEndpoint()]


def test_a_worker_that_fails_of_its_own_while_it_is_stopped_is_not_marked_as_stopped() -> None:
    life = stopping()
    life.take(exited(0, ExitStatus(code=1), "ValueError: the real reason"))
    assert not life.failures[0].stopped_by_us


def test_a_worker_that_starts_in_a_round_that_stops_gets_what_the_others_got() -> None:
    life = waiting()
    life.take(run_round(), WorkerStarted(1, 1, 102), exited(1))
    life.take(Told(StopRound(1, "rank 1 was killed")))
    started = WorkerStarted(1, 0, 101)
    assert life.take(started) == [SignalWorkers(signal.SIGTERM, (0,))]
    life.take(NodeTimerFired("grace"))
    assert life.take(started) == [KillEverything(1)]


def test_who_will_never_be_forked_is_not_waited_for() -> None:
    life = Life()
    life.take(NodeStarted(), ZygoteReady(()), EndpointReserved(PORT), run_round())
    life.take(WorkerStarted(1, 1, 102), exited(1), Told(StopRound(1, "rank 1 was killed")))
    effects = life.take(ZygoteLost("it ended with status 1"))
    assert KillEverything(1) in effects


def test_a_zygote_that_has_not_forked_within_the_grace_is_killed_too() -> None:
    life = Life()
    life.take(NodeStarted(), ZygoteReady(()), EndpointReserved(PORT), run_round())
    life.take(WorkerStarted(1, 1, 102), exited(1), Told(StopRound(1, "rank 1 was killed")))
    effects = life.take(NodeTimerFired("grace"))
    assert without_words(effects)[:2] == [KillZygote(), KillEverything(1)]


def test_what_outlives_sigkill_is_asked_for_and_takes_the_node_out_of_the_job() -> None:
    life = stopping()
    life.take(NodeTimerFired("grace"))
    assert ListStuck() in life.take(NodeTimerFired("unkillable"))
    effects = life.take(ProcessesStuck(("pid 101 (python, state D)",)))
    assert "pid 101 (python, state D) did not die from SIGKILL" in said(effects)
    (report,) = without_words(effects)
    assert isinstance(report, Report)
    assert isinstance(report.message, NodeLeft)
    assert [one.rank for one in report.message.failures] == [1]
    failed = Outcome("failed", "pid 101 cannot be killed", 1)
    assert life.take(Told(CloseJob(failed))) == [Finish(failed)]


def test_a_spawner_that_does_not_answer_is_killed_and_if_that_fails_left() -> None:
    life = stopping()
    life.take(NodeTimerFired("grace"))
    asked = life.take(NodeTimerFired("unkillable"))
    assert asked == [ListStuck(), WakeNode("unkillable", 10.0)]
    effects = life.take(NodeTimerFired("unkillable"))
    assert said(effects) == sentences.SPAWNER_SILENT
    assert without_words(effects) == [KillSpawner(), WakeNode("unkillable", 10.0)]
    (report,) = without_words(life.take(NodeTimerFired("unkillable")))
    assert isinstance(report, Report)
    assert isinstance(report.message, NodeLeft)


def test_news_of_the_dying_that_comes_too_late_changes_nothing() -> None:
    life = stopping()
    life.take(NodeTimerFired("grace"), exited(0), AllGone(1))
    assert life.take(NodeTimerFired("unkillable")) == []
    assert life.take(ProcessesStuck(())) == []
    assert life.state.phase is Phase.STOPPING


# --- ending -------------------------------------------------------------------------------


def test_after_success_the_spawner_ends_and_then_the_job() -> None:
    life = running(slots=1)
    life.take(exited(0, ExitStatus(code=0)))
    effects = life.take(Told(CloseJob(SUCCEEDED)))
    assert effects == [EndSpawner(), WakeNode("unkillable", 10.0)]
    assert life.take(SpawnerEnded()) == [Finish(SUCCEEDED)]


def test_a_signal_is_passed_on_with_the_grace() -> None:
    life = running()
    effects = life.take(SignalReceived(signal.SIGHUP))
    assert without_words(effects) == [
        SignalWorkers(signal.SIGHUP, (0, 1)),
        WakeNode("grace", 30.0),
    ]
    assert "SIGHUP was sent to the agent on here; passing it on to 2 workers" in said(effects)
    life.take(exited(0, ExitStatus(signal=1)), exited(1, ExitStatus(code=0)))
    report, finish = life.take(SpawnerEnded())
    assert isinstance(report, Report)
    assert report.message == NodeLeft("SIGHUP was sent to the agent on here", signal=1)
    assert finish == Finish(Outcome("interrupted", "SIGHUP was sent to the agent on here", 129))


def test_a_worker_that_starts_after_a_signal_gets_that_signal() -> None:
    life = waiting()
    life.take(run_round(), SignalReceived(signal.SIGINT))
    assert life.take(WorkerStarted(1, 0, 101)) == [SignalWorkers(signal.SIGINT, (0,))]


def test_a_second_interrupt_kills_at_once_and_a_second_sigterm_does_not() -> None:
    life = running()
    life.take(SignalReceived(signal.SIGTERM))
    assert life.take(SignalReceived(signal.SIGTERM)) == []
    effects = life.take(SignalReceived(signal.SIGINT))
    assert without_words(effects) == [EndSpawner(), WakeNode("unkillable", 10.0)]
    assert said(effects) == "interrupted again: killing the workers at once"
    assert life.take(SignalReceived(signal.SIGINT)) == []


@pytest.mark.parametrize("life", [Life(), waiting()], ids=lambda life: life.state.phase)
def test_a_signal_where_there_are_no_workers_ends_the_job_at_once(life: Life) -> None:
    effects = life.take(SignalReceived(signal.SIGTERM))
    assert EndSpawner() in effects
    assert life.take(SpawnerEnded())[-1] == Finish(
        Outcome("interrupted", "SIGTERM was sent to the agent on here", 143, asked="job")
    )


def test_nothing_is_prepared_any_more_after_a_signal() -> None:
    life = Life()
    life.take(NodeStarted(preload=("import numpy", "import torch")), SignalReceived(signal.SIGTERM))
    assert life.take(ModuleRejected("import torch", "it raised")) == []
    assert life.take(NodeTimerFired("preload notice")) == []
    assert life.take(NodeTimerFired("preload")) == []
    assert life.take(EndpointReserved(PORT)) == []


def test_a_signal_during_sigkill_does_not_wait_for_a_grace() -> None:
    life = stopping()
    life.take(NodeTimerFired("grace"))
    assert EndSpawner() in life.take(SignalReceived(signal.SIGTERM))


def test_without_its_launcher_a_job_ends_without_a_grace() -> None:
    life = running()
    assert life.take(LauncherLost()) == [EndSpawner(), WakeNode("unkillable", 10.0)]
    (finish,) = life.take(SpawnerEnded())
    assert isinstance(finish, Finish)
    assert finish.outcome.verdict == "interrupted"
    assert finish.outcome.exit_status == 1


def test_without_its_launcher_a_job_ends_at_once_in_the_middle_of_stopping_too() -> None:
    life = stopping()
    life.take(NodeTimerFired("grace"))
    assert life.take(LauncherLost()) == [EndSpawner(), WakeNode("unkillable", 10.0)]


def test_without_its_launcher_a_job_still_waits_until_all_is_gone() -> None:
    life = running(slots=1)
    life.take(exited(0, ExitStatus(code=0)), LauncherLost())
    assert life.take(Told(CloseJob(SUCCEEDED))) == []
    assert len(life.take(SpawnerEnded())) == 1


def test_without_its_spawner_a_job_is_over() -> None:
    life = running()
    (finish,) = life.take(SpawnerLost("was killed by signal 9 (SIGKILL)"))
    assert isinstance(finish, Finish)
    assert finish.outcome.verdict == "failed"
    assert finish.outcome.reason.startswith("the spawner on here was killed by signal 9")


def test_the_first_outcome_stands() -> None:
    life = running(slots=1)
    life.take(exited(0, ExitStatus(code=0)), Told(CloseJob(SUCCEEDED)))
    assert life.take(SpawnerLost("was killed")) == [Finish(SUCCEEDED)]


def test_a_process_that_is_stuck_at_the_end_does_not_hold_the_end_up() -> None:
    life = running(slots=1)
    life.take(SignalReceived(signal.SIGTERM), NodeTimerFired("grace"))
    life.take(NodeTimerFired("unkillable"))
    effects = life.take(ProcessesStuck(("pid 101 (python, state D)",)))
    assert isinstance(effects[-1], Finish)


EVERYTHING: list[NodeEvent] = [
    NodeStarted(),
    EndpointReserved(PORT),
    ZygoteReady(()),
    ModuleRejected("import torch", "it raised"),
    ZygoteLost("gone"),
    WorkerStarted(1, 0, 101),
    exited(0),
    StepReported(1, 0, 3),
    AllGone(1),
    ProcessesStuck(("pid 101",)),
    SpawnerLost("was killed"),
    SpawnerEnded(),
    SignalReceived(signal.SIGINT),
    LauncherLost(),
    NodeTimerFired("grace"),
    NodeTimerFired("unkillable"),
    run_round(2),
    Told(StopRound(1, "late")),
    Told(CloseJob(SUCCEEDED)),
]


@pytest.mark.parametrize("event", EVERYTHING, ids=lambda event: type(event).__name__)
def test_after_the_end_nothing_has_an_effect(event: NodeEvent) -> None:
    life = running()
    life.take(SpawnerLost("was killed"))
    before = structs.asdict(life.state)
    assert life.take(event) == []
    assert structs.asdict(life.state) == before


# Where somebody else runs the workers.

NO_MORE = Outcome("failed", "no further round is wanted", 1)


def test_that_no_further_round_is_wanted_is_told_and_told_again_on_a_new_connection() -> None:
    life = running()
    assert life.take(ClosingAsked(NO_MORE)) == [Report(ClosingWanted(NO_MORE))]
    assert life.take(ClosingAsked(Outcome("failed", "twice", 1))) == []
    greetings = [
        effect.message
        for effect in life.take(CoordinatorReached())
        if isinstance(effect, Report) and isinstance(effect.message, NodeGreeted)
    ]
    assert [greeting.closing for greeting in greetings] == [NO_MORE]


def test_a_long_reason_is_told_within_its_bounds() -> None:
    """Else the coordinator would take an honest node for a liar."""
    life = running()
    (report,) = life.take(ClosingAsked(Outcome("failed", "x" * 200_000, 1)))
    assert isinstance(report, Report)
    sent = msgspec.msgpack.encode(report.message)
    assert msgspec.msgpack.decode(sent, type=FromNode) == report.message


def test_a_node_that_is_released_after_its_workers_succeeded_has_succeeded() -> None:
    life = running()
    life.take(exited(0, ExitStatus(code=0)), exited(1, ExitStatus(code=0)))
    outcome = Outcome("succeeded", "all workers on here succeeded", 0)
    assert life.take(Released()) == [Finish(outcome)]


def test_whoever_carries_the_coordinator_stays_until_all_are_done() -> None:
    life = running()
    life.take(CoordinatorReached(hosting=True))
    life.take(exited(0, ExitStatus(code=0)), exited(1, ExitStatus(code=0)))
    assert life.take(Released()) == []
    life.take(Told(CloseJob(SUCCEEDED)))
    assert life.take(SpawnerEnded()) == [Finish(SUCCEEDED)]


def test_a_node_that_is_released_while_workers_run_leaves_with_them() -> None:
    life = running()
    effects = without_words(life.take(Released()))
    assert SignalWorkers(signal.SIGINT, (0, 1)) in effects
    assert life.state.phase is Phase.CLOSING
    assert life.take(Released()) == []


def test_one_that_has_finished_and_wants_no_other_round_goes_when_its_round_ends() -> None:
    life = running()
    life.take(exited(0, ExitStatus(code=0)), exited(1, ExitStatus(code=0)), ClosingAsked(NO_MORE))
    effects = life.take(Told(StopRound(1, "rank 5 was killed")))
    assert [type(effect) for effect in effects] == [Finish]


def test_one_that_has_finished_takes_part_again_unless_it_said_otherwise() -> None:
    life = running()
    life.take(exited(0, ExitStatus(code=0)), exited(1, ExitStatus(code=0)))
    effects = life.take(Told(StopRound(1, "rank 5 was killed")))
    assert KillEverything(1) in effects
