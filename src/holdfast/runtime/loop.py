"""The loop that an agent runs on: descriptors, timers and signals, one call after the other.

It waits in one `select` for descriptors, timers and signals, and calls back. Timers are on the
clock of leases, which counts on while the machine is suspended; a `Waker` ends the wait then, where
a timeout would not. The methods are the ones of asyncio's loop, by name and meaning, so whatever
takes a `Loop` runs on either. Importing asyncio costs a third of the time in which a whole job
starts and ends, and one node needs none of what it adds (streams, tasks, TLS); jobs that speak over
a network can afford it.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class Cancellable(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The time, and calls that are to come: all that a decision needs to be carried on."""

    def now(self) -> float:
        """Seconds, on a clock that never goes back and counts on while the machine sleeps."""
        ...

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Cancellable: ...
    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Cancellable: ...


class Loop(Clock, Protocol):
    """A clock that also waits for descriptors and signals."""

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None: ...
    def remove_reader(self, fd: Any) -> bool: ...
    def add_writer(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None: ...
    def remove_writer(self, fd: Any) -> bool: ...
    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None: ...


class Waker(Protocol):
    """A descriptor that can be read from a moment on, on the clock of `Clock.now`."""

    def fileno(self) -> int: ...
    def set(self, at: float | None) -> None: ...
    def close(self) -> None: ...


class Inbox(Generic[T]):
    """Takes one thing after the other: what comes while another is taken waits for its turn."""

    def __init__(self, take: Callable[[T], None]) -> None:
        self._take = take
        self._waiting: deque[T] = deque()
        self._busy = False

    def put(self, thing: T) -> None:
        """Take it, and all that comes of it, unless that is under way."""
        self._waiting.append(thing)
        if self._busy:
            return
        self._busy = True
        try:
            while self._waiting:
                self._take(self._waiting.popleft())
        finally:
            self._busy = False

    def clear(self) -> None:
        """Forget what waits."""
        self._waiting.clear()


class Timers:
    """Timers by name: setting one again takes the place of the one before.

    `fire` is called with the name of each that runs out.
    """

    def __init__(self, clock: Clock, fire: Callable[[str], None]) -> None:
        self._clock, self._fire = clock, fire
        self._set: dict[str, Cancellable] = {}

    def set(self, name: str, after_s: float) -> None:
        if name in self._set:
            self._set[name].cancel()
        self._set[name] = self._clock.call_later(after_s, self._fire, name)

    def cancel(self) -> None:
        """None of them fires any more."""
        for timer in self._set.values():
            timer.cancel()
        self._set.clear()


class ScheduledCall:
    """A callback with its arguments, until it is cancelled."""

    __slots__ = ("_args", "_callback")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._callback: Callable[..., Any] | None = callback
        self._args = args

    def cancel(self) -> None:
        self._callback = None

    def run(self) -> None:
        if self._callback is not None:
            self._callback(*self._args)


class EventLoop:
    """A `Loop` of our own. Use it from one thread, the main one where signals matter."""

    def __init__(self, waker: Waker | None = None) -> None:
        """With a waker, which is the loop's from now on, timers are in time after a suspend."""
        self._selector = selectors.DefaultSelector()
        self._waker = waker
        if waker is not None:
            self._selector.register(waker.fileno(), selectors.EVENT_READ, {})
        self._soon: deque[ScheduledCall] = deque()
        self._timers: list[tuple[float, int, ScheduledCall]] = []
        self._order = itertools.count()
        self._signals: dict[int, ScheduledCall] = {}
        self._wakeup: socket.socket | None = None

    # Descriptors.

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        self._change(fd, selectors.EVENT_READ, ScheduledCall(callback, args))

    def remove_reader(self, fd: Any) -> bool:
        return self._change(fd, selectors.EVENT_READ, None)

    def add_writer(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        self._change(fd, selectors.EVENT_WRITE, ScheduledCall(callback, args))

    def remove_writer(self, fd: Any) -> bool:
        return self._change(fd, selectors.EVENT_WRITE, None)

    def _change(self, fd: Any, event: int, call: ScheduledCall | None) -> bool:
        """Set or clear what is called for one kind of readiness; whether one was there."""
        key = self._selector.get_map().get(fd)
        calls: dict[int, ScheduledCall] = dict(key.data) if key is not None else {}
        removed = calls.pop(event, None)
        if removed is not None:
            removed.cancel()  # It may be queued in this very turn.
        if call is not None:
            calls[event] = call
        events = sum(calls)
        if key is None:
            if events:
                self._selector.register(fd, events, calls)
        elif events:
            self._selector.modify(fd, events, calls)
        else:
            self._selector.unregister(fd)
        return removed is not None

    # Calls.

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> ScheduledCall:
        call = ScheduledCall(callback, args)
        self._soon.append(call)
        return call

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> ScheduledCall:
        call = ScheduledCall(callback, args)
        heapq.heappush(self._timers, (self.now() + delay, next(self._order), call))
        return call

    # Signals.

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:
        """Call back on the loop, between other calls, when the signal has come."""
        if self._wakeup is None:
            self._wakeup, written = socket.socketpair()
            self._wakeup.setblocking(False)
            written.setblocking(False)
            self._wakeup_writer = written
            signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
            self.add_reader(self._wakeup, self._on_signals)
        self._signals[sig] = ScheduledCall(callback, args)
        signal.signal(sig, lambda *_: None)
        signal.siginterrupt(sig, False)

    def _on_signals(self) -> None:
        assert self._wakeup is not None
        for number in self._wakeup.recv(4096):
            if number in self._signals:
                self._signals[number].run()

    # Running.

    def run_until(self, done: Callable[[], bool]) -> None:
        """Wait and call back until `done()`."""
        while not done():
            self._turn()

    def _turn(self) -> None:
        for key, mask in self._selector.select(self._time_to_wait()):
            for event, call in list(key.data.items()):
                if mask & event:
                    self._soon.append(call)
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            self._soon.append(heapq.heappop(self._timers)[2])
        for _ in range(len(self._soon)):
            self._soon.popleft().run()

    def _time_to_wait(self) -> float | None:
        if self._soon:
            return 0.0
        first = self._timers[0][0] if self._timers else None
        if self._waker is not None:
            self._waker.set(first)
            return None
        return None if first is None else max(0.0, first - self.now())

    def close(self, then: signal.Handlers = signal.SIG_DFL) -> None:
        """Stop handling signals and release the selector; `then` is what they do from now on."""
        if self._wakeup is not None:
            signal.set_wakeup_fd(-1)
            for sig in self._signals:
                signal.signal(sig, then)
            self._wakeup.close()
            self._wakeup_writer.close()
        self._selector.close()
        if self._waker is not None:
            self._waker.close()
