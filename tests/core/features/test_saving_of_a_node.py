"""Workers of one node that save because somebody has to leave, or that do not listen."""

from __future__ import annotations

import signal

from msgspec.structs import replace

from holdfast.core.features.saving import NodeSaving
from holdfast.core.node import Contact, has_succeeded
from holdfast.core.node_io import (
    HideSaving,
    NodeEffect,
    Report,
    SaveAnswered,
    ShowSaving,
    SignalReceived,
    SignalWorkers,
    Told,
)
from holdfast.core.policy import sentences
from holdfast.core.protocol.messages import (
    FromNode,
    NodeDraining,
    SaveHeard,
    SaveNow,
    SaveOver,
    StopRound,
    WorkersFailed,
    WorkersSaved,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import ExitStatus

from ..node.agent_life import Life, exited, member, running, said

ENDED_WELL = ExitStatus(code=0)
REASON = "b is leaving: SIGTERM was sent to its agent"


def reports(effects: list[NodeEffect]) -> list[FromNode]:
    return [effect.message for effect in effects if isinstance(effect, Report)]


def save_now(step: int | None = None, within_s: float = 20.0, round: int = 1) -> Told:
    return Told(SaveNow(round, REASON, within_s, step))


def listens(*local_ranks: int) -> list[SaveAnswered]:
    return [SaveAnswered(1, local, "listens") for local in local_ranks]


def listening() -> Life:
    life = member()
    life.take(*listens(0, 1))
    return life


def test_where_nobody_listens_that_is_said_at_once() -> None:
    effects = member().take(save_now())
    assert reports(effects) == [SaveHeard(1), WorkersSaved(1)]
    assert "save" not in said(effects)


def test_listeners_are_shown_it_and_heard_of_when_all_of_them_wait() -> None:
    life = listening()
    effects = life.take(save_now())
    shown = [effect for effect in effects if isinstance(effect, ShowSaving)]
    assert shown == [ShowSaving(life.now + 20.0, REASON)]
    assert reports(effects) == []
    assert said(effects) == sentences.can_save(REASON, 2, 20.0)
    assert reports(life.take(SaveAnswered(1, 0, "waits", 7))) == []
    assert reports(life.take(SaveAnswered(1, 1, "waits", 8))) == [SaveHeard(1, True, 8)]


def test_who_says_no_step_has_heard_when_it_was_told() -> None:
    life = listening()
    life.take(save_now(), SaveAnswered(1, 0, "told"))
    assert reports(life.take(SaveAnswered(1, 1, "waits", 8))) == [SaveHeard(1, True, 8)]


def test_a_worker_that_ends_while_others_wait_is_not_waited_for() -> None:
    life = listening()
    life.take(save_now(), SaveAnswered(1, 0, "waits", 7))
    assert reports(life.take(exited(1, ENDED_WELL))) == [SaveHeard(1, True, 7)]


def test_what_is_saved_is_told_once_all_have() -> None:
    life = listening()
    life.take(save_now(), SaveAnswered(1, 0, "waits", 7), SaveAnswered(1, 1, "waits", 7))
    assert reports(life.take(save_now(9))) == [SaveHeard(1, True, 9)]
    assert reports(life.take(SaveAnswered(1, 0, "told"))) == []
    assert reports(life.take(SaveAnswered(1, 0, "saved"))) == []
    assert reports(life.take(SaveAnswered(1, 1, "saved"))) == [WorkersSaved(1)]


def test_a_step_that_was_decided_stays() -> None:
    life = listening()
    life.take(save_now(9))
    effects = life.take(save_now(12, within_s=5.0))
    assert ShowSaving(life.now + 5.0, REASON, 9) in effects


def test_asked_again_it_answers_again() -> None:
    life = listening()
    life.take(save_now(9), SaveAnswered(1, 0, "saved"), SaveAnswered(1, 1, "saved"))
    assert reports(life.take(save_now(9))) == [SaveHeard(1, True, 9), WorkersSaved(1)]


def test_who_begins_to_listen_late_is_waited_for_too() -> None:
    life = member()
    life.take(save_now())
    life.take(*listens(0))
    assert reports(life.take(SaveAnswered(1, 0, "waits", 3))) == [SaveHeard(1, True, 3)]


def test_a_step_that_is_none_counts_for_nothing() -> None:
    life = listening()
    life.take(save_now(), SaveAnswered(1, 0, "waits", -1), SaveAnswered(1, 1, "waits", 2**60))
    assert life.state.feature(NodeSaving).workers[0].waits_at is None
    assert life.state.feature(NodeSaving).workers[1].waits_at is None


def test_a_word_on_another_round_is_not_heeded() -> None:
    assert listening().take(save_now(round=2)) == []


def test_who_ends_well_after_it_was_told_has_not_finished() -> None:
    life = listening()
    life.take(save_now(), SaveAnswered(1, 0, "told"), SaveAnswered(1, 1, "told"))
    life.take(exited(0, ENDED_WELL))
    effects = life.take(exited(1, ENDED_WELL))
    assert WorkersSucceeded(1) not in reports(effects)
    assert WorkersSaved(1, left=True) in reports(effects)
    assert not has_succeeded(life.state)


def test_who_ends_well_and_was_never_told_has_finished() -> None:
    life = listening()
    life.take(save_now(), exited(0, ENDED_WELL))
    assert WorkersSucceeded(1) in reports(life.take(exited(1, ENDED_WELL)))


def with_worker_signal(life: Life) -> Life:
    life.state.config = replace(life.state.config, drain_worker_signal="SIGUSR1")
    return life


def test_workers_that_want_a_signal_get_it_once_and_are_waited_for() -> None:
    life = with_worker_signal(member())
    effects = life.take(save_now())
    assert SignalWorkers(signal.SIGUSR1, (0, 1), stops=False) in effects
    assert reports(effects) == [SaveHeard(1, True)]
    assert not [one for one in life.take(save_now()) if isinstance(one, SignalWorkers)]
    assert reports(life.take(exited(0, ENDED_WELL))) == []
    assert reports(life.take(exited(1, ENDED_WELL))) == [WorkersSaved(1, left=True)]


def test_a_worker_without_a_handler_for_that_signal_has_not_failed() -> None:
    life = with_worker_signal(member())
    life.take(save_now())
    effects = life.take(exited(0, ExitStatus(signal=signal.SIGUSR1)))
    assert not [one for one in reports(effects) if isinstance(one, WorkersFailed)]


def test_a_job_of_one_node_is_asked_to_save_only_if_somebody_listens() -> None:
    life = running()
    life.state.link.contact = Contact.CONNECTED
    assert SignalWorkers(signal.SIGTERM, (0, 1)) in life.take(SignalReceived(signal.SIGTERM))
    life = running()
    life.state.link.contact = Contact.CONNECTED
    life.take(*listens(0))
    (wish,) = reports(life.take(SignalReceived(signal.SIGTERM)))
    assert isinstance(wish, NodeDraining)
    effects = life.take(Told(StopRound(1, "it is leaving")))
    assert SignalWorkers(signal.SIGTERM, (0, 1)) in effects


# Where nobody leaves.


def wanted(number: int, step: int | None = None) -> Told:
    return Told(SaveNow(1, "ada asked", 60.0, step, "", number, leaves=False))


def over(number: int) -> Told:
    return Told(SaveOver(1, number, saved=True))


def test_a_worker_that_has_saved_before_is_asked_again_the_next_time() -> None:
    life = listening()
    life.take(wanted(1), wanted(1, 7))
    saved = [SaveAnswered(1, local, "saved", serial=1) for local in (0, 1)]
    assert WorkersSaved(1, number=1) in reports(life.take(*saved))
    assert HideSaving() in life.take(over(1))
    effects = life.take(wanted(2))
    assert [one.serial for one in effects if isinstance(one, ShowSaving)] == [2]
    late = SaveAnswered(1, 0, "saved", serial=1)
    assert reports(life.take(late, SaveAnswered(1, 0, "waits", 9, 2))) == []
    assert reports(life.take(SaveAnswered(1, 1, "waits", 9, 2))) == [SaveHeard(1, True, 9, 2)]


def test_who_ends_after_it_saved_has_left_unless_it_went_on_before() -> None:
    for goes_on in (True, False):
        life = listening()
        life.take(wanted(1), wanted(1, 7))
        life.take(*(SaveAnswered(1, local, "saved", serial=1) for local in (0, 1)))
        life.take(over(1))
        if goes_on:
            life.take(*(SaveAnswered(1, local, "goes on", serial=1) for local in (0, 1)))
        effects = life.take(*(exited(local, ENDED_WELL) for local in (0, 1)))
        assert (WorkersSucceeded(1) in reports(effects)) == goes_on
        assert (WorkersSaved(1, left=True) in reports(effects)) == (not goes_on)


def test_workers_get_no_signal_where_nobody_leaves() -> None:
    life = listening()
    life.state.config = replace(life.state.config, drain_worker_signal="USR2")
    assert not [one for one in life.take(wanted(1)) if isinstance(one, SignalWorkers)]
