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

import msgspec

from holdfast.core.node.io import AllGone, StepReported, Told, WorkerExited, WorkerStarted
from holdfast.core.protocol.messages import RunRound, StopRound
from holdfast.observe.journal import AgentStep, Step


class Recovery(msgspec.Struct):
    """The parts of one recovery, in seconds; None for a part that was not reached."""

    from_round: int
    to_round: int = 0
    known_at: float = 0.0
    stop_s: float | None = None
    form_s: float | None = None
    spawn_s: float | None = None
    first_step_s: float | None = None

    def total_s(self) -> float:
        parts = (self.stop_s, self.form_s, self.spawn_s, self.first_step_s)
        return sum(part for part in parts if part is not None)

    def in_words(self, has_lasted: bool) -> str:
        """What was measured, under a name that promises no more than that.

        A job has recovered when it steps again, and when that `has_lasted`.
        """
        took = f"{self.total_s() * 1000:.0f} ms"
        if not has_lasted:
            return f"restarted in {took} ({self._parts()})"
        if self.first_step_s is None:
            return f"respawned in {took} ({self._parts()})"
        return f"recovered in {took}, to the first step ({self._parts()})"

    def parts_s(self) -> dict[str, float]:
        """Those that were reached, in order."""
        named = (
            ("stop", self.stop_s),
            ("form", self.form_s),
            ("spawn", self.spawn_s),
            ("first step", self.first_step_s),
        )
        return {name: took for name, took in named if took is not None}

    def _parts(self) -> str:
        return ", ".join(f"{name} {took * 1000:.0f}" for name, took in self.parts_s().items())


class RecoveryWatch:
    """Follows one node's steps, and says when a recovery is over.

    It is when the workers step again, or run again where none of them ever says how far it is; or
    when the round that was to follow ends in its turn.
    """

    def __init__(self) -> None:
        self.current: Recovery | None = None
        self._mark = 0.0
        self._unborn = 0
        self._are_steps_told = False
        self._is_over = False

    def feed(self, step: Step) -> Recovery | None:
        """Take a step; the recovery that is over by it, if one is."""
        if not isinstance(step, AgentStep):
            return None
        event, before = step.event, self.current
        broken = _broken_round(event)
        if broken is not None and (before is None or broken == before.to_round):
            self.current, self._mark = Recovery(from_round=broken, known_at=step.at), step.at
            unfinished = before is not None and not self._is_over
            self._is_over = False
            return before if unfinished else None
        self._are_steps_told = self._are_steps_told or isinstance(event, StepReported)
        if broken is not None or before is None:
            return None
        self._mark = _advance(before, event, step.at, self._mark)
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
    """Every recovery that the steps tell of, in order.

    A failure that no round followed is none; one whose round failed in its turn is.
    """
    found: list[Recovery] = []
    watch = RecoveryWatch()
    for step in steps:
        watch.feed(step)
        current = watch.current
        if current is not None and current.to_round and not (found and found[-1] is current):
            found.append(current)
    return found


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
        current.stop_s = at - mark
        return at
    if isinstance(event, Told) and isinstance(event.message, RunRound):
        current.to_round = event.message.assignment.round
        current.form_s = at - mark
        return at
    if isinstance(event, WorkerStarted) and event.round == current.to_round:
        current.spawn_s = (current.spawn_s or 0.0) + at - mark
        return at
    reached = isinstance(event, StepReported) and event.round == current.to_round
    if reached and current.first_step_s is None:
        current.first_step_s = at - mark
        return at
    return mark
