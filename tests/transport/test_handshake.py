"""Both sides prove that they know the token, and nothing that was heard can be used again."""

from __future__ import annotations

import struct

import pytest

from holdfast.transport.auth import OPEN, ConnectionSecurity, Proven, is_proof, proof
from holdfast.transport.dialling import Identity
from holdfast.transport.frames import VERSION, ProtocolError, encode
from holdfast.transport.handshake import (
    NONCE_BYTES,
    SECRET_BYTES,
    Challenge,
    ClientSide,
    Opening,
    Proof,
    ServerSide,
    Welcome,
)

IDENTITY = b"i" * NONCE_BYTES
SECRET = ConnectionSecurity(b"a secret token")


def payload(frame: bytes) -> bytes:
    assert struct.unpack("!I", frame[:4]) == (len(frame) - 4,)
    return frame[4:]


def opening(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "version": VERSION,
        "job": "job",
        "node": "node",
        "kind": "control",
        "nonce": b"n" * NONCE_BYTES,
        **changes,
    }
    return payload(encode(Opening(**fields)))  # type: ignore[arg-type]


def shake(client: ClientSide, server: ServerSide) -> bytes:
    """A whole handshake; returns the ticket that the client got."""
    heard = server.read_opening(payload(client.opening()))
    nonce = b"s" * NONCE_BYTES
    client.read_challenge(payload(server.challenge(nonce)))
    proven, _ = server.read_proof(payload(client.prove()), heard, nonce)
    client.read_welcome(payload(server.welcome(proven, b"ticket")))
    return client.ticket


@pytest.mark.parametrize("security", [OPEN, SECRET])
def test_equal_sides_come_together(security: ConnectionSecurity) -> None:
    client = ClientSide("job", "node", "control", security)
    assert shake(client, ServerSide("job", security, IDENTITY)) == b"ticket"
    assert client.identity == IDENTITY


def test_a_node_is_known_again_by_its_seal_at_that_server_alone() -> None:
    def seal(secret: bytes, identity: bytes) -> bytes:
        server = ServerSide("job", SECRET, identity)
        client = ClientSide("job", "node", "control", SECRET, secret)
        heard = server.read_opening(payload(client.opening()))
        client.read_challenge(payload(server.challenge(b"s" * NONCE_BYTES)))
        sent = payload(client.prove())
        assert secret not in sent
        return server.read_proof(sent, heard, b"s" * NONCE_BYTES)[1]

    one, other = b"1" * SECRET_BYTES, b"2" * SECRET_BYTES
    elsewhere = bytes(reversed(range(NONCE_BYTES)))
    assert seal(one, IDENTITY) == seal(one, IDENTITY)
    assert len({seal(one, IDENTITY), seal(other, IDENTITY), seal(one, elsewhere)}) == 3
    assert "1" * 8 not in repr(Identity("job", "node", SECRET, one))


def test_the_token_is_in_nothing_that_is_sent_or_shown() -> None:
    client, server = (
        ClientSide("job", "node", "control", SECRET),
        ServerSide("job", SECRET, IDENTITY),
    )
    sent = [client.opening()]
    heard = server.read_opening(payload(sent[0]))
    sent.append(server.challenge(b"s" * NONCE_BYTES))
    client.read_challenge(payload(sent[1]))
    sent.append(client.prove())
    proven, _ = server.read_proof(payload(sent[2]), heard, b"s" * NONCE_BYTES)
    sent.append(server.welcome(proven, b""))
    assert SECRET.token is not None
    assert not any(SECRET.token in frame for frame in sent)
    assert "secret" not in f"{SECRET!r} {SECRET} {server!r}"


@pytest.mark.parametrize(
    ("changes", "kind", "permanent", "words"),
    [
        ({"version": VERSION + 1}, "version", True, f"version {VERSION} of the protocol, not"),
        ({"job": "other"}, "job", False, "this coordinator serves job job, not other"),
        ({"kind": "guest"}, "garbage", True, "no kind"),
        ({"node": ""}, "garbage", True, "no node"),
        ({"node": "\x1b[2J"}, "garbage", True, "no node"),
        ({"node": "n" * 600}, "garbage", True, "no node"),
        ({"nonce": b"short"}, "garbage", True, "no nonce"),
        ({"has_token": True}, "token", True, "the coordinator has none"),
    ],
)
def test_an_opening_is_refused_with_the_reason(
    changes: dict[str, object], kind: str, permanent: bool, words: str
) -> None:
    with pytest.raises(ProtocolError, match=words) as refused:
        ServerSide("job", OPEN, IDENTITY).read_opening(opening(**changes))
    assert (refused.value.kind, refused.value.permanent) == (kind, permanent)


def test_an_opening_of_a_later_version_with_more_in_it_is_told_the_version() -> None:
    import msgspec

    later = msgspec.msgpack.encode({"type": "Opening", "version": 99, "more": [1, {"a": 2}]})
    with pytest.raises(ProtocolError, match="not 99"):
        ServerSide("job", OPEN, IDENTITY).read_opening(later)


def test_a_node_without_the_token_is_told_that_one_is_demanded() -> None:
    with pytest.raises(ProtocolError, match="requires a token"):
        ServerSide("job", SECRET, IDENTITY).read_opening(opening())


def test_a_wrong_token_is_refused_by_the_server() -> None:
    with pytest.raises(ProtocolError, match="wrong token"):
        shake(
            ClientSide("job", "node", "control", ConnectionSecurity(b"no")),
            ServerSide("job", SECRET, IDENTITY),
        )


def test_a_recorded_proof_fails_against_a_new_challenge() -> None:
    client, server = (
        ClientSide("job", "node", "control", SECRET),
        ServerSide("job", SECRET, IDENTITY),
    )
    recorded_opening = payload(client.opening())
    heard = server.read_opening(recorded_opening)
    client.read_challenge(payload(server.challenge(b"1" * NONCE_BYTES)))
    recorded_proof = payload(client.prove())
    server.read_proof(recorded_proof, heard, b"1" * NONCE_BYTES)

    again = server.read_opening(recorded_opening)
    with pytest.raises(ProtocolError, match="wrong token"):
        server.read_proof(recorded_proof, again, b"2" * NONCE_BYTES)


def test_a_client_refuses_a_server_that_gives_its_own_proof_back() -> None:
    client = ClientSide("job", "node", "control", SECRET)
    client.opening()
    client.read_challenge(payload(encode(Challenge(VERSION, IDENTITY, b"s" * 16, True))))
    import msgspec

    own = msgspec.msgpack.decode(payload(client.prove()), type=Proof).proof
    with pytest.raises(ProtocolError, match="does not know the token"):
        client.read_welcome(payload(encode(Welcome(own, b""))))


def test_a_recorded_welcome_fails_with_a_new_client() -> None:
    server = ServerSide("job", SECRET, IDENTITY)
    challenge = payload(server.challenge(b"s" * NONCE_BYTES))
    client = ClientSide("job", "node", "control", SECRET)
    heard = server.read_opening(payload(client.opening()))
    client.read_challenge(challenge)
    proven, _ = server.read_proof(payload(client.prove()), heard, b"s" * NONCE_BYTES)
    recorded = payload(server.welcome(proven, b""))
    client.read_welcome(recorded)

    another = ClientSide("job", "node", "control", SECRET)
    another.read_challenge(challenge)
    with pytest.raises(ProtocolError, match="does not know the token"):
        another.read_welcome(recorded)


def test_without_a_token_no_proof_is_accepted() -> None:
    assert is_proof(b"", None, "agent", PROVEN)
    assert not is_proof(b"something", None, "agent", PROVEN)


def test_a_client_with_a_token_refuses_a_server_without() -> None:
    client = ClientSide("job", "node", "control", SECRET)
    with pytest.raises(ProtocolError, match="the coordinator has none"):
        client.read_challenge(payload(encode(Challenge(VERSION, IDENTITY, b"s" * 16, False))))


PROVEN = Proven(VERSION, "job", "node", "control", b"c" * 16, b"s" * 16, IDENTITY)
OTHERS = [
    Proven(VERSION + 1, "job", "node", "control", b"c" * 16, b"s" * 16, IDENTITY),
    Proven(VERSION, "other", "node", "control", b"c" * 16, b"s" * 16, IDENTITY),
    Proven(VERSION, "job", "other", "control", b"c" * 16, b"s" * 16, IDENTITY),
    Proven(VERSION, "job", "node", "store", b"c" * 16, b"s" * 16, IDENTITY),
    Proven(VERSION, "job", "node", "control", b"d" * 16, b"s" * 16, IDENTITY),
    Proven(VERSION, "job", "node", "control", b"c" * 16, b"t" * 16, IDENTITY),
    Proven(VERSION, "job", "node", "control", b"c" * 16, b"s" * 16, b"j" * 16),
]


def test_a_proof_holds_for_what_was_proven() -> None:
    given = proof(b"token", "agent", PROVEN)
    assert is_proof(given, b"token", "agent", PROVEN)
    assert not is_proof(given, b"nekot", "agent", PROVEN)
    assert not is_proof(given, b"token", "coordinator", PROVEN)
    assert not is_proof(b"", b"token", "agent", PROVEN)


@pytest.mark.parametrize("other", OTHERS)
def test_a_proof_holds_for_nothing_else(other: Proven) -> None:
    assert not is_proof(proof(b"token", "agent", PROVEN), b"token", "agent", other)
