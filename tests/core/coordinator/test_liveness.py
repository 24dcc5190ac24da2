"""Who is alive: heartbeats stay there, everything that decides goes on to the coordinator."""

from __future__ import annotations

from holdfast.core import coordinator as livenesses
from holdfast.core.coordinator import (
    Coordinator,
    Succession,
    begin,
    check_leases,
    coordinator_of,
    disconnected,
    elected,
    receive,
    tether_ended,
)
from holdfast.core.coordinator_io import CoordinatorEffect, Heard, Tell, WakeCoordinator
from holdfast.core.election import Lead
from holdfast.core.membership import NodeGone, NodeHeardAgain, NodeSuspected
from holdfast.core.policy.config import JobConfig, Program
from holdfast.core.protocol.document import Document, Ledger
from holdfast.core.protocol.messages import Heartbeat, HeartbeatAnswered, NodeGreeted, NodeLeft
from holdfast.core.protocol.model import NodeInfo, Term


def config(nodes: int = 2) -> JobConfig:
    return JobConfig("job", Program("script", "train.py"), min_nodes=nodes, max_nodes=nodes)


def greeted(nodes: int = 2) -> Coordinator:
    liveness = coordinator_of(begin(config(nodes)))
    receive(liveness, "a", NodeGreeted(NodeInfo("a", "host-a", slots=1)), 0.0)
    liveness.taken.clear()
    return liveness


def events(liveness: Coordinator) -> list[type]:
    return [type(taken.event) for taken in liveness.taken]


def wakes(effects: list[CoordinatorEffect]) -> list[float]:
    leases = livenesses.LEASES_TIMER
    timers = [effect for effect in effects if isinstance(effect, WakeCoordinator)]
    return [timer.after_s for timer in timers if timer.name == leases]


def test_a_heartbeat_is_answered_and_is_no_step_of_the_coordinator() -> None:
    liveness = greeted()
    assert Tell("a", HeartbeatAnswered(7)) in receive(liveness, "a", Heartbeat(7), 1.0)
    assert liveness.taken == []


def test_a_heartbeat_of_somebody_unknown_is_not_answered() -> None:
    assert receive(greeted(), "z", Heartbeat(1), 1.0) == []


def test_what_decides_something_is_taken_down_with_what_came_of_it() -> None:
    liveness = coordinator_of(begin(config()))
    receive(liveness, "a", NodeGreeted(NodeInfo("a", "host-a", slots=1)), 0.0)
    (taken,) = liveness.taken
    assert isinstance(taken.event, Heard)
    assert any(isinstance(effect, Tell) for effect in taken.effects)


def test_silence_becomes_a_verdict_that_the_coordinator_hears() -> None:
    liveness = greeted()
    check_leases(liveness, 5.0)
    check_leases(liveness, 12.1)
    assert events(liveness) == [NodeSuspected, NodeGone]
    assert "a" not in liveness.state.members


def test_a_suspected_node_that_is_heard_is_cleared_with_its_heartbeat() -> None:
    liveness = greeted()
    check_leases(liveness, 5.0)
    receive(liveness, "a", Heartbeat(1), 6.0)
    assert events(liveness) == [NodeSuspected, NodeHeardAgain]
    assert liveness.state.members["a"].suspected == ""


def test_the_end_of_a_connection_asks_for_a_sooner_look_and_decides_nothing() -> None:
    liveness = greeted()
    assert wakes(disconnected(liveness, "a", 1.0)) == [1.0]
    assert liveness.taken == []


def test_only_the_orderly_end_of_a_tether_proves_anything() -> None:
    liveness = greeted()
    disconnected(liveness, "a", 1.0)
    assert wakes(tether_ended(liveness, "a", False, 1.0)) == []
    (soon,) = wakes(tether_ended(liveness, "a", True, 1.0))
    assert soon < 0.5
    check_leases(liveness, 1.0 + soon)
    assert events(liveness) == [NodeGone]


def test_nothing_is_expected_of_a_node_that_has_left() -> None:
    liveness = greeted()
    receive(liveness, "a", NodeLeft("done"), 1.0)
    liveness.taken.clear()
    check_leases(liveness, 100.0)
    assert liveness.taken == []


def test_a_job_of_one_node_has_no_leases() -> None:
    liveness = greeted(nodes=1)
    assert liveness.leases.watches == {}


def test_who_wins_through_a_register_goes_on_from_what_is_written() -> None:
    document = Document(3, 4, 9, "b/1", "b", ("b", "c"), Ledger(5, 2, 1))
    held = elected(config(), "b", Lead(document, True)).state(config(), 100.0)
    proven = elected(config(), "b", Lead(document, False)).state(config(), 100.0)
    assert (held.term, held.group.round_number, held.group.budget.charges) == (Term(3, 4), 5, 1)
    assert held.succession == Succession("b", ("c",))
    assert held.group.round is not None
    assert proven.group.round is not None
    assert held.group.round.missing is not None
    assert proven.group.round.missing is not None
    until = proven.group.round.missing.until
    assert until == 100.0 + config().leases.gone_after_s
    assert held.group.round.missing.until >= until + config().leases.hold_s
