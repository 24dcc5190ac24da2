"""Disk work off the loop: a disk that does not answer holds up nobody but what waits for it.

Rules
1. The loop never waits for a disk. What is to be done there is put into a lane, one for each
   purpose, and done in that lane's thread, one thing after the other, in the order in which it
   was put in. What comes of it is told on the loop.
2. A lane that stalls holds up no other.
3. What waits is counted in bytes. Nothing is refused: a caller that can wait (a reader of workers'
   pipes) asks `congested` before it brings more.
4. Work that a disk cannot do is no exception here: it says so in what it returns. An exception
   is raised on the loop, where it ends the job.
5. A disk that has not answered for `STALLED_S` is said so once, with what goes on meanwhile, and
   once more when it answers again; lanes that lead to the same place speak with one voice.
6. An ordinary end waits until all is done (`all_done`). When nothing has moved for
   `PATIENCE_S`, it is given up, and what is lost is said. What nobody would miss, in lanes
   without a place, is given up after `STALLED_S`, and nothing is said.

Threads are started when they are first needed, by `_thread`: `threading` takes longer to import
than a lane to start. They keep no process alive.
"""

from __future__ import annotations

import _thread
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from holdfast.runtime.loop import Cancellable, Loop
from holdfast.runtime.thread_calls import ThreadCalls

STALLED_S = 2.0
PATIENCE_S = 30.0
"""Time that an ending process waits for a disk on which nothing moves."""
CONGESTED_BYTES = 64 << 20
CLEAR_BYTES = 48 << 20

T = TypeVar("T")
Work = tuple[Callable[[], Any], Callable[[Any], None] | None, int]


class DiskLane:
    """One purpose's work, done in order in a thread. On the loop, but for what says otherwise."""

    def __init__(self, disk: Disk, purpose: str, place: str) -> None:
        self.purpose, self.place = purpose, place
        self.done = 0
        """The number of finished tasks. Only this lane's thread writes it and the next two."""
        self._done_bytes = 0
        self._began_at = 0.0
        """Start time of the present task; 0 while there is none."""
        self._disk = disk
        self._put = self._put_bytes = 0
        self._work: deque[Work | None] = deque()
        self._bell: _thread.LockType | None = None
        self._is_called = False
        self._timer: Cancellable | None = None
        self._on_clear: list[Callable[[], None]] = []

    def do(
        self, work: Callable[[], T | None], then: Callable[[T], None] | None = None, size: int = 0
    ) -> None:
        """Do it when all that was put in before is done; tell `then` what came of it, unless None.

        `size` is how many bytes are held for it.
        """
        self._put += 1
        self._put_bytes += size
        self._work.append((work, then, size))
        if not self._is_called:
            # For all that comes in this turn of the loop: a thread that is woken for each takes
            # turns with it, and both are slow.
            self._is_called = True
            self._disk.loop.call_soon(self._call)
        if self._timer is None and self.place and not self._disk.is_stalled(self):
            self._timer = self._disk.loop.call_later(STALLED_S, self._look)

    def _call(self) -> None:
        """Have the thread look what there is to do."""
        self._is_called = False
        if self._bell is None:
            self._bell = _thread.allocate_lock()
            _thread.start_new_thread(self._run, (self._bell,))
            return
        try:
            self._bell.release()
        except RuntimeError:
            pass  # It has been called, and has not listened yet.

    @property
    def is_used(self) -> bool:
        return self._put > 0

    @property
    def is_idle(self) -> bool:
        return self._put == self.done

    @property
    def has_stalled(self) -> bool:
        """Whether the disk has been silent for too long."""
        began_at = self._began_at
        return began_at > 0 and time.monotonic() - began_at >= STALLED_S

    @property
    def waiting_bytes(self) -> int:
        return self._put_bytes - self._done_bytes

    @property
    def congested(self) -> bool:
        """Whether the queue is so long that callers should slow down."""
        return self.waiting_bytes > CONGESTED_BYTES

    def when_clear(self, callback: Callable[[], None]) -> None:
        """Call back once, from the loop, when the congestion is over."""
        self._on_clear.append(callback)  # First: from here on the thread sees to it.
        if self.waiting_bytes <= CLEAR_BYTES:
            self._disk.loop.call_soon(self._tell_waiters)

    def _tell_waiters(self) -> None:
        waiters, self._on_clear = self._on_clear, []
        for callback in waiters:
            callback()

    def flush(self, patience_s: float) -> None:
        """Wait here until all is done that was put in: for a loop that will not turn again."""
        done = _thread.allocate_lock()
        done.acquire()
        self._put += 1
        self._work.append((done.release, None, 0))
        self._call()
        done.acquire(timeout=patience_s)

    def close(self) -> None:
        """Do nothing more. The thread ends after what it is doing."""
        if self._timer is not None:
            self._timer.cancel()
        self._work.clear()
        if self._bell is not None:
            self._work.append(None)
            self._call()

    # A disk that does not answer.

    def _look(self) -> None:
        """It is a while since work was put in: is the same one still being done?"""
        self._timer = None
        if self.is_idle:
            return  # What is put in next has us look again.
        now, began_at = time.monotonic(), self._began_at or time.monotonic()
        if now - began_at >= STALLED_S:
            self._disk.on_stalled(self)  # The thread tells when it moves.
        else:
            left_s = began_at + STALLED_S - now
            self._timer = self._disk.loop.call_later(left_s, self._look)

    def _on_moving(self) -> None:
        """One thing took long. It is over when all that waited behind it is done, too."""
        if self._disk.is_stalled(self):
            self.do(lambda: True, lambda _: self._disk.on_caught_up(self))

    # In the thread.

    def _run(self, bell: _thread.LockType) -> None:
        while True:
            while self._work:
                work = self._work.popleft()
                if work is None:
                    return
                self._do(*work)
            bell.acquire()

    def _do(
        self, work: Callable[[], object], then: Callable[[object], None] | None, size: int
    ) -> None:
        self._began_at = began_at = time.monotonic()
        put = self._disk.calls.put
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the loop must hear of it
            put(_raise, error)
            result = None
        took_s = time.monotonic() - began_at
        self._began_at = 0.0
        self._done_bytes += size
        self.done += 1
        if took_s >= STALLED_S and self.place:
            put(self._on_moving)
        if then is not None and result is not None:
            put(then, result)
        if self._on_clear and self.waiting_bytes <= CLEAR_BYTES:
            put(self._tell_waiters)


def _raise(error: BaseException) -> None:
    raise error


class Disk:
    """The lanes of one loop, and what the user is told of them."""

    def __init__(self, loop: Loop, say: Callable[[str], None]) -> None:
        self.loop, self._say = loop, say
        self.calls = ThreadCalls(loop)
        self._lanes: dict[str, DiskLane] = {}
        self._meanwhile: dict[str, str] = {}
        self._stalled: dict[str, set[str]] = {}
        """The lanes that do not move, by the place that they lead to."""
        self._stalled_at: dict[str, float] = {}
        self._gave_up = self._closed = False

    def lane(self, purpose: str, place: str = "", meanwhile: str = "") -> DiskLane:
        """The lane of a purpose. With a place, users are told when its disk does not answer."""
        if purpose not in self._lanes:
            self._lanes[purpose] = DiskLane(self, purpose, place)
            self._meanwhile.setdefault(place, meanwhile)
        return self._lanes[purpose]

    def on_stalled(self, lane: DiskLane) -> None:
        stalled = self._stalled.setdefault(lane.place, set())
        if not stalled:
            self._stalled_at[lane.place] = time.monotonic() - STALLED_S
            self._say(f"the disk of {lane.place} does not answer: {self._meanwhile[lane.place]}")
        stalled.add(lane.purpose)

    def is_stalled(self, lane: DiskLane) -> bool:
        return lane.purpose in self._stalled.get(lane.place, ())

    def on_caught_up(self, lane: DiskLane) -> None:
        stalled = self._stalled[lane.place]
        if lane.purpose in stalled:
            stalled.remove(lane.purpose)
            if not stalled:
                after_s = time.monotonic() - self._stalled_at[lane.place]
                self._say(f"the disk of {lane.place} answers again, after {after_s:.0f} s")

    def all_done(self) -> Callable[[], bool]:
        """Whether every task is finished and reported, or given up."""
        self._gave_up = False
        used = [lane for lane in self._lanes.values() if lane.is_used]
        left = {lane.purpose for lane in used if lane.place}
        of_use = {lane.purpose for lane in used if not lane.place and not lane.has_stalled}
        timers = [
            self.loop.call_later(STALLED_S, self._say_what_waits),
            self.loop.call_later(STALLED_S, of_use.clear),
            self.loop.call_later(PATIENCE_S, self._judge, self._count()),
        ]
        for lane in used:
            waiting = left if lane.place else of_use
            if lane.purpose in waiting:
                lane.do(partial(str, lane.purpose), waiting.discard)

        def is_over() -> bool:
            if of_use or (left and not self._gave_up):
                return False
            for timer in timers:
                timer.cancel()
            return True

        return is_over

    def _count(self) -> int:
        return sum(lane.done for lane in self._lanes.values())

    def _judge(self, count_before: int) -> None:
        """Give up if nothing at all has been done meanwhile."""
        if self._closed:
            return
        count = self._count()
        if count > count_before:
            self.loop.call_later(PATIENCE_S, self._judge, count)
            return
        self._gave_up = True
        for place, waiting in self._waiting().items():
            self._say(f"gave up waiting for the disk of {place}: {waiting} lost there")

    def _say_what_waits(self) -> None:
        for place, waiting in self._waiting().items():
            self._say(
                f"waiting for the disk of {place}: {waiting} not written yet; "
                f"{PATIENCE_S:g} s without an answer, or a signal, ends the wait"
            )

    def _waiting(self) -> dict[str, str]:
        """The unwritten files in words, by folder."""
        busy = [lane for lane in self._lanes.values() if lane.place and not lane.is_idle]
        waiting = {lane.place: 0 for lane in busy}
        for lane in busy:
            waiting[lane.place] += lane.waiting_bytes
        return {place: f"{-(-size // 1024)} KiB are" for place, size in waiting.items()}

    def close(self) -> None:
        """Let go of all. What is being done at this moment may still be done."""
        self._closed = True
        for lane in self._lanes.values():
            lane.close()
        self.calls.close()
