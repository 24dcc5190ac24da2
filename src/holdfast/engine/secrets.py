"""The secrets of a job: where they come from, and what they are used for.

They are in no configuration, because those are written down. The command line and the API both
read them here.

Rules
- `HOLDFAST_TOKEN` wins over the file. A variable or a file with nothing in it is a mistake:
  somebody meant to have a secret, and the job would be open without a word.
- White space around it does not count: editors and `echo` end files with a newline.
- The register's user is `HOLDFAST_REGISTER_USER` or the setting `user`; the password is
  `HOLDFAST_REGISTER_PASSWORD`, or in the file that the setting `password_file` names.
- They are read once, where the job starts, and are in no configuration: those are written down.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Endpoint
from holdfast.processes.own_environment import SECRETS

if TYPE_CHECKING:
    from holdfast.transport.auth import ConnectionSecurity

TOKEN, PASSWORD = SECRETS
USER = "HOLDFAST_REGISTER_USER"
LENGTH_MAX = 4096
"""Larger files are something else: a key, a model, a device without end."""
MAKE_ONE = "openssl rand -hex 32 makes a good one"


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


def read_secrets(
    token_file: str | None, settings: Mapping[str, str], environ: Mapping[str, str]
) -> Secrets:
    """All secrets of a job; `settings` are those of its rendezvous. Raises as `read_token`."""
    password = environ.get(PASSWORD, "")
    if not password and "password_file" in settings:
        hint = "password_file names a file that holds the password of the register's user"
        password = os.fsdecode(_from_file("password", settings["password_file"], hint))
    user = environ.get(USER, "") or settings.get("user", "")
    if password and not user:
        raise UsageError(
            "the register has a password, but no user",
            f"--rdzv-conf user=NAME, or {USER} in the environment",
        )
    return Secrets(read_token(token_file, environ), user, password)


def read_token(path: str | None, environ: Mapping[str, str]) -> bytes | None:
    """The token, or None where the job has none.

    Raises `UsageError` for a variable that is blank, and when the file that was named cannot be
    read or holds no token.
    """
    if TOKEN in environ:
        if token := environ[TOKEN].strip():
            return os.fsencode(token)
        raise UsageError(
            f"{TOKEN} is set, and blank", f"unset it for a job without a token; {MAKE_ONE}"
        )
    if path is None:
        return None
    hint = f"--token-file names a file that holds the job's secret; {MAKE_ONE}"
    return _from_file("token", path, hint)


def who_reaches(config: JobConfig) -> str:
    """Who can speak to the nodes of this job, where there is no token."""
    from holdfast.transport.own_endpoint import is_loopback

    rendezvous = config.rendezvous
    if rendezvous.is_embedded and is_loopback(Endpoint.parse(rendezvous.endpoint)):
        return "every user of this machine"
    return "whoever reaches its port"


def _from_file(what: str, path: str, hint: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(LENGTH_MAX + 1)
    except OSError as error:
        message = f"the {what}'s file {path} cannot be read: {error.strerror}"
        raise UsageError(message, hint) from None
    if len(content) > LENGTH_MAX:
        longest = f"a {what} has at most {LENGTH_MAX} bytes"
        raise UsageError(f"{path} is too long for a {what}", f"{longest}; {hint}")
    secret = content.strip()
    if not secret:
        raise UsageError(f"the {what}'s file {path} is empty", hint)
    return secret
