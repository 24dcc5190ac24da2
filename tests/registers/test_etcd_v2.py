"""What is particular to the register in etcd v2, with real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from holdfast.registers.etcd_v2 import EtcdV2Register
from holdfast.registers.register import (
    Closes,
    Credentials,
    Forgets,
    KeepsForATime,
    RegisterRefused,
    RegisterSettings,
    WaitsForChange,
)

from ..etcd_cluster import QUICK_ELECTIONS, EtcdCluster, EtcdOptions
from ..transport.conftest import Certificates
from ..waiting import DEADLINE_S, persistently, until

PASSWORD = "such a secret: ä"

Open = Callable[..., EtcdV2Register]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One server, for the tests that do it no harm."""
    with EtcdCluster(tmp_path_factory.mktemp("v2"), options=EtcdOptions(True)) as cluster:
        yield cluster


@pytest.fixture
def open_register(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Registers of one run, which is the test's own; closed after it."""
    opened: list[EtcdV2Register] = []

    def open_one(endpoints: str, **changes: Any) -> EtcdV2Register:
        times = {"holder_ttl_s": 2.0, "call_timeout_s": DEADLINE_S}
        fields = {"run_id": request.node.name, **times, **changes}
        opened.append(EtcdV2Register(RegisterSettings("etcd-v2", endpoints, **fields)))
        return opened[-1]

    yield open_one
    for register in opened:
        register.close()


def node_of(etcd: EtcdCluster, run_id: str) -> dict[str, Any]:
    """The key as the server has it."""
    return dict(etcd.servers[0].ask(f"/v2/keys/holdfast/{quote(quote(run_id, safe=''))}")["node"])


# --- the document -------------------------------------------------------------------------


def test_it_offers_what_v2_can_do(etcd: EtcdCluster, open_register: Open) -> None:
    register = open_register(etcd.endpoints)
    for ability in (WaitsForChange, Forgets, KeepsForATime, Closes):
        assert isinstance(register, ability)
    assert not hasattr(register, "holder_expired")


def test_what_no_register_wrote_is_refused(
    etcd: EtcdCluster, open_register: Open, request: pytest.FixtureRequest
) -> None:
    etcd.servers[0].ask(f"/v2/keys/holdfast/{request.node.name}?value=%21", method="PUT")
    register = open_register(etcd.endpoints)
    with pytest.raises(RegisterRefused):
        register.get_state()
    with pytest.raises(RegisterRefused):
        register.set_state(b"over it")


def test_each_write_lets_the_document_live_on(
    etcd: EtcdCluster, open_register: Open, request: pytest.FixtureRequest
) -> None:
    register = open_register(etcd.endpoints, keep_s=59.5)
    _, token, _ = register.set_state(b"1")
    before = node_of(etcd, request.node.name)
    assert register.set_state(b"2", token)[2]
    after = node_of(etcd, request.node.name)
    assert before["ttl"] <= 60
    assert datetime.fromisoformat(before["expiration"]) < datetime.fromisoformat(
        after["expiration"]
    )


def test_a_document_to_be_forgotten_goes_in_its_time(
    etcd: EtcdCluster, open_register: Open
) -> None:
    register, other = open_register(etcd.endpoints), open_register(etcd.endpoints)
    _, token, _ = register.set_state(b"over")
    register.forget_after(3)
    found = other.get_state()
    assert found is not None
    assert found[0] == b"over"
    assert other.wait_for_change(found[1], 0.01) is None
    until(lambda: other.get_state() is None, "the document is gone")
    assert register.set_state(b"late", token) == (b"", None, False)
    _, newer, has_set = register.set_state(b"anew")
    assert has_set
    assert other.wait_for_change(found[1], DEADLINE_S) == (b"anew", newer)


def test_what_another_wrote_since_is_not_forgotten(
    etcd: EtcdCluster, open_register: Open, request: pytest.FixtureRequest
) -> None:
    register, other = open_register(etcd.endpoints), open_register(etcd.endpoints)
    _, token, _ = register.set_state(b"over")
    _, token, _ = other.set_state(b"not yet", token)
    register.forget_after(1)
    assert other.get_state() == (b"not yet", token)
    assert node_of(etcd, request.node.name)["ttl"] > 1


# --- waiting ------------------------------------------------------------------------------


def test_a_wait_goes_on_where_the_server_has_forgotten_its_beginning(
    etcd: EtcdCluster, open_register: Open
) -> None:
    writer, waiting = open_register(etcd.endpoints), open_register(etcd.endpoints)
    _, token, _ = writer.set_state(b"0")
    assert waiting.wait_for_change(token, 0.01) is None
    _, first, _ = writer.set_state(b"1", token)
    assert waiting.wait_for_change(token, DEADLINE_S) == (b"1", first)
    # The server remembers a thousand events; the next wait would begin before them.
    for number in range(1010):
        etcd.servers[0].ask(f"/v2/keys/elsewhere?value={number}", method="PUT")
    _, second, _ = writer.set_state(b"2", first)
    assert waiting.wait_for_change(first, DEADLINE_S) == (b"2", second)


# --- servers ------------------------------------------------------------------------------


def test_a_server_without_v2_is_refused(tmp_path: Path, open_register: Open) -> None:
    with EtcdCluster(tmp_path) as cluster:
        register = open_register(cluster.endpoints)
        with pytest.raises(RegisterRefused, match="v2"):
            register.get_state()
        with pytest.raises(RegisterRefused, match="v2"):
            register.set_state(b"new")


def test_only_a_user_with_the_password_gets_in(tmp_path: Path, open_register: Open) -> None:
    options = EtcdOptions(enable_v2=True, user="someone", password=PASSWORD)
    with EtcdCluster(tmp_path, options=options) as cluster:
        register = open_register(cluster.endpoints, credentials=Credentials("someone", PASSWORD))
        _, token, has_set = register.set_state(b"mine")
        assert has_set
        assert register.wait_for_change(token, 0.01) is None
        for credentials in (Credentials("someone", "wrong"), Credentials()):
            other = open_register(cluster.endpoints, credentials=credentials)
            for call in (
                other.get_state,
                lambda other=other: other.set_state(b"theirs"),
                lambda other=other: other.wait_for_change(None, DEADLINE_S),
            ):
                with pytest.raises(RegisterRefused) as caught:
                    call()
                assert "wrong" not in str(caught.value)


def test_tls_needs_the_right_certificates(
    tmp_path: Path, open_register: Open, certificates: Certificates
) -> None:
    found = certificates.files()
    right = {"cacert": found.authority, "cert": found.certificate, "key": found.key}
    options = EtcdOptions(enable_v2=True, tls=found)
    with EtcdCluster(tmp_path, options=options) as cluster:
        register = open_register(cluster.endpoints, options=right)
        _, token, has_set = register.set_state(b"mine")
        assert has_set
        assert register.wait_for_change(token, 0.05) is None
        theirs = certificates.files(trusting="theirs").authority
        for wrong in ({"cacert": found.authority}, {**right, "cacert": theirs}):
            with pytest.raises(RegisterRefused):
                open_register(cluster.endpoints, options=wrong).get_state()


def test_servers_that_die_and_stand_still_are_passed_over(
    tmp_path: Path, open_register: Open
) -> None:
    options = EtcdOptions(enable_v2=True, arguments=QUICK_ELECTIONS)
    with EtcdCluster(tmp_path, 3, options) as cluster:
        first, second = cluster.followers
        (leader,) = set(cluster.servers) - {first, second}
        endpoints = f"{first.endpoint},{second.endpoint},{leader.endpoint}"
        writer, waiting = open_register(endpoints), open_register(endpoints)
        _, token, _ = writer.set_state(b"0")
        assert waiting.wait_for_change(token, 0.01) is None
        first.pause()
        _, newer, has_set = writer.set_state(b"1", token)
        assert has_set
        # Its connection is still there, and silent; others are asked then.
        assert waiting.wait_for_change(token, 1.5) == (b"1", newer)
        first.kill()
        first.start()
        cluster.wait_healthy()
        cluster.leader.kill()
        content, newest, has_set = persistently(lambda: writer.set_state(b"2", newer))
        assert (content, has_set) == (b"2", True)
        assert persistently(lambda: waiting.wait_for_change(newer, DEADLINE_S)) == (
            b"2",
            newest,
        )
