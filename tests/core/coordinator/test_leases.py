"""Who may run workers, who is suspected, who is gone: the rules of `core.membership`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.membership import (
    LeaseBook,
    NodeGone,
    NodeHeardAgain,
    NodeLease,
    NodeSuspected,
)
from holdfast.core.policy.config import Leases

TERMS = Leases()
ROUNDING_S = 1e-9
L_PRIME = TERMS.gone_after_s


def test_the_lease_counts_from_when_the_answered_heartbeat_was_sent() -> None:
    lease = NodeLease(TERMS)
    assert not lease.good(0.0)
    number = lease.heartbeat(100.0)
    assert lease.answered(number)
    assert (lease.stop_at, lease.kill_at) == (108.0, 110.0)
    assert lease.good(107.9)
    assert not lease.good(108.0)


def test_an_answer_that_is_late_shortens_nothing_and_counts_once() -> None:
    lease = NodeLease(TERMS)
    first, second = lease.heartbeat(100.0), lease.heartbeat(102.0)
    assert lease.answered(second)
    assert not lease.answered(first)
    assert not lease.answered(second)
    assert lease.kill_at == 112.0


def test_what_was_sent_before_it_was_forgotten_renews_nothing() -> None:
    lease = NodeLease(TERMS)
    lease.answered(lease.heartbeat(100.0))
    number = lease.heartbeat(105.0)
    lease.forget()
    assert not lease.answered(number)
    assert lease.kill_at == 110.0


@given(st.lists(st.booleans(), max_size=200))
def test_the_lease_is_that_of_the_last_heartbeat_that_was_answered(answers: list[bool]) -> None:
    lease, last = NodeLease(TERMS), None
    for beat, is_answered in enumerate(answers):
        number = lease.heartbeat(float(beat))
        if is_answered:
            lease.answered(number)
            last = float(beat)
    assert lease.good_from == last
    assert len(lease.sent) <= 64


def book(*nodes: str, now: float = 0.0) -> LeaseBook:
    made = LeaseBook(TERMS)
    for node in nodes:
        made.connected(node, now)
    return made


def test_a_silent_node_is_suspected_first_and_gone_when_its_lease_must_be_over() -> None:
    watched = book("a")
    assert watched.next_check() == 5.0
    assert watched.check(4.9, 4.9) == []
    assert watched.check(5.0, 5.0) == [NodeSuspected("a", "it has been silent for 5.0 s", 5.0)]
    assert watched.next_check() == L_PRIME
    assert watched.check(12.0, 12.0) == []
    assert watched.check(L_PRIME, L_PRIME) == [NodeGone("a", "it was silent for 12.1 s", L_PRIME)]
    assert watched.next_check() is None


def test_a_connection_that_breaks_is_silence_and_not_death() -> None:
    watched = book("a")
    watched.disconnected("a", 0.0)
    assert watched.check(1.0, 1.0) == [
        NodeSuspected("a", "its connection broke and did not come back", 1.0)
    ]
    assert watched.check(12.0, 12.0) == []


def test_a_node_that_is_back_in_time_is_not_suspected() -> None:
    watched = book("a")
    watched.disconnected("a", 0.0)
    watched.connected("a", 0.9)
    assert watched.check(1.0, 1.0) == []


def test_the_orderly_end_of_a_tether_is_proof_after_a_moment() -> None:
    watched = book("a")
    watched.disconnected("a", 1.0)
    watched.tether_ended("a", 1.0)
    assert watched.check(1.2, 1.2) == []
    gone = NodeGone("a", "all its processes have ended", 1.3, ended=True)
    assert watched.check(1.3, 1.3) == [gone]


def test_a_suspected_node_that_is_heard_again_is_there() -> None:
    watched = book("a")
    watched.check(5.0, 5.0)
    assert watched.heartbeat("a", 6.0)
    assert watched.back("a") == [NodeHeardAgain("a")]
    assert watched.back("a") == []


def test_a_revoked_node_is_answered_no_more_and_is_gone_when_its_lease_is_over() -> None:
    watched = book("a")
    watched.revoke("a")
    assert not watched.heartbeat("a", 4.0)
    watched.check(5.0, 5.0)
    assert isinstance(watched.check(L_PRIME, L_PRIME)[0], NodeGone)


def test_an_unknown_or_forgotten_node_is_not_answered() -> None:
    watched = book("a")
    watched.forget("a")
    assert not watched.heartbeat("a", 1.0)
    assert not watched.heartbeat("z", 1.0)


def test_a_stall_of_our_own_moves_every_deadline() -> None:
    """Heartbeats that nobody read were not missed."""
    watched = book("a")
    assert watched.check(30.0, 5.0) == [NodeSuspected("a", "it has been silent for 5.0 s", 5.0)]
    assert watched.check(30.0 + L_PRIME - 5.1, 30.0 + L_PRIME - 5.1) == []


def test_a_check_that_comes_a_little_late_is_no_stall() -> None:
    watched = book("a")
    assert watched.check(5.1, 5.0) == [NodeSuspected("a", "it has been silent for 5.1 s", 5.1)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.1, 4.0)), max_size=60))
def test_nobody_is_judged_sooner_or_later_than_by_its_own_silence(
    beats: list[tuple[str, float]],
) -> None:
    """The oracle looks at every node; the book looks at the most silent first and stops."""
    watched = book(*"abc")
    heard, suspected, now = dict.fromkeys("abc", 0.0), set(), 0.0
    for node, after in beats:
        now += after
        for verdict in watched.check(now, now):
            silent = now - heard[verdict.node]
            if isinstance(verdict, NodeGone):
                assert silent >= L_PRIME - ROUNDING_S
                del heard[verdict.node]
                suspected.discard(verdict.node)
            else:
                assert silent >= TERMS.suspect_s - ROUNDING_S
                suspected.add(verdict.node)
        late = {name for name, at in heard.items() if now >= at + TERMS.suspect_s}
        assert late <= suspected
        if watched.heartbeat(node, now):
            heard[node] = now
            if watched.back(node):
                suspected.discard(node)
