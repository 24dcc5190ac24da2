"""The loop of a one-node job: descriptors, timers and signals, in one place."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator

import pytest
from tools.simulator.timeline import ManualClock

from holdfast.processes.stdlib_only import linux
from holdfast.runtime.loop import EventLoop, Inbox, Timers

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    event_loop = EventLoop()
    yield event_loop
    event_loop.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    one.setblocking(False)
    other.setblocking(False)
    yield one, other
    one.close()
    other.close()


def run(loop: EventLoop, done: Callable[[], object]) -> None:
    """Run until done; a timer keeps a broken loop from waiting for ever."""
    late: list[bool] = []
    timer = loop.call_later(60, late.append, True)
    loop.run_until(lambda: bool(late) or bool(done()))
    timer.cancel()
    assert not late, "the loop waited in vain"


def test_calls_are_made_in_the_order_they_were_asked_for(loop: EventLoop) -> None:
    calls: list[int] = []
    for number in range(5):
        loop.call_soon(calls.append, number)
    run(loop, lambda: len(calls) == 5)
    assert calls == [0, 1, 2, 3, 4]


def test_a_call_made_by_a_call_comes_in_the_next_turn(loop: EventLoop) -> None:
    """Else one that asks for itself again would starve everything else."""
    calls: list[str] = []

    def again() -> None:
        calls.append("again")
        loop.call_soon(again)

    loop.call_soon(again)
    loop.call_later(0, calls.append, "timer")
    run(loop, lambda: "timer" in calls)


def test_timers_go_off_in_order_and_equal_ones_as_they_were_set(
    loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    with monkeypatch.context() as patch:
        now = loop.now()
        patch.setattr(loop, "now", lambda: now)  # However long it takes to set them.
        loop.call_later(0.02, calls.append, "third")
        loop.call_later(0.01, calls.append, "first")
        loop.call_later(0.01, calls.append, "second")
    run(loop, lambda: len(calls) == 3)
    assert calls == ["first", "second", "third"]


class EventWaker:
    """Readable when the test says so, whatever the time is."""

    def __init__(self) -> None:
        self.number = os.eventfd(0)
        self.moments: list[float | None] = []

    def fileno(self) -> int:
        return self.number

    def set(self, at: float | None) -> None:
        self.moments.append(at)

    def close(self) -> None:
        os.close(self.number)


def test_a_waker_ends_the_wait_and_no_timeout_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a suspend: the clock has gone on, and no timeout knows of it."""
    waker = EventWaker()
    loop = EventLoop(waker)
    calls: list[str] = []
    before = loop.now()
    loop.call_later(100, calls.append, "due")
    assert loop._time_to_wait() is None
    (moment,) = waker.moments
    assert moment is not None
    assert moment >= before + 100
    monkeypatch.setattr(loop, "now", lambda: moment)
    os.eventfd_write(waker.number, 1)
    loop.run_until(lambda: bool(calls))
    assert loop._time_to_wait() is None
    assert waker.moments[-1] is None, "nothing is left to be woken for"
    loop.close()


def test_timers_go_off_by_a_waker_of_the_kernel() -> None:
    loop = EventLoop(linux.BootTimer())
    calls: list[int] = []
    for number in (3, 1, 2):
        loop.call_later(number * 0.01, calls.append, number)
    loop.call_later(600, calls.append, 4)
    loop.run_until(lambda: len(calls) == 3)
    assert calls == [1, 2, 3]
    loop.close()


def test_what_is_cancelled_is_not_called(loop: EventLoop) -> None:
    calls: list[str] = []
    soon = loop.call_soon(calls.append, "soon")
    later = loop.call_later(0, calls.append, "later")
    soon.cancel()
    later.cancel()
    loop.call_later(0.01, calls.append, "end")
    run(loop, lambda: bool(calls))
    assert calls == ["end"]


def test_a_reader_is_called_for_as_long_as_there_is_something_to_read(
    loop: EventLoop, pair: Pair
) -> None:
    one, other = pair
    read: list[bytes] = []
    loop.add_reader(one, lambda: read.append(one.recv(1)))
    other.sendall(b"abc")
    run(loop, lambda: len(read) == 3)
    assert loop.remove_reader(one)
    assert not loop.remove_reader(one)
    other.sendall(b"d")
    calls: list[bool] = []
    loop.call_later(0, calls.append, True)
    run(loop, lambda: bool(calls))
    assert read == [b"a", b"b", b"c"]


def test_reading_and_writing_of_one_descriptor_are_apart(loop: EventLoop, pair: Pair) -> None:
    one, other = pair
    calls: list[str] = []

    def write() -> None:
        calls.append("write")
        loop.remove_writer(one)

    loop.add_reader(one, lambda: calls.append("read " + one.recv(1).decode()))
    loop.add_writer(one, write)
    run(loop, lambda: calls == ["write"])
    other.sendall(b"x")
    run(loop, lambda: calls == ["write", "read x"])
    assert not loop.remove_writer(one)
    assert loop.remove_reader(one)


def test_a_new_reader_replaces_the_old_one(loop: EventLoop, pair: Pair) -> None:
    one, other = pair
    calls: list[str] = []
    loop.add_reader(one, calls.append, "old")
    loop.add_reader(one, lambda: calls.append("new " + one.recv(1).decode()))
    other.sendall(b"x")
    run(loop, lambda: bool(calls))
    assert calls == ["new x"]


def test_a_reader_that_is_removed_in_the_turn_it_is_due_is_not_called(loop: EventLoop) -> None:
    """Both are ready at once; the first to be called removes and closes the other."""
    first, second = socket.socketpair(), socket.socketpair()
    readers = [first[0], second[0]]
    calls: list[socket.socket] = []

    def take(mine: socket.socket) -> None:
        calls.append(mine)
        for reader in readers:
            loop.remove_reader(reader)
            reader.close()

    for reader in readers:
        loop.add_reader(reader, take, reader)
    first[1].sendall(b"x")
    second[1].sendall(b"x")
    run(loop, lambda: bool(calls))
    assert len(calls) == 1
    first[1].close()
    second[1].close()


def test_a_reader_is_told_of_the_other_sides_end(loop: EventLoop, pair: Pair) -> None:
    one, other = pair
    read: list[bytes] = []
    loop.add_reader(one, lambda: read.append(one.recv(1)))
    other.close()
    run(loop, lambda: bool(read))
    assert read[0] == b""


def test_a_signal_is_handled_between_calls_and_wakes_the_loop(loop: EventLoop) -> None:
    calls: list[str] = []

    def long_call() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        calls.append("long call")

    loop.add_signal_handler(signal.SIGUSR1, calls.append, "signal")
    loop.call_soon(long_call)
    run(loop, lambda: len(calls) == 2)
    assert calls == ["long call", "signal"]


def test_signals_are_told_apart_and_counted(loop: EventLoop) -> None:
    calls: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, calls.append, number)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1):
        os.kill(os.getpid(), number)
    run(loop, lambda: len(calls) == 3)
    assert calls == [signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1]


def test_an_exception_of_a_callback_leaves_the_loop(loop: EventLoop) -> None:
    def fail() -> None:
        raise ValueError("of the callback")

    loop.call_soon(fail)
    with pytest.raises(ValueError, match="of the callback"):
        run(loop, lambda: False)


def test_a_closed_loop_leaves_signals_and_descriptors_as_they_are_by_default() -> None:
    loop = EventLoop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: None)
    loop.close()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1


def test_an_inbox_takes_what_comes_meanwhile_in_its_turn() -> None:
    taken: list[int] = []

    def take(number: int) -> None:
        if number == 1:
            inbox.put(2)
            inbox.put(3)
        taken.append(number)

    inbox = Inbox(take)
    inbox.put(1)
    assert taken == [1, 2, 3]


def test_an_inbox_goes_on_after_an_error_and_can_be_cleared() -> None:
    taken: list[int] = []

    def take(number: int) -> None:
        if number == 1:
            inbox.put(2)
            inbox.clear()
            raise ValueError("of the first")
        taken.append(number)

    inbox = Inbox(take)
    with pytest.raises(ValueError, match="of the first"):
        inbox.put(1)
    inbox.put(4)
    assert taken == [4]


# Timers by name: one of each, the last that was set.


def test_a_timer_that_is_set_again_fires_once_when_the_last_one_said() -> None:
    clock = ManualClock()
    fired: list[tuple[float, str]] = []
    timers = Timers(clock, lambda name: fired.append((clock.now(), name)))
    timers.set("look", 5.0)
    clock.advance(3.0)
    timers.set("look", 5.0)
    timers.set("other", 1.0)
    clock.advance(100.0)
    assert fired == [(4.0, "other"), (8.0, "look")]


def test_a_timer_may_set_itself_again_when_it_fires() -> None:
    clock = ManualClock()
    fired: list[float] = []

    def fire(name: str) -> None:
        fired.append(clock.now())
        timers.set(name, 2.0)

    timers = Timers(clock, fire)
    timers.set("beat", 2.0)
    clock.advance(7.0)
    assert fired == [2.0, 4.0, 6.0]


def test_none_fires_that_was_cancelled() -> None:
    clock = ManualClock()
    fired: list[str] = []
    timers = Timers(clock, fired.append)
    timers.set("look", 1.0)
    timers.cancel()
    clock.advance(10.0)
    assert fired == []
    timers.set("look", 1.0)
    clock.advance(10.0)
    assert fired == ["look"]
