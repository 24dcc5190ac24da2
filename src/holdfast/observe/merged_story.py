"""The stories of several nodes, merged into one.

Rules
1. A cause comes before its effect, as far as the journals show causes
   (`observe.causes`). Otherwise the clocks of the hosts decide.
2. A host whose clock contradicts that is moved: by half of the difference between its two ways to
   the coordinator's host, as far as both are known. All times are then on the coordinator's clock.
3. An event that several nodes tell (the end of a round) is told once, by the first. Of a recovery
   the last node counts: the others waited for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from msgspec import Struct
from msgspec.structs import replace

from holdfast.observe.causes import JournalRead, StepId, causes
from holdfast.observe.journal import CoordinatorStep, Step
from holdfast.observe.story import Key, StoryEvent, Storyteller

INFINITE = float("inf")
CLOCKS_AGREE_S = 0.002
"""A contradiction this small may be due to when each of them read its clock."""


MISTAKEN_S = 0.05
"""Once clocks are put right, what is later than its effect by more than this did not cause it:
messages that were said twice are paired by their order, which a loss can shift."""


class ToldStory(Struct, frozen=True):
    """One story of all that the journals tell."""

    events: tuple[StoryEvent, ...]
    moved_s: dict[str, float]
    """Nodes whose clock was found wrong: the correction of their times."""
    names: dict[str, str]
    """The last name of each node whose journal is given."""


class _ToldLine(Struct, frozen=True):
    """One step of one journal, in time, with its events."""

    id: StepId
    at: float
    events: tuple[StoryEvent, ...]


def tell(journals: Iterable[JournalRead]) -> ToldStory:
    """The story of one job by all given journals."""
    known = list(journals)
    tellers = {header.node: Storyteller(header) for header, _ in known}
    lines = {
        header.node: _lines(tellers[header.node], header.node, steps) for header, steps in known
    }
    names = {node: teller.name_of(node) for node, teller in tellers.items()}
    because = causes(known) if len(known) > 1 else {}
    moved = _moved(lines, because, _coordinator(known))
    told = [
        replace(
            event,
            at=round(event.at + moved.get(line.id.node, 0.0), 3),
            host=names.get(event.node, event.host),
        )
        for line in _in_order(lines, because, moved)
        for event in line.events
    ]
    told = _once(told)
    because = because or causes(known)
    return ToldStory(tuple(_with_causes(told, because)), moved, names)


def _lines(teller: Storyteller, node: str, steps: Sequence[Step]) -> list[_ToldLine]:
    lines = []
    for step in steps:
        events = tuple(teller.feed(step))
        lines.append(_ToldLine(StepId(node, step.seq), _time(teller, step), events))
    return lines


def _time(teller: Storyteller, step: Step) -> float:
    at = getattr(step, "at", None)
    return teller.time_of(at) if at is not None else 0.0


def _coordinator(journals: Sequence[JournalRead]) -> str:
    """The node that was the coordinator for most of the steps."""
    counted = {
        header.node: sum(isinstance(step, CoordinatorStep) for step in steps)
        for header, steps in journals
    }
    return max(counted, key=lambda node: counted[node], default="")


# Clocks.


def _moved(
    lines: dict[str, list[_ToldLine]], because: dict[StepId, StepId | None], centre: str
) -> dict[str, float]:
    """The nodes whose times contradict causes, and the correction of each (rule 2)."""
    at = {line.id: line.at for of_node in lines.values() for line in of_node}
    there: defaultdict[str, list[float]] = defaultdict(list)
    back: defaultdict[str, list[float]] = defaultdict(list)
    for line, cause in because.items():
        if cause is None or cause not in at or line.node == cause.node:
            continue
        took = at[line] - at[cause]
        if cause.node == centre:
            there[line.node].append(took)
        elif line.node == centre:
            back[cause.node].append(took)
    found = {node: _wrong_by(there[node], back[node]) for node in {*there, *back}}
    return {node: round(-by_s, 3) for node, by_s in found.items() if by_s}


def _wrong_by(there: list[float], back: list[float]) -> float:
    """How far a clock is ahead, by how long messages seem to have taken both ways.

    By the middle one of each, since a few pairs may be wrong: a message that was said twice.
    """
    onward, homeward = _middle(there), _middle(back)
    if min(onward or 0.0, homeward or 0.0) >= -CLOCKS_AGREE_S:
        return 0.0
    if onward is None or homeward is None:
        return onward or -(homeward or 0.0)
    return (onward - homeward) / 2


def _middle(durations: list[float]) -> float | None:
    return sorted(durations)[len(durations) // 2] if durations else None


# Order.


def _in_order(
    lines: dict[str, list[_ToldLine]],
    because: dict[StepId, StepId | None],
    moved: dict[str, float],
) -> list[_ToldLine]:
    """All lines, each after those before it in its journal and after its cause (rule 1)."""
    ordered: list[_ToldLine] = []
    done: set[StepId] = set()
    at = {line.id: line.at + moved.get(node, 0.0) for node in lines for line in lines[node]}
    places = dict.fromkeys(lines, 0)
    waiting: defaultdict[StepId, list[str]] = defaultdict(list)
    free: list[tuple[float, str]] = []

    def offer(node: str) -> None:
        """The next line of this journal may be told, or waits for its cause."""
        if places[node] == len(lines[node]):
            return
        line = lines[node][places[node]]
        cause = because.get(line.id)
        is_known = cause is not None and at.get(cause, INFINITE) <= at[line.id] + MISTAKEN_S
        if cause is not None and is_known and cause not in done:
            waiting[cause].append(node)
        else:
            heappush(free, (at[line.id], node))

    for node in lines:
        offer(node)
    while free or waiting:
        if not free:  # Two journals that wait for each other: one of the causes is none.
            free = [(at[lines[n][places[n]].id], n) for each in waiting.values() for n in each]
            heapify(free)
            waiting.clear()
        _, node = heappop(free)
        line = lines[node][places[node]]
        ordered.append(line)
        done.add(line.id)
        places[node] += 1
        offer(node)
        for other in waiting.pop(line.id, ()):
            offer(other)
    return ordered


def _once(events: Sequence[StoryEvent]) -> list[StoryEvent]:
    """Events of several nodes, each told once by the first (rule 3)."""
    tellers: dict[Key, str] = {}
    slowest: dict[int, float] = {}
    for event in events:
        if event.kind == "recovered":
            took = sum(event.parts_s.values())
            slowest[event.round] = max(took, slowest.get(event.round, 0.0))
    kept = []
    for event in events:
        if event.kind == "recovered":
            if sum(event.parts_s.values()) < slowest.get(event.round, 0.0):
                continue
            slowest[event.round] = INFINITE
        elif tellers.setdefault(event.key, event.by) != event.by:
            continue
        kept.append(event)
    return kept


def _with_causes(
    events: Sequence[StoryEvent], because: dict[StepId, StepId | None]
) -> list[StoryEvent]:
    """Each event with its cause: the nearest told event on the way back."""
    told = Counter(StepId(event.by, event.seq) for event in events)
    found = []
    for event in events:
        seen: set[StepId] = set()
        at = because.get(StepId(event.by, event.seq))
        while at is not None and at not in told and at not in seen:
            seen.add(at)
            at = because.get(at)
        is_told = at is not None and at in told
        found.append(replace(event, cause=f"{at.node}:{at.seq}" if at and is_told else ""))
    return found
