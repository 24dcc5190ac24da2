"""Mutual proof of the job's token.

Rules
- The token never crosses the wire; a proof of it does: an HMAC-SHA256 keyed with it.
- A proof covers who proves (the role), both sides' fresh nonces, the server's identity, the
  job, the node, the kind of connection and the version. One that was recorded fails because
  the other side's nonce is new; one that is reflected fails because the role differs.
- Without a token on either side connections are open; a token on one side only is refused.

What this does not do: hide or seal what is said afterwards. That is TLS.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

Role = Literal["agent", "coordinator"]


class TlsFiles(Struct, frozen=True):
    """Paths of PEM files. A server needs `certificate` and `key`.

    With an `authority` both sides demand a certificate that it signed. Without one, clients
    trust the system's authorities and servers ask for no certificate.
    """

    certificate: str | None = None
    key: str | None = None
    authority: str | None = None


class ConnectionSecurity(Struct, frozen=True):
    """A job's token and TLS files. Its text never has the token."""

    token: bytes | None = None
    tls: TlsFiles | None = None

    def __repr__(self) -> str:
        token = "None" if self.token is None else "<hidden>"
        return f"ConnectionSecurity(token={token}, tls={self.tls!r})"

    __str__ = __repr__


OPEN = ConnectionSecurity()


class Proven(Struct, frozen=True, array_like=True):
    """Everything that a proof covers besides the role."""

    version: int
    job: str
    node: str
    kind: str
    client_nonce: bytes
    server_nonce: bytes
    identity: bytes


def proof(token: bytes | None, role: Role, proven: Proven) -> bytes:
    """Return the proof that `role` gives; empty without a token."""
    if token is None:
        return b""
    import hmac

    return hmac.digest(token, msgspec.msgpack.encode(("holdfast", role, proven)), "sha256")


def is_proof(given: bytes, token: bytes | None, role: Role, proven: Proven) -> bool:
    """Whether `given` proves that the other side, in that role, knows the token."""
    if token is None:
        return not given
    import hmac

    return hmac.compare_digest(given, proof(token, role, proven))


def seal(secret: bytes, identity: bytes) -> bytes:
    """By what a server of that identity knows the owner of the secret again."""
    from hashlib import blake2b

    return blake2b(identity, key=secret, digest_size=32).digest()


def is_same(given: bytes, known: bytes) -> bool:
    """Whether two seals are one; how long it takes does not tell where they differ."""
    import hmac

    return hmac.compare_digest(given, known)
