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
from collections.abc import Callable, Mapping

from holdfast.core.policy.config import JobConfig
from holdfast.observe.history import History, LiveHistory
from holdfast.processes.output.console import Console, Footer
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import Cancellable, Loop

FIRST_S = 1.0
EVERY_S = 1.0
WriteLine = Callable[[History, float, int], str]
"""`observe.summary.live_line`."""


def is_wanted(config: JobConfig, console: Console, environ: Mapping[str, str]) -> bool:
    """Whether there is a terminal to show it on, and no option against it."""
    output = config.output
    if output.quiet or output.json or environ.get("TERM", "dumb") == "dumb":
        return False
    stderr = console.outlet(2)
    return stderr.is_terminal and stderr is console.outlet(1)


class LiveLine:
    """Draws the line while the job runs."""

    def __init__(self, live: LiveHistory, console: Console, loop: Loop, disk: Disk) -> None:
        self._live, self._loop, self._disk = live, loop, disk
        self._outlet = console.outlet(2)
        self._footer = Footer()  # From the first byte on: it has to know what is above it.
        self._outlet.footer = self._footer
        self._write: WriteLine | None = None
        self._round = 0
        self._is_closed = False
        self._timer: Cancellable = loop.call_later(FIRST_S, self._begin)

    def close(self) -> None:
        """Take the line away, for good."""
        self._is_closed = True
        self._timer.cancel()
        self._outlet.hide_footer()

    def _begin(self) -> None:
        """Modules are read in a lane: the loop never waits for a disk."""
        self._disk.lane("live line").do(_load, self._loaded)

    def _loaded(self, write: WriteLine) -> None:
        self._write = write
        self._draw()

    def _draw(self) -> None:
        if self._write is None or self._is_closed:
            return
        self._timer = self._loop.call_later(EVERY_S, self._draw)
        history = self._live.history
        if history.formed != self._round:
            self._round = history.formed
            self._footer.begin_anew()
        now = self._live.time_of(self._loop.now())
        text = self._write(history, now, _columns(self._outlet.descriptor))
        self._outlet.show_footer(text.encode())


def _columns(terminal: int) -> int:
    """The present width; 0 where the terminal does not know."""
    try:
        return os.get_terminal_size(terminal).columns
    except OSError:
        return 0


def _load() -> WriteLine:
    from holdfast.observe.summary import live_line

    return live_line
