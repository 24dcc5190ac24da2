"""The output of `squeue` for a job, and the lines about its changes for a user who follows it.

Rules
1. A line is said when something changed that the user would act on: an element began, is waiting
   again, or is no more in the queue. Reasons for waiting count as a change only with the state.
2. One line stands for all elements to which the same happened at once, in the order of their
   numbers; of very many, the first and the last are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

NAMED_MOST = 8
SQUEUE_FORMAT = "%i|%T|%N|%r"
FIELDS = 4
GONE = "gone"
RUNNING, PENDING = "RUNNING", "PENDING"
WORDS = {
    RUNNING: "running",
    PENDING: "waiting",
    "CONFIGURING": "waiting for machines to start",
    "COMPLETING": "ending",
    "REQUEUED": "back in the queue",
    "REQUEUE_HOLD": "held in the queue",
    "SUSPENDED": "suspended",
    GONE: "no longer in the queue",
}


class Element(Struct, frozen=True):
    """One line of `squeue`."""

    number: str
    """`4711_3` of an array; the job's own without one."""
    state: str
    nodes: str
    reason: str


def read_queue(text: str) -> list[Element]:
    """The elements in what `squeue` printed; lines that it never prints are passed over."""
    rows = (line.strip().split("|", FIELDS - 1) for line in text.splitlines())
    return [Element(*row) for row in rows if len(row) == FIELDS]


def news(before: Sequence[Element], now: Sequence[Element]) -> Iterator[str]:
    """The changes, in a line for each thing that happened."""
    known = {one.number: one for one in before}
    changed = [one for one in now if _differs(known.get(one.number), one)]
    present = {one.number for one in now}
    changed += [Element(one.number, GONE, "", "") for one in before if one.number not in present]
    groups: dict[str, list[Element]] = {}
    for one in changed:
        groups.setdefault(_what(one), []).append(one)
    for what, elements in groups.items():
        elements.sort(key=lambda one: (len(one.number), one.number))
        yield f"{named([_named(one) for one in elements])}: {what}"


def named(names: Sequence[str]) -> str:
    """All of them, or, of very many, the first and the last."""
    if len(names) <= NAMED_MOST:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)})"


def _differs(before: Element | None, now: Element) -> bool:
    return before is None or (before.state, before.nodes) != (now.state, now.nodes)


def _named(element: Element) -> str:
    return f"{element.number} on {element.nodes}" if element.nodes else element.number


def _what(element: Element) -> str:
    words = WORDS.get(element.state, element.state.lower().replace("_", " "))
    is_told = element.state == PENDING and element.reason not in ("", "None")
    return f"{words} ({element.reason})" if is_told else words
