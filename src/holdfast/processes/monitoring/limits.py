"""How long a worker may take to begin, to its first step, and all of it: what is over when.

The options are the user's word (`Oversight`), so whoever is beyond one is ended for it.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from holdfast.core.policy.config import Oversight
from holdfast.processes.monitoring.pages import Sign

IsLate = Callable[[Sign | None, int | None], bool]
"""Whether a worker with this sign, and this last step, is beyond the limit."""


class Limit(Struct, frozen=True):
    """A time from the start of a round's workers on, and who is too late then."""

    after_s: float
    words: str
    is_late: IsLate
    is_final: bool = False
    """Another round would be beyond it, too."""


def limits_of(oversight: Oversight, run_left_s: float | None) -> list[Limit]:
    """Those that were set. `run_left_s` is what is left of the time for the whole run."""
    found = []
    if oversight.start_s is not None:
        words = f"the time to its first sign (--start-timeout {oversight.start_s:g})"
        found.append(Limit(oversight.start_s, words, _has_said_nothing))
    if oversight.first_step_s is not None:
        words = f"the time to the first step (--first-step-timeout {oversight.first_step_s:g})"
        found.append(Limit(oversight.first_step_s, words, _has_made_no_step))
    if run_left_s is not None:
        words = f"the time of the whole run (--run-timeout {oversight.run_s:g})"
        found.append(Limit(max(0.0, run_left_s), words, _always, is_final=True))
    return found


def _has_said_nothing(sign: Sign | None, step: int | None) -> bool:
    return sign is None and step is None


def _has_made_no_step(sign: Sign | None, step: int | None) -> bool:
    return step is None and (sign is None or sign.step is None)


def _always(sign: Sign | None, step: int | None) -> bool:
    return True
