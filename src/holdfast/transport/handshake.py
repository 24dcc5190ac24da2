"""The first words on a connection, without any input or output.

    client                                server
    Opening  version, job, node, kind ─▶
                                     ◀─  Challenge  the server's nonce and identity
    Proof    of the token            ─▶
                                     ◀─  Welcome    proof of the token, ticket for the tether

Rules
- The client speaks first, always: so the server knows the kind before it writes a byte, and
  on a tether it never writes one. A tether has only an `Opening`, with the one-time ticket
  that came over the node's control connection.
- A client that dials several addresses at once gives its `Proof` on one of them at a time,
  and the server admits nobody without it. So a node is never admitted twice by accident.
- A refused client is told why (`Refusal`), except on a tether.
- A node shows with its proof that it is the one that came before under its name: the *seal*, made
  of a secret that it drew at its start and of the server's identity. A seal is worth nothing at
  another server, and tells nobody the secret, which is sent, logged and journalled nowhere.
"""

from __future__ import annotations

import os
from typing import Literal

from msgspec import Struct

from holdfast.core.protocol.bounds import NAME_MOST, Line, NameOrNone, Number, cut
from holdfast.transport import sentences
from holdfast.transport.auth import ConnectionSecurity, Proven, is_proof, proof, seal
from holdfast.transport.frames import VERSION, Decoder, ProtocolError, encode

Kind = Literal["control", "tether", "store", "admin"]
KINDS = ("control", "tether", "store", "admin")
NONCE_BYTES = 16
SECRET_BYTES = 32
SEAL_BYTES = 32
NAME_LIMIT = NAME_MOST
ADVICE = (
    "is --rdzv-id right? If it is, start a node of that job on this machine, so that the two jobs "
    "share the port, or give the job another port; with TLS, or as another user, it needs one"
)
"""For a node that dials an endpoint which serves another job only."""


class Opening(Struct, frozen=True, tag=True, omit_defaults=True):
    """The client and its purpose. All but the version may differ in other versions."""

    version: int
    job: str = ""
    node: str = ""
    kind: str = ""
    nonce: bytes = b""
    has_token: bool = False
    ticket: bytes = b""
    round: Number = 0
    """Of a store connection: the round of its keys."""


class Challenge(Struct, frozen=True, tag=True):
    """Prove yourself against this nonce. The identity is the server's own, random per life."""

    version: int
    identity: bytes
    nonce: bytes
    has_token: bool


class Proof(Struct, frozen=True, tag=True, omit_defaults=True):
    proof: bytes
    seal: bytes = b""
    """By which the server knows the node again, on a control connection."""


class Welcome(Struct, frozen=True, tag=True):
    proof: bytes
    ticket: bytes


class Refusal(Struct, frozen=True, tag=True):
    """Why the server will not talk, and whether trying again is of no use."""

    kind: NameOrNone
    reason: Line
    permanent: bool


_openings: Decoder[Opening] = Decoder(Opening)
_proofs: Decoder[Proof] = Decoder(Proof)
_answers: Decoder[Challenge | Welcome | Refusal] = Decoder(Challenge | Welcome | Refusal)


def is_name(text: str) -> bool:
    """Whether it can be shown to people: not empty, not endless, no control characters."""
    return 0 < len(text) <= NAME_LIMIT and text.isprintable()


def job_of(payload: bytes | bytearray) -> str:
    """The job that an opening names; empty where it is none."""
    try:
        return _openings.decode(payload).job
    except ProtocolError:
        return ""


def refusal_of(error: ProtocolError) -> bytes:
    return encode(Refusal(error.kind, cut(error.reason), error.permanent))


class ServerSide(Struct, frozen=True):
    """A server's side of the handshake, the same for all its connections."""

    job: str
    security: ConnectionSecurity
    identity: bytes

    def read_opening(self, payload: bytes | bytearray) -> Opening:
        """Return an opening that may go on, or raise `ProtocolError` with the reason why not."""
        opening = _openings.decode(payload)
        if opening.version != VERSION:
            raise ProtocolError("version", sentences.other_version(VERSION, opening.version))
        if opening.job != self.job:
            # The other job may end, or a node that carries this one may come.
            reason = sentences.other_job(self.job, opening.job[:NAME_LIMIT])
            raise ProtocolError("job", f"{reason} ({ADVICE})", permanent=False)
        if opening.kind not in KINDS or not is_name(opening.node):
            raise ProtocolError("garbage", "the opening names no kind or no node")
        if opening.kind == "tether":
            return opening
        if len(opening.nonce) != NONCE_BYTES:
            raise ProtocolError("garbage", "the opening has no nonce")
        self._require_equal_tokens(opening)
        return opening

    def _require_equal_tokens(self, opening: Opening) -> None:
        if opening.has_token and self.security.token is None:
            raise ProtocolError("token", "the node has a token, but the coordinator has none")
        if self.security.token is not None and not opening.has_token:
            raise ProtocolError("token", "the coordinator requires a token, but the node has none")

    def challenge(self, nonce: bytes) -> bytes:
        has_token = self.security.token is not None
        return encode(Challenge(VERSION, self.identity, nonce, has_token))

    def read_proof(
        self, payload: bytes | bytearray, opening: Opening, nonce: bytes
    ) -> tuple[Proven, bytes]:
        """Check the client's proof, and give its seal; raises `ProtocolError` when it is wrong."""
        given = _proofs.decode(payload)
        proven = _proven(opening, nonce, self.identity)
        if not is_proof(given.proof, self.security.token, "agent", proven):
            raise ProtocolError("token", "wrong token")
        if opening.kind == "control" and len(given.seal) != SEAL_BYTES:
            raise ProtocolError("garbage", "the proof has no seal")
        return proven, given.seal

    def welcome(self, proven: Proven, ticket: bytes) -> bytes:
        return encode(Welcome(proof(self.security.token, "coordinator", proven), ticket))


class ClientSide:
    """One client's part of one handshake: `opening`, then `answer` until it is welcome."""

    def __init__(
        self, job: str, node: str, kind: Kind, security: ConnectionSecurity, secret: bytes = b""
    ) -> None:
        """`secret` is the node's own; without one nobody knows it again."""
        self._security = security
        self._secret = secret or os.urandom(SECRET_BYTES)
        self._job, self._node, self._kind = job, node, kind
        self._nonce = os.urandom(NONCE_BYTES)
        self._proven: Proven | None = None
        self.identity = b""
        self.ticket = b""

    def opening(self, round: int = 0) -> bytes:
        return encode(self._opening(round))

    def _opening(self, round: int) -> Opening:
        return Opening(
            version=VERSION,
            job=self._job,
            node=self._node,
            kind=self._kind,
            nonce=self._nonce,
            has_token=self._security.token is not None,
            round=round,
        )

    def read_challenge(self, payload: bytes | bytearray) -> None:
        """Take the server's challenge; raises `ProtocolError` when it is none, or a refusal."""
        challenge = _read_answer(payload)
        if not isinstance(challenge, Challenge):
            raise ProtocolError("garbage", "the coordinator answered out of turn")
        if challenge.version != VERSION:
            raise ProtocolError("version", f"the coordinator speaks version {challenge.version}")
        if self._security.token is not None and not challenge.has_token:
            raise ProtocolError("token", "the node has a token, but the coordinator has none")
        self.identity = challenge.identity
        self._proven = _proven(self._opening(0), challenge.nonce, challenge.identity)

    def prove(self) -> bytes:
        assert self._proven is not None, "there is nothing to prove before a challenge"
        own = seal(self._secret, self.identity) if self._kind == "control" else b""
        return encode(Proof(proof(self._security.token, "agent", self._proven), own))

    def read_welcome(self, payload: bytes | bytearray) -> None:
        """Take the server's welcome; raises `ProtocolError` when it is none, or a refusal."""
        welcome = _read_answer(payload)
        if not isinstance(welcome, Welcome) or self._proven is None:
            raise ProtocolError("garbage", "the coordinator answered out of turn")
        if not is_proof(welcome.proof, self._security.token, "coordinator", self._proven):
            raise ProtocolError("token", "the coordinator does not know the token")
        self.ticket = welcome.ticket


def _read_answer(payload: bytes | bytearray) -> Challenge | Welcome:
    answer = _answers.decode(payload)
    if isinstance(answer, Refusal):
        raise _error_of(answer)
    return answer


def read_refusal(payload: bytes | bytearray) -> ProtocolError | None:
    """The error in a refusal; None for any other message."""
    try:
        answer = _answers.decode(payload)
    except ProtocolError:
        return None
    return _error_of(answer) if isinstance(answer, Refusal) else None


def _error_of(refusal: Refusal) -> ProtocolError:
    return ProtocolError(refusal.kind, refusal.reason, refusal.permanent)


def tether_opening(job: str, node: str, ticket: bytes) -> bytes:
    """All that is ever said on a tether."""
    return encode(Opening(version=VERSION, job=job, node=node, kind="tether", ticket=ticket))


def _proven(opening: Opening, server_nonce: bytes, identity: bytes) -> Proven:
    return Proven(
        version=VERSION,
        job=opening.job,
        node=opening.node,
        kind=opening.kind,
        client_nonce=opening.nonce,
        server_nonce=server_nonce,
        identity=identity,
    )
