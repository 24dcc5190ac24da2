"""Warnings about a job's protection: its token, its keys, its dashboard."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from holdfast.cli import sentences
from holdfast.core.policy.config import JobConfig
from holdfast.engine.secrets import MAKE_ONE, TOKEN, read_token, who_reaches

LENGTH_ENOUGH = 16


def security_notes(config: JobConfig, environ: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each problem. Raises as `read_token`."""
    files, notes = config.security, []
    token = read_token(files.token_file, environ)
    if token is None and files.tls_authority is None:
        notes.append(sentences.no_token(who_reaches(config), TOKEN, MAKE_ONE))
    if token is not None and files.token_file is not None and TOKEN not in environ:
        notes += _file_notes("token", files.token_file)
    if token is not None and len(token) < LENGTH_ENOUGH:
        notes.append(sentences.short_token(MAKE_ONE))
    if files.tls_key is not None:
        notes += _file_notes("TLS key", files.tls_key)
    return tuple(notes)


def dashboard_notes(config: JobConfig) -> tuple[str, ...]:
    """Warn if the dashboard can be reached from other machines."""
    host = config.dashboard.host
    if config.dashboard.port is None or host.startswith("127.") or host == "::1":
        return ()
    return (sentences.reachable_dashboard(host),)


def _file_notes(what: str, path: str) -> tuple[str, ...]:
    """Whether other users can read, or change, the file."""
    try:
        found = os.stat(path)
    except OSError:
        return ()  # A caller that needs it reports that.
    others = {"read": stat.S_IRGRP | stat.S_IROTH, "change": stat.S_IWGRP | stat.S_IWOTH}
    can = [name for name, bits in others.items() if found.st_mode & bits]
    is_open = can and stat.S_ISREG(found.st_mode)
    return (sentences.open_file(can, what, path),) if is_open else ()
