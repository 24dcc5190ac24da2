"""The secrets of a job, which are in no configuration, because those are written down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.core.policy.config import JobConfig

if TYPE_CHECKING:
    from holdfast.transport.auth import ConnectionSecurity


class Secrets(Struct, frozen=True):
    """What the nodes of a job, and its register, are let in by."""

    token: bytes | None = None
    """By which the nodes of the job know each other."""
    user: str = ""
    password: str = ""
    """For the register."""

    def __repr__(self) -> str:
        return "Secrets(…)"


def security_of(config: JobConfig, token: bytes | None) -> ConnectionSecurity:
    """How this node proves itself to others, and they to it."""
    from holdfast.transport.auth import ConnectionSecurity, TlsFiles

    files = config.security
    tls = None
    if files.tls_certificate or files.tls_authority:
        tls = TlsFiles(files.tls_certificate, files.tls_key, files.tls_authority)
    return ConnectionSecurity(token, tls)
