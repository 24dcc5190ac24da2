"""What is particular to the register in etcd v3, with real servers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest

from holdfast.registers.etcd import EtcdRegister
from holdfast.registers.register import (
    Closes,
    Forgets,
    RegisterSettings,
    RegisterUnreachable,
    WaitsForChange,
)

from ..etcd_cluster import QUICK_ELECTIONS, EtcdCluster, EtcdOptions
from ..waiting import DEADLINE_S, begin, until

TTL_S = 3.0
"""Short, for those that wait for its end; nobody else's ends during a test."""
LONG_TTL_S = 600.0

Open = Callable[..., EtcdRegister]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One server, for the tests that do it no harm."""
    options = EtcdOptions(arguments=QUICK_ELECTIONS)
    with EtcdCluster(tmp_path_factory.mktemp("etcd"), options=options) as cluster:
        yield cluster


@pytest.fixture
def open_register(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Registers of one run, which is the test's own; closed after it."""
    opened: list[EtcdRegister] = []

    def open_one(etcd: EtcdCluster, **changes: Any) -> EtcdRegister:
        fields = {"endpoint": etcd.endpoints, "run_id": request.node.name}
        times = {"holder_ttl_s": LONG_TTL_S, "call_timeout_s": DEADLINE_S}
        settings = RegisterSettings(**{"backend": "etcd", **fields, **times, **changes})
        opened.append(EtcdRegister(settings))
        return opened[-1]

    yield open_one
    for register in opened:
        register.close()


def content(register: EtcdRegister) -> bytes:
    state = register.get_state()
    assert state is not None
    return state[0]


def pair_at(etcd: EtcdCluster, run_id: str, name: str) -> dict[str, Any]:
    """A key as the server has it; empty if it has not."""
    key = base64.b64encode(f"/holdfast/{run_id}/{name}".encode()).decode()
    pairs = etcd.servers[0].ask("/v3/kv/range", {"key": key}).get("kvs", [])
    return dict(pairs[0]) if pairs else {}


def leases_of(etcd: EtcdCluster) -> set[str]:
    """All of them, those of other tests too."""
    return {each["ID"] for each in etcd.servers[0].ask("/v3/lease/leases", {})["leases"]}


def seconds_left(etcd: EtcdCluster, lease: str) -> int:
    return int(etcd.servers[0].ask("/v3/lease/timetolive", {"ID": lease}).get("TTL", 0))


# --- the document -------------------------------------------------------------------------


def test_it_offers_all_that_a_register_may(etcd: EtcdCluster, open_register: Open) -> None:
    register = open_register(etcd)
    for ability in (WaitsForChange, Forgets, Closes):
        assert isinstance(register, ability)


def test_the_prefix_is_the_users_choice(etcd: EtcdCluster, open_register: Open) -> None:
    open_register(etcd).set_state(b"ours")
    other = open_register(etcd, options={"etcd_prefix": "/jobs/of/mine"})
    assert other.get_state() is None
    other.set_state(b"theirs")
    assert content(open_register(etcd)) == b"ours"


def test_a_document_that_was_removed_is_told_as_nothing(
    etcd: EtcdCluster, open_register: Open, request: pytest.FixtureRequest
) -> None:
    register = open_register(etcd)
    _, token, _ = register.set_state(b"first")
    etcd.servers[0].ask(
        "/v3/lease/revoke", {"ID": pair_at(etcd, request.node.name, "document")["lease"]}
    )
    assert register.set_state(b"second", token) == (b"", None, False)
    assert register.get_state() is None
    # The lease to which the next one is attached is a new one.
    assert register.set_state(b"third")[2]
    assert content(register) == b"third"


# --- the holder, and how long things are kept ---------------------------------------------


def test_a_holder_that_falls_silent_is_told_once_to_those_who_wait(
    etcd: EtcdCluster, open_register: Open
) -> None:
    writer, waiting, late = (open_register(etcd, holder_ttl_s=TTL_S) for _ in range(3))
    _, token, _ = writer.set_state(b"here")
    assert waiting.get_state() == (b"here", token)
    assert not waiting.holder_expired
    assert waiting.wait_for_change(token, DEADLINE_S) == (b"here", token)
    assert waiting.holder_expired
    assert waiting.wait_for_change(token, 0.05) is None
    assert waiting.holder_expired
    assert late.wait_for_change(token, DEADLINE_S) == (b"here", token)
    assert late.holder_expired
    assert writer.get_state() == (b"here", token)
    assert writer.holder_expired
    # It writes again, and is back.
    _, newer, has_set = writer.set_state(b"back", token)
    assert has_set
    assert waiting.wait_for_change(token, DEADLINE_S) == (b"back", newer)
    assert not waiting.holder_expired
    assert not writer.holder_expired


def test_each_write_renews_the_holders_lease(
    etcd: EtcdCluster, open_register: Open, request: pytest.FixtureRequest
) -> None:
    register = open_register(etcd, holder_ttl_s=11.5)
    _, token, _ = register.set_state(b"1")
    lease = pair_at(etcd, request.node.name, "holder")["lease"]
    until(lambda: seconds_left(etcd, lease) <= 8, "some of the lease has passed")
    assert register.set_state(b"2", token)[2]
    assert seconds_left(etcd, lease) > 8
    assert pair_at(etcd, request.node.name, "holder")["lease"] == lease


def test_a_lease_kept_alive_by_a_leader_of_the_past_is_not_trusted(
    etcd: EtcdCluster, open_register: Open
) -> None:
    register = open_register(etcd)
    register.set_state(b"here")
    deadline = monotonic() + DEADLINE_S
    register._confirm_lease(register._short.raft_term, deadline)
    with pytest.raises(RegisterUnreachable):
        register._confirm_lease(register._short.raft_term + 1, deadline)


def test_close_lets_go_of_the_holder_and_never_of_the_document(
    etcd: EtcdCluster, open_register: Open, request: pytest.FixtureRequest
) -> None:
    writer, waiting = open_register(etcd), open_register(etcd)
    _, token, _ = writer.set_state(b"here")
    news = begin(lambda: waiting.wait_for_change(token, DEADLINE_S))
    writer.close()
    assert news.result(DEADLINE_S) == (b"here", token)
    assert waiting.holder_expired
    assert not pair_at(etcd, request.node.name, "holder")
    with pytest.raises(RegisterUnreachable):
        writer.get_state()
    writer.close()


def test_a_holder_that_was_succeeded_takes_nothing_with_it(
    etcd: EtcdCluster, open_register: Open
) -> None:
    old, new = open_register(etcd), open_register(etcd)
    _, token, _ = old.set_state(b"old")
    _, token, has_set = new.set_state(b"new", token)
    assert has_set
    old.close()
    assert new.get_state() == (b"new", token)
    assert not new.holder_expired


def test_the_document_outlives_its_writers_but_not_for_ever(
    etcd: EtcdCluster, open_register: Open, request: pytest.FixtureRequest
) -> None:
    register = open_register(etcd, keep_s=11.6)
    _, token, _ = register.set_state(b"1")
    lease = pair_at(etcd, request.node.name, "document")["lease"]
    assert seconds_left(etcd, lease) <= 12
    until(lambda: seconds_left(etcd, lease) <= 6, "more than a third of the lease has passed")
    assert register.set_state(b"2", token)[2]
    assert seconds_left(etcd, lease) > 8
    register.close()
    assert content(open_register(etcd)) == b"2"


def test_a_document_to_be_forgotten_goes_in_its_time(
    etcd: EtcdCluster, open_register: Open, request: pytest.FixtureRequest
) -> None:
    register, observer = open_register(etcd), open_register(etcd)
    register.set_state(b"over")
    register.forget_after(3)
    assert content(observer) == b"over"
    assert observer.holder_expired
    assert not pair_at(etcd, request.node.name, "holder")
    until(lambda: observer.get_state() is None, "the document is gone")


def test_what_another_wrote_since_is_not_forgotten(
    etcd: EtcdCluster, open_register: Open, request: pytest.FixtureRequest
) -> None:
    register, other = open_register(etcd), open_register(etcd)
    _, token, _ = register.set_state(b"over")
    _, token, _ = other.set_state(b"not yet", token)
    lease = pair_at(etcd, request.node.name, "document")["lease"]
    register.forget_after(1)
    assert open_register(etcd).get_state() == (b"not yet", token)
    assert pair_at(etcd, request.node.name, "document")["lease"] == lease


def test_what_need_not_be_kept_long_ends_soon_after_its_writer(
    etcd: EtcdCluster, open_register: Open, request: pytest.FixtureRequest
) -> None:
    register = open_register(etcd)
    _, token, _ = register.set_state(b"runs")
    unneeded = pair_at(etcd, request.node.name, "document")["lease"]
    register.keep_for(30)
    register.set_state(b"over", token)
    lease = pair_at(etcd, request.node.name, "document")["lease"]
    granted = etcd.servers[0].ask("/v3/lease/timetolive", {"ID": lease})["grantedTTL"]
    assert int(granted) == 30
    holders = pair_at(etcd, request.node.name, "holder")["lease"]
    own = {lease, unneeded, holders}
    assert own & leases_of(etcd) == own
    register.close()
    assert own & leases_of(etcd) == {lease}


# --- waiting ------------------------------------------------------------------------------


def test_changes_of_other_runs_are_no_news(etcd: EtcdCluster, open_register: Open) -> None:
    register = open_register(etcd)
    _, token, _ = register.set_state(b"ours")
    assert register.wait_for_change(token, 0.01) is None
    open_register(etcd, run_id="another").set_state(b"theirs")
    assert register.wait_for_change(token, 0.05) is None


def test_one_that_wrote_itself_does_not_hear_of_it(etcd: EtcdCluster, open_register: Open) -> None:
    register, other = open_register(etcd), open_register(etcd)
    _, token, _ = register.set_state(b"1")
    assert register.wait_for_change(token, 0.01) is None
    _, own, _ = register.set_state(b"2", token)
    assert register.wait_for_change(own, 0.05) is None
    _, token, _ = other.set_state(b"3", own)
    assert register.wait_for_change(own, DEADLINE_S) == (b"3", token)


def test_a_wait_goes_on_where_its_beginning_is_compacted_away(
    etcd: EtcdCluster, open_register: Open
) -> None:
    writer, waiting = open_register(etcd), open_register(etcd)
    _, token, _ = writer.set_state(b"0")
    waiting.get_state()
    newer = token
    for number in range(3):
        _, newer, _ = writer.set_state(b"%d" % number, newer)
    etcd.servers[0].ask("/v3/kv/compaction", {"revision": str(newer), "physical": True})
    waiting._watching()  # It begins where it has read, which is history by now.
    news = begin(lambda: waiting.wait_for_change(token, 600))
    assert news.result(DEADLINE_S) == (b"2", newer)
    # And one that was under way is not disturbed.
    assert waiting.wait_for_change(newer, 0.01) is None
    _, newest, _ = writer.set_state(b"3", newer)
    etcd.servers[0].ask("/v3/kv/compaction", {"revision": str(newest), "physical": True})
    assert waiting.wait_for_change(newer, DEADLINE_S) == (b"3", newest)
