"""Checks for workers that may hang (`core.policy.hangs`), and for stuck ones (`core.policy.stuck`).

What the kernel knows of a worker and of all below it is read in a lane, seldom: it costs a few
dozen small files, and a process that cannot be woken may hold up that lane, and nobody else.
Nothing is decided here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.policy import hangs, stuck
from holdfast.core.protocol.bounds import LINE_MOST, cut
from holdfast.processes.monitoring import kernel, sockets
from holdfast.processes.monitoring.pages import Sign
from holdfast.processes.monitoring.stacks import StackSnapshot
from holdfast.processes.output.log_files import Lane

if TYPE_CHECKING:
    from holdfast.processes.monitoring.monitor import Watched


class HangChecks:
    """The looks at one round."""

    def __init__(
        self,
        terms: hangs.HangTerms,
        lane: Lane,
        on_finding: Callable[[hangs.Finding], None],
        store_port: int = 0,
    ) -> None:
        self._watch = hangs.HangWatch(terms)
        self._lane = lane
        self._on_finding = on_finding
        self._store_port = store_port
        self._is_looking = False

    def check(self, workers: list[tuple[Watched, Sign | None]]) -> None:
        """One look at these, of which each page says that; none while another is under way."""
        if self._is_looking:
            return
        self._is_looking = True
        pids = [worker.pid for worker, _ in workers]
        views = partial(_views, pids, self._store_port)
        self._lane.do(views, partial(self._on_views, workers))

    @property
    def still_hangs(self) -> bool:
        """Whether that was the verdict, and nobody has moved since."""
        return self._watch.hangs or self._watch.may_hang

    def judge(self, snapshot: StackSnapshot) -> hangs.HangVerdict:
        return hangs.judge(self._watch, snapshot.stacks())

    def _on_views(
        self, workers: list[tuple[Watched, Sign | None]], views: dict[int, kernel.KernelView]
    ) -> None:
        self._is_looking = False
        seen = [
            _seen(worker, sign, views[worker.pid])
            for worker, sign in workers
            if worker.pid in views
        ]
        finding = hangs.check(self._watch, seen, time.monotonic())
        if finding != "nothing":
            self._on_finding(finding)


def _views(pids: list[int], store_port: int) -> dict[int, kernel.KernelView]:
    """In a lane. Workers that have ended are left out."""
    sent = sockets.bytes_moved(store_port)
    views = ((pid, kernel.view_with_children(pid, sent)) for pid in pids)
    return {pid: view for pid, view in views if view is not None and view.state != "Z"}


def _seen(worker: Watched, sign: Sign | None, view: kernel.KernelView) -> hangs.WorkerSight:
    return hangs.WorkerSight(
        rank=worker.rank,
        age_s=None if sign is None else sign.age_s,
        phase="" if sign is None else sign.phase,
        longest_s=0.0 if sign is None else sign.longest_s,
        state=view.state,
        traced=bool(view.tracer),
        cpu_s=view.cpu_s,
        io_bytes=view.io_bytes - worker.stack_bytes,
        printed_bytes=view.written_bytes - worker.stack_bytes,
        switches=view.switches,
    )


OnStuck = Callable[[stuck.StuckFinding, str], None]
"""Takes what was found, and what the kernel says of it in words."""


class StuckChecks:
    """The looks at one round."""

    def __init__(self, terms: stuck.StuckLimits, lane: Lane, on_stuck: OnStuck) -> None:
        self._watch = stuck.StuckWatch(terms)
        self._lane = lane
        self._on_stuck = on_stuck
        self._is_looking = False

    def check(self, pids: dict[int, int]) -> None:
        """One look at these, by local rank; none where the one before has not come to its end."""
        if not self._is_looking:
            self._is_looking = True
            self._lane.do(partial(_held_views, pids), self._on_views)

    def _on_views(self, views: dict[int, kernel.KernelView]) -> None:
        self._is_looking = False
        seen = [stuck.StuckSample(rank, view.state, view.switches) for rank, view in views.items()]
        for finding in stuck.check(self._watch, seen, time.monotonic()):
            self._on_stuck(finding, _in_words(finding, views[finding.local_rank]))


def _held_views(pids: dict[int, int]) -> dict[int, kernel.KernelView]:
    """In a lane: those that are there and held by nobody's debugger."""
    views = ((rank, kernel.view_of(pid)) for rank, pid in pids.items())
    return {rank: view for rank, view in views if view is not None and not view.tracer}


def _in_words(finding: stuck.StuckFinding, view: kernel.KernelView) -> str:
    held_s = f"{finding.held_s:.0f} s"
    if finding.how == "stopped":
        return f"is stopped by a signal, for {held_s}: kill -CONT lets it go on"
    waits = f"waits for {view.file or view.waits_for}" if view.file or view.waits_for else "waits"
    where = f" in {view.channel}" if view.channel else ""
    stuck = f"is stuck in the kernel for {held_s}: it {waits}{where}, and no signal reaches it"
    return cut(stuck, LINE_MOST)
