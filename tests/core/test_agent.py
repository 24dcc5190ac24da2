"""The agent's rules, one by one. That they hold together is for `test_one_node.py` to show."""

from __future__ import annotations

import signal

import pytest
from msgspec import structs

from holdfast.core import agent
from holdfast.core.agent import Phase
from holdfast.core.agent_io import (
    AgentEffect,
    AgentEvent,
    AgentStarted,
    AgentTimerFired,
    AllGone,
    DropZygote,
    EndpointReserved,
    EndSpawner,
    Finish,
    KillEverything,
    KillSpawner,
    KillZygote,
    LauncherLost,
    ListStuck,
    ModuleRejected,
    ProcessesStuck,
    Report,
    ReserveEndpoint,
    Say,
    SignalReceived,
    SignalWorkers,
    SpawnerEnded,
    SpawnerLost,
    SpawnerReady,
    StartWorkers,
    StartZygote,
    StepReported,
    Told,
    WakeAgent,
    WorkerExited,
    WorkerStarted,
    ZygoteLost,
    ZygoteReady,
)
from holdfast.core.config import JobConfig, Program, Timeouts
from holdfast.core.messages import (
    CloseJob,
    NodeJoined,
    NodeLeft,
    RoundStopped,
    RunRound,
    StopRound,
    WorkersFailed,
    WorkersProgressed,
    WorkersSucceeded,
)
from holdfast.core.model import (
    Assignment,
    Endpoint,
    ErrorDetail,
    ExitStatus,
    Outcome,
    Ranks,
)

PORT = Endpoint("127.0.0.1", 29501)
KILLED = ExitStatus(signal=9)
TERMINATED = ExitStatus(signal=15)
TIMEOUTS = Timeouts(shutdown_s=30.0, unkillable_s=10.0, preload_s=60.0)
SUCCEEDED = Outcome("succeeded", "all workers succeeded", 0)


class Life:
    """An agent, and what it has asked for so far."""

    def __init__(self, slots: int = 2) -> None:
        program = Program("script", "train.py")
        config = JobConfig("job", program, slots=slots, timeouts=TIMEOUTS)
        self.state = agent.AgentState(config, "here-1", "here")
        self.now = 100.0

    def take(self, *events: AgentEvent) -> list[AgentEffect]:
        """Take the events one after the other; what came of the last."""
        effects: list[AgentEffect] = []
        for event in events:
            self.now += 1.0
            effects = agent.step(self.state, event, self.now)
        return effects


def assignment(number: int = 1, slots: int = 2) -> Assignment:
    return Assignment(
        round=number,
        restart_count=number - 1,
        group_rank=0,
        group_size=1,
        world_size=slots,
        role_world_size=slots,
        workers=tuple(Ranks(local, local, local) for local in range(slots)),
        master=PORT,
    )


def run_round(number: int = 1, slots: int = 2) -> Told:
    return Told(RunRound(assignment(number, slots)))


def exited(local_rank: int, status: ExitStatus = KILLED, message: str = "") -> WorkerExited:
    return WorkerExited(1, local_rank, 101 + local_rank, status, error=ErrorDetail(message))


def waiting(slots: int = 2) -> Life:
    life = Life(slots)
    life.take(AgentStarted(cold="not wanted"), EndpointReserved(PORT))
    return life


def running(slots: int = 2) -> Life:
    """A cold round 1 whose workers have all been born."""
    life = waiting(slots)
    births = [WorkerStarted(1, local, 101 + local) for local in range(slots)]
    life.take(run_round(slots=slots), *births)
    return life


def stopping() -> Life:
    """Rank 1 was killed and the round is being stopped; rank 0 still runs."""
    life = running()
    life.take(exited(1), Told(StopRound(1, "rank 1 was killed")))
    return life


def said(effects: list[AgentEffect]) -> str:
    return "\n".join(effect.text for effect in effects if isinstance(effect, Say))


def without_words(effects: list[AgentEffect]) -> list[AgentEffect]:
    return [effect for effect in effects if not isinstance(effect, Say)]


# --- getting ready ------------------------------------------------------------------------


def test_a_node_joins_when_its_port_is_held_and_it_knows_how_workers_start() -> None:
    life = Life()
    started = life.take(AgentStarted(preload=("numpy",)))
    assert started[0] == StartZygote(("numpy",))
    assert WakeAgent("preload", 60.0) in started
    assert life.take(ZygoteReady(("numpy",))) == [ReserveEndpoint()]
    (joined,) = life.take(EndpointReserved(PORT))
    assert isinstance(joined, Report)
    assert isinstance(joined.message, NodeJoined)
    assert joined.message.endpoint == PORT
    assert joined.message.info.slots == 2


def test_a_cold_node_joins_without_a_zygote() -> None:
    life = Life()
    assert life.take(AgentStarted(cold="a plain command")) == [ReserveEndpoint()]
    (joined,) = life.take(EndpointReserved(PORT))
    assert isinstance(joined, Report)
    (start,) = life.take(run_round())
    assert start == StartWorkers(assignment(), (0, 1), warm=False)


def test_a_rejected_module_is_left_out_with_what_is_inside_it() -> None:
    life = Life()
    life.take(AgentStarted(preload=("torch", "numpy", "torch.nn", "torchvision")))
    effects = life.take(ModuleRejected("torch", "it opens /dev/nvidia0 when imported"))
    assert without_words(effects) == [StartZygote(("numpy", "torchvision"))]
    assert said(effects) == "not preloading torch: it opens /dev/nvidia0 when imported"


def test_a_module_that_was_not_asked_for_cannot_be_left_out() -> None:
    life = Life()
    life.take(AgentStarted(preload=("numpy",)))
    effects = life.take(ModuleRejected("sitecustomize", "it raised"))
    assert without_words(effects) == [DropZygote(), ReserveEndpoint()]
    assert "workers start cold" in said(effects)


def test_an_import_that_hangs_holds_nobody_up() -> None:
    life = Life()
    life.take(AgentStarted(preload=("torch",)))
    effects = life.take(AgentTimerFired("preload"))
    assert without_words(effects) == [DropZygote(), ReserveEndpoint()]
    assert said(effects) == "workers start cold: preloading took more than 60 s"
    assert isinstance(life.take(EndpointReserved(PORT))[-1], Report)


def test_a_zygote_that_comes_too_late_is_not_used() -> None:
    life = Life()
    life.take(AgentStarted(), AgentTimerFired("preload"), EndpointReserved(PORT))
    assert life.take(ZygoteReady(())) == []
    (start,) = life.take(run_round())
    assert start == StartWorkers(assignment(), (0, 1), warm=False)


def test_a_slow_import_is_worth_a_line_that_names_what_is_not_python_s_own() -> None:
    life = Life()
    life.take(AgentStarted(preload=("json", "torch", "torch.nn")))
    assert said(life.take(AgentTimerFired("preload notice"))).startswith("importing torch once")
    life.take(ZygoteReady(()))
    assert life.take(AgentTimerFired("preload notice")) == []


def test_a_kernel_without_subreapers_is_told_of() -> None:
    life = Life()
    assert life.take(SpawnerReady(7, subreaper=True, pidfd=True)) == []
    assert "daemons" in said(life.take(SpawnerReady(7, subreaper=False, pidfd=True)))


# --- a round ------------------------------------------------------------------------------


def test_a_round_that_is_not_newer_than_the_last_is_not_started() -> None:
    life = stopping()
    life.take(exited(0, TERMINATED), AllGone(), EndpointReserved(PORT))
    assert life.state.phase is Phase.WAITING
    assert life.take(run_round(1)) == []
    assert life.take(run_round(2)) == [StartWorkers(assignment(2), (0, 1), warm=False)]


@pytest.mark.parametrize("life", [Life(), running(), stopping()], ids=lambda x: x.state.phase)
def test_a_round_starts_only_on_a_node_that_waits_for_one(life: Life) -> None:
    assert life.take(run_round(2)) == []


def test_success_is_told_when_the_last_worker_has_ended_well() -> None:
    life = running()
    assert life.take(exited(1, ExitStatus(code=0))) == []
    assert life.take(exited(0, ExitStatus(code=0))) == [Report(WorkersSucceeded(1))]


def test_the_first_failure_is_told_at_once_and_the_next_with_the_end_of_the_round() -> None:
    life = running(slots=3)
    (report,) = life.take(exited(1))
    assert isinstance(report, Report)
    assert isinstance(report.message, WorkersFailed)
    (first,) = report.message.failures
    assert (first.rank, first.pid, first.status, first.stopped_by_us) == (1, 102, KILLED, False)
    assert first.observed_at == life.now
    assert life.take(exited(2)) == []


def test_a_worker_that_ends_before_its_birth_is_told_counts_all_the_same() -> None:
    life = waiting()
    life.take(run_round())
    (report,) = life.take(exited(0))
    assert isinstance(report, Report)
    assert life.take(WorkerStarted(1, 0, 101)) == []


def test_what_an_older_round_says_is_ignored() -> None:
    life = stopping()
    life.take(exited(0, TERMINATED), AllGone(), EndpointReserved(PORT), run_round(2))
    assert life.take(exited(0)) == []
    assert life.take(StepReported(1, 0, 99)) == []
    assert life.take(Told(StopRound(1, "late"))) == []
    assert life.state.phase is Phase.RUNNING


def test_only_steps_that_lead_further_than_ever_are_told() -> None:
    life = running()
    assert life.take(StepReported(1, 0, 5)) == [Report(WorkersProgressed(1, 5))]
    assert life.take(StepReported(1, 1, 5)) == []
    assert life.take(StepReported(1, 1, 4)) == []
    assert life.take(StepReported(1, 1, 6)) == [Report(WorkersProgressed(1, 6))]


def test_a_zygote_that_does_not_fork_is_killed_and_only_while_somebody_waits_for_it() -> None:
    life = Life()
    life.take(AgentStarted(), ZygoteReady(()), EndpointReserved(PORT), run_round())
    life.take(WorkerStarted(1, 0, 101))
    assert without_words(life.take(AgentTimerFired("birth"))) == [KillZygote()]
    life.take(WorkerStarted(1, 1, 102))
    assert life.take(AgentTimerFired("birth")) == []


def test_what_a_lost_zygote_did_not_fork_starts_cold() -> None:
    life = Life()
    life.take(AgentStarted(), ZygoteReady(()), EndpointReserved(PORT))
    start = StartWorkers(assignment(), (0, 1), warm=True)
    assert life.take(run_round()) == [start, WakeAgent("birth", 60.0)]
    effects = life.take(WorkerStarted(1, 0, 101), ZygoteLost("it ended with status 1"))
    cold = StartWorkers(assignment(), (1,), warm=False)
    assert without_words(effects) == [DropZygote(), cold]
    assert said(effects) == "workers start cold: it ended with status 1"


def test_a_loss_that_is_told_twice_starts_nobody_twice() -> None:
    life = Life()
    life.take(AgentStarted(), ZygoteReady(()), EndpointReserved(PORT), run_round())
    life.take(ZygoteLost("it ended with status 1"))
    assert life.take(ZygoteLost("it had already ended")) == []


# --- stopping -----------------------------------------------------------------------------


def test_stopping_is_the_signal_then_the_grace() -> None:
    life = running()
    life.take(exited(1))
    effects = life.take(Told(StopRound(1, "rank 1 was killed")))
    assert without_words(effects) == [SignalWorkers(signal.SIGTERM, (0,)), WakeAgent("grace", 30.0)]
    assert said(effects) == "round 1 ends: rank 1 was killed; stopping 1 more on here"


def test_after_the_last_exit_everything_below_is_killed_without_waiting_for_the_grace() -> None:
    life = stopping()
    effects = life.take(exited(0, TERMINATED))
    assert effects == [KillEverything(), WakeAgent("unkillable", 10.0)]
    assert life.take(AgentTimerFired("grace")) == []


def test_after_the_grace_come_the_names_and_sigkill() -> None:
    life = stopping()
    effects = life.take(AgentTimerFired("grace"))
    assert without_words(effects) == [KillEverything(), WakeAgent("unkillable", 10.0)]
    assert said(effects) == "rank 0 did not stop within 30 s: killing"


def test_a_round_has_stopped_when_nothing_is_left_and_the_next_port_is_held() -> None:
    life = stopping()
    life.take(exited(0, TERMINATED))
    assert life.take(AllGone()) == [ReserveEndpoint()]
    (report,) = life.take(EndpointReserved(PORT))
    assert isinstance(report, Report)
    assert isinstance(report.message, RoundStopped)
    told = {one.rank: one.stopped_by_us for one in report.message.failures}
    assert told == {1: False, 0: True}


def test_a_worker_that_fails_of_its_own_while_it_is_stopped_is_not_marked_as_stopped() -> None:
    life = stopping()
    life.take(exited(0, ExitStatus(code=1), "ValueError: the real reason"))
    assert not life.state.failures[0].stopped_by_us


def test_a_worker_that_is_born_into_a_round_that_stops_gets_what_the_others_got() -> None:
    life = waiting()
    life.take(run_round(), WorkerStarted(1, 1, 102), exited(1))
    life.take(Told(StopRound(1, "rank 1 was killed")))
    born = WorkerStarted(1, 0, 101)
    assert life.take(born) == [SignalWorkers(signal.SIGTERM, (0,))]
    life.take(AgentTimerFired("grace"))
    assert life.take(born) == [KillEverything()]


def test_who_will_never_be_born_is_not_waited_for() -> None:
    life = Life()
    life.take(AgentStarted(), ZygoteReady(()), EndpointReserved(PORT), run_round())
    life.take(WorkerStarted(1, 1, 102), exited(1), Told(StopRound(1, "rank 1 was killed")))
    effects = life.take(ZygoteLost("it ended with status 1"))
    assert KillEverything() in effects


def test_what_outlives_sigkill_is_asked_for_and_takes_the_node_out_of_the_job() -> None:
    life = stopping()
    life.take(AgentTimerFired("grace"))
    assert ListStuck() in life.take(AgentTimerFired("unkillable"))
    effects = life.take(ProcessesStuck(("pid 101 (python, state D)",)))
    assert "pid 101 (python, state D) did not die of SIGKILL" in said(effects)
    (report,) = without_words(effects)
    assert isinstance(report, Report)
    assert isinstance(report.message, NodeLeft)
    assert [one.rank for one in report.message.failures] == [1]
    failed = Outcome("failed", "pid 101 cannot be killed", 1)
    assert life.take(Told(CloseJob(failed))) == [Finish(failed)]


def test_a_spawner_that_does_not_answer_is_killed_and_if_that_fails_left() -> None:
    life = stopping()
    life.take(AgentTimerFired("grace"))
    asked = life.take(AgentTimerFired("unkillable"))
    assert asked == [ListStuck(), WakeAgent("unkillable", 10.0)]
    effects = life.take(AgentTimerFired("unkillable"))
    assert said(effects) == "the spawner does not answer: killing it"
    assert without_words(effects) == [KillSpawner(), WakeAgent("unkillable", 10.0)]
    (report,) = without_words(life.take(AgentTimerFired("unkillable")))
    assert isinstance(report, Report)
    assert isinstance(report.message, NodeLeft)


def test_news_of_the_dying_that_comes_too_late_changes_nothing() -> None:
    life = stopping()
    life.take(AgentTimerFired("grace"), exited(0), AllGone())
    assert life.take(AgentTimerFired("unkillable")) == []
    assert life.take(ProcessesStuck(())) == []
    assert life.state.phase is Phase.STOPPING


# --- ending -------------------------------------------------------------------------------


def test_after_success_the_spawner_ends_and_then_the_job() -> None:
    life = running(slots=1)
    life.take(exited(0, ExitStatus(code=0)))
    effects = life.take(Told(CloseJob(SUCCEEDED)))
    assert effects == [EndSpawner(), WakeAgent("unkillable", 10.0)]
    assert life.take(SpawnerEnded()) == [Finish(SUCCEEDED)]


def test_a_signal_is_passed_on_with_the_grace() -> None:
    life = running()
    effects = life.take(SignalReceived(signal.SIGHUP))
    assert without_words(effects) == [
        SignalWorkers(signal.SIGHUP, (0, 1)),
        WakeAgent("grace", 30.0),
    ]
    assert "SIGHUP was sent to the agent on here; passing it on to 2 workers" in said(effects)
    life.take(exited(0, ExitStatus(signal=1)), exited(1, ExitStatus(code=0)))
    report, finish = life.take(SpawnerEnded())
    assert isinstance(report, Report)
    assert report.message == NodeLeft("SIGHUP was sent to the agent on here", signal=1)
    assert finish == Finish(Outcome("interrupted", "SIGHUP was sent to the agent on here", 129))


def test_a_worker_that_is_born_after_a_signal_gets_that_signal() -> None:
    life = waiting()
    life.take(run_round(), SignalReceived(signal.SIGINT))
    assert life.take(WorkerStarted(1, 0, 101)) == [SignalWorkers(signal.SIGINT, (0,))]


def test_a_second_interrupt_kills_at_once_and_a_second_sigterm_does_not() -> None:
    life = running()
    life.take(SignalReceived(signal.SIGTERM))
    assert life.take(SignalReceived(signal.SIGTERM)) == []
    effects = life.take(SignalReceived(signal.SIGINT))
    assert without_words(effects) == [EndSpawner(), WakeAgent("unkillable", 10.0)]
    assert said(effects) == "interrupted again: killing at once"
    assert life.take(SignalReceived(signal.SIGINT)) == []


@pytest.mark.parametrize("life", [Life(), waiting()], ids=lambda life: life.state.phase)
def test_a_signal_where_there_are_no_workers_ends_the_job_at_once(life: Life) -> None:
    effects = life.take(SignalReceived(signal.SIGTERM))
    assert EndSpawner() in effects
    assert life.take(SpawnerEnded())[-1] == Finish(
        Outcome("interrupted", "SIGTERM was sent to the agent on here", 143)
    )


def test_nothing_is_prepared_any_more_after_a_signal() -> None:
    life = Life()
    life.take(AgentStarted(preload=("numpy", "torch")), SignalReceived(signal.SIGTERM))
    assert life.take(ModuleRejected("torch", "it raised")) == []
    assert life.take(AgentTimerFired("preload notice")) == []
    assert life.take(AgentTimerFired("preload")) == []
    assert life.take(EndpointReserved(PORT)) == []


def test_a_signal_during_sigkill_does_not_wait_for_a_grace() -> None:
    life = stopping()
    life.take(AgentTimerFired("grace"))
    assert EndSpawner() in life.take(SignalReceived(signal.SIGTERM))


def test_without_its_launcher_a_job_ends_without_a_grace() -> None:
    life = running()
    assert life.take(LauncherLost()) == [EndSpawner(), WakeAgent("unkillable", 10.0)]
    (finish,) = life.take(SpawnerEnded())
    assert isinstance(finish, Finish)
    assert finish.outcome.verdict == "interrupted"
    assert finish.outcome.exit_status == 1


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
    life.take(SignalReceived(signal.SIGTERM), AgentTimerFired("grace"))
    life.take(AgentTimerFired("unkillable"))
    effects = life.take(ProcessesStuck(("pid 101 (python, state D)",)))
    assert isinstance(effects[-1], Finish)


EVERYTHING: list[AgentEvent] = [
    AgentStarted(),
    EndpointReserved(PORT),
    ZygoteReady(()),
    ModuleRejected("torch", "it raised"),
    ZygoteLost("gone"),
    WorkerStarted(1, 0, 101),
    exited(0),
    StepReported(1, 0, 3),
    AllGone(),
    ProcessesStuck(("pid 101",)),
    SpawnerLost("was killed"),
    SpawnerEnded(),
    SignalReceived(signal.SIGINT),
    LauncherLost(),
    AgentTimerFired("grace"),
    AgentTimerFired("unkillable"),
    run_round(2),
    Told(StopRound(1, "late")),
    Told(CloseJob(SUCCEEDED)),
]


@pytest.mark.parametrize("event", EVERYTHING, ids=lambda event: type(event).__name__)
def test_after_the_end_nothing_has_an_effect(event: AgentEvent) -> None:
    life = running()
    life.take(SpawnerLost("was killed"))
    before = structs.asdict(life.state)
    assert life.take(event) == []
    assert structs.asdict(life.state) == before
