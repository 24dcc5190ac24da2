"""A register off the loop: every request is answered once, whatever the register does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from holdfast.registers.register import RegisterRefused, RegisterUnreachable
from holdfast.registers.register_thread import NoAnswer, RegisterAnswer, RegisterThread, Reply
from holdfast.runtime.loop import EventLoop

from ..waiting import loop_until

DEADLINE_S = 40.0


class Drawer:
    """What registers of one test have in common: the content, and what is wrong with it."""

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.version = 0
        self.changed = threading.Condition()
        self.fails_with: Exception | None = None
        self.opens = threading.Event()
        self.opens.set()
        self.makes = threading.Event()
        self.makes.set()
        self.made = 0
        self.closed = 0
        self.threads: set[str] = set()
        self.forgotten: list[float] = []

    def make(self) -> Drawerful:
        assert self.makes.wait(DEADLINE_S)
        self.made += 1
        return Drawerful(self)


class Drawerful:
    """A register whose calls can be made to hang or to fail."""

    def __init__(self, drawer: Drawer) -> None:
        self._drawer = drawer
        self.holder_expired = False
        self._is_closed = False

    def get_state(self) -> tuple[bytes, object] | None:
        self._go()
        if self._drawer.content is None:
            return None
        return self._drawer.content, ("version", self._drawer.version)

    def set_state(self, state: bytes, token: object = None) -> tuple[bytes, object, bool] | None:
        self._go()
        drawer = self._drawer
        with drawer.changed:
            expected = ("version", drawer.version) if drawer.content is not None else None
            has_set = token == expected
            if has_set:
                drawer.content, drawer.version = state, drawer.version + 1
                drawer.changed.notify_all()
        if drawer.content is None:
            return None
        return drawer.content, ("version", drawer.version), has_set

    def wait_for_change(self, token: object, timeout_s: float) -> tuple[bytes, object] | None:
        drawer = self._drawer
        with drawer.changed:
            while not self._is_closed:
                if drawer.fails_with is not None:
                    raise drawer.fails_with
                if drawer.content is not None and token != ("version", drawer.version):
                    return drawer.content, ("version", drawer.version)
                drawer.changed.wait(timeout_s)
        raise RegisterUnreachable("closed")

    def forget_after(self, seconds: float) -> None:
        self._drawer.forgotten.append(seconds)

    def close(self) -> None:
        self._drawer.closed += 1
        with self._drawer.changed:
            self._is_closed = True
            self._drawer.changed.notify_all()

    def _go(self) -> None:
        self._drawer.threads.add(threading.current_thread().name)
        assert self._drawer.opens.wait(DEADLINE_S)
        if self._drawer.fails_with is not None:
            raise self._drawer.fails_with


class Desk:
    """A loop, and someone on it who asks."""

    def __init__(self, patience_s: float = DEADLINE_S) -> None:
        self.loop = EventLoop()
        self.drawer = Drawer()
        self.asking = RegisterThread(self.loop, self.drawer.make, patience_s)
        self.replies: list[Reply] = []

    def be_patient(self) -> None:
        """From now on, however busy the machine is."""
        self.asking._patience_s = DEADLINE_S

    def until(self, done: Callable[[], object]) -> None:
        """Look at every turn of the loop, and now and then: other threads do not wake it."""
        loop_until(self.loop, done, look_every_s=0.01)

    def reply(self) -> Reply:
        self.until(lambda: self.replies)
        return self.replies.pop(0)

    def read(self) -> Reply:
        self.asking.read(self.replies.append)
        return self.reply()

    def write(self, content: bytes, token: int = 0) -> Reply:
        self.asking.write(content, token, self.replies.append)
        return self.reply()


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.drawer.opens.set()
    desk.asking.close()
    desk.loop.close()


@pytest.fixture
def impatient() -> Iterator[Desk]:
    desk = Desk(patience_s=0.1)
    yield desk
    desk.drawer.opens.set()
    desk.asking.close()
    desk.loop.close()


def test_requests_are_answered_on_the_loop_and_asked_off_it(desk: Desk) -> None:
    assert desk.read() == RegisterAnswer(None, 0)
    assert desk.write(b"one") == RegisterAnswer(b"one", 1, has_set=True)
    assert desk.read() == RegisterAnswer(b"one", 1)
    assert desk.drawer.threads == {"register"}


def test_nothing_is_answered_from_within_the_request(desk: Desk) -> None:
    desk.asking.read(desk.replies.append)
    desk.asking.write(b"x", 99, desk.replies.append)
    assert desk.replies == []
    assert {type(desk.reply()), type(desk.reply())} == {RegisterAnswer, NoAnswer}


def test_versions_are_known_by_numbers(desk: Desk) -> None:
    desk.write(b"one")
    assert desk.write(b"two", 1) == RegisterAnswer(b"two", 2, has_set=True)
    assert desk.write(b"three", 1) == RegisterAnswer(b"two", 2, has_set=False)
    assert desk.write(b"three", 0) == RegisterAnswer(b"two", 2, has_set=False)


def test_a_version_of_long_ago_is_not_guessed(desk: Desk) -> None:
    desk.write(b"0")
    for number in range(1, 40):
        desk.write(str(number).encode(), number)
    reply = desk.write(b"late", 1)
    assert isinstance(reply, NoAnswer)
    assert desk.drawer.content == b"39"


@pytest.mark.parametrize(
    ("error", "reply"),
    [
        (RegisterUnreachable("the way is cut"), NoAnswer("the way is cut")),
        (RegisterRefused("wrong password"), NoAnswer("wrong password", refused=True)),
        (ZeroDivisionError(), NoAnswer("ZeroDivisionError")),
    ],
)
def test_what_a_register_raises_is_an_answer_too(
    desk: Desk, error: Exception, reply: Reply
) -> None:
    desk.drawer.fails_with = error
    assert desk.read() == reply
    desk.drawer.fails_with = None
    assert desk.read() == RegisterAnswer(None, 0)


def test_a_call_that_hangs_is_given_up_and_the_next_one_has_a_register_of_its_own(
    impatient: Desk,
) -> None:
    impatient.drawer.opens.clear()
    reply = impatient.read()
    assert isinstance(reply, NoAnswer)
    assert "within 0.1 s" in reply.reason
    made = impatient.drawer.made
    impatient.drawer.opens.set()
    impatient.be_patient()
    assert impatient.read() == RegisterAnswer(None, 0)
    assert impatient.drawer.made == made + 1


def test_when_too_many_calls_hang_no_more_are_begun(impatient: Desk) -> None:
    impatient.drawer.opens.clear()
    for _ in range(6):
        assert isinstance(impatient.read(), NoAnswer)
    assert impatient.drawer.made <= 4
    impatient.drawer.opens.set()
    deadline = time.monotonic() + DEADLINE_S
    while isinstance(impatient.read(), NoAnswer):
        assert time.monotonic() < deadline, "it never recovered"


def test_an_answer_that_comes_too_late_is_dropped(impatient: Desk) -> None:
    impatient.drawer.opens.clear()
    assert isinstance(impatient.write(b"slow"), NoAnswer)
    impatient.drawer.opens.set()
    impatient.until(lambda: impatient.drawer.content == b"slow")
    impatient.be_patient()
    assert impatient.read() == RegisterAnswer(b"slow", 1)
    assert impatient.replies == []


def test_changes_are_told_as_they_happen(desk: Desk) -> None:
    desk.write(b"one")
    desk.asking.watch(1, desk.replies.append)
    desk.asking.write(b"two", 1, lambda reply: None)
    assert desk.reply() == RegisterAnswer(b"two", 2)
    desk.asking.write(b"three", 2, lambda reply: None)
    assert desk.reply() == RegisterAnswer(b"three", 3)


def test_a_watch_that_fails_says_so_and_is_over(desk: Desk) -> None:
    desk.write(b"one")
    desk.asking.watch(1, desk.replies.append)
    with desk.drawer.changed:
        desk.drawer.fails_with = RegisterUnreachable("the stream broke")
        desk.drawer.changed.notify_all()
    assert desk.reply() == NoAnswer("the stream broke")
    desk.drawer.fails_with = None
    desk.asking.watch(1, desk.replies.append)
    desk.asking.write(b"two", 1, lambda reply: None)
    assert desk.reply() == RegisterAnswer(b"two", 2)


def test_after_a_watch_was_stopped_nothing_is_told(desk: Desk) -> None:
    desk.write(b"one")
    desk.asking.watch(1, desk.replies.append)
    desk.asking.stop_watching()
    assert desk.write(b"two", 1) == RegisterAnswer(b"two", 2, has_set=True)
    assert desk.replies == []
    desk.until(lambda: desk.drawer.closed)  # Its own register is let go of.


def test_a_watch_that_was_stopped_before_it_had_a_register_lets_go_of_that_too(desk: Desk) -> None:
    desk.write(b"one")
    desk.drawer.makes.clear()
    desk.asking.watch(1, desk.replies.append)
    desk.asking.stop_watching()
    desk.drawer.makes.set()
    desk.until(lambda: desk.drawer.closed)
    assert desk.replies == []


def test_a_register_that_can_forget_is_asked_to(desk: Desk) -> None:
    desk.asking.forget_after(60.0, desk.replies.append)
    desk.reply()
    assert desk.drawer.forgotten == [60.0]


def test_the_end_lets_go_of_the_register() -> None:
    desk = Desk()
    desk.read()
    desk.asking.close()
    desk.until(lambda: desk.drawer.closed)
    assert desk.drawer.closed == 1
    desk.loop.close()
