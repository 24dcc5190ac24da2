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

    def _parts(self) -> str:
        named = (
            ("stop", self.stop_s),
            ("form", self.form_s),
            ("spawn", self.spawn_s),
            ("first step", self.first_step_s),
        )
        return ", ".join(f"{name} {took * 1000:.0f}" for name, took in named if took is not None)


def recoveries(steps: Iterable[Step]) -> list[Recovery]:
    """Every recovery that the steps tell of, in order.

    A failure that no round followed is none; one whose round failed in its turn is.
    """
    found: list[Recovery] = []
    current: Recovery | None = None
    mark = 0.0
    for step in steps:
        if not isinstance(step, AgentStep):
            continue
        event = step.event
        broken = _broken_round(event)
        if broken is not None and (current is None or broken == current.to_round):
            current = Recovery(from_round=broken, known_at=step.at)
            mark = step.at
        elif broken is None and current is not None:
            mark = _advance(current, event, step.at, mark)
            if current.to_round and current not in found:
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
