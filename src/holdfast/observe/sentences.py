"""What the views of a job tell their users, as functions of facts."""

from __future__ import annotations

from collections.abc import Iterable

# Facts that journals do not have (`observe.job_report`).

NO_STEPS = (
    'no worker reported a step (holdfast.progress): "useful" means that workers ran, '
    "and no step counts as lost"
)
CUT_OFF = "the journals end in the middle: the job runs elsewhere, or its agents were killed"
HOSTS_NAMED = 8


def cut_journals(hosts: Iterable[str]) -> str:
    names = ", ".join(sorted(set(hosts))[:HOSTS_NAMED])
    return f"the journal of {names} ends before the job did: its agent was killed there"


def missing_journals(here: int, nodes: int) -> str:
    known = "what the others did is known as far as it was told"
    return f"{here} of {nodes} nodes' journals are here: {known}"


def missing_lines(lines: int) -> str:
    return f"{lines} lines are gone, because a journal had become too long"


def moved_clock(host: str, by_s: float) -> str:
    """Its times are moved by that much."""
    where = "behind" if by_s > 0 else "ahead of"
    return (
        f"the clock of {host} was {abs(by_s):.3f} s {where} the coordinator's: its times are moved"
    )


# Event handlers (`observe.event_handlers`).


def no_handler(name: str, known: Iterable[str]) -> str:
    return f"there is no event handler {name}; there are {', '.join(known)}"


def not_a_handler(name: str) -> str:
    return f"the event handler {name} is not a logging.Handler"


def handler_not_made(name: str, error: BaseException) -> str:
    return f"the event handler {name} cannot be made: {_named(error)}"


def handler_failed(name: str, error: BaseException) -> str:
    return f"the event handler {name} failed: {_named(error)}"


def handler_left(name: str) -> str:
    return f"the event handler {name} is still at work, and is left"


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
