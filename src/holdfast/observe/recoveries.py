"""How long each part of a recovery took, read off the steps of a journal.

A recovery goes from when the agent first knows that its round cannot go on (a failure of its
own, or the coordinator's word) to the next round's first step:

    stop          known → nothing of the old round is left
    form          nothing left → the next round is announced, pauses included
    spawn         announced → every worker's process exists
    first step    spawned → the first of the workers reports a step, where they report

How long a worker had been dead before the agent knew is not in a journal.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from holdfast.core.node.io import AllGone, StepReported, Told, WorkerExited, WorkerStarted
from holdfast.core.protocol.messages import RunRound, StopRound
from holdfast.observe.journal import AgentStep, Step


class Recovery(Struct):
    """How long one recovery took."""

    from_round: int
    to_round: int = 0
    parts_s: dict[str, float] = field(default_factory=dict)
    """Its parts, in the order in which they were reached."""

    @property
    def total_s(self) -> float:
        return sum(self.parts_s.values())

    def in_words(self, has_lasted: bool) -> str:
        """What was measured, under a name that promises no more than that.

        A job has recovered when it steps again, and when that `has_lasted`.
        """
        took = f"{self.total_s * 1000:.0f} ms"
        parts = ", ".join(f"{name} {part_s * 1000:.0f}" for name, part_s in self.parts_s.items())
        if not has_lasted:
            return f"restarted in {took} ({parts})"
        if "first step" not in self.parts_s:
            return f"respawned in {took} ({parts})"
        return f"recovered in {took}, to the first step ({parts})"


class RecoveryWatch:
    """Follows one node's steps, and says when a recovery is over.

    It is when the workers step again, or run again where none of them ever says how far it is; or
    when the round that was to follow ends in its turn.
    """

    def __init__(self) -> None:
        self.found: list[Recovery] = []
        """In order. A failure that no round followed is none; one whose round failed in its turn
        is."""
        self._current: Recovery | None = None
        self._mark = 0.0
        self._unborn = 0
        self._are_steps_told = False
        self._is_over = False

    def feed(self, step: Step) -> Recovery | None:
        """Take a step; the recovery that is over by it, if one is."""
        if not isinstance(step, AgentStep):
            return None
        event, before = step.event, self._current
        broken = _broken_round(event)
        if broken is not None and (before is None or broken == before.to_round):
            self._current, self._mark = Recovery(from_round=broken), step.at
            unfinished = before is not None and not self._is_over
            self._is_over = False
            return before if unfinished else None
        self._are_steps_told = self._are_steps_told or isinstance(event, StepReported)
        if broken is not None or before is None:
            return None
        self._mark = _advance(before, event, step.at, self._mark)
        if before.to_round and not (self.found and self.found[-1] is before):
            self.found.append(before)
        return before if self._ends(before, event) else None

    def _ends(self, current: Recovery, event: object) -> bool:
        """Whether this is all that there is to wait for."""
        if isinstance(event, Told) and isinstance(event.message, RunRound):
            self._unborn = len(event.message.assignment.workers)
        elif isinstance(event, WorkerStarted) and event.round == current.to_round:
            self._unborn -= 1
        else:
            stepped = isinstance(event, StepReported) and event.round == current.to_round
            return self._end_now() if stepped else False
        return self._end_now() if self._unborn == 0 and not self._are_steps_told else False

    def _end_now(self) -> bool:
        ended, self._is_over = self._is_over, True
        return not ended


def recoveries(steps: Iterable[Step]) -> list[Recovery]:
    """Every recovery that the steps tell of, in order."""
    watch = RecoveryWatch()
    for step in steps:
        watch.feed(step)
    return watch.found


def _broken_round(event: object) -> int | None:
    """The round that cannot go on, if the event says so."""
    if isinstance(event, WorkerExited) and not event.status.succeeded:
        return event.round
    if isinstance(event, Told) and isinstance(event.message, StopRound):
        return event.message.round
    return None


def _advance(current: Recovery, event: object, at: float, mark: float) -> float:
    """Fill in the part that this event ends; returns where the next part begins."""
    if isinstance(event, AllGone) and not current.to_round:
        current.parts_s["stop"] = at - mark
        return at
    if isinstance(event, Told) and isinstance(event.message, RunRound):
        current.to_round = event.message.assignment.round
        current.parts_s["form"] = at - mark
        return at
    if isinstance(event, WorkerStarted) and event.round == current.to_round:
        current.parts_s["spawn"] = current.parts_s.get("spawn", 0.0) + at - mark
        return at
    reached = isinstance(event, StepReported) and event.round == current.to_round
    if reached and "first step" not in current.parts_s:
        current.parts_s["first step"] = at - mark
        return at
    return mark
