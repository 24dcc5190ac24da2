"""How a simulated process gets its turns, and its clock.

Rules
1. The process does one thing at a time: what comes while it works waits in line.
2. A process that is paused does nothing. When it wakes up, it takes in all that has come before
   any timer that should have fired.
3. It may be paused in the middle of a turn, between any two looks at its clock. All that it does in
   the rest of that turn happens when it is awake again: its clock says so, and so do those to whom
   it sends something.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tools.simulator.facts import CoreRaised

if TYPE_CHECKING:
    from tools.simulator.machine import Machine

NEVER_EARLY_S = 1e-6


class StruckDead(Exception):
    """The process was struck dead in the middle of what it did."""


class SimulatedCall:
    """A call that is to come, until it is cancelled."""

    __slots__ = ("arguments", "callback")

    def __init__(self, callback: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.callback: Callable[..., Any] | None = callback
        self.arguments = arguments

    def cancel(self) -> None:
        self.callback = None

    def run(self) -> None:
        if self.callback is not None:
            self.callback(*self.arguments)


class Turns:
    """The line of what a process has to do, and its clock."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.cluster = machine.cluster
        self.host = machine.number
        self._clock = machine.clock
        self.alive = True
        self.lag_s = 0.0
        """By how much the rest of this turn happens later, in true time."""
        self.falls_asleep_s = 0.0
        """For how long it sleeps when it next looks at its clock in this turn."""
        self._held_back: deque[tuple[float, Callable[..., None], tuple[Any, ...]]] = deque()
        """What the turn does to the world once it is awake again, and when that is."""
        self._looks = 0
        self._queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._late: list[SimulatedCall] = []
        self._working = False

    @property
    def frozen(self) -> bool:
        return self.machine.agent_paused > 0 or self.machine.paused > 0

    # Its clock.

    def now(self) -> float:
        self._looks += 1
        if self._looks > 1 and self.host in self.cluster.mid_word:
            self.falls_asleep_s += self.pause_mid_word()
        if self.falls_asleep_s:
            self.lag_s, self.falls_asleep_s = self.lag_s + self.falls_asleep_s, 0.0
        return self.reading()

    def reading(self) -> float:
        """What its clock shows, to somebody who looks from outside."""
        return self._clock.now() + self._clock.rate * self.lag_s

    def call_soon(self, callback: Callable[..., Any], *arguments: Any) -> SimulatedCall:
        call = SimulatedCall(callback, arguments)
        self.post(call.run)
        return call

    def call_later(
        self, delay_s: float, callback: Callable[..., Any], *arguments: Any
    ) -> SimulatedCall:
        call = SimulatedCall(callback, arguments)
        # Never early, as no timer is: not even by the rounding of a large number.
        after_s = max(delay_s, 0.0) / self._clock.rate + NEVER_EARLY_S
        self.cluster.timeline.after(after_s + self.lag_s, self._fire, call)
        return call

    def _fire(self, call: SimulatedCall) -> None:
        if not self.alive or call.callback is None:
            return
        if self.frozen:
            self._late.append(call)
        else:
            self.post(call.run)

    # Its turns.

    def post(self, happen: Callable[..., None], *arguments: Any) -> None:
        if not self.alive:
            return
        self._queue.append((happen, arguments))
        if not self._working and not self.frozen:
            self._work()

    def when_awake(self, happen: Callable[..., None], *arguments: Any) -> None:
        """Do to the world what this turn does: now, or when a pause in its middle is over."""
        if self.lag_s:
            timeline = self.cluster.timeline
            self._held_back.append((timeline.now + self.lag_s, happen, arguments))
            timeline.after(self.lag_s, self._catch_up)
        else:
            happen(*arguments)

    def _catch_up(self) -> None:
        """What a turn was doing when it fell asleep comes before anything of the next one."""
        awake_at = self.cluster.timeline.now + NEVER_EARLY_S
        while self._held_back and self._held_back[0][0] <= awake_at:
            _, happen, arguments = self._held_back.popleft()
            if self.alive:
                happen(*arguments)

    def _work(self) -> None:
        """Take one turn after the other, awake, until nothing waits or it falls asleep."""
        if self._held_back:
            self._catch_up()
        self._working = True
        try:
            while self._queue:
                happen, arguments = self._queue.popleft()
                happen(*arguments)
                self._turn_over()
                self.after_turn()
                if self._queue and self.frozen:
                    break
        except StruckDead:
            pass
        except Exception as error:  # noqa: BLE001 - a finding: told with the story that led to it.
            self._raised(error)
        finally:
            self._turn_over()
            self._working = False

    def _turn_over(self) -> None:
        self.lag_s = self.falls_asleep_s = 0.0
        self._looks = 0

    def pause_mid_word(self) -> float:
        """How long it is to sleep in the middle of this turn, which begins."""
        return 0.0

    def after_turn(self) -> None:
        """Called when a turn is over."""

    def _raised(self, error: Exception) -> None:
        import traceback

        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}"
        text = f"{type(error).__name__}: {error} ({where})"
        self.cluster.note(CoreRaised(self.cluster.timeline.now, self.host, text))
        self.cluster.tell_story(self.machine, f"the core raised {text}")

    def wake(self) -> None:
        """The process runs again: first all that has come, then the timers."""
        if self.frozen or not self.alive:
            return
        self._work()
        late, self._late = self._late, []
        for call in late:
            self._fire(call)
