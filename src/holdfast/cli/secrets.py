"""The job's token: the secret that its nodes share.

Rules
- `HOLDFAST_TOKEN` wins over the file. An empty variable is no variable; an empty file is a
  mistake, since somebody meant to have a secret.
- White space around it does not count: editors and `echo` end files with a newline.
- It is read once, where the job starts, and is in no configuration: those are written down.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from holdfast.core.config import JobConfig
from holdfast.core.errors import UsageError

TOKEN = "HOLDFAST_TOKEN"
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
    try:
        with open(path, "rb") as file:
            content = file.read(LENGTH_MAX + 1)
    except OSError as error:
        raise UsageError(
            f"the token's file {path} cannot be read: {error.strerror}",
            f"--token-file names a file that holds the job's secret; {_MAKE_ONE}",
        ) from None
    if len(content) > LENGTH_MAX:
        raise UsageError(
            f"{path} is too long for a token",
            f"a token has at most {LENGTH_MAX} bytes; {_MAKE_ONE}",
        )
    token_bytes = content.strip()
    if not token_bytes:
        raise UsageError(f"the token's file {path} is empty", _MAKE_ONE)
    return token_bytes


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
