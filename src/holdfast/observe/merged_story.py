"""The story of a job from the journals of several nodes.

Rules
1. A cause comes before its effect, as far as the journals show causes (`observe.causes`).
   Otherwise the clocks of the hosts decide.
2. A host whose clock contradicts that is moved: by half of the difference between its two ways to
   the coordinator's host, as far as both are known. All times are then on the coordinator's clock.
3. The steps of all nodes, in that order, are followed by one `Storyteller`: an event that several
   nodes tell is told once, by the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.observe.causes import JournalRead, StepId, causes
from holdfast.observe.journal import ClockPair, ClockRead, CoordinatorStep, Gap, JournalHeader, Step
from holdfast.observe.story import StoryEvent, Storyteller

CLOCKS_AGREE_S = 0.002
"""A contradiction this small may be due to when each of them read its clock."""
MISTAKEN_S = 0.05
"""Once clocks are put right, what is later than its effect by more than this did not cause it:
messages that were sent twice are paired by their order, which a loss can shift."""
AFTER_ITS_CAUSE_S = 1e-6
PASSES_MOST = 100
"""Mistaken pairs can form a circle, in which no order has an end."""
Causes = Mapping[StepId, StepId | None]
Times = dict[StepId, float]


class ToldStory(Struct, frozen=True):
    """One story of all that the journals tell."""

    events: tuple[StoryEvent, ...]
    moved_s: dict[str, float]
    """Nodes whose clock was found wrong: the correction of their times."""
    names: dict[str, str]
    """The last name of each node whose journal is given."""


def tell(journals: Iterable[JournalRead]) -> ToldStory:
    """The story of one job by all given journals; at least one."""
    known = list(journals)
    because = causes(known)
    times = {line: at for header, steps in known for line, at in _times(header, steps)}
    moved = _moved(times, because, _coordinator(known))
    times = {line: at + moved.get(line.node, 0.0) for line, at in times.items()}
    times = _after_their_causes(known, times, because)
    lines = [(StepId(header.node, step.seq), step) for header, steps in known for step in steps]
    teller = Storyteller(*(header for header, _ in known))
    told = [
        event
        for line, step in sorted(lines, key=lambda line: times[line[0]])
        for event in teller.feed(step, line.node, times[line])
    ]
    names = {header.node: teller.name_of(header.node) for header, _ in known}
    ids = {StepId(event.by, event.seq) for event in told}
    events = (
        replace(
            event,
            at=round(event.at + moved.get(event.by, 0.0), 3),
            host=names.get(event.node, event.host),
            cause=_told_cause(event, because, ids),
        )
        for event in told
    )
    return ToldStory(tuple(events), moved, names)


def _told_cause(event: StoryEvent, because: Causes, told: set[StepId]) -> str:
    """The nearest line with an event on the way back, as `node:line`."""
    seen: set[StepId] = set()
    at = because.get(StepId(event.by, event.seq))
    while at is not None and at not in seen:
        if at in told:
            return f"{at.node}:{at.seq}"
        seen.add(at)
        at = because.get(at)
    return ""


# Clocks.


def _times(header: JournalHeader, steps: Sequence[Step]) -> Iterable[tuple[StepId, float]]:
    """As its events have them: by the last clock before each line."""
    clock = header.clock
    at = clock.wall
    for step in steps:
        if isinstance(step, ClockRead):
            clock = ClockPair(step.at, step.wall)
        if not isinstance(step, Gap):
            at = clock.time_of(step.at)
        yield StepId(header.node, step.seq), at


def _coordinator(journals: Sequence[JournalRead]) -> str:
    """The node that was the coordinator for most of the steps."""
    counted = {
        header.node: sum(isinstance(step, CoordinatorStep) for step in steps)
        for header, steps in journals
    }
    return max(counted, key=lambda node: counted[node], default="")


def _moved(times: Times, because: Causes, centre: str) -> dict[str, float]:
    """The nodes whose times contradict causes, and the correction of each (rule 2)."""
    there: defaultdict[str, list[float]] = defaultdict(list)
    back: defaultdict[str, list[float]] = defaultdict(list)
    for line, cause in because.items():
        if cause is None or cause not in times or line.node == cause.node:
            continue
        took = times[line] - times[cause]
        if cause.node == centre:
            there[line.node].append(took)
        elif line.node == centre:
            back[cause.node].append(took)
    found = {node: _wrong_by(there[node], back[node]) for node in {*there, *back}}
    return {node: round(-by_s, 3) for node, by_s in found.items() if by_s}


def _wrong_by(there: list[float], back: list[float]) -> float:
    """How far a clock is ahead, by how long messages seem to have taken both ways.

    By the middle one of each, since a few pairs may be wrong: a message that was sent twice.
    """
    onward, homeward = _middle(there), _middle(back)
    if min(onward or 0.0, homeward or 0.0) >= -CLOCKS_AGREE_S:
        return 0.0
    if onward is None or homeward is None:
        return onward or -(homeward or 0.0)
    return (onward - homeward) / 2


def _middle(durations: list[float]) -> float | None:
    return sorted(durations)[len(durations) // 2] if durations else None


def _after_their_causes(journals: Sequence[JournalRead], times: Times, because: Causes) -> Times:
    """The times, put later where a line is not after its cause and its journal's last one."""
    later = dict(times)
    for _ in range(PASSES_MOST):
        before = dict(later)
        for header, steps in journals:
            latest = 0.0
            for step in steps:
                line = StepId(header.node, step.seq)
                cause = because.get(line)
                if cause in times and times[cause] <= times[line] + MISTAKEN_S:
                    latest = max(latest, later[cause] + AFTER_ITS_CAUSE_S)
                latest = later[line] = max(latest, later[line])
        if later == before:
            break
    return later
