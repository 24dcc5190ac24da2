"""The register in etcd v3, when its servers are secured, killed, paused, restarted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.protocol.errors import UsageError
from holdfast.registers.etcd import EtcdRegister
from holdfast.registers.register import (
    Credentials,
    RegisterRefused,
    RegisterSettings,
    RegisterUnreachable,
)

from ..etcd_cluster import QUICK_ELECTIONS, EtcdCluster, EtcdOptions, EtcdServer
from ..transport.conftest import Certificates
from ..waiting import DEADLINE_S, begin, persistently

PASSWORD = "such a secret: ä"

Open = Callable[..., EtcdRegister]


@pytest.fixture
def one(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path, options=EtcdOptions(arguments=QUICK_ELECTIONS)) as cluster:
        yield cluster


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path, 3, EtcdOptions(arguments=QUICK_ELECTIONS)) as cluster:
        yield cluster


@pytest.fixture
def with_users(tmp_path: Path) -> Iterator[EtcdCluster]:
    options = EtcdOptions(user="someone", password=PASSWORD, arguments=QUICK_ELECTIONS)
    with EtcdCluster(tmp_path, options=options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def with_tls(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[EtcdCluster]:
    options = EtcdOptions(tls=certificates.files())
    with EtcdCluster(tmp_path_factory.mktemp("tls"), options=options) as cluster:
        yield cluster


@pytest.fixture
def open_register(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Registers of one run, which is the test's own; closed after it."""
    opened: list[EtcdRegister] = []

    def open_one(endpoints: str, **changes: Any) -> EtcdRegister:
        fields = {"call_timeout_s": DEADLINE_S, **changes}
        settings = RegisterSettings("etcd", endpoints, request.node.name, **fields)
        opened.append(EtcdRegister(settings))
        return opened[-1]

    yield open_one
    for register in opened:
        register.close()


def beginning_with(server: EtcdServer, cluster: EtcdCluster) -> str:
    """The endpoints of all, that of this server in front."""
    others = [other.endpoint for other in cluster.servers if other is not server]
    return ",".join([server.endpoint, *others])


# --- users --------------------------------------------------------------------------------


def test_a_user_gets_in_and_stays_in(with_users: EtcdCluster, open_register: Open) -> None:
    register = open_register(with_users.endpoints, credentials=Credentials("someone", PASSWORD))
    assert register.get_state() is None
    _, token, has_set = register.set_state(b"mine")
    assert has_set
    assert register.wait_for_change(token, 0.01) is None
    # The server forgets its tokens when it restarts.
    with_users.servers[0].restart()
    with_users.wait_healthy()
    _, newer, has_set = register.set_state(b"still mine", token)
    assert has_set
    assert persistently(lambda: register.wait_for_change(token, DEADLINE_S)) == (
        b"still mine",
        newer,
    )


def test_nobody_else_gets_in(with_users: EtcdCluster, open_register: Open) -> None:
    for credentials in (
        Credentials("someone", "wrong"),
        Credentials("nobody", PASSWORD),
        Credentials(),
    ):
        register = open_register(with_users.endpoints, credentials=credentials)
        for call in (
            register.get_state,
            lambda register=register: register.set_state(b"mine"),
            lambda register=register: register.wait_for_change(None, DEADLINE_S),
        ):
            with pytest.raises(RegisterRefused) as caught:
                call()
            assert PASSWORD not in str(caught.value)
            assert "wrong" not in str(caught.value)


def test_a_user_is_welcome_where_none_is_demanded(one: EtcdCluster, open_register: Open) -> None:
    register = open_register(one.endpoints, credentials=Credentials("someone", PASSWORD))
    assert register.set_state(b"mine")[2]


# --- TLS ----------------------------------------------------------------------------------


def files(certificates: Certificates, signed_by: str = "ours", trusting: str = "ours") -> Any:
    found = certificates.files(signed_by, trusting)
    return {"cacert": found.authority, "cert": found.certificate, "key": found.key}


def test_with_the_right_certificates_all_is_as_without(
    with_tls: EtcdCluster, open_register: Open, certificates: Certificates
) -> None:
    found = files(certificates)
    other_spelling = {
        "ca_cert": found["cacert"],
        "ssl_cert": found["cert"],
        "ssl_cert_key": found["key"],
        "protocol": "https",
    }
    writer = open_register(with_tls.endpoints, options=found)
    waiting = open_register(with_tls.endpoints, options=other_spelling)
    token = None
    for number in range(5):
        content = b"%d" % number * 4000
        news = begin(functools.partial(waiting.wait_for_change, token, DEADLINE_S))
        _, newer, has_set = writer.set_state(content, token)
        assert has_set
        assert news.result(DEADLINE_S) == (content, newer)
        token = newer
    assert waiting.wait_for_change(token, 0.05) is None
    blocked = begin(lambda: waiting.wait_for_change(token, 600))
    waiting.close()
    with pytest.raises(RegisterUnreachable):
        blocked.result(DEADLINE_S)


@pytest.mark.parametrize(
    ("signed_by", "trusting"), [("ours", "theirs"), ("theirs", "ours"), (None, "ours")]
)
def test_certificates_of_others_are_refused_on_both_sides(
    with_tls: EtcdCluster,
    open_register: Open,
    certificates: Certificates,
    signed_by: str | None,
    trusting: str,
) -> None:
    options = files(certificates, signed_by or "ours", trusting)
    if signed_by is None:
        del options["cert"], options["key"]
    register = open_register(with_tls.endpoints, options=options)
    for _ in range(5):
        with pytest.raises(RegisterRefused):
            register.get_state()
    with pytest.raises(RegisterRefused):
        register.wait_for_change(None, 1)


def test_tls_that_only_one_side_speaks_is_told(
    one: EtcdCluster, with_tls: EtcdCluster, open_register: Open, certificates: Certificates
) -> None:
    with pytest.raises(RegisterUnreachable, match=r"does it speak TLS\?"):
        open_register(one.endpoints, options=files(certificates)).get_state()
    with pytest.raises(RegisterUnreachable, match=r"does it require TLS\?"):
        open_register(with_tls.endpoints).get_state()


def test_a_name_in_the_certificate_is_no_user_and_that_is_told(
    tmp_path: Path, open_register: Open, certificates: Certificates
) -> None:
    tls = certificates.files()
    with EtcdCluster(tmp_path, options=EtcdOptions(False, tls, "someone", PASSWORD)) as cluster:
        register = open_register(
            cluster.endpoints,
            options=files(certificates),
            credentials=Credentials("someone", PASSWORD),
        )
        with pytest.raises(RegisterRefused, match="CommonName"):
            register.get_state()


def test_options_that_cannot_be_used_are_a_usage_error(open_register: Open) -> None:
    for endpoints, options in (
        ("", {}),
        ("host:port", {}),
        ("http://host:1", {}),
        ("host:1", {"protocol": "gopher"}),
        ("host:1", {"cacert": "/nowhere.pem"}),
        ("host:1", {"read_timeout": "soon"}),
    ):
        with pytest.raises(UsageError):
            open_register(endpoints, options=options)


# --- servers that come and go -------------------------------------------------------------


def test_a_restarted_server_is_not_noticed_afterwards(
    one: EtcdCluster, open_register: Open
) -> None:
    writer, waiting = open_register(one.endpoints), open_register(one.endpoints)
    _, token, _ = writer.set_state(b"before")
    assert waiting.wait_for_change(token, 0.01) is None
    one.servers[0].kill()
    with pytest.raises(RegisterUnreachable):
        writer.set_state(b"meanwhile", token)
    with pytest.raises(RegisterUnreachable):
        waiting.wait_for_change(token, DEADLINE_S)
    one.servers[0].start()
    one.wait_healthy()
    _, newer, has_set = writer.set_state(b"after", token)
    assert has_set
    assert waiting.wait_for_change(token, DEADLINE_S) == (b"after", newer)
    one.servers[0].restart()
    one.wait_healthy()
    assert writer.set_state(b"at the first try", newer)[2]


def test_a_dead_server_is_passed_over(three: EtcdCluster, open_register: Open) -> None:
    follower = three.followers[0]
    register = open_register(beginning_with(follower, three))
    _, token, _ = register.set_state(b"with it")
    assert register.wait_for_change(token, 0.01) is None
    follower.kill()
    _, newer, has_set = register.set_state(b"without it", token)
    assert has_set
    with pytest.raises(RegisterUnreachable):
        register.wait_for_change(newer, DEADLINE_S)
    assert register.wait_for_change(token, DEADLINE_S) == (b"without it", newer)


def test_a_server_that_stands_still_is_passed_over(three: EtcdCluster, open_register: Open) -> None:
    follower = three.followers[0]
    endpoints = beginning_with(follower, three)
    writer, waiting = open_register(endpoints), open_register(endpoints, holder_ttl_s=2.0)
    _, token, _ = writer.set_state(b"with it")
    assert waiting.wait_for_change(token, 0.01) is None
    follower.pause()
    _, newer, has_set = writer.set_state(b"without it", token)
    assert has_set
    # Its connection is still there, and silent; others are asked then.
    assert waiting.wait_for_change(token, 1.5) == (b"without it", newer)
    _, newest, _ = writer.set_state(b"on another", newer)
    news = begin(lambda: waiting.wait_for_change(newer, 600))
    assert news.result(DEADLINE_S) == (b"on another", newest)


@pytest.mark.parametrize("fate", ["kill", "pause"])
def test_the_leaders_end_is_outlived(three: EtcdCluster, open_register: Open, fate: str) -> None:
    leader = three.leader
    register = open_register(beginning_with(leader, three))
    _, token, _ = register.set_state(b"before")
    getattr(leader, fate)()
    # A try of which no answer came may have been successful; then it is found, and is ours.
    content, token, has_set = persistently(lambda: register.set_state(b"after", token))
    assert (content, has_set) == (b"after", True)
    if fate == "pause":
        leader.resume()
    assert persistently(register.get_state) == (b"after", token)
    assert not register.holder_expired


def test_without_a_majority_nothing_is_claimed(three: EtcdCluster, open_register: Open) -> None:
    leader, *others = three.leader, *three.followers
    register = open_register(leader.endpoint, call_timeout_s=1.0)
    waiting = open_register(leader.endpoint)
    _, token, _ = persistently(lambda: register.set_state(b"before"))
    assert waiting.wait_for_change(token, 0.01) is None
    for server in others:
        server.kill()
    with pytest.raises(RegisterUnreachable):
        register.get_state()
    with pytest.raises(RegisterUnreachable):
        register.set_state(b"alone", token)
    blocked = begin(lambda: waiting.wait_for_change(token, 600))
    with pytest.raises(RegisterUnreachable):  # A server without a leader does not stay silent.
        blocked.result(DEADLINE_S)
    for server in others:
        server.start()
    three.wait_healthy()
    content, newest, has_set = persistently(lambda: register.set_state(b"together", token))
    # What was tried alone may have been done since, and is then what is there.
    assert (content, has_set) in ((b"together", True), (b"alone", False))
    assert persistently(register.get_state) == (content, newest)
