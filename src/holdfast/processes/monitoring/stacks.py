"""Where all workers of this node are, at one moment: asked for, read, written beside the logs.

Each worker has a handler, put in before its program began (`stdlib_only.stack_handler`), that
appends the stacks of its threads to memory of ours when it gets a signal. The signal is sent to a
process only while it is pinned, below our spawner and catching it. A handler does not say when it
is done, so what it wrote is read when it has not grown between two looks. A worker without an
answer by then is looked at with py-spy, where that is installed (`monitoring.debugger`), else
described by what the kernel says of it alone.

What touches /proc is done in a lane: a process that is stuck may hold up its reader.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.policy.stacks import (
    StackGroup,
    WorkerStack,
    grouped,
    in_words,
    is_past_program,
    read_stack,
    without_own_frames,
)
from holdfast.processes.monitoring import flight_records, kernel
from holdfast.processes.monitoring.debugger import Debugger
from holdfast.processes.monitoring.pages import SIGNAL, StackFiles, StackMeans
from holdfast.processes.stdlib_only import linux

if TYPE_CHECKING:
    from holdfast.processes.monitoring.monitor import Watched

READ_AGAIN_S = 0.03
PATIENCE_S = 1.0
"""How long a worker may take to begin to write."""


class StackAnswer(Struct, frozen=True):
    """What is known of one worker."""

    worker: Watched
    view: kernel.KernelView
    text: str
    """As `faulthandler` wrote it, or py-spy in its stead; empty where neither did."""
    native: str = ""
    """With frames of C; empty where nobody looked."""


class StackSnapshot(Struct, frozen=True):
    """Where all of them were."""

    answers: tuple[StackAnswer, ...]
    file: str = ""
    """Where it is written in full; empty where nothing is to be written."""
    records: tuple[str, ...] = ()
    """Copies of what PyTorch's flight recorder has written."""

    def stacks(self) -> tuple[WorkerStack, ...]:
        return tuple(
            WorkerStack(one.worker.rank, "", read_stack(one.text), one.view.in_words())
            for one in self.answers
        )

    def groups(self) -> tuple[StackGroup, ...]:
        return grouped(self.stacks())

    def location_of(self, rank: int) -> str:
        """Where this one was, in words; empty where that is not known."""
        return next((stack.location.shortly() for stack in self.stacks() if stack.rank == rank), "")

    def is_finalizing(self, rank: int, is_python: bool) -> bool:
        """Whether the main thread of this one was past the end of its program.

        An interpreter that is nearly gone has taken the handler of our signal off.
        """
        one = next((one for one in self.answers if one.worker.rank == rank), None)
        if one is None or one.view.is_held:
            return False
        if not one.text:
            return is_python and not one.view.catches_signal(SIGNAL)
        return is_past_program(one.text)

    def in_words(self) -> str:
        return in_words(self.groups())

    def in_full(self, reason: str) -> str:
        """The whole of it, for a file: in words first, then each worker."""
        when = time.strftime("%Y-%m-%d %H:%M:%S%z")
        parts = [f"{when}: {reason}", self.in_words()]
        parts += [_worker_in_full(one) for one in self.answers]
        parts += [f"PyTorch's flight record: {path}" for path in self.records]
        return "\n\n".join(parts) + "\n"

    def kept(self, path: Path, reason: str, environ: Mapping[str, str]) -> StackSnapshot:
        """In a lane: write it there; the same, with its file if that could be written."""
        workers = [one.worker for one in self.answers]
        keep = flight_records.keep
        found = (keep(environ, one.rank, one.born_at, path.parent) for one in workers)
        whole = replace(self, records=tuple(record for record in found if record))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(whole.in_full(reason), encoding="utf-8", errors="replace")
        except OSError:
            return whole
        return replace(whole, file=str(path))

    def filled(self) -> StackSnapshot:
        """In a lane: with the stacks of those that gave none, as far as a debugger sees them."""
        debugger = Debugger()

        def filled(one: StackAnswer) -> StackAnswer:
            if one.text or one.view.is_held:
                return one
            return replace(one, text=debugger.stack_of(one.worker.pid))

        return replace(self, answers=tuple(filled(one) for one in self.answers))

    def with_native(self) -> StackSnapshot:
        """In a lane: with the frames of C of one worker at each place, the smallest group first."""
        debugger = Debugger()
        pids = {one.worker.rank: one.worker.pid for one in self.answers}
        ranks = [group.stacks[0].rank for group in reversed(self.groups())]
        native = {rank: debugger.native_stack_of(pids[rank]) for rank in ranks}
        answers = (replace(one, native=native.get(one.worker.rank, "")) for one in self.answers)
        return replace(self, answers=tuple(answers))


class StackTaking:
    """One snapshot on its way. `then` gets it, on the loop: after a second or two at most, but for
    what a debugger takes. Whether frames of C are to be had too is asked of `wants_native`."""

    def __init__(
        self,
        files: StackFiles,
        workers: list[Watched],
        means: StackMeans,
        then: Callable[[StackSnapshot], None],
        wants_native: Callable[[StackSnapshot], bool] | None = None,
    ) -> None:
        self._files, self._workers, self._means, self._then = files, workers, means, then
        self._wants_native = wants_native
        self._views: dict[int, kernel.KernelView] = {}
        self._sizes: dict[int, int] = {}
        self._given_up_at = 0.0
        self.is_over = False

    def begin(self) -> None:
        for worker in self._workers:
            self._files.take(worker.local_rank)  # What came too late for the last one.
        ask = partial(_ask, self._workers, self._means.spawner)
        self._means.process_lane.do(ask, self._on_asked)

    def end(self) -> None:
        """Nobody waits for it any more, and what it reads may be closed."""
        self.is_over = True

    def _on_asked(self, views: dict[int, kernel.KernelView]) -> None:
        self._views = views
        self._given_up_at = time.monotonic() + PATIENCE_S
        self._read_stacks()

    def _read_stacks(self) -> None:
        if self.is_over:
            return
        asked = [rank for rank, view in self._views.items() if _answers(view)]
        sizes = {rank: self._files.size(rank) for rank in asked}
        is_done = sizes == self._sizes and all(sizes.values())
        self._sizes = sizes
        if is_done or time.monotonic() > self._given_up_at:
            self._finish()
        else:
            self._means.loop.call_later(READ_AGAIN_S, self._read_stacks)

    def _finish(self) -> None:
        views = self._views
        answers = tuple(
            StackAnswer(one, views[one.local_rank], self._files.take(one.local_rank))
            for one in self._workers
            if one.local_rank in views
        )
        snapshot = StackSnapshot(answers)
        is_whole = all(one.text or one.view.is_held for one in answers)
        if self._means.debugs and not is_whole:
            self._means.process_lane.do(snapshot.filled, self._on_filled)
        else:
            self._on_filled(snapshot)

    def _on_filled(self, snapshot: StackSnapshot) -> None:
        if self.is_over:
            return
        wants_native = self._wants_native is not None and self._wants_native(snapshot)
        if wants_native and self._means.debugs:
            self._means.process_lane.do(snapshot.with_native, self._hand_over)
        else:
            self._hand_over(snapshot)

    def _hand_over(self, snapshot: StackSnapshot) -> None:
        if not self.is_over:
            self.is_over = True
            self._then(snapshot)


def _ask(workers: list[Watched], spawner: int) -> dict[int, kernel.KernelView]:
    """In a lane: look at each of them, then send the signal to those that catch it."""
    found = {}
    for worker in workers:
        view = _ask_one(worker.pid, spawner)
        if view is not None:
            found[worker.local_rank] = view
    return found


def _ask_one(pid: int, spawner: int) -> kernel.KernelView | None:
    """None where it has ended."""
    try:
        pinned = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError:
        return kernel.view_of(pid)  # No pidfd on this kernel: nothing is sent to a number.
    try:
        process, view = linux.read_process(pid), kernel.view_of(pid)
        if process is None or view is None or process.parent != spawner:
            return None
        if _answers(view):
            with contextlib.suppress(PermissionError):  # It has become another user's.
                signal.pidfd_send_signal(pinned, SIGNAL)
        return view
    except ProcessLookupError:
        return None
    finally:
        os.close(pinned)


def _answers(view: kernel.KernelView) -> bool:
    """Whether the signal is safe for it, and has an effect now: not on one that is stopped."""
    return view.catches_signal(SIGNAL) and not view.is_held and view.state != "Z"


def _worker_in_full(one: StackAnswer) -> str:
    view = one.view
    facts = [f"state {view.state}", f"{view.cpu_s:.2f} s of processor time"]
    if view.channel:
        facts.append(f"sleeps in {view.channel}")
    if said := view.in_words():
        facts.append(f"{said} ({view.file})" if view.file not in said else said)
    head = f"rank {one.worker.rank} (pid {one.worker.pid}): {', '.join(facts)}"
    stack = without_own_frames(one.text).strip() or "It gave no stack."
    native = without_own_frames(one.native).strip()
    return f"{head}\n{stack}" + (f"\nWith frames of C:\n{native}" if native else "")
