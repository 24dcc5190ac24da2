"""Times as arguments: a duration, a time of the day, or so long before the end."""

from __future__ import annotations

import re
import time

from holdfast.core.protocol.errors import UsageError

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?")
AROUND_S = 5.0
"""A time with seconds is the middle of what is shown."""
_TIME = "use 14:05, 14:05:07 or '2026-11-18 14:05'"
_DAY_S = 86400


def duration(text: str) -> float:
    """`30s`, `5m`, `2h` or `90`, as seconds. Raises `UsageError`."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0.0:
        raise UsageError(f"invalid duration: {text!r}", "use 30s, 5m or 1h")
    return float(found[1]) * UNITS[found[2] or ""]


def since(text: str, start: float, end: float) -> float:
    """The start: so long before the end, or a time of the day."""
    if _DURATION.fullmatch(text.strip()):
        return end - duration(text)
    if ":" not in text:
        raise UsageError(f"invalid time: {text!r}", "use 90s, 10m or 2h, or 14:05")
    return around(text, start, end)[1]


def around(text: str, start: float, end: float) -> tuple[float, float, float]:
    """The start, the end and the moment between: that minute, or some seconds around a second.

    The moment is in the middle.

    Without a date it is the last day of the job that has this time in it. Raises `UsageError` for
    an invalid time, or one outside the job's.
    """
    parsed = _parsed(text)
    if parsed is None:
        raise UsageError(f"invalid time: {text!r}", _TIME)
    clock, has_date, has_seconds = parsed
    found = time.mktime(clock) if has_date else _on_a_day_between(clock, start, end)
    first, last = (found - AROUND_S, found + AROUND_S) if has_seconds else (found, found + 60.0)
    if last < start or first > end:
        ran = f"{_shown(start)} to {_shown(end)}"
        raise UsageError(f"the job did not run at {text}", f"it ran from {ran}, on this clock")
    return first, found, last


def _parsed(text: str) -> tuple[time.struct_time, bool, bool] | None:
    """The time, whether it has a date, and whether it has seconds."""
    words = text.strip().replace("T", " ")
    for form in ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%H:%M:%S", "%H:%M"):
        try:
            return time.strptime(words, form), form.startswith("%Y"), form.endswith("%S")
        except ValueError:
            continue
    return None


def _on_a_day_between(clock: time.struct_time, start: float, end: float) -> float:
    day = time.localtime(end)
    best = 0.0
    for back in range(int((end - start) // _DAY_S) + 2):
        on = (day.tm_year, day.tm_mon, day.tm_mday - back, clock.tm_hour, clock.tm_min)
        found = time.mktime((*on, clock.tm_sec, 0, 0, -1))
        best = best or found
        if found <= end and found + 60.0 >= start:
            return found
    return best


def _shown(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
