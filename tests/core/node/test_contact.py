"""How a node keeps in touch with the coordinator, and what it may do without."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.core import node as agent
from holdfast.core.features.of_node import new_node
from holdfast.core.node import Phase
from holdfast.core.node_io import (
    CoordinatorLost,
    CoordinatorReached,
    Dial,
    Finish,
    HangUp,
    LeaseRanOut,
    NodeEffect,
    NodeTimerFired,
    Report,
    SetDeadlines,
    SpawnerEnded,
    StartWorkers,
    Told,
    WakeNode,
)
from holdfast.core.policy import timing
from holdfast.core.policy.config import JobConfig, Leases
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.messages import (
    FromNode,
    Heartbeat,
    HeartbeatAnswered,
    NodeGreeted,
    RoundStopped,
    StopRound,
)
from holdfast.core.protocol.model import ExitStatus, Term

from .agent_life import Life, assignment, exited, run_round, running, said, waiting

DEFAULT = Leases()


def on_several_nodes(life: Life, leases: Leases = DEFAULT) -> Life:
    config = structs.replace(life.state.config, max_nodes=2, leases=leases)
    life.state.config = config
    life.state.link.lease = new_node(config, "here-1", "here").link.lease
    return life


def reports(effects: list[NodeEffect]) -> list[FromNode]:
    return [effect.message for effect in effects if isinstance(effect, Report)]


def greeting(effects: list[NodeEffect]) -> NodeGreeted:
    (message,) = [one for one in reports(effects) if isinstance(one, NodeGreeted)]
    return message


def connected(leases: Leases = DEFAULT) -> Life:
    """A node that waits for a round and has a good lease."""
    life = on_several_nodes(waiting(), leases)
    number = greeting(life.take(CoordinatorReached())).heartbeat
    agent.step(life.state, Told(HeartbeatAnswered(number)), life.now)
    return life


def test_the_first_word_on_a_connection_tells_where_the_node_stands() -> None:
    life = on_several_nodes(running())
    told = greeting(life.take(CoordinatorReached()))
    assert told.report is not None
    assert (told.report.round, told.report.condition) == (1, "running")
    assert told.seen.round == 1
    assert told.endpoint is None, "it is not ready for another round"


def test_a_node_that_is_ready_says_so_with_its_greeting() -> None:
    told = greeting(on_several_nodes(waiting()).take(CoordinatorReached()))
    assert told.endpoint is not None
    assert told.report is None


def test_a_job_of_one_node_sends_no_heartbeats() -> None:
    effects = waiting().take(CoordinatorReached(hosting=True))
    assert greeting(effects).heartbeat == 0
    assert not any(isinstance(effect, WakeNode) for effect in effects)


def test_no_round_is_started_without_a_good_lease() -> None:
    life = on_several_nodes(waiting())
    life.take(CoordinatorReached())
    beat, stopped = reports(life.take(run_round()))
    assert isinstance(beat, Heartbeat), "so that the next offer finds a lease"
    assert isinstance(stopped, RoundStopped)
    assert life.state.phase is Phase.WAITING


def test_the_spawner_holds_the_lease_before_workers_start() -> None:
    life = connected()
    effects = life.take(run_round())
    kinds = [type(effect) for effect in effects]
    assert kinds.index(SetDeadlines) < kinds.index(StartWorkers)
    (hold,) = [effect for effect in effects if isinstance(effect, SetDeadlines)]
    assert hold.kill_at - hold.stop_at == life.state.config.leases.stop_reserve_s


def test_an_answer_renews_the_lease_from_when_the_heartbeat_was_sent() -> None:
    life = connected()
    life.take(run_round())
    effects = life.take(NodeTimerFired("heartbeat"))
    sent_at = life.now
    (beat,) = reports(effects)
    assert isinstance(beat, Heartbeat)
    (hold,) = life.take(Told(HeartbeatAnswered(beat.number)))
    assert isinstance(hold, SetDeadlines)
    assert hold.kill_at == sent_at + life.state.config.leases.lease_s


def test_a_connection_on_which_nothing_is_answered_is_hung_up_and_dialled_again() -> None:
    life = on_several_nodes(running())
    life.take(CoordinatorReached())
    life.now += 10.0
    effects = life.take(NodeTimerFired("heartbeat"))
    assert effects[0] == HangUp()
    assert "it has stopped answering" in said(effects)
    dialled, seek = life.take(NodeTimerFired("redial"))
    assert (dialled, seek) == (Dial(), WakeNode("seek", 6.0))


@given(st.floats(1.0, 100.0), st.floats(0.01, 0.49))
@example(10.0, 0.29)
def test_a_silent_coordinator_is_given_up_in_time_to_find_another(
    lease_s: float, part: float
) -> None:
    leases = timing.derive(Leases(), {"lease_s": lease_s, "heartbeat_s": part * lease_s})
    life = connected(leases)
    assume(not refused(life.state.config))
    assert life.state.link.lease is not None
    effects: list[NodeEffect] = []
    while HangUp() not in effects:
        life.now += leases.heartbeat_s
        effects = agent.step(life.state, NodeTimerFired("heartbeat"), life.now)
    assert life.now + leases.reconnect_s < life.state.link.lease.stop_at


def refused(config: JobConfig) -> bool:
    try:
        timing.check(config)
    except UsageError:
        return True
    return False


def test_who_cannot_be_reached_is_dialled_less_and_less_often() -> None:
    life = on_several_nodes(waiting())
    delays = []
    for _ in range(12):
        effects = life.take(CoordinatorLost("no answer"))
        delays += [effect.after_s for effect in effects if isinstance(effect, WakeNode)]
    assert delays[0] <= 0.1
    assert all(1.0 <= delay <= 2.0 for delay in delays[6:])


def test_the_loss_is_said_once() -> None:
    life = on_several_nodes(waiting())
    assert said(life.take(CoordinatorLost("no answer")))
    assert not said(life.take(CoordinatorLost("no answer")))


@pytest.mark.parametrize("permanent", [True, False])
def test_a_node_gives_up_and_names_whom_it_could_not_reach(permanent: bool) -> None:
    life = on_several_nodes(waiting())
    life.take(CoordinatorLost("refused"))
    life.now += 0.0 if permanent else 600.0
    life.take(NodeTimerFired("redial"))
    life.take(CoordinatorLost("a does not answer", permanent))
    *_, finish = life.take(SpawnerEnded())
    assert isinstance(finish, Finish)
    assert (finish.outcome.verdict, finish.outcome.exit_status) == ("not_formed", 3)
    assert finish.outcome.reason.endswith("a does not answer")


def test_a_search_that_takes_too_long_is_given_up_and_begun_anew() -> None:
    life = on_several_nodes(waiting())
    life.take(CoordinatorLost("refused"))
    life.take(NodeTimerFired("redial"))
    again = life.take(NodeTimerFired("seek"))[-1]
    assert isinstance(again, WakeNode)
    assert again.name == "redial"
    assert life.take(CoordinatorLost("what came of it in the end")) == [], "that one is over"
    assert Dial() in life.take(NodeTimerFired("redial"))
    life.take(CoordinatorReached())
    assert life.take(NodeTimerFired("seek")) == [], "somebody was found"


def test_only_the_highest_term_is_obeyed() -> None:
    life = on_several_nodes(running())
    life.take(CoordinatorReached(), Told(HeartbeatAnswered(99), Term(1, 5)))
    assert life.take(Told(StopRound(1, "old"), Term(1, 4))) == []
    before = life.state.phase
    assert life.take(Told(StopRound(1, "new"), Term(1, 5)))
    assert (before, life.state.phase) == (Phase.RUNNING, Phase.STOPPING)


def finished() -> Life:
    """A node all of whose workers have succeeded, while the round runs on elsewhere."""
    life = on_several_nodes(running())
    life.take(exited(0, ExitStatus(code=0)), exited(1, ExitStatus(code=0)))
    assert life.state.phase is Phase.RUNNING
    return life


def test_a_node_that_has_finished_goes_on_renewing_its_lease() -> None:
    life = finished()
    number = greeting(life.take(CoordinatorReached())).heartbeat
    effects = life.take(Told(HeartbeatAnswered(number)))
    assert [type(effect) for effect in effects] == [SetDeadlines], "its store may serve others"


def test_a_node_that_has_finished_says_what_it_still_waits_for() -> None:
    life = on_several_nodes(running())
    for local_rank in (0, 1):
        life.take(exited(local_rank, ExitStatus(code=0)))
    assert "all workers of this node are done" in said(life.take(CoordinatorLost("gone")))


def test_a_node_that_has_finished_ends_no_round_when_its_lease_runs_out() -> None:
    life = finished()
    assert life.take(LeaseRanOut()) == []
    report = greeting(life.take(CoordinatorReached())).report
    assert report is not None
    assert report.condition == "succeeded"


def test_when_the_lease_runs_out_the_round_is_over_for_this_node() -> None:
    life = on_several_nodes(running())
    assert "(--lease 10): stopping the workers" in said(life.take(LeaseRanOut()))
    assert life.state.phase is Phase.STOPPING
    report = greeting(life.take(CoordinatorReached())).report
    assert report is not None
    assert report.condition == "stopping"


def test_a_round_of_which_the_word_came_twice_is_started_once() -> None:
    life = connected()
    life.take(run_round())
    assert life.take(run_round()) == []
    assert life.state.assignment == assignment()
