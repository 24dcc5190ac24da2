"""With TLS only those with the right certificates come together, and the rest is as before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.protocol.bounds import TEXT_MOST
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.messages import ClosingWanted, Heartbeat, StopRound
from holdfast.core.protocol.model import Endpoint, Outcome
from holdfast.transport import sentences
from holdfast.transport.auth import ConnectionSecurity, TlsFiles
from holdfast.transport.client import Client
from holdfast.transport.handshake import ClientSide
from holdfast.transport.server import Server

from .conftest import Certificates
from .stage import JOB, TENURE, Stage, reset


@pytest.fixture
def secure(certificates: Certificates) -> ConnectionSecurity:
    return ConnectionSecurity(b"a secret token", certificates.files())


def test_messages_of_all_sizes_go_both_ways(stage: Stage, secure: ConnectionSecurity) -> None:
    stage.serve(secure)
    agent = stage.connect("node", secure)
    stage.assert_undisturbed(agent)
    sizes = [10, 20_000, TEXT_MOST]
    for size in sizes:
        agent.client.send(ClosingWanted(Outcome("failed", "x" * size, 1)))
        stage.server.send("node", TENURE, StopRound(1, "y" * size))
    stage.until(lambda: len(stage.coordinator.messages) > 3 and len(agent.messages) > 3)
    words = [message for _, message in stage.coordinator.messages]
    said = [word.outcome.reason for word in words if isinstance(word, ClosingWanted)]
    heard = [m.reason for _, _, m in agent.messages if isinstance(m, StopRound)]
    assert [len(reason) for reason in said] == [len(reason) for reason in heard] == sizes
    agent.client.close()
    stage.until(lambda: stage.coordinator.lost)


def test_there_is_no_tether_whose_end_could_be_forged(
    stage: Stage, secure: ConnectionSecurity
) -> None:
    stage.serve(secure)
    agent = stage.connect("node", secure)
    stage.assert_undisturbed(agent)
    forger = stage.agent("forger", secure)
    forger.client._identity = replace(forger.client._identity, kind="tether")
    forger.client.dial((stage.endpoint,), 20)
    stage.until(lambda: forger.lost)
    assert stage.server.rejected == {"ticket": 1}
    assert not agent.tethers
    assert not stage.coordinator.tethered


def lost(stage: Stage, security: ConnectionSecurity, endpoint: Endpoint | None = None) -> str:
    good = stage.connect("good", stage.server._side.security)
    agent = stage.agent("node", security)
    agent.client.dial((endpoint or stage.endpoint,), 20)
    stage.until(lambda: agent.lost)
    stage.assert_undisturbed(good)
    return agent.lost[0][0]


def test_a_server_that_another_authority_signed_is_refused(
    stage: Stage, certificates: Certificates
) -> None:
    stage.serve(ConnectionSecurity(tls=certificates.files("theirs", trusting="ours")))
    agent = stage.agent("node", ConnectionSecurity(tls=certificates.files()))
    agent.client.dial((stage.endpoint,), 20)
    stage.until(lambda: agent.lost)
    assert sentences.bad_certificate("") in agent.lost[0][0]
    stage.until(lambda: stage.server.rejected["tls"] == 1)


def test_a_client_that_another_authority_signed_is_refused(
    stage: Stage, certificates: Certificates
) -> None:
    stage.serve(ConnectionSecurity(tls=certificates.files()))
    lost(stage, ConnectionSecurity(tls=certificates.files("theirs", trusting="ours")))
    assert stage.server.rejected["tls"] == 1


def test_a_client_without_a_certificate_is_refused(
    stage: Stage, certificates: Certificates
) -> None:
    stage.serve(ConnectionSecurity(tls=certificates.files()))
    lost(stage, ConnectionSecurity(tls=certificates.only_trusting()))
    assert stage.server.rejected["tls"] == 1


def test_the_certificate_must_name_the_address(stage: Stage, certificates: Certificates) -> None:
    own = certificates.files()
    open_to_all = TlsFiles(certificate=own.certificate, key=own.key)
    stage.serve(ConnectionSecurity(tls=open_to_all), host="127.0.0.2")
    agent = stage.agent("node", ConnectionSecurity(tls=certificates.only_trusting()))
    agent.client.dial((stage.endpoint,), 20)
    stage.until(lambda: agent.lost)
    assert sentences.bad_certificate("") in agent.lost[0][0]


def test_a_wrong_token_is_refused_inside_tls(stage: Stage, certificates: Certificates) -> None:
    stage.serve(ConnectionSecurity(b"token", certificates.files()))
    assert "wrong token" in lost(stage, ConnectionSecurity(b"other", certificates.files()))


def test_without_tls_one_is_told_that_it_is_demanded(
    stage: Stage, certificates: Certificates
) -> None:
    stage.serve(ConnectionSecurity(tls=certificates.files()))
    assert "this coordinator requires TLS" in lost(stage, ConnectionSecurity())


def test_with_tls_one_is_told_that_the_server_has_none(
    stage: Stage, certificates: Certificates
) -> None:
    stage.serve()
    assert "TLS failed" in lost(stage, ConnectionSecurity(tls=certificates.files()))
    assert stage.server.rejected["tls"] == 1


def test_one_that_stops_in_the_middle_of_tls_is_cut_off_in_time(
    stage: Stage, secure: ConnectionSecurity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.transport.listener.HANDSHAKE_TIMEOUT_S", 2.0)
    stage.serve(secure)
    good = stage.connect("good", secure)
    silent, halfway = stage.raw(), stage.raw()
    halfway.send(b"\x16\x03\x01\x02\x00")
    stage.until(lambda: silent.is_ended and halfway.is_ended)
    stage.assert_undisturbed(good)
    assert stage.server.rejected == {"slow handshake": 2}


def test_garbage_instead_of_tls_is_refused(stage: Stage, secure: ConnectionSecurity) -> None:
    stage.serve(secure)
    good = stage.connect("good", secure)
    in_the_clear = ClientSide(JOB, "node", "store", secure).opening()
    raws = []
    for garbage in (b"\x16" + bytes(100), b"\xff" * 100, b"\0\0\0\x05hello", in_the_clear):
        raws.append(stage.raw())
        raws[-1].send(garbage)
    stage.until(lambda: all(raw.is_ended for raw in raws))
    stage.assert_undisturbed(good)
    assert sum(stage.server.rejected.values()) == 4


def test_files_that_cannot_be_used_are_a_usage_error(stage: Stage, tmp_path: object) -> None:
    wrong = ConnectionSecurity(tls=TlsFiles(f"{tmp_path}/none.pem", f"{tmp_path}/none.key"))
    with pytest.raises(UsageError, match=r"none\.pem"):
        Server(stage.loop, JOB, wrong, stage.coordinator)
    with pytest.raises(UsageError, match="certificate"):
        Server(stage.loop, JOB, ConnectionSecurity(tls=TlsFiles()), stage.coordinator)
    agent = stage.agent("node", wrong)
    assert isinstance(agent.client, Client)
    agent.client.dial((Endpoint("127.0.0.1", 1),), 1)
    stage.until(lambda: agent.unusable)
    assert "none.pem" in str(agent.unusable[0])
    agent.client.send(Heartbeat(1))  # It is lost, and nothing else happens.


def test_one_that_resets_before_it_is_looked_at_is_forgotten(
    stage: Stage, secure: ConnectionSecurity
) -> None:
    stage.serve(secure)
    good = stage.connect("good", secure)
    for beginning in (b"", b"\x16\x03\x01\x02\x00", b"\0\0"):
        raw = stage.raw()
        raw.send(beginning)
        raw.read_no_more()
        reset(raw.socket)
    stage.until(lambda: not stage.server._arrivals and len(stage.server._connections) == 1)
    stage.assert_undisturbed(good)


def test_an_address_that_no_certificate_can_name_is_told(
    stage: Stage, certificates: Certificates
) -> None:
    stage.serve(ConnectionSecurity(tls=certificates.files()))
    agent = stage.agent("node", ConnectionSecurity(tls=certificates.files()))
    agent.client.dial((Endpoint("", stage.endpoint.port),), 20)
    stage.until(lambda: agent.lost)
    assert len(agent.lost) == 1
