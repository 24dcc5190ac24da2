"""`holdfast chaos`: harm a running job on purpose, and tell how it got over it."""

from __future__ import annotations

import random
import re
import time

from msgspec import Struct, field

from holdfast.cli.overview_page import duration
from holdfast.cli.status import events_after
from holdfast.cli.visit import FINDING, VisitRequest, run_verb, sort, take_values, visit
from holdfast.core.policy.storms import HarmRate, Stroke, storm
from holdfast.core.policy.texts import whole_number
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.questions import (
    Harm,
    HarmWanted,
    JobAsked,
    JobTold,
    NotKnown,
    RanksAsked,
    RanksTold,
)
from holdfast.node.visiting import Visit, VisitError

HELP = f"""\
Usage: holdfast chaos [JOB] [--kill-worker EVERY] [--pause-worker EVERY] [--kill-node EVERY]
                      [--for TIME] [--pause-time TIME] [--seed N]

Harms a job that was started with --allow-chaos, at random moments, and tells at the end what
was done and how long the job took to step again each time. EVERY is the mean time between two
strokes: 30s, 5m, or 1/30s.

  --kill-worker EVERY   SIGKILL to a worker
  --pause-worker EVERY  SIGSTOP to a worker, and SIGCONT after --pause-time [5s]
  --kill-node EVERY     SIGKILL to an agent, never to that of the coordinator's node if others
                        are there; whoever started it has to start it again
  --for TIME            how long [1m]
  --seed N              the same storm again

{FINDING}"""
VALUES = ("--kill-worker", "--pause-worker", "--kill-node", "--for", "--pause-time", "--seed")
RATES: dict[str, Harm] = {
    "--kill-worker": "kill worker",
    "--pause-worker": "pause worker",
    "--kill-node": "kill node",
}
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
SETTLE_S = 20.0
"""How long the job may take to get over the last stroke."""


class StormTold(Struct):
    """What was done so far, and what came of it."""

    strokes: int = 0
    missed: int = 0
    """Strokes that found nobody to strike."""
    recoveries_s: list[float] = field(default_factory=list)
    last_event: int = 0


def chaos(words: list[str]) -> int:
    """The verb. Returns the exit status."""
    return run_verb(_chaos, words, HELP)


def _chaos(words: list[str]) -> int:
    values, rest = take_values(words, VALUES)
    request = sort(rest, ())
    pause_s = seconds(_last(values["--pause-time"], "5s"))
    rates = [
        HarmRate(what, seconds(text), pause_s if what == "pause worker" else 0.0)
        for name, what in RATES.items()
        for text in values[name]
    ]
    if not rates:
        raise UsageError("what harm is to be done?", "for example: --kill-worker 30s --for 5m")
    length_s = seconds(_last(values["--for"], "1m"))
    seed = whole_number(0)(_last(values["--seed"], str(random.SystemRandom().randrange(10**6))))
    dice = random.Random(seed)
    print(f"a storm of {duration(length_s)}, seed {seed}", flush=True)
    return _weather(request, storm(rates, length_s, dice), length_s, dice)


def _last(given: list[str], default: str) -> str:
    return given[-1] if given else default


def seconds(text: str) -> float:
    """`30s`, `5m`, `1/30s` or `90`. Raises `UsageError`."""
    found = re.fullmatch(r"(?:1/)?(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip())
    if found is None or float(found[1]) <= 0.0:
        raise UsageError(f"{text!r} is no time", "write 30s, 5m or 2h")
    return float(found[1]) * UNITS[found[2] or ""]


def _weather(
    request: VisitRequest, strokes: list[Stroke], length_s: float, dice: random.Random
) -> int:
    told, name = StormTold(), "".join(request.names)
    job = visit(request, name)
    try:
        told.last_event = _skip_events(job)
        began = time.monotonic()
        for stroke in strokes:
            job.pause(max(0.0, began + stroke.at_s - time.monotonic()))
            _strike(job, stroke, told, dice)
            _watch(job, told)
        job.pause(max(0.0, began + length_s - time.monotonic()))
        settled = _settle(job, told)
    finally:
        job.close()
    _tell(told)
    return exit_status.SUCCEEDED if settled else exit_status.FAILED


def _skip_events(job: Visit) -> int:
    *_, (_, last) = [(None, 0), *events_after(job, 0)]
    return last


def _strike(job: Visit, stroke: Stroke, told: StormTold, dice: random.Random) -> None:
    victim = _victim(job, stroke.rate.what, dice)
    if victim is None:
        told.missed += 1
        return
    node, rank = victim
    wanted = HarmWanted(stroke.rate.what, rank, stroke.rate.seconds)
    for _, answer in job.ask(wanted, "some", (node,)):
        if isinstance(answer, NotKnown):
            raise VisitError(answer.reason)
    told.strokes += 1
    whom = f"rank {rank} on {node}" if rank is not None else node
    print(f"{time.strftime('%H:%M:%S')}  {stroke.rate.what}: {whom}", flush=True)


def _victim(job: Visit, what: Harm, dice: random.Random) -> tuple[str, int | None] | None:
    """Somebody who is there now; None where nobody is to be had."""
    if what == "kill node":
        told = job.ask_coordinator(JobAsked())
        assert isinstance(told, JobTold), told
        others = [one.name for one in told.nodes if one.name != told.coordinator]
        return (dice.choice(sorted(others)), None) if others else None
    ranks = [
        (node, one.rank)
        for node, told in job.ask(RanksAsked(), of="all")
        if isinstance(told, RanksTold)
        for one in told.ranks
    ]
    return dice.choice(sorted(ranks)) if ranks else None


def _watch(job: Visit, told: StormTold) -> None:
    for event, last in events_after(job, told.last_event):
        told.last_event = last
        if event.kind == "recovered":
            took = sum(event.parts_s.values())
            told.recoveries_s.append(took)
            print(f"{time.strftime('%H:%M:%S')}  {event.words}", flush=True)


def _settle(job: Visit, told: StormTold) -> bool:
    """Wait until the job runs again; whether it does."""
    given_up_at = time.monotonic() + SETTLE_S
    while time.monotonic() < given_up_at:
        _watch(job, told)
        seen = job.ask_coordinator(JobAsked())
        if isinstance(seen, JobTold) and seen.stage == "running":
            return True
        job.pause(0.5)
    return False


def _tell(told: StormTold) -> None:
    found = sorted(told.recoveries_s)
    print(f"\nthe storm is over: {told.strokes} strokes, {len(found)} recoveries")
    if told.missed:
        print(f"  {told.missed} found nobody to strike")
    if found:
        middle, worst = found[len(found) // 2], found[-1]
        print(f"  back to stepping in {middle:.2f} s (the middle one), {worst:.2f} s at worst")
