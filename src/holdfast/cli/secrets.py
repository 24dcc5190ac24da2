"""The secrets of a job: the token that its nodes share, and what its register asks for.

Rules
- `HOLDFAST_TOKEN` wins over the file. An empty variable is no variable; an empty file is a
  mistake, since somebody meant to have a secret.
- White space around it does not count: editors and `echo` end files with a newline.
- The register's user is `HOLDFAST_REGISTER_USER` or `--rdzv-conf user=…`; the password is
  `HOLDFAST_REGISTER_PASSWORD`, or in the file that `--rdzv-conf password_file=…` names.
- They are read once, where the job starts, and are in no configuration: those are written down.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from holdfast.agent.contact import Secrets
from holdfast.core.config import JobConfig
from holdfast.core.errors import UsageError

TOKEN = "HOLDFAST_TOKEN"
USER, PASSWORD = "HOLDFAST_REGISTER_USER", "HOLDFAST_REGISTER_PASSWORD"
LENGTH_MAX = 4096
"""Larger files are something else: a key, a model, a device without end."""
LENGTH_ENOUGH = 16
_MAKE_ONE = "openssl rand -hex 32 makes a good one"


def read_token(config: JobConfig, environ: Mapping[str, str]) -> bytes | None:
    """The token, or None where the job has none.

    Raises `UsageError` when the file that was named cannot be read or holds no token.
    """
    if token := environ.get(TOKEN, "").strip():
        return os.fsencode(token)
    path = config.security.token_file
    if path is None:
        return None
    hint = f"--token-file names a file that holds the job's secret; {_MAKE_ONE}"
    return _from_file("token", path, hint)


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


def read_secrets(config: JobConfig, environ: Mapping[str, str]) -> Secrets:
    """All secrets of a job. Raises `UsageError` as `read_token`."""
    options = config.rendezvous.options
    password = environ.get(PASSWORD, "")
    if not password and "password_file" in options:
        hint = "password_file names a file that holds the password of the register's user"
        password = os.fsdecode(_from_file("password", options["password_file"], hint))
    user = environ.get(USER, "") or options.get("user", "")
    if password and not user:
        raise UsageError(
            "the register has a password, but no user",
            f"--rdzv-conf user=NAME, or {USER} in the environment",
        )
    return Secrets(read_token(config, environ), user, password)


def token_notes(config: JobConfig, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What a user should know about the token as it is: others can read it, or guess it."""
    token = read_token(config, environ)
    if token is None:
        return ()
    notes = []
    path = config.security.token_file
    if path is not None and not environ.get(TOKEN, "").strip():
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
            notes.append(f"others on this machine can read the token in {path}; chmod 600 {path}")
    if len(token) < LENGTH_ENOUGH:
        notes.append(f"the token is short enough to be guessed; {_MAKE_ONE}")
    return tuple(notes)
