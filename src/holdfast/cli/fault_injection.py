"""Fault injection: faults for a running job, each at its planned time, and how it recovers.

Used on a running job (`holdfast chaos JOB`) and on one that is made for it (`cli.chaos_demo`).
The faults are planned before (`core.policy.fault_schedule`); nodes inject them themselves.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct, field

from holdfast.admin.client import AdminClient, AdminError
from holdfast.cli.status import events_after
from holdfast.core.policy.fault_schedule import PlannedFault
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.requests import (
    FaultKind,
    InjectFault,
    JobAsked,
    JobTold,
    NotKnown,
    RanksAsked,
    RanksTold,
)

SETTLE_S = 20.0
"""How long the job may take to recover from the last fault."""
LOOK_EVERY_S = 1.0


class InjectedFaults(Struct):
    """The faults so far, and the job's recovery."""

    faults: dict[str, int] = field(default_factory=dict)
    """How many there were of each kind."""
    without_target: int = 0
    """Faults that had no matching target."""
    recoveries_s: list[float] = field(default_factory=list)
    last_event: int = 0


class FaultSchedule(Struct, frozen=True):
    """Faults that are planned, and for how long."""

    faults: Sequence[PlannedFault]
    length_s: float
    dice: random.Random


class InjectionView(Protocol):
    """Where progress is printed."""

    def say(self, text: str) -> None: ...
    def refresh(self, job: AdminClient) -> None:
        """A second has passed, or something has happened."""


class InjectionLines:
    """Prints one line after the other."""

    def say(self, text: str) -> None:
        print(text, flush=True)

    def refresh(self, job: AdminClient) -> None:
        pass


class FaultInjector:
    """Injects a plan of faults into one job."""

    def __init__(self, job: AdminClient, view: InjectionView) -> None:
        self._job, self._view = job, view
        self._dice = random.Random(0)
        self.told = InjectedFaults()

    def inject(self, schedule: FaultSchedule) -> bool:
        """Inject all; return whether the job runs afterwards. Raises `AdminError`."""
        *_, (_, self.told.last_event) = [(None, 0), *events_after(self._job, 0)]
        self._dice, began = schedule.dice, time.monotonic()
        for fault in schedule.faults:
            self._wait(began + fault.at_s)
            self._inject(fault)
        self._wait(began + schedule.length_s)
        return self._settle()

    def _wait(self, until: float) -> None:
        while (left_s := until - time.monotonic()) > 0.0:
            self._job.pause(min(left_s, LOOK_EVERY_S))
            self._watch()

    def _inject(self, fault: PlannedFault) -> None:
        target = self._target(fault.rate.what)
        if target is None:
            self.told.without_target += 1
            return
        node, rank = target
        wanted = InjectFault(fault.rate.what, rank, fault.rate.seconds)
        for _, answer in self._job.ask(wanted, "some", (node,)):
            if isinstance(answer, NotKnown):
                self._is_refused(answer.reason)
                return
        if self._job.missing:
            self.told.without_target += 1
            return
        self.told.faults[fault.rate.what] = self.told.faults.get(fault.rate.what, 0) + 1
        target_name = f"rank {rank} on {node}" if rank is not None else node
        self._say(f"{fault.rate.what}: {target_name}")

    def _is_refused(self, reason: str) -> None:
        """The job does not allow faults; later ones may have come too late for that worker."""
        if not self.told.faults:
            raise AdminError(reason)
        self.told.without_target += 1

    def _target(self, what: FaultKind) -> tuple[str, int | None] | None:
        """A random node or worker that is there now; None if there is none."""
        if what == "kill node":
            told = self._job.ask_coordinator(JobAsked())
            assert isinstance(told, JobTold), told
            others = [one.name for one in told.nodes if one.name != told.coordinator]
            return (self._dice.choice(sorted(others)), None) if others else None
        ranks = [
            (node, one.rank)
            for node, told in self._job.ask(RanksAsked(), of="all")
            if isinstance(told, RanksTold)
            for one in told.ranks
        ]
        return self._dice.choice(sorted(ranks)) if ranks else None

    def _watch(self) -> None:
        for event, last in events_after(self._job, self.told.last_event):
            self.told.last_event = last
            if event.kind == "recovered":
                self.told.recoveries_s.append(sum(event.parts_s.values()))
                self._say(event.words)
        self._view.refresh(self._job)

    def _say(self, text: str) -> None:
        self._view.say(f"{time.strftime('%H:%M:%S')}  {clean(text)}")

    def _settle(self) -> bool:
        """Wait until the job runs again; return whether it does."""
        given_up_at = time.monotonic() + SETTLE_S
        while time.monotonic() < given_up_at:
            self._watch()
            seen = self._job.ask_coordinator(JobAsked())
            if isinstance(seen, JobTold) and seen.stage == "running":
                return True
            self._job.pause(0.5)
        return False


def counted(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def summary(told: InjectedFaults) -> str:
    """The faults, and how long the job took to step again."""
    found = sorted(told.recoveries_s)
    faults = counted(sum(told.faults.values()), "fault", "faults")
    lines = [f"done: {faults}, {counted(len(found), 'recovery', 'recoveries')}"]
    if told.without_target:
        lines.append(f"  {told.without_target} had no matching target")
    if found:
        middle, worst = found[len(found) // 2], found[-1]
        lines.append(
            f"  back to stepping in {middle:.2f} s (the middle one), {worst:.2f} s at worst"
        )
    return "\n".join(lines)
