"""All nodes of a round are told to save before one leaves it, and at which step."""

from __future__ import annotations

from msgspec.structs import replace
from tests.core.coordinator.coordinated_job import Job, failure, running, told

from holdfast.core import coordinator
from holdfast.core.coordinator_io import CoordinatorEffect, Explain, OperatorAsked, Write
from holdfast.core.features import commands
from holdfast.core.features.saving import RoundSaves, SaveEnd
from holdfast.core.membership import NodeGone
from holdfast.core.policy import sentences
from holdfast.core.protocol.document import Ledger, NodeLimits
from holdfast.core.protocol.messages import (
    NodeDraining,
    NodeLeft,
    RoundReport,
    SaveHeard,
    SaveNow,
    SaveOver,
    SavingReport,
    StopRound,
    WorkersSaved,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import Term

WHY = "SIGTERM was sent to its agent"
REASON = f"host-b is leaving: {WHY}"
DRAIN = NodeDraining(WHY, 20.0)


def saves_of(job: Job) -> RoundSaves:
    current = job.state.group.round
    assert current is not None
    assert current.saves is not None
    return current.saves


def steps(effects: list[CoordinatorEffect]) -> dict[str, int | None]:
    """The nodes that are told to save, and at which step."""
    words = told(effects)
    return {node: word.step for node, word in words.items() if isinstance(word, SaveNow)}


def stopped(effects: list[CoordinatorEffect]) -> set[str]:
    return {node for node, word in told(effects).items() if isinstance(word, StopRound)}


def draining() -> Job:
    """Of three nodes two would do, and b is asked to leave."""
    job = running("a", "b", "c", at_most=3)
    job.state.config = replace(job.state.config, min_nodes=2)
    assert steps(job.hear("b", DRAIN)) == {"a": None, "b": None, "c": None}
    return job


def test_all_members_are_told_with_the_time_that_there_is() -> None:
    job = running("a", "b")
    word = SaveNow(1, REASON, 20.0, None, "host-b", 1)
    assert told(job.hear("b", DRAIN)) == {"a": word, "b": word}


def test_all_save_at_the_furthest_step_once_everybody_has_said_its_own() -> None:
    job = draining()
    assert steps(job.hear("a", SaveHeard(1, True, 41, 1))) == {}
    assert steps(job.hear("b", SaveHeard(1, True, 42, 1))) == {}
    assert steps(job.hear("c", SaveHeard(1, True, 40, 1))) == {"a": 42, "b": 42, "c": 42}


def test_the_node_is_let_out_when_all_have_saved() -> None:
    job = draining()
    for node in "abc":
        job.hear(node, SaveHeard(1, True, 7, 1))
    assert stopped(job.hear("a", WorkersSaved(1, number=1))) == set()
    assert stopped(job.hear("c", WorkersSaved(1, number=1))) == set()
    assert stopped(job.hear("b", WorkersSaved(1, number=1))) == {"a", "b", "c"}


def test_where_nobody_listens_nobody_waits() -> None:
    job = draining()
    job.hear("a", SaveHeard(1, number=1))
    job.hear("b", SaveHeard(1, number=1))
    assert stopped(job.hear("c", SaveHeard(1, number=1))) == {"a", "b", "c"}


def test_the_wait_is_over_when_the_time_is() -> None:
    job = draining()
    job.hear("a", SaveHeard(1, True, 7, 1))
    assert stopped(job.wake(19.9)) == set()
    assert stopped(job.wake(0.1)) == {"a", "b", "c"}


def test_the_node_that_can_wait_least_decides_how_long() -> None:
    job = draining()
    job.now += 2.0
    words = told(job.hear("c", NodeDraining(WHY, 5.0)))
    assert {word.within_s for word in words.values() if isinstance(word, SaveNow)} == {5.0}
    assert steps(job.hear("a", NodeDraining(WHY, 60.0))) == {}
    assert stopped(job.wake(5.0)) == {"a", "b", "c"}


def test_a_loss_ends_the_round_though_others_save() -> None:
    job = draining()
    job.hear("a", SaveHeard(1, True, 7, 1))
    assert stopped(job.take(NodeGone("c", "all its processes have ended"))) == {"a", "b"}


def test_a_member_with_a_new_connection_is_told_again_and_waited_for() -> None:
    job = draining()
    for node in "abc":
        job.hear(node, SaveHeard(1, True, 7, 1))
    report = RoundReport(1, 0, 3, "running")
    assert steps(job.greet("a", report)) == {"a": 7}
    job.hear("b", WorkersSaved(1, number=1))
    assert stopped(job.hear("c", WorkersSaved(1, number=1))) == set()
    job.hear("a", SaveHeard(1, True, 7, 1))
    assert stopped(job.hear("a", WorkersSaved(1, number=1))) == {"a", "b", "c"}


def test_a_step_that_is_decided_does_not_change() -> None:
    job = draining()
    for node in "abc":
        job.hear(node, SaveHeard(1, True, 7, 1))
    assert job.hear("a", SaveHeard(1, True, 99, 1)) == []


def test_a_node_that_stops_its_workers_already_is_not_waited_for() -> None:
    job = running("a", "b", "c", at_most=3)
    job.state.config = replace(job.state.config, min_nodes=2)
    words = told(job.hear("b", NodeDraining(WHY, at_once=True)))
    assert words == {
        node: StopRound(1, REASON, "host-b", goes_on=True, kind="drain") for node in "abc"
    }


def test_where_too_few_stay_nobody_says_that_the_job_goes_on() -> None:
    """An engine that is told so does not start it again."""
    job = running("a", "b")
    words = told(job.hear("b", NodeDraining(WHY, at_once=True)))
    assert words == {
        node: StopRound(1, REASON, "host-b", goes_on=False, kind="drain") for node in "ab"
    }


def test_where_everybody_leaves_that_is_said() -> None:
    job = running("a", "b")
    job.hear("b", NodeDraining(WHY))
    words = told(job.hear("a", NodeDraining(WHY)))
    assert {word.goes_on for word in words.values() if isinstance(word, StopRound)} == {False}


def test_nobody_else_can_say_that_it_has_saved() -> None:
    job = draining()
    job.join("d")
    assert job.hear("d", SaveHeard(1, True, 10**9, 1)) == []
    job.hear("a", SaveHeard(1, True, 7, 1))
    job.hear("b", SaveHeard(1, True, 7, 1))
    assert steps(job.hear("c", SaveHeard(1, True, 7, 1)))["a"] == 7


def test_who_has_left_ends_the_round_where_nobody_saves_or_leaves_any_more() -> None:
    """The node that was to leave, and the coordinator that knew of it, are gone."""
    job = running("a", "b")
    effects = job.hear("a", WorkersSaved(1, True, 1))
    assert stopped(effects) == {"a", "b"}
    stop = told(effects)["b"]
    assert isinstance(stop, StopRound)
    assert stop.reason == f"host-a {sentences.ALL_LEFT}"


def test_who_has_left_waits_while_others_save() -> None:
    job = draining()
    for node in "abc":
        job.hear(node, SaveHeard(1, True, 7, 1))
    assert stopped(job.hear("a", WorkersSaved(1, True, 1))) == set()
    assert stopped(job.hear("c", WorkersSaved(1, number=1))) == set()
    assert stopped(job.hear("b", WorkersSaved(1, number=1))) == {"a", "b", "c"}


def test_who_has_left_does_not_wait_for_one_that_had_finished_and_is_gone() -> None:
    job = running("a", "b")
    job.hear("b", WorkersSucceeded(1))
    job.hear("b", DRAIN)
    job.hear("b", SaveHeard(1, False, None, 1))
    job.hear("a", SaveHeard(1, True, 7, 1))
    assert stopped(job.hear("a", WorkersSaved(1, True, 1))) == set()
    assert stopped(job.hear("b", NodeLeft("a second SIGTERM", 15))) == {"a"}


def test_a_greeting_tells_it_too() -> None:
    job = running("a", "b")
    assert stopped(job.greet("b", RoundReport(1, 1, 2, "left"))) == {"a", "b"}


# Where nobody leaves.

WANTED = OperatorAsked("save", "ada on desk", within_s=60.0)


def overs(effects: list[CoordinatorEffect]) -> dict[str, bool]:
    """The nodes that are told that it is over, and whether all have saved."""
    words = told(effects)
    return {node: word.saved for node, word in words.items() if isinstance(word, SaveOver)}


def wanted(*nodes: str) -> Job:
    job = running(*nodes)
    assert steps(job.take(WANTED)) == dict.fromkeys(nodes)
    return job


def test_all_save_at_one_step_on_request_and_the_round_goes_on() -> None:
    job = wanted("a", "b")
    job.hear("a", SaveHeard(1, True, 41, 1))
    assert steps(job.hear("b", SaveHeard(1, True, 42, 1))) == {"a": 42, "b": 42}
    assert overs(job.hear("a", WorkersSaved(1, number=1))) == {}
    assert overs(job.hear("b", WorkersSaved(1, number=1))) == {"a": True, "b": True}
    assert job.state.group.round is not None
    assert job.state.group.round.is_whole
    assert saves_of(job).ended == SaveEnd(1, "saved", 42)
    job.take(WANTED)
    save = saves_of(job).current
    assert save is not None
    assert save.number == 2


def test_what_is_said_of_an_earlier_time_does_not_count() -> None:
    job = wanted("a", "b")
    job.wake(60.0)
    job.take(WANTED)
    job.hear("a", SaveHeard(1, True, 41, 1))
    assert steps(job.hear("b", SaveHeard(1, True, 42, 2))) == {}
    assert steps(job.hear("a", SaveHeard(1, True, 43, 2))) == {"a": 43, "b": 43}


def test_with_steps_those_are_expected_who_have_never_asked() -> None:
    job = wanted("a", "b")
    job.hear("a", SaveHeard(1, True, 0, 1))
    assert steps(job.hear("b", SaveHeard(1, False, None, 1, unasked=True))) == {}
    assert steps(job.hear("b", SaveHeard(1, True, 1, 1))) == {"a": 1, "b": 1}


def test_where_nobody_looks_that_is_said_and_it_is_over() -> None:
    job = wanted("a", "b")
    job.hear("a", SaveHeard(1, number=1))
    effects = job.hear("b", SaveHeard(1, number=1))
    assert overs(effects) == {"a": False, "b": False}
    assert sentences.save_over("nobody looks", None) in [one.text for one in explained(effects)]


def test_a_wait_for_a_common_step_is_given_up_and_a_decided_step_is_not() -> None:
    job = wanted("a", "b")
    job.hear("a", SaveHeard(1, True, 41, 1))
    assert overs(job.wake(60.0)) == {"a": False, "b": False}
    job = wanted("a", "b")
    for node in "ab":
        job.hear(node, SaveHeard(1, True, 41, 1))
    effects = job.wake(60.0)
    assert overs(effects) == {}
    assert sentences.late_save(2, 2) in [one.text for one in explained(effects)]


def test_if_somebody_leaves_meanwhile_workers_are_not_asked_twice() -> None:
    job = wanted("a", "b")
    for node in "ab":
        job.hear(node, SaveHeard(1, True, 41, 1))
    effects = job.hear("b", DRAIN)
    words = [word for word in told(effects).values() if isinstance(word, SaveNow)]
    assert {(word.number, word.leaves, word.step) for word in words} == {(1, True, 41)}
    for node in "ab":
        job.hear(node, SaveHeard(1, True, 41, 1))
    job.hear("a", WorkersSaved(1, number=1))
    job.wake(job.state.config.timeouts.drain_s + 1)
    assert stopped(job.hear("b", WorkersSaved(1, number=1))) == {"a", "b"}


def test_a_coordinator_that_takes_over_goes_on_with_what_was_decided() -> None:
    job = running("a", "b")
    again = SavingReport(3, "ada asked all workers to save", 50.0)
    report = RoundReport(1, 0, 2, "running", saving=again)
    assert steps(job.greet("a", report)) == {"a": None, "b": None}
    known = replace(report, group_rank=1, saving=replace(again, step=9))
    assert steps(job.greet("b", known)) == {"a": 9, "b": 9}
    for node in "ab":
        effects = job.hear(node, SaveHeard(1, True, 9, 3))
        effects = job.hear(node, WorkersSaved(1, number=3))
    assert overs(effects) == {"a": True, "b": True}


def test_who_has_not_heard_that_it_is_over_is_told_and_nobody_saves_again() -> None:
    job = running("a", "b")
    again = SavingReport(3, "ada asked all workers to save", 50.0, 9)
    job.greet("a", RoundReport(1, 0, 2, "running", saving=again))
    effects = job.greet("b", RoundReport(1, 1, 2, "running", saved=3))
    assert overs(effects) == {"a": True, "b": True}
    effects = job.greet("a", RoundReport(1, 0, 2, "running", saving=again))
    assert overs(effects)["a"]
    assert steps(effects) == {}


def test_a_second_request_and_one_at_the_end_are_refused() -> None:
    job = wanted("a", "b")
    assert "saving already" in commands.refusal(job.state, "save")
    job = running("a", "b")
    job.hear("a", WorkersSucceeded(1))
    assert commands.refusal(job.state, "save") == "the round is coming to its end"


def explained(effects: list[CoordinatorEffect]) -> list[Explain]:
    return [one for one in effects if isinstance(one, Explain)]


# Before a round ends in order.

RESTART = OperatorAsked("restart", "ada on desk")


def grown(*nodes: str, at_most: int = 4) -> Job:
    """All members are asked to save, since another node waits."""
    job = running(*nodes, at_most=at_most)
    job.now += 60.0
    job.join("z")
    assert steps(job.wake(1.0)) == dict.fromkeys(nodes)
    return job


def causes(effects: list[CoordinatorEffect]) -> set[str]:
    return {word.reason for word in told(effects).values() if isinstance(word, StopRound)}


def test_all_save_before_a_round_ends_for_a_newcomer() -> None:
    job = grown("a", "b")
    word = SaveNow(1, "a node has joined", job.state.config.timeouts.save_s, 42, "", 1)
    job.hear("a", SaveHeard(1, True, 41, 1))
    assert told(job.hear("b", SaveHeard(1, True, 42, 1))) == {"a": word, "b": word}
    job.hear("a", WorkersSaved(1, number=1))
    assert stopped(job.hear("b", WorkersSaved(1, number=1))) == {"a", "b"}
    assert job.state.group.budget.charges == 0


def test_who_comes_while_others_save_is_taken_in_with_the_first() -> None:
    job = grown("a", "b")
    job.hear("a", SaveHeard(1, True, 41, 1))
    assert steps(job.join("y")) == {}
    assert causes(job.save(41)) == {"2 nodes have joined"}


def test_nobody_waits_for_a_program_that_does_not_ask_when_another_node_joins() -> None:
    assert stopped(grown("a", "b").save()) == {"a", "b"}


def test_a_newcomer_waits_no_longer_than_there_is_to_save() -> None:
    job = grown("a", "b")
    job.hear("a", SaveHeard(1, True, 41, 1))
    job.hear("b", SaveHeard(1, True, 41, 1))
    assert stopped(job.wake(19.9)) == set()
    assert stopped(job.wake(0.1)) == {"a", "b"}


def test_a_failure_or_a_loss_ends_a_round_at_once_though_all_save_for_a_newcomer() -> None:
    job = grown("a", "b")
    assert stopped(job.fail("a", failure())) == {"a", "b"}
    job.stop("a", failure())
    job.stop("b")
    assert job.state.group.budget.charges == 1
    assert stopped(grown("a", "b").take(NodeGone("b", "all its processes have ended"))) == {"a"}


def test_a_round_goes_on_if_the_newcomer_is_gone_before_all_have_saved() -> None:
    job = grown("a", "b")
    job.hear("a", SaveHeard(1, True, 41, 1))
    assert overs(job.hear("z", NodeLeft("SIGTERM", 15))) == {"a": False, "b": False}
    assert job.state.group.round is not None
    assert job.state.group.round.is_whole
    job.join("y")
    numbers = {word.number for word in told(job.wake(1.0)).values() if isinstance(word, SaveNow)}
    assert numbers == {2}
    assert causes(job.save(50)) == {"a node has joined"}


def test_where_some_may_have_saved_all_do_though_the_newcomer_is_gone() -> None:
    job = grown("a", "b")
    for node in "ab":
        job.hear(node, SaveHeard(1, True, 41, 1))
    job.hear("a", WorkersSaved(1, number=1))
    assert overs(job.hear("z", NodeLeft("SIGTERM", 15))) == {}
    assert overs(job.wake(60.0)) == {}
    assert overs(job.hear("b", WorkersSaved(1, number=1))) == {"a": True, "b": True}


def test_who_saved_and_ended_for_a_newcomer_that_is_gone_is_restarted() -> None:
    job = grown("a", "b")
    for node in "ab":
        job.hear(node, SaveHeard(1, True, 41, 1))
    job.hear("z", NodeLeft("SIGTERM", 15))
    assert stopped(job.hear("a", WorkersSaved(1, True, 1))) == set()
    assert "have ended" in causes(job.hear("b", WorkersSaved(1, True, 1))).pop()


def test_a_member_that_finishes_while_others_save_calls_the_newcomer_off() -> None:
    job = grown("a", "b")
    job.hear("a", SaveHeard(1, True, 41, 1))
    assert set(overs(job.hear("b", WorkersSucceeded(1)))) == {"a", "b"}
    assert job.state.group.round is not None
    assert job.state.group.round.is_whole


def test_a_node_that_has_to_leave_meanwhile_may_have_less_time() -> None:
    job = grown("a", "b")
    words = told(job.hear("b", NodeDraining(WHY, 5.0)))
    assert {word.within_s for word in words.values() if isinstance(word, SaveNow)} == {5.0}
    assert stopped(job.wake(5.0)) == {"a", "b"}


def test_a_newcomer_waits_while_somebody_leaves_and_while_all_save_on_request() -> None:
    job = draining()
    job.state.group.limits = NodeLimits(2, 4)
    job.state.group.round.started_at -= 60.0  # type: ignore[union-attr]
    job.join("z")
    assert steps(job.wake(1.0)) == {}
    assert causes(job.save(41)) == {"a node has joined"}
    job = running("a", "b", at_most=3)
    job.take(replace(WANTED, within_s=600.0))
    job.now += 60.0
    assert steps(job.join("z")) == {}
    words = [word for word in told(job.save(41)).values() if isinstance(word, SaveNow)]
    assert {(word.number, word.reason) for word in words} == {(2, "a node has joined")}


def test_all_save_before_a_restart_also_those_that_were_saving_on_request() -> None:
    job = wanted("a", "b")
    job.now += 59.0
    words = [word for word in told(job.take(RESTART)).values() if isinstance(word, SaveNow)]
    assert {(word.number, word.leaves, word.within_s) for word in words} == {(1, True, 20.0)}
    assert "a restart is under way" in commands.refusal(job.state, "restart")
    assert causes(job.save(41)) == {"ada on desk asked for a restart"}


def test_all_save_before_a_round_ends_for_fewer_nodes() -> None:
    job = running("a", "b", at_most=3)
    limits = NodeLimits(1, 1, "ada on desk")
    assert steps(job.take(OperatorAsked("scale", "ada on desk", limits))) == {"a": None, "b": None}
    assert causes(job.save(41)) == {"ada on desk asked for at most 1 node"}


def test_without_time_to_save_a_round_ends_at_once() -> None:
    job = running("a", "b")
    timeouts = replace(job.state.config.timeouts, save_s=0.0)
    job.state.config = replace(job.state.config, timeouts=timeouts)
    assert stopped(job.take(RESTART)) == {"a", "b"}


def test_a_coordinator_that_takes_over_ends_the_round_for_the_restart_once_all_have_saved() -> None:
    job = running("a", "b")
    writes = [one for one in job.take(RESTART) if isinstance(one, Write)]
    state = coordinator.take_over(job.state.config, Term(1, 2), writes[-1].ledger, job.now, 10.0)
    later = Job(2)
    later.state = state
    was = SavingReport(1, "ada on desk asked for a restart", 15.0, 41)
    first = later.greet("a", RoundReport(1, 0, 2, "running", saving=was))
    assert steps(first) == {"a": 41}
    assert steps(later.greet("b", RoundReport(1, 1, 2, "running", saving=was))) == {"b": 41}
    assert causes(later.save(41)) == {"ada on desk asked for a restart"}


def test_a_save_that_begins_before_all_have_reported_is_not_taken_for_an_earlier_one() -> None:
    job = running("a", "b")
    written = [one for one in job.take(WANTED) if isinstance(one, Write)]
    assert not written
    ledger = Ledger(1, 2)
    state = coordinator.take_over(job.state.config, Term(1, 2), ledger, job.now, 10.0)
    later = Job(2)
    later.state = state
    later.greet("a", RoundReport(1, 0, 2, "running"))
    began = [w for w in told(later.hear("a", DRAIN)).values() if isinstance(w, SaveNow)]
    was = SavingReport(1, "ada asked all workers to save", 15.0, 41)
    words = told(later.greet("b", RoundReport(1, 1, 2, "running", saving=was)))
    assert isinstance(words["b"], SaveNow)
    assert (words["b"].number, words["b"].step) == (began[0].number, None)
    assert words["b"].number > was.number


def test_if_an_earlier_save_turns_out_to_be_over_all_save_once_more() -> None:
    """Some were told by an earlier coordinator that the round goes on."""
    job = wanted("a", "b")
    job.take(RESTART)
    words = told(job.greet("b", RoundReport(1, 1, 2, "running", saved=1)))
    assert isinstance(words["a"], SaveNow)
    assert (words["a"].number, words["a"].reason) == (2, "ada on desk asked for a restart")
    assert causes(job.save(50)) == {"ada on desk asked for a restart"}
