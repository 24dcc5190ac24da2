"""Timers by name: one of each, the last that was set."""

from __future__ import annotations

from tools.simulator.timeline import ManualClock

from holdfast.runtime.loop import Timers


def test_a_timer_that_is_set_again_fires_once_when_the_last_one_said() -> None:
    clock, fired = ManualClock(), []
    timers = Timers(clock, lambda name: fired.append((clock.now(), name)))
    timers.set("look", 5.0)
    clock.advance(3.0)
    timers.set("look", 5.0)
    timers.set("other", 1.0)
    clock.advance(100.0)
    assert fired == [(4.0, "other"), (8.0, "look")]


def test_a_timer_may_set_itself_again_when_it_fires() -> None:
    clock, fired = ManualClock(), []

    def fire(name: str) -> None:
        fired.append(clock.now())
        timers.set(name, 2.0)

    timers = Timers(clock, fire)
    timers.set("beat", 2.0)
    clock.advance(7.0)
    assert fired == [2.0, 4.0, 6.0]


def test_none_fires_that_was_cancelled() -> None:
    clock, fired = ManualClock(), []
    timers = Timers(clock, fired.append)
    timers.set("look", 1.0)
    timers.cancel()
    clock.advance(10.0)
    assert fired == []
    timers.set("look", 1.0)
    clock.advance(10.0)
    assert fired == ["look"]
