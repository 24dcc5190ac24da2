"""The present activity of a job, in one line (`observe.history`).

The line is plain ASCII and never wider than it may be: a terminal's width is counted in columns.
A wait is shown with its reason and start, and a bar if its latest end is known.
"""

from __future__ import annotations

from holdfast.core.protocol.bounds import clean
from holdfast.observe.history import History, RoundHistory, Wait
from holdfast.observe.summary import counted, is_overdue, rate

BAR = 10
NARROWEST = 24


def live_line(history: History, now: float, width: int) -> str:
    """The line, for a terminal that is so wide; empty where that is too narrow."""
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
