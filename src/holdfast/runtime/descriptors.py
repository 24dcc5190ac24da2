"""The descriptors of this process: what it keeps, and how many each kind of guest may have.

Rules
1. The process's own needs come first: its workers' streams, its files, what it dials. Guests
   never get them.
2. What is left is shared out by kind, so that no kind takes the others' part. A share is asked for
   with `most`; a server with that many connections accepts no more.
3. The limits together never exceed what the process may open, so strangers cannot bring it to
   EMFILE. Where that comes all the same (ENFILE, other libraries), accepting pauses (`listener`).
4. An agent raises its own soft limit to the hard one (`provide`), after its spawner was started:
   workers have the limit that the user gave them.

The figures are the process's, as its limit is: module-level state.
"""

from __future__ import annotations

import resource
from typing import Literal

Kind = Literal["control", "health", "dashboard", "admin", "channel"]
"""Nodes at the coordinator's port, HTTP at two ports, programs that ask, and local processes."""

OWN, OWN_PER_WORKER = 64, 8
"""An agent has about 25 open, and 5 for each worker, more while one round follows another."""
LINES_PER_WORKER = 2
"""Of those of a worker: its connections to the channel."""
PER_NODE = 6
"""A connection, a tether and the keys of each node, and as many to stand by."""
UNLIMITED = 1 << 20
LEAST = 4
_SHARES: dict[Kind, float] = {
    "control": 9 / 16,
    "health": 1 / 8,
    "dashboard": 1 / 8,
    "admin": 1 / 16,
    "channel": 1 / 8,
}
_MOST: dict[Kind, int] = {
    "control": 8192,
    "health": 256,
    "dashboard": 256,
    "admin": 64,
    "channel": 1024,
}
"""However many the process may have: what a connection takes of memory counts, too."""
_needs = {"workers": 0, "nodes": 0}


def most(kind: Kind) -> int:
    """The number of connections of a kind that one server in this process may hold."""
    limit, highest = soft_limit(), _MOST[kind]
    if kind == "control":
        highest = max(highest, PER_NODE * _needs["nodes"])
    room = max(min(int((limit - own(limit)) * _SHARES[kind]), highest), LEAST)
    return room + lines_of_workers(limit) if kind == "channel" else room


def own(limit: int) -> int:
    """The descriptors that the process keeps for itself and its workers."""
    return min(OWN + OWN_PER_WORKER * _needs["workers"], limit // 2)


def lines_of_workers(limit: int) -> int:
    """The part of it that is for connections of workers to the channel."""
    workers = _needs["workers"]
    wanted = OWN + OWN_PER_WORKER * workers
    return LINES_PER_WORKER * workers * own(limit) // wanted


def soft_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def provide(workers: int, nodes: int) -> None:
    """Expect so many workers here and nodes at the coordinator, with all that the kernel allows.

    For a process that is ours, and only once its spawner runs.
    """
    _needs["workers"] = workers
    expect_nodes(nodes)
    raise_limit()


def expect_nodes(nodes: int) -> None:
    """Have room for so many nodes; the limit is raised only where that takes it.

    The process of a program that meets through `holdfast.elastic` is not ours to change.
    """
    _needs["nodes"] = max(_needs["nodes"], nodes)
    if most("control") < PER_NODE * nodes:
        raise_limit()


def raise_limit() -> None:
    """Raise the soft limit to the hard one, where the kernel lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # It stays as it is, and the shares with it.
