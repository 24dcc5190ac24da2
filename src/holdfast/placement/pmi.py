"""Asking an MPI process manager: rank 0 tells all others where it is.

Hydra (`mpiexec` of MPICH and Intel MPI) tells a process its rank and nothing of hosts, but keeps a
small table for all ranks, behind a socket whose number is PMI_FD. One line goes there, one comes
back: this is version 1 of PMI, which every such manager speaks.

Rules
- All ranks take part, or none comes back: each waits until all others have asked too.
- The manager is let go of at once. To it, the ranks have then ended their use of MPI, so that the
  loss of one is no broken world. It can be asked once in the life of a process.
- What cannot be asked, or does not answer as it should, is no manager.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TextIO

from msgspec import Struct

WAIT_S = 600.0
"""For the last rank to be started."""
_KEY = "holdfast-host"


class PmiJob(Struct, frozen=True):
    """The process manager's answer: the host of rank 0, and a unique name of the job."""

    host: str
    name: str


def exchange_host(variables: Mapping[str, str], rank: int, own_host: str) -> PmiJob | None:
    """Tell the others, if this is rank 0, and hear where it is; None if there is nobody to ask."""
    try:
        number = int(variables.get("PMI_FD", ""))
        # A duplicate: closing it leaves the process's own open.
        with (
            socket.fromfd(number, socket.AF_UNIX, socket.SOCK_STREAM) as manager,
            manager.makefile("rw", encoding="utf-8", newline="\n") as lines,
        ):
            manager.settimeout(WAIT_S)
            return _exchange(lines, rank, own_host)
    except (OSError, LookupError, ValueError):
        return None


def _exchange(lines: TextIO, rank: int, own_host: str) -> PmiJob:
    _ask(lines, "init", "response_to_init", pmi_version="1", pmi_subversion="1")
    name = _ask(lines, "get_my_kvsname", "my_kvsname")["kvsname"]
    if rank == 0:
        _ask(lines, "put", "put_result", kvsname=name, key=_KEY, value=own_host)
    _ask(lines, "barrier_in", "barrier_out")
    host = _ask(lines, "get", "get_result", kvsname=name, key=_KEY)["value"]
    _ask(lines, "finalize", "finalize_ack")
    return PmiJob(host, name)


def _ask(lines: TextIO, command: str, expected: str, **words: str) -> dict[str, str]:
    """One line there, one back. Raises `LookupError` for another answer than the one expected."""
    said = {"cmd": command, **words}
    lines.write(" ".join(f"{key}={text}" for key, text in said.items()) + "\n")
    lines.flush()
    pairs = (word.partition("=") for word in lines.readline().split())
    answer = {key: text for key, _, text in pairs}
    if answer.get("cmd") != expected or answer.get("rc", "0") != "0":
        raise LookupError(f"{command} was answered with {answer}")
    return answer
