"""The live line of `holdfast run` on a terminal: what the job is doing, below all output.

Rules
1. Only where stdout and stderr are one and the same terminal: what another program writes there
   (`| tee log`) would run into the line. Not with `--quiet` or `--json`, nor on a dumb terminal.
2. It comes after a moment: a job that is over by then costs nothing, and loads nothing of it.
3. Once a second at the most it is drawn anew, and only if it says something else. While more waits
   than the terminal takes, it is not drawn at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.core.policy.config import JobConfig
from holdfast.observe.journal import Journal, Step
from holdfast.processes.output.console import Console
from holdfast.processes.output.footer import Footer
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import Cancellable, Loop

if TYPE_CHECKING:
    from holdfast.observe.live_view import LiveView

FIRST_S = 1.0
EVERY_S = 1.0


def is_wanted(config: JobConfig, console: Console, environ: Mapping[str, str]) -> bool:
    """Whether there is a terminal to show it on, and nobody asked for something else."""
    output = config.output
    if output.quiet or output.json or environ.get("TERM", "dumb") == "dumb":
        return False
    stderr = console.outlet(2)
    return stderr.is_terminal and stderr is console.outlet(1)


class LiveLine:
    """Draws the line while the job runs."""

    def __init__(self, config: JobConfig, console: Console, loop: Loop, disk: Disk) -> None:
        self._config, self._loop, self._disk = config, loop, disk
        self._outlet = console.outlet(2)
        self._footer = Footer()  # From the first byte on: it has to know what is above it.
        self._outlet.footer = self._footer
        self._early: list[Step] = []
        self._view: LiveView | None = None
        self._round = 0
        self._is_closed = False
        self._timer: Cancellable = loop.call_later(FIRST_S, self._begin)

    def listen_to(self, journal: Journal) -> None:
        journal.listeners.append(self._take)

    def close(self) -> None:
        """Take the line away, for good."""
        self._is_closed = True
        self._timer.cancel()
        self._outlet.hide_footer()

    def _take(self, step: Step) -> None:
        if self._view is None:
            self._early.append(step)
        else:
            self._view.feed(step)

    def _begin(self) -> None:
        """Modules are read in a lane: the loop never waits for a disk."""
        self._disk.lane("live line").do(_load, self._loaded)

    def _loaded(self, view: type[LiveView]) -> None:
        if self._is_closed:
            return
        self._view = view(self._config)
        for step in self._early:
            self._view.feed(step)
        self._early.clear()
        self._draw()

    def _draw(self) -> None:
        view = self._view
        if view is None or self._is_closed:
            return
        self._timer = self._loop.call_later(EVERY_S, self._draw)
        if view.round != self._round:
            self._round = view.round
            self._footer.begin_anew()
        columns = _columns(self._outlet.descriptor)
        text = view.text(self._loop.now(), columns)
        self._outlet.show_footer(text.encode())


def _columns(terminal: int) -> int:
    """How wide it is now; 0 where it does not say."""
    try:
        return os.get_terminal_size(terminal).columns
    except OSError:
        return 0


def _load() -> type[LiveView]:
    from holdfast.observe.live_view import LiveView

    return LiveView
