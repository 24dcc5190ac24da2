"""`holdfast chaos`: inject faults into a running job, and report how it recovers.

Rules
1. Each kind of fault comes at its own mean interval, at random moments: a job must not be able to
   count on it. The same seed gives the same plan. Nodes inject the faults themselves.
2. The target of a fault is drawn when its time has come, among those that are there then.
3. None comes after the end, and the first no sooner than one mean interval halved:
   a job that has not begun shows nothing.
"""

from __future__ import annotations

import random
import time
from argparse import Namespace
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from holdfast.admin.client import AdminClient, AdminError
from holdfast.cli.job_connection import connect, job_parser
from holdfast.cli.status import events_after
from holdfast.cli.values import duration
from holdfast.cli.verbs import verb
from holdfast.core.policy.texts import whole_number
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.requests import (
    FaultKind,
    InjectFault,
    JobAsked,
    JobTold,
    NotKnown,
    RanksAsked,
    RanksTold,
)
from holdfast.observe.summary import length

RATES: dict[str, FaultKind] = {
    "kill_worker": "kill worker",
    "pause_worker": "pause worker",
    "kill_node": "kill node",
}
SETTLE_S = 20.0
"""How long the job may take to recover from the last fault."""
LOOK_EVERY_S = 1.0


def interval(text: str) -> float:
    """A mean time between two faults: `30s`, or `1/30s`. Raises `UsageError`."""
    return duration(text.strip().removeprefix("1/"))


PARSER = job_parser(
    "chaos",
    "Inject faults into a job that was started with --allow-chaos, at random moments, and tell at "
    "the end what was done and how long the job took to step again each time. EVERY is the mean "
    "time between two faults: 30s, 5m, or 1/30s.",
)
PARSER.add_argument("--kill-worker", type=interval, metavar="EVERY", help="SIGKILL to a worker")
PARSER.add_argument(
    "--pause-worker",
    type=interval,
    metavar="EVERY",
    help="SIGSTOP to a worker, and SIGCONT after --pause-time",
)
PARSER.add_argument(
    "--kill-node",
    type=interval,
    metavar="EVERY",
    help="SIGKILL to an agent, never to that of the coordinator's node if others are there; "
    "it has to be started again from outside",
)
PARSER.add_argument("--for", dest="length", type=duration, default=60.0, metavar="TIME",
                    help="how long [1m]")  # fmt: skip
PARSER.add_argument("--pause-time", type=duration, default=5.0, metavar="TIME",
                    help="of --pause-worker [5s]")  # fmt: skip
PARSER.add_argument("--seed", type=whole_number(0), metavar="N", help="the same faults again")


class InjectedFaults(Struct):
    """The faults so far, and the job's recovery."""

    faults: dict[str, int] = field(default_factory=dict)
    """How many there were of each kind."""
    without_target: int = 0
    """Faults that had no matching target."""
    recoveries_s: list[float] = field(default_factory=list)
    last_event: int = 0


class FaultRate(Struct, frozen=True):
    """One kind of fault, and how often it comes on average."""

    what: FaultKind
    every_s: float
    seconds: float = 0.0
    """Its duration, if it has one."""


class PlannedFault(Struct, frozen=True):
    """A fault and its time."""

    at_s: float
    rate: FaultRate


def plan_faults(
    rates: Sequence[FaultRate], length_s: float, dice: random.Random
) -> list[PlannedFault]:
    """All faults of a plan, in order."""
    planned: list[PlannedFault] = []
    for rate in rates:
        at_s = dice.uniform(0.5, 1.5) * rate.every_s
        while at_s < length_s:
            planned.append(PlannedFault(at_s, rate))
            at_s += dice.uniform(0.5, 1.5) * rate.every_s
    return sorted(planned, key=lambda one: one.at_s)


class FaultSchedule(Struct, frozen=True):
    """Faults that are planned, and for how long."""

    faults: Sequence[PlannedFault]
    length_s: float
    dice: random.Random


@verb(PARSER)
def chaos(asked: Namespace) -> int:
    rates = [
        FaultRate(what, every_s, asked.pause_time if what == "pause worker" else 0.0)
        for name, what in RATES.items()
        if (every_s := getattr(asked, name))
    ]
    if not rates:
        raise UsageError("choose at least one fault", "for example: --kill-worker 30s --for 5m")
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    dice = random.Random(seed)
    print(f"injecting faults for {length(asked.length)}, seed {seed}", flush=True)
    schedule = FaultSchedule(plan_faults(rates, asked.length, dice), asked.length, dice)
    with connect(asked) as job:
        injector = FaultInjector(job)
        settled = injector.inject(schedule)
    print(f"\n{summary(injector.told)}")
    return exit_status.SUCCEEDED if settled else exit_status.FAILED


class FaultInjector:
    """Injects a plan of faults into one job, and prints a line for each."""

    def __init__(self, job: AdminClient, refresh: Callable[[], None] = lambda: None) -> None:
        """`refresh` is called about once a second."""
        self._job, self._refresh = job, refresh
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
        _say(f"{fault.rate.what}: {target_name}")

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
                _say(event.words)
        self._refresh()

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


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {clean(text)}", flush=True)


def summary(told: InjectedFaults) -> str:
    """The faults, and how long the job took to step again."""
    found = sorted(told.recoveries_s)
    faults = sum(told.faults.values())
    some = f"{faults} fault{'' if faults == 1 else 's'}"
    lines = [f"done: {some}, {len(found)} recover{'y' if len(found) == 1 else 'ies'}"]
    if told.without_target:
        lines.append(f"  {told.without_target} had no matching target")
    if found:
        middle, worst = found[len(found) // 2], found[-1]
        lines.append(f"  back to stepping in {middle:.2f} s (median), {worst:.2f} s at worst")
    return "\n".join(lines)
