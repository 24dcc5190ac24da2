"""What a user should know about the job's token as it is: others can read it, or guess it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from holdfast.node.secret_sources import MAKE_ONE, TOKEN, read_token

LENGTH_ENOUGH = 16


def token_notes(path: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each thing that is not as it should be. Raises as `read_token`."""
    token = read_token(path, environ)
    if token is None:
        return ()
    notes = []
    if path is not None and not environ.get(TOKEN, "").strip():
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
            notes.append(f"others on this machine can read the token in {path}; chmod 600 {path}")
    if len(token) < LENGTH_ENOUGH:
        notes.append(f"the token is short enough to be guessed; {MAKE_ONE}")
    return tuple(notes)
