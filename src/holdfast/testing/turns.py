"""How a simulated process gets its turns.

Rules
1. The process does one thing at a time: what comes while it works waits in line.
2. A process that is paused does nothing. When it wakes up, it takes in all that has come before
   any timer that should have fired.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.testing.facts import CoreRaised

if TYPE_CHECKING:
    from holdfast.testing.machine import Machine

NEVER_EARLY_S = 1e-6


class Gone(Exception):
    """The process was struck dead in the middle of what it did."""


class Turns:
    """The line of what a process has to do, and its timers."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.cluster = machine.cluster
        self.host = machine.number
        self.alive = True
        self._timers: dict[tuple[str, str], int] = {}
        self._queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._late: list[tuple[tuple[str, str], int, Callable[[str], None]]] = []
        self._working = False

    @property
    def frozen(self) -> bool:
        return bool(self.machine.agent_paused or self.machine.paused)

    def post(self, happen: Callable[..., None], *arguments: Any) -> None:
        if not self.alive:
            return
        self._queue.append((happen, arguments))
        if not self._working and not self.frozen:
            self._work()

    def _work(self) -> None:
        self._working = True
        try:
            while self._queue and self.alive and not self.frozen:
                happen, arguments = self._queue.popleft()
                happen(*arguments)
        except Gone:
            pass
        except Exception as error:  # noqa: BLE001 - a finding: told with the story that led to it.
            self._raised(error)
        finally:
            self._working = False

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
        for key, number, fire in late:
            self._fire(key, number, fire)

    def set_timer(self, key: tuple[str, str], after_s: float, fire: Callable[[str], None]) -> None:
        number = self._timers[key] = self._timers.get(key, 0) + 1
        # Never early, as no timer is: not even by the rounding of a large number.
        delay_s = max(after_s, 0.0) / self.machine.clock.rate + NEVER_EARLY_S
        self.cluster.timeline.after(delay_s, self._fire, key, number, fire)

    def _fire(self, key: tuple[str, str], number: int, fire: Callable[[str], None]) -> None:
        if not self.alive or self._timers[key] != number:
            return
        if self.frozen:
            self._late.append((key, number, fire))
        else:
            self.post(self._fire_if_set, key, number, fire)

    def _fire_if_set(self, key: tuple[str, str], number: int, fire: Callable[[str], None]) -> None:
        if self._timers[key] == number:
            fire(key[1])
