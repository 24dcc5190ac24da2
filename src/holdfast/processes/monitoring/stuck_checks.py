"""Looks for workers that the kernel or a signal holds, and says what they wait for.

The kernel tells nobody that a process cannot be woken: it has to be looked for, seldom, in a lane
(`core.policy.stuck` judges). Such a process may hold up that lane, and nobody else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from holdfast.core.policy import stuck
from holdfast.core.protocol.bounds import LINE_MOST, cut
from holdfast.processes.monitoring import kernel
from holdfast.processes.output.log_files import Lane

OnStuck = Callable[[stuck.StuckFinding, str], None]
"""Takes what was found, and what the kernel says of it in words."""


class StuckChecks:
    """The looks at one round."""

    def __init__(self, terms: stuck.StuckLimits, lane: Lane, on_stuck: OnStuck) -> None:
        self._watch = stuck.StuckWatch(terms)
        self._lane = lane
        self._on_stuck = on_stuck
        self._is_looking = False

    def look(self, pids: dict[int, int]) -> None:
        """One look at these, by local rank; none where the one before has not come to its end."""
        if not self._is_looking:
            self._is_looking = True
            self._lane.do(partial(_views, pids), self._on_views)

    def _on_views(self, views: dict[int, kernel.KernelView]) -> None:
        self._is_looking = False
        seen = [stuck.StuckSample(rank, view.state, view.switches) for rank, view in views.items()]
        for finding in stuck.look(self._watch, seen, time.monotonic()):
            self._on_stuck(finding, _in_words(finding, views[finding.local_rank]))


def _views(pids: dict[int, int]) -> dict[int, kernel.KernelView]:
    """In a lane: those that are there and held by nobody's debugger."""
    views = ((rank, kernel.look(pid)) for rank, pid in pids.items())
    return {rank: view for rank, view in views if view is not None and not view.tracer}


def _in_words(finding: stuck.StuckFinding, view: kernel.KernelView) -> str:
    held_s = f"{finding.held_s:.0f} s"
    if finding.how == "stopped":
        return f"is stopped by a signal, for {held_s}: kill -CONT lets it go on"
    waits = f"waits for {view.file or view.waits_for}" if view.file or view.waits_for else "waits"
    where = f" in {view.channel}" if view.channel else ""
    stuck = f"is stuck in the kernel for {held_s}: it {waits}{where}, and no signal reaches it"
    return cut(stuck, LINE_MOST)
