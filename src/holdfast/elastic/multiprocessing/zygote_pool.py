"""Spawners with a zygote, kept between contexts.

Rules
1. A spawner serves one context at a time. When that has ended well, the spawner waits here, with
   its zygote, for the next context that needs the same one.
2. At most `MOST_IDLE` wait; the one that has waited longest goes first. `let_go` ends them all.
3. They end with this process, however it ends: their sockets close. In a fork of this process
   they are not known.
4. One that died while it waited is noticed before it is used.
"""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass, field

from holdfast.elastic.multiprocessing import forking
from holdfast.elastic.multiprocessing.warm_plan import WarmPlan
from holdfast.processes.spawner_process import SpawnerProcess
from holdfast.processes.stdlib_only import linux

MOST_IDLE = 2
MOST_FINDINGS = 100


@dataclass
class Findings:
    """Knowledge about a plan that was gained by carrying it out."""

    steps: tuple[str, ...]
    avoid: dict[str, str] = field(default_factory=dict)
    why_cold: str = ""
    """Why it is of no use; empty if it is."""


@dataclass
class PooledSpawner:
    """A spawner, and the zygote that it has or is to have."""

    process: SpawnerProcess
    plan: WarmPlan
    findings: Findings
    spawner_pid: int = 0
    """Of the spawner itself, which is below a guardian."""
    is_ready: bool = False


_lock = threading.Lock()
_idle: list[PooledSpawner] = []
_findings: dict[tuple[object, ...], Findings] = {}


def take(plan: WarmPlan) -> PooledSpawner | None:
    """One for this plan, with the zygote ready if there is such a one; None if it is no use."""
    key = plan.key
    with _lock:
        findings = _findings.setdefault(key, Findings(plan.steps))
        while len(_findings) > MOST_FINDINGS:
            del _findings[next(iter(_findings))]
        if findings.why_cold:
            return None
        fitting = [pooled for pooled in _idle if pooled.plan.key == key]
        for pooled in fitting:
            _idle.remove(pooled)
    usable = [pooled for pooled in fitting if _is_well(pooled)]
    for pooled in fitting:
        if pooled not in usable[:1]:
            pooled.process.drop()
    return usable[0] if usable else PooledSpawner(forking.new_spawner(), plan, findings)


def give_back(pooled: PooledSpawner) -> None:
    """Its context has ended, and nothing is left of it."""
    with _lock:
        _idle.append(pooled)
        too_many = _idle[:-MOST_IDLE]
        del _idle[:-MOST_IDLE]
    for one in too_many:
        one.process.drop()


def let_go() -> None:
    """End those that wait; returns when they have."""
    with _lock:
        waiting = list(_idle)
        _idle.clear()
    for pooled in waiting:
        pooled.process.drop()


def _is_well(pooled: PooledSpawner) -> bool:
    """It has nothing to say while it waits, but that something has ended."""
    return not linux.readable(pooled.process.socket)


def _hang_up() -> None:
    """At the end of this process nobody waits for them: they end by themselves."""
    for pooled in _idle:
        pooled.process.socket.close()


def _forget() -> None:
    """In a fork of this process: their sockets have been closed already."""
    global _lock  # noqa: PLW0603 - the thread that had that one is not here
    _lock = threading.Lock()
    _idle.clear()


atexit.register(_hang_up)
os.register_at_fork(after_in_child=_forget)
