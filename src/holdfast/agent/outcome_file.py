"""The file of `--outcome-file`: how the job ended, for the scheduler that placed its nodes.

Rules
1. Only what the coordinator said is written: the end of one node's part is not the end of the job.
2. A job that was asked to leave as a whole is not over: the scheduler starts it again.
3. It is there whole or not at all. Every node writes the same, so the last one may win.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.node_io import Told
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.messages import CloseJob
from holdfast.observe.journal import NodeStep, Step

if TYPE_CHECKING:
    from holdfast.core.protocol.model import Outcome
    from holdfast.runtime.disk import DiskLane


class OutcomeFile:
    """Listens to a journal, and writes the outcome once it was told."""

    def __init__(self, path: str, lane: DiskLane, complain: Callable[[str], None]) -> None:
        self._path = path
        self._lane = lane
        self._complain = complain
        self._is_written = False

    def feed(self, step: Step) -> None:
        match step:
            case NodeStep(event=Told(message=CloseJob(outcome=outcome))):
                if not outcome.asked and not self._is_written:
                    self._is_written = True
                    self._lane.do(lambda: self._write(outcome), self._complain)

    def _write(self, outcome: Outcome) -> str | None:
        """The problem, if it could not be written."""
        new = f"{self._path}.{os.uname().nodename}.{os.getpid()}"
        try:
            with open(new, "w", encoding="utf-8", errors="replace") as file:
                file.write(f"{outcome.verdict}: {clean(outcome.reason)}\n")
            os.replace(new, self._path)
        except OSError as error:
            return f"--outcome-file {self._path} cannot be written: {error.strerror}"
        return None
