"""How far the workers of a round are, in a program that trains in step.

Each takes a step every so often, from when all have come to their first; one may be a step ahead.
Whoever waits (`holdfast.draining`) has done its part of the step at which it waits, and of none
after it: the others get as far as that step, unless they were beyond it before.
"""

from __future__ import annotations

from msgspec import Struct, field

STEP_S = 0.3

Round = tuple[int, int]
"""The instance of the job, and the number of the round."""


class Lockstep(Struct):
    """The progress of every round of a run."""

    began: dict[Round, float] = field(default_factory=dict)
    """When all workers of a round had come to their first step."""
    waiting: dict[Round, dict[int, tuple[float, int]]] = field(default_factory=dict)
    """By rank: since when it waits, and at which step."""

    def step_of(self, round: Round, rank: int, now: float) -> int:
        waits = self.waiting.get(round, {})
        if rank in waits:
            return waits[rank][1]
        free = self._free(round, rank, now)
        return max((self._held(round, rank, *one, free) for one in waits.values()), default=free)

    def _held(self, round: Round, rank: int, since: float, at: int, free: int) -> int:
        return max(self._free(round, rank, since), min(free, at))

    def _free(self, round: Round, rank: int, now: float) -> int:
        """How far it would be if nobody waited."""
        began = self.began.get(round)
        return 0 if began is None or now < began else int((now - began) / STEP_S) + rank % 2

    def go_on(self, round: Round, rank: int) -> None:
        """It waits no more."""
        self.waiting.get(round, {}).pop(rank, None)

    def wait(self, round: Round, rank: int, now: float) -> int:
        """It waits where it is from now on; where that is."""
        step = self.step_of(round, rank, now)
        self.waiting.setdefault(round, {})[rank] = now, step
        return step
