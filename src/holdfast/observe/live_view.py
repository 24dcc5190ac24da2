"""The present activity of a job, in one line (`observe.history`).

The line is plain ASCII and never wider than it may be: a terminal's width is counted in columns.
A wait is shown with its reason and start, and a bar if its latest end is known.
"""

from __future__ import annotations

from holdfast.core.protocol.bounds import clean
from holdfast.observe.history import Activity, History, RoundHistory
from holdfast.observe.summary import is_overdue, rate

BAR = 10
NARROWEST = 24


def live_line(history: History, now: float, width: int) -> str:
    """The line, for a terminal that is so wide; empty where that is too narrow."""
    if width < NARROWEST or history.start is None:
        return ""
    last = history.current
    parts = ["holdfast", *(_facts(history, last, now) if last is not None else ())]
    waited = history.contact_lost or history.activity
    parts.append(_waited(waited, now) if waited is not None else _length(now - history.start))
    line = " | ".join(parts)
    plain = clean(line).encode("ascii", "replace").decode("ascii")
    return plain if len(plain) < width else plain[: width - 4] + "..."


def _facts(history: History, last: RoundHistory, now: float) -> list[str]:
    ranks = "1 rank" if last.ranks == 1 else f"{last.ranks} ranks"
    facts = [f"round {last.number}", ranks]
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
        facts.append("1 restart" if last.restarts == 1 else f"{last.restarts} restarts")
    return facts


def _waited(activity: Activity, now: float) -> str:
    passed = max(0.0, now - activity.since)
    if activity.until is None or activity.until <= activity.since:
        return f"{activity.words} | {_length(passed)}"
    whole = activity.until - activity.since
    full = round(min(passed / whole, 1.0) * BAR)
    bar = f"[{'#' * full}{'-' * (BAR - full)}]"
    return f"{activity.words} | {bar} {_length(passed)} of {_length(round(whole))}"


def _length(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
