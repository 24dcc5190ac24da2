"""What connections tell of their ends, and of ports that are shared, as functions of facts."""

from __future__ import annotations

CLOSED = "the connection was closed"
CUT_SHORT = "the connection was closed in the middle of a message"
NOT_READING = "it did not read what was sent to it"
RESET = "the connection was reset"
TIMED_OUT = "the connection timed out"
REFUSED = "refused the connection"
"""Follows an address."""
MUTE = "nothing was said after the welcome"
SLOW = "the handshake took too long"


def failed(reason: object) -> str:
    return f"the connection failed ({reason})"


# Dialling (`transport.dialling`).

NO_ENDPOINT = "there is no endpoint to dial"


def unresolved(name: str) -> str:
    return f"cannot resolve {name}"


def silent(address: object) -> str:
    return f"{address} did not answer"


def within(failure: str, timeout_s: float) -> str:
    return f"{failure} within {timeout_s:g} s"


# Refusals (`transport.handshake`, `transport.tls`).


def other_version(ours: int, theirs: int) -> str:
    versions = f"this coordinator speaks version {ours} of the protocol, not {theirs}"
    return f"{versions}: install the same Holdfast on every machine"


def other_job(ours: str, theirs: str) -> str:
    return f"this coordinator serves job {ours}, not {theirs}"


def bad_certificate(reason: str) -> str:
    return f"the certificate is not accepted: {reason}"


# Ports that jobs share (`transport.sharing`).

HOLDER_SILENT = "a program that does not answer"


def holder(uid: int) -> str:
    """The process that has the name of a claim, as the one above."""
    return f"another user (uid {uid})"


def not_shared(endpoint: object, holder: str) -> str:
    return f"{endpoint} is not shared with other jobs: {holder} has the name for that"


def serves_others(endpoint: object, jobs: int) -> str:
    many = "another job" if jobs == 1 else f"{jobs} other jobs"
    return f"{endpoint} also serves {many}; is --rdzv-id right?"
