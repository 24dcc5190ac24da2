"""Where a job's time went: the ledger of one job, whose parts add up to the whole.

    import              modules are imported, for all workers of a node or in each of them
    waiting for nodes   there are too few, or the last call for more
    form                nothing runs, and the next round is being agreed on
    spawn               the round is announced → every worker's process exists
    first step          all workers run → one of them reports a step
    useful              the workers step; where none ever reports a step: they run
    lost steps          stepped, and done again after a restart, since they were not saved
    detect              something was wrong already → it was detected
    stop                detected → nothing of the round is left
    pause               the back-off before a restart
    idle after the end  all workers are done, or the job was given up → its last line

Rules
1. Every moment from the first line to the last one is in exactly one part.
2. `ledger` works the parts out of the rounds of a `History`, whenever it is asked, in a time that
   grows with the number of rounds. It is the one meaning of goodput: of the report, `holdfast
   status`, the dashboard, the metrics and the closing line.
3. Unknown facts are not guessed. Without reported steps `useful` means that workers ran
   (`TimeLedger.reports_steps`), no step counts as lost, and there is no `first step`. How long
   workers that start cold import is part of `first step`. How long a dead worker was dead before
   its agent knew is in no journal: it is `detect` only for silent nodes, for stalls (from
   the last step on), and from the moment that a worker wrote down its own exception.
4. It is the job's time, not that of machines: a round with fewer nodes than it could have is
   useful.
5. The time of lost steps is in proportion to the steps of their round: of the steps that it made,
   the part that a later round made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from msgspec import Struct

from holdfast.observe.history import INCIDENTS, EndedBy, History, RoundHistory, TimeSpan

Part = Literal[
    "import",
    "waiting for nodes",
    "form",
    "spawn",
    "first step",
    "useful",
    "lost steps",
    "detect",
    "stop",
    "pause",
    "idle after the end",
]
PARTS: tuple[Part, ...] = get_args(Part)
RECOVERY_PARTS: tuple[Part, ...] = (
    "stop", "pause", "waiting for nodes", "form", "import", "spawn", "first step"
)  # fmt: skip


class Segment(Struct, frozen=True):
    """A piece of the job's time."""

    part: Part
    start: float
    end: float
    round: int
    """The round that runs, ends, or is to come."""

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Interruption(Struct, frozen=True):
    """A round that ended before its work was done, and its cost until the next one made a step."""

    at: float
    """When it was detected."""
    round: int
    next_round: int
    """0 if no round followed."""
    ended_by: EndedBy
    reason: str
    decision: str
    """The decision, in words."""
    ranks: tuple[int, ...]
    """Workers that failed by themselves."""
    parts_s: dict[Part, float]
    steps_lost: int | None
    """None if not known."""
    is_over: bool
    """Whether the next round has made its first step, or runs without reporting any."""

    @property
    def total_s(self) -> float:
        return sum(self.parts_s.values())

    @property
    def recovery_s(self) -> float:
        """From its detection to the next round's first step."""
        return sum(self.parts_s.get(part, 0.0) for part in RECOVERY_PARTS)

    @property
    def is_incident(self) -> bool:
        """Whether it was unwanted: a failure, a loss or a hang."""
        return self.ended_by in INCIDENTS


class TimeLedger(Struct, frozen=True):
    """All of a job's time, in parts."""

    start: float
    end: float
    parts_s: dict[Part, float]
    segments: tuple[Segment, ...]
    interruptions: tuple[Interruption, ...]
    reports_steps: bool
    is_over: bool
    """False if the journals end early: an agent was killed, or the job still runs."""

    @property
    def goodput(self) -> float | None:
        """The useful share of the whole; None if there is no time at all."""
        whole = sum(self.parts_s.values())
        return self.parts_s["useful"] / whole if whole > 0 else None

    @property
    def incidents(self) -> tuple[Interruption, ...]:
        """The unwanted interruptions."""
        return tuple(one for one in self.interruptions if one.is_incident)


# Working it out.


class _Writer:
    """Puts segments one behind the other: none overlaps another, none is left out."""

    def __init__(self, start: float, end: float) -> None:
        self.at, self.end = start, end
        self.segments: list[Segment] = []

    def until(self, moment: float | None, part: Part, number: int) -> None:
        """Assign the time up to that moment to this part; None is to the end."""
        to = self.end if moment is None else min(moment, self.end)
        if to > self.at:
            self.segments.append(Segment(part, self.at, to, number))
            self.at = to


def ledger(history: History, until: float | None = None) -> TimeLedger:
    """The ledger of a job; of one that runs, up to this moment."""
    latest = history.end if until is None else until
    start = latest if history.start is None else history.start
    end = max(start, latest)
    reports = any(one.first_stepped is not None for one in history.rounds)
    writer = _Writer(start, end)
    waits: _Waits = [
        ("import", _Spans(history.imports)),
        ("pause", _Spans(history.pauses)),
        ("waiting for nodes", _Spans(history.waits)),
    ]
    for index, one in enumerate(history.rounds):
        _between(writer, waits, one.announced, one.number)
        following = history.rounds[index + 1] if index + 1 < len(history.rounds) else None
        _of_round(writer, one, reports, following.announced if following else history.closed)
    last = history.rounds[-1] if history.rounds else None
    number = last.number if last is not None else 0
    if history.closed is None and (last is None or last.succeeded is None):
        _between(writer, waits, None, number + 1)
    elif last is None or last.succeeded is None:
        _between(writer, waits, history.closed, number)
    writer.until(None, "idle after the end", number)
    segments, lost = _with_lost_steps(writer.segments, history.rounds)
    parts: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
    for segment in segments:
        parts[segment.part] += segment.seconds
    interrupted = _interruptions(history.rounds, segments, lost if reports else None)
    return TimeLedger(
        start, end, parts, tuple(segments), interrupted, reports, history.closed is not None
    )


def _of_round(writer: _Writer, one: RoundHistory, reports: bool, following: float | None) -> None:
    """From a round's announcement until nothing of it is left."""
    number = one.number
    broken = one.ended if one.succeeded is None else None
    ends = broken if broken is not None else one.succeeded
    ends = following if ends is None else ends
    known = INFINITE if ends is None else ends
    started = one.started if one.has_started else None
    writer.until(min(INFINITE if started is None else started, known), "spawn", number)
    writer.until(min(writer.at + one.imports_s, known), "import", number)
    if reports:
        stepped = INFINITE if one.first_stepped is None else one.first_stepped
        writer.until(min(stepped, known), "first step", number)
    if broken is not None:
        writer.until(broken - one.unnoticed_s, "useful", number)
    else:
        writer.until(one.stalled if ends is None else ends, "useful", number)
    writer.until(ends, "detect", number)
    if broken is not None:
        gone = one.stopped if one.stopped is not None else following
        latest = INFINITE if following is None else following
        writer.until(min(INFINITE if gone is None else gone, latest), "stop", number)


def _between(writer: _Writer, waits: _Waits, until: float | None, number: int) -> None:
    """The part for time in which nothing runs: the reason of the wait for the next round."""
    end = INFINITE if until is None else until
    while writer.at < min(end, writer.end):
        looks = [(part, *spans.look(writer.at)) for part, spans in waits]
        part: Part = next((part for part, is_covered, _ in looks if is_covered), "form")
        writer.until(min(end, *(change for _, _, change in looks)), part, number)


class _Spans:
    """Spans of one kind, as they cover moments that are asked about in the order of time."""

    def __init__(self, spans: Iterable[TimeSpan]) -> None:
        self._edges: list[tuple[float, float]] = []
        self._next = 0
        for one in sorted(spans, key=lambda span: span.start):
            end = INFINITE if one.end is None else one.end
            if self._edges and one.start <= self._edges[-1][1]:
                self._edges[-1] = (self._edges[-1][0], max(end, self._edges[-1][1]))
            elif end > one.start:
                self._edges.append((one.start, end))

    def look(self, moment: float) -> tuple[bool, float]:
        """Whether one covers this moment, and when that changes."""
        while self._next < len(self._edges) and self._edges[self._next][1] <= moment:
            self._next += 1
        if self._next == len(self._edges):
            return False, INFINITE
        start, end = self._edges[self._next]
        return (True, end) if start <= moment else (False, start)


_Waits = list[tuple[Part, _Spans]]
"""The reasons for which a round can wait; the first match counts."""


INFINITE = float("inf")


# Steps that were made twice.


class _Reached(Struct):
    """Steps that a round made and no later one has made again."""

    number: int
    first: int
    last: int
    made: int


def _with_lost_steps(
    segments: Sequence[Segment], rounds: Sequence[RoundHistory]
) -> tuple[list[Segment], dict[int, int]]:
    """Subtract steps that a later round made again from useful ones; return how many, by the round
    that was followed by that.

    A round that begins at a step makes all from there on again: after it, whatever is left of
    those before ends earlier, so that only the last ones have to be checked.
    """
    lost: dict[int, int] = {}
    kept: dict[int, float] = {}
    """By round: the share of its useful time that was useful in the end."""
    reached: list[_Reached] = []
    before: int | None = None
    for later in rounds:
        if later.first_step is None or later.furthest_step is None:
            continue
        again = 0
        while reached and reached[-1].last >= later.first_step:
            one = reached[-1]
            begins = max(one.first, later.first_step)
            again += one.last - begins + 1
            one.last = begins - 1
            kept[one.number] = (begins - one.first) / one.made
            if one.last >= one.first:
                break
            reached.pop()
        if again and before is not None:
            lost[before] = lost.get(before, 0) + again
        made = later.furthest_step - later.first_step + 1
        reached.append(_Reached(later.number, later.first_step, later.furthest_step, made))
        before = later.number
    return [piece for one in segments for piece in _split(one, kept)], lost


def _split(segment: Segment, kept: dict[int, float]) -> list[Segment]:
    share = kept.get(segment.round, 1.0)
    if segment.part != "useful" or share >= 1.0:
        return [segment]
    middle = segment.start + share * segment.seconds
    pieces = [
        Segment("useful", segment.start, middle, segment.round),
        Segment("lost steps", middle, segment.end, segment.round),
    ]
    return [piece for piece in pieces if piece.seconds > 0]


def _interruptions(
    rounds: Sequence[RoundHistory], segments: Sequence[Segment], lost: dict[int, int] | None
) -> tuple[Interruption, ...]:
    """Each ended round, with its lost time until the next round's steps."""
    found = []
    by_round: dict[int, list[Segment]] = {}
    for segment in segments:
        by_round.setdefault(segment.round, []).append(segment)
    for index, one in enumerate(rounds):
        if one.ended is None or one.succeeded is not None:
            continue
        following = rounds[index + 1] if index + 1 < len(rounds) else None
        next_round = following.number if following is not None else 0
        parts: dict[Part, float] = {}
        for segment in (*by_round.get(one.number, ()), *by_round.get(next_round, ())):
            if _belongs(segment, one, next_round):
                parts[segment.part] = parts.get(segment.part, 0.0) + segment.seconds
        found.append(
            Interruption(
                one.ended,
                one.number,
                next_round,
                one.ended_by,
                one.reason,
                one.decision,
                tuple(sorted(one.failed_ranks)),
                parts,
                None if lost is None else lost.get(one.number, 0),
                following is not None and _goes_on(following, lost is not None),
            )
        )
    return tuple(found)


def _goes_on(following: RoundHistory, reports: bool) -> bool:
    return following.first_stepped is not None if reports else following.has_started


def _belongs(segment: Segment, ended: RoundHistory, following: int) -> bool:
    if segment.part in ("useful", "idle after the end"):
        return False
    if segment.round == ended.number:
        return segment.part in ("lost steps", "detect", "stop") or segment.start >= (
            ended.ended or 0.0
        )
    return segment.round == following and segment.part in (
        *("import", "waiting for nodes", "form", "pause", "spawn", "first step"),
    )
