"""A node that is asked to leave, and workers that die of the signal by which it is."""

from __future__ import annotations

import signal

import pytest
from msgspec.structs import replace

from holdfast.core.node import Contact, NodeState, Timer
from holdfast.core.node_io import (
    CoordinatorLost,
    CoordinatorReached,
    EndSpawner,
    Finish,
    LeaseRanOut,
    LeaveAsked,
    NodeEffect,
    NodeTimerFired,
    Report,
    SaveAnswered,
    SignalReceived,
    SignalWorkers,
    SpawnerEnded,
    Told,
    WakeNode,
    WorkerExited,
)
from holdfast.core.protocol.messages import (
    FromNode,
    NodeDraining,
    NodeGreeted,
    SaveNow,
    StandBy,
    StopRound,
    WorkersFailed,
)
from holdfast.core.protocol.model import ExitStatus, Outcome

from .agent_life import Life, exited, member, running, said, waiting

TERM, USR1, USR2, INT = signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT


def reports(effects: list[NodeEffect]) -> list[FromNode]:
    return [effect.message for effect in effects if isinstance(effect, Report)]


def killed_by(number: int, local_rank: int = 0) -> WorkerExited:
    return exited(local_rank, ExitStatus(signal=number))


@pytest.mark.parametrize("number", [TERM, USR1, USR2])
def test_a_signal_that_asks_for_it_is_a_drain(number: signal.Signals) -> None:
    life = member()
    effects = life.take(SignalReceived(number))
    wish = NodeDraining(f"{number.name} was sent to its agent", life.state.config.timeouts.save_s)
    assert reports(effects) == [wish]
    assert not [effect for effect in effects if isinstance(effect, SignalWorkers)]


def test_a_signal_that_does_not_ask_for_it_is_the_end_and_everybody_hears_at_once() -> None:
    life = member()
    effects = life.take(SignalReceived(INT))
    assert reports(effects) == [NodeDraining("SIGINT was sent to its agent", at_once=True)]
    assert SignalWorkers(INT, (0, 1)) in effects


def test_which_signals_ask_for_it_can_be_said() -> None:
    life = member()
    life.state.config = replace(life.state.config, drain_signals=("SIGUSR2",))
    effects = life.take(SignalReceived(TERM))
    assert SignalWorkers(TERM, (0, 1)) in effects


def test_a_second_signal_is_the_end() -> None:
    life = member()
    life.take(SignalReceived(USR1))
    effects = life.take(SignalReceived(TERM))
    assert SignalWorkers(TERM, (0, 1)) in effects
    assert NodeDraining("SIGTERM was sent to its agent", at_once=True) in reports(effects)


def test_the_same_signal_at_once_again_is_not_a_second_one() -> None:
    """Slurm sends SIGTERM twice at a time limit, milliseconds apart."""
    life = member()
    life.take(SignalReceived(TERM))
    life.now -= 0.998
    assert life.take(SignalReceived(TERM)) == []
    life.now += 2.0
    assert SignalWorkers(TERM, (0, 1)) in life.take(SignalReceived(TERM))


def test_ctrl_c_at_once_again_kills_at_once() -> None:
    life = running()
    life.take(SignalReceived(INT))
    life.now -= 0.9
    assert EndSpawner() in life.take(SignalReceived(INT))


def test_a_worker_that_dies_of_the_signal_after_its_node_was_asked_has_not_failed() -> None:
    life = member()
    life.take(SignalReceived(USR1))
    effects = life.take(killed_by(USR1))
    assert reports(effects) == [NodeDraining("SIGUSR1 was sent to its agent", at_once=True)]
    assert SignalWorkers(USR1, (1,)) in effects
    assert life.failures[0].stopped_by_us


def test_a_worker_that_dies_of_the_signal_before_its_node_is_asked_has_not_failed() -> None:
    life = member()
    assert reports(life.take(killed_by(USR1))) == []
    assert reports(life.take(killed_by(USR1, 1))) == []
    effects = life.take(SignalReceived(USR1))
    assert reports(effects) == [NodeDraining("SIGUSR1 was sent to its agent", at_once=True)]
    assert EndSpawner() in effects
    assert all(failure.stopped_by_us for failure in life.failures.values())


def test_a_worker_that_dies_of_such_a_signal_alone_has_failed_after_a_moment() -> None:
    life = member()
    life.take(killed_by(TERM), exited(1, ExitStatus(code=1), "Connection reset"))
    (told,) = reports(life.take(NodeTimerFired(Timer.WITHHOLD)))
    assert isinstance(told, WorkersFailed)
    assert [failure.local_rank for failure in told.failures] == [0, 1]
    assert not any(failure.stopped_by_us for failure in told.failures)


def test_another_signal_than_the_one_that_killed_does_not_excuse_it() -> None:
    life = member()
    life.take(killed_by(USR1))
    life.take(SignalReceived(USR2))
    assert not life.failures[0].stopped_by_us
    (told,) = reports(life.take(NodeTimerFired(Timer.WITHHOLD)))
    assert isinstance(told, WorkersFailed)


def test_a_kill_is_told_at_once() -> None:
    life = member()
    (told,) = reports(life.take(exited(0)))
    assert isinstance(told, WorkersFailed)


def test_a_job_of_one_node_whose_workers_all_died_of_it_was_interrupted() -> None:
    life = running()
    life.take(killed_by(TERM), killed_by(TERM, 1), SignalReceived(TERM))
    assert finished(life).verdict == "interrupted"
    assert finished(life).exit_status == 143


def saving() -> Life:
    """A node that has to leave, and whose workers have begun to save."""
    life = member()
    life.take(*(SaveAnswered(1, local, "listens") for local in (0, 1)), SignalReceived(TERM))
    life.take(Told(SaveNow(1, "b is leaving", 20.0, 7, number=1)))
    return life


def stops_workers(effects: list[NodeEffect]) -> bool:
    return any(isinstance(effect, SignalWorkers) for effect in effects)


def test_workers_save_on_while_the_coordinator_is_out_of_reach() -> None:
    life = saving()
    effects = life.take(CoordinatorLost("connection reset"))
    assert not stops_workers(effects)
    assert any(isinstance(one, WakeNode) and one.name == Timer.REDIAL for one in effects)
    life.now += 9.0
    (greeting,) = [
        m for m in reports(life.take(CoordinatorReached())) if isinstance(m, NodeGreeted)
    ]
    assert greeting.draining == "SIGTERM was sent to its agent"
    assert greeting.within_s == life.state.config.timeouts.save_s - 12.0, "it was asked so long ago"
    assert stops_workers(life.take(Told(StopRound(1, "b is leaving"))))


def test_a_node_whose_workers_save_out_of_reach_leaves_when_the_time_or_the_lease_is_over() -> None:
    life = saving()
    life.take(CoordinatorLost("connection reset"))
    assert stops_workers(life.take(NodeTimerFired(Timer.DRAIN)))
    life = saving()
    life.take(CoordinatorLost("connection reset"))
    assert stops_workers(life.take(LeaseRanOut()))
    life = saving()
    assert stops_workers(life.take(CoordinatorLost("the job is another one", permanent=True)))


def test_a_node_that_is_asked_while_the_coordinator_is_out_of_reach_asks_it_later() -> None:
    life = member()
    life.take(SaveAnswered(1, 0, "listens"), CoordinatorLost("connection reset"))
    assert not stops_workers(life.take(SignalReceived(TERM)))
    (greeting,) = [
        m for m in reports(life.take(CoordinatorReached())) if isinstance(m, NodeGreeted)
    ]
    assert greeting.draining


def test_where_nobody_can_save_a_node_leaves_when_the_coordinator_is_out_of_reach() -> None:
    life = member()
    life.take(SignalReceived(TERM))
    assert stops_workers(life.take(CoordinatorLost("connection reset")))
    life = member()
    life.take(CoordinatorLost("connection reset"))
    assert stops_workers(life.take(SignalReceived(TERM)))


@pytest.mark.parametrize(("goes_on", "asked"), [(True, "node"), (False, "job")])
def test_whether_the_job_goes_on_is_known_from_who_lets_it_out(goes_on: bool, asked: str) -> None:
    life = member()
    life.take(SignalReceived(TERM), Told(StopRound(1, "b is leaving", goes_on=goes_on)))
    life.take(killed_by(TERM), killed_by(TERM, 1))
    assert finished(life).asked == asked


def test_a_node_that_is_asked_after_another_cannot_say_that_the_job_goes_on() -> None:
    life = member()
    life.take(Told(StopRound(1, "b is leaving", goes_on=True)), SignalReceived(TERM))
    assert finished(life).asked == "job"


def test_a_node_on_its_way_out_still_hears_that_the_job_goes_on() -> None:
    life = member()
    life.take(SignalReceived(TERM), killed_by(TERM), killed_by(TERM, 1))
    assert finished(life).asked == "job"
    life.take(Told(StopRound(1, "b is leaving", goes_on=True)))
    assert finished(life).asked == "node"


def test_who_presses_ctrl_c_was_not_asked_and_hears_what_the_others_do() -> None:
    life = member(min_nodes=2)
    words = said(life.take(SignalReceived(INT)))
    assert "Ctrl-C again ends at once" in words
    assert "the other node waits up to 600 s (--join-timeout)" in words
    life.take(killed_by(INT), killed_by(INT, 1))
    assert finished(life).asked == ""


def test_where_the_others_are_enough_nobody_is_said_to_wait() -> None:
    assert "waits" not in said(member(min_nodes=1).take(SignalReceived(INT)))


def finished(life: Life) -> Outcome:
    """How it ends, or would."""
    state: NodeState = life.state
    if state.outcome is not None and state.killing:
        return state.outcome
    (effect,) = [one for one in life.take(SpawnerEnded()) if isinstance(one, Finish)]
    return effect.outcome


def test_a_node_that_is_not_connected_leaves_at_once() -> None:
    life = member()
    life.state.link.contact = Contact.NONE
    assert SignalWorkers(TERM, (0, 1)) in life.take(SignalReceived(TERM))


def test_a_spare_that_is_asked_leaves_a_job_that_goes_on() -> None:
    life = waiting()
    life.take(Told(StandBy("round 1 runs with 2 of at most 2 nodes: standing by")))
    life.take(SignalReceived(TERM))
    assert finished(life).asked == "node"


def test_a_node_that_waits_for_the_first_round_cannot_know_that_the_job_goes_on() -> None:
    life = waiting()
    life.take(SignalReceived(TERM))
    assert finished(life).asked == "job"


# An operator asks.


def test_an_operator_asks_as_a_signal_does_in_its_own_words() -> None:
    life = member()
    effects = life.take(LeaveAsked("ada on desk"))
    save_s = life.state.config.timeouts.save_s
    assert reports(effects) == [NodeDraining("ada on desk asked it to leave", save_s)]
    assert "ada on desk asked this node to leave: " in said(effects)
    assert life.take(LeaveAsked("bob")) == []


def test_a_node_that_was_let_out_leaves_with_the_operators_words() -> None:
    life = member()
    life.take(LeaveAsked("ada on desk"))
    effects = life.take(Told(StopRound(1, "a is leaving", goes_on=True)))
    assert "ada on desk asked it to leave" in said(effects)
    assert SignalWorkers(TERM, (0, 1)) in effects
    assert life.state.outcome is not None
    assert "SIGTERM" not in life.state.outcome.reason
