"""A job in a few numbers: in its progress lines, its live line, and the line that it ends with.

The one seam between the console and the interpreter of a job's history: time and goodput are
those of `observe.history` and `observe.goodput`, and so of the report.
"""

from __future__ import annotations

import shlex
import time
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.model import Outcome
from holdfast.observe.history import History, LiveHistory, RoundHistory, Wait

OVERDUE_STEPS, OVERDUE_S = 5.0, 5.0
BAR = 10
NARROWEST = 24
IDLE_S = 60.0
"""After so long without a step, the age of the last one is told."""


class Summary(Struct, frozen=True, omit_defaults=True):
    """A job's numbers, at one moment."""

    seconds: float
    round: int = 0
    is_running: bool = False
    """Whether workers run, as far as known; otherwise the next round is waited for."""
    nodes: int = 0
    ranks: int = 0
    restarts: int = 0
    """Of rounds in which a worker failed."""
    step: int | None = None
    """The furthest reported step."""
    steps: int | None = None
    """Steps made by the whole job."""
    steps_per_s: float | None = None
    """In this round."""
    step_age_s: float | None = None
    goodput: float | None = None
    """The useful share of the time; None if workers report no steps."""


def summarize(live: LiveHistory, now: float) -> Summary:
    """The job up to this moment of the node's own clock."""
    history, last = live.history, live.history.current
    seconds = live.age_s(now)
    if last is None:
        return Summary(seconds)
    known = Summary(
        seconds, last.number, history.is_running, last.nodes, last.ranks, history.restarts
    )
    if history.first_step is None or history.furthest_step is None:
        return known
    return replace(
        known,
        step=history.furthest_step,
        steps=history.furthest_step - history.first_step + 1,
        steps_per_s=history.pace or None,
        step_age_s=live.step_age_s(now),
        goodput=live.book(now).goodput,
    )


# In words.


def progress(known: Summary) -> str:
    """ "running for 5 min, round 1, 8 ranks, step 1,229, 2.1 steps/s" """
    if not known.round:
        return f"waiting for nodes for {length(known.seconds)}"
    parts = [f"running for {length(known.seconds)}", f"round {known.round}"]
    if not known.is_running:
        parts[-1] = f"between rounds {known.round} and {known.round + 1}"
    parts.append(counted(known.ranks, "rank"))
    if known.nodes > 1:
        parts[-1] += f" on {known.nodes} nodes"
    if known.step is not None:
        parts.append(f"step {known.step:,}")
        if known.step_age_s is not None and known.step_age_s >= IDLE_S:
            parts.append(f"the last one {length(known.step_age_s)} ago")
        elif known.steps_per_s is not None:
            parts.append(f"{rate(known.steps_per_s)} steps/s")
    if known.restarts:
        parts.append(counted(known.restarts, "restart"))
    return ", ".join(parts)


def closing(outcome: Outcome, known: Summary, job: str) -> str:
    """ "succeeded in 10 min 15 s, 1,229 steps, goodput 99.8 %; report: holdfast report NAME"

    Without the name of a job, no journal is left of it.
    """
    parts = [f"{_ended(outcome)} {length(known.seconds)}"]
    if known.steps is not None:
        parts.append(counted(known.steps, "step"))
    if known.restarts:
        parts.append(counted(known.restarts, "restart"))
    if known.goodput is not None:
        parts.append(f"goodput {100 * known.goodput:.1f} %")
    words = ", ".join(parts)
    return f"{words}; report: holdfast report {clean(shlex.quote(job))}" if job else words


def as_event(outcome: Outcome, known: Summary, journal: str) -> dict[str, Any]:
    """The same for programs: the last event of `holdfast run --json`."""
    told = {"at": round(time.time(), 3), "kind": "summary", "verdict": outcome.verdict}
    numbers = {name: getattr(known, name) for name in ("nodes", "ranks", "restarts", "steps")}
    shares = {"seconds": round(known.seconds, 3), "goodput": known.goodput}
    status = {"exit_status": outcome.exit_status, "reason": outcome.reason, "journal": journal}
    return {**told, **shares, **numbers, **status}


def _ended(outcome: Outcome) -> str:
    if outcome.asked == "node":
        return "left the job, which goes on, after"
    verdicts = {"succeeded": "succeeded in", "not_formed": "gave up after"}
    return verdicts.get(outcome.verdict, f"{outcome.verdict} after")


def counted(number: int, what: str) -> str:
    """ "1 rank", "1,229 steps" """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def rate(each_second: float) -> str:
    """ "0.021", "2.1", "19.9", "1,010" """
    if each_second >= 99.95:
        return f"{each_second:,.0f}"
    return f"{each_second:.1f}" if each_second >= 1 else f"{each_second:.2g}"


def is_overdue(step_age_s: float | None, steps_per_s: float | None) -> bool:
    """Whether the last step is so old that a reader should check: a few usual steps, and a
    moment at least."""
    if step_age_s is None or not steps_per_s:
        return False
    return step_age_s > max(OVERDUE_S, OVERDUE_STEPS / steps_per_s)


def length(seconds: float) -> str:
    """ "0.4 s", "12 s", "10 min 15 s", "3 h 12 min" """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, smaller in ((86400, "d", "h"), (3600, "h", "min"), (60, "min", "s")):
        if whole >= unit:
            rest = whole % unit // {"h": 3600, "min": 60, "s": 1}[smaller]
            return f"{whole // unit} {name} {rest} {smaller}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"


# The live line.


def live_line(history: History, now: float, width: int) -> str:
    """The present activity in one line, for a terminal of this width; empty if that is too narrow.

    It is plain ASCII: a terminal's width is counted in columns. A wait is shown with its reason and
    start, and a bar if its latest end is known.
    """
    if width < NARROWEST or history.start is None:
        return ""
    last = history.current
    parts = ["holdfast", *(_facts(history, last, now) if last is not None else ())]
    waited = _wait_of(history, now)
    parts.append(_waited(waited, now) if waited is not None else _length(now - history.start))
    line = " | ".join(parts)
    plain = clean(line).encode("ascii", "replace").decode("ascii")
    return plain if len(plain) < width else plain[: width - 4] + "..."


def _facts(history: History, last: RoundHistory, now: float) -> list[str]:
    facts = [f"round {last.number}", counted(last.ranks, "rank")]
    if last.nodes > 1:
        facts[-1] += f" on {last.nodes} nodes"
    if last.furthest_step is not None:
        pace = history.pace
        age_s = now - (last.last_stepped or now)
        speed = f", {rate(pace)}/s" if pace else ""
        if history.is_running and is_overdue(age_s, pace):
            speed = f", none for {_length(age_s)}"
        facts.append(f"step {last.furthest_step}{speed}")
    if last.restarts:
        facts.append(counted(last.restarts, "restart"))
    return facts


def _wait_of(history: History, now: float) -> Wait | None:
    """What the job waits for now, in words."""
    last, timeouts = history.current, history.config.timeouts
    if history.contact_lost is not None:
        until = history.contact_lost + history.config.leases.lease_s if last is not None else None
        return Wait("no contact with the coordinator", history.contact_lost, until)
    if last is not None and history.is_running:
        if last.started is None or not last.has_started:
            return Wait("starting the workers", last.announced)
        is_silent = history.reports_steps and last.first_stepped is None
        return Wait("no step yet", last.started) if is_silent else None
    if last is not None and last.ended is not None and last.stopped is None:
        return Wait("stopping the workers", last.ended, last.ended + timeouts.shutdown_s)
    for span in history.pauses[-1:]:
        if span.end is not None and span.end > now:
            return Wait("a pause before the restart", span.start, span.end)
    for span in history.imports[-1:]:
        if span.end is None:
            until = span.start + timeouts.preload_s
            return Wait("importing modules, once for all workers", span.start, until)
    if history.waiting is not None or history.closed is not None or last is None:
        return history.waiting
    return Wait("forming the next round", last.stopped or now)


def _waited(wait: Wait, now: float) -> str:
    passed = max(0.0, now - wait.since)
    if wait.until is None or wait.until <= wait.since:
        return f"{wait.words} | {_length(passed)}"
    whole = wait.until - wait.since
    full = round(min(passed / whole, 1.0) * BAR)
    bar = f"[{'#' * full}{'-' * (BAR - full)}]"
    return f"{wait.words} | {bar} {_length(passed)} of {_length(round(whole))}"


def _length(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
