"""The timers of processes, and the processes that they may end: those that asked, and no others.

Rules
- A process is pinned when it takes its first timer. A number that has since been given to
  another process therefore never means that other one.
- This process is not ended by its own timers, nor is process 1; numbers that stand for groups
  of processes (0 and below) are nobody.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import weakref
from collections.abc import Sequence
from typing import Generic, TypeVar

from holdfast.elastic.timer.api import TimerRequest

GONE = -1
R = TypeVar("R", bound=TimerRequest)
logger = logging.getLogger(__name__)


class TimersOfProcesses(Generic[R]):
    """The part of a server that both have: timers by process and scope, and the processes."""

    def __init__(self) -> None:
        self._timers: dict[tuple[int, str], R] = {}
        self._processes = PinnedProcesses()

    def register_timers(self, timer_requests: list[R]) -> None:
        """Note timers taken and given back."""
        for request in timer_requests:
            key = (request.worker_id, request.scope_id)
            if request.expiration_time < 0:
                self._timers.pop(key, None)
            else:
                self._timers[key] = request

    def get_expired_timers(self, deadline: float) -> dict[int, list[R]]:
        """The timers that run out at `deadline` or before, by process."""
        expired: dict[int, list[R]] = {}
        for request in self._timers.values():
            if request.expiration_time <= deadline:
                expired.setdefault(request.worker_id, []).append(request)
        return expired

    def _forget(self, pids: set[int]) -> None:
        self._timers = {key: one for key, one in self._timers.items() if key[0] not in pids}

    def _take_in(self, timer_requests: Sequence[R]) -> None:
        """Note what was read. A process that has ended since has no timers any more."""
        self._forget(self._processes.ended())
        self.register_timers(list(timer_requests))
        self._processes.keep_only({pid for pid, _ in self._timers})


class PinnedProcesses:
    """Pinned processes, by number. Used by one thread at a time."""

    def __init__(self) -> None:
        self._pinned: dict[int, int] = {}
        """The pidfd of each, or `GONE` for one that had ended before it could be pinned."""
        weakref.finalize(self, _close_all, self._pinned)

    def ended(self) -> set[int]:
        """Those that were pinned and have ended since."""
        poll = select.poll()
        numbers = {pinned: pid for pid, pinned in self._pinned.items() if pinned != GONE}
        for pinned in numbers:
            poll.register(pinned, select.POLLIN)
        gone = {pid for pid, pinned in self._pinned.items() if pinned == GONE}
        return gone | {numbers[pinned] for pinned, _ in poll.poll(0)}

    def keep_only(self, pids: set[int]) -> None:
        """Pin those of `pids` that are not pinned, and let go of all others."""
        for pid in self._pinned.keys() - pids:
            _close(self._pinned.pop(pid))
        for pid in pids - self._pinned.keys():
            if is_endable(pid):
                self._pin(pid)

    def _pin(self, pid: int) -> None:
        try:
            self._pinned[pid] = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pinned[pid] = GONE
        except OSError as error:
            # A kernel without pidfds, or no descriptor left: the number itself has to do.
            logger.debug("Process %s cannot be pinned: %s", pid, error.strerror)

    def send(self, pid: int, signal_number: int) -> bool:
        """Signal a process; False if the kernel or we refuse. One that is gone needs no signal."""
        if not is_endable(pid):
            logger.warning("A timer of process %s ran out, but that process must not be ended", pid)
            return False
        pinned = self._pinned.get(pid)
        try:
            if pinned is None:
                os.kill(pid, signal_number)
            elif pinned != GONE:
                signal.pidfd_send_signal(pinned, signal_number)
        except ProcessLookupError:
            logger.info("Process %s had ended before its timer ran out", pid)
        except OSError as error:
            logger.error("Process %s cannot be ended: %s", pid, error.strerror)
            return False
        return True

    def close(self) -> None:
        """Let go of all of them."""
        _close_all(self._pinned)


def is_endable(pid: int) -> bool:
    """Whether a timer may end this process at all."""
    return pid > 1 and pid != os.getpid()


def _close_all(pinned: dict[int, int]) -> None:
    while pinned:
        _close(pinned.popitem()[1])


def _close(pinned: int) -> None:
    if pinned != GONE:
        os.close(pinned)
