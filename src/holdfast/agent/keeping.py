"""The keeper of an embedded coordinator: a record on its host's disk.

Nobody else can lead, so nothing is ever gated; a disk that cannot be written is told, and stops
nothing: the nodes' own memory stands for what is lost.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.agent.hosting import NothingKept
from holdfast.control.record import Record
from holdfast.core.coordinator_io import Write
from holdfast.core.document import Document, Ledger
from holdfast.core.model import Tenure
from holdfast.workers.event_loop import Cancellable, Loop

TOUCH_EVERY_S = 60.0


class RecordKeeper(NothingKept):
    """Writes every decision to the record before it counts as written."""

    def __init__(
        self, record: Record | None, node: str, loop: Loop, say: Callable[[str], None]
    ) -> None:
        self._record = record
        self._node, self._loop, self._say = node, loop, say
        self._writes = 0
        self._touch: Cancellable | None = None
        self._touch_again()

    def begin(self, tenure: Tenure, known: Ledger) -> None:
        """Write down under which tenure we speak, before anybody hears us."""
        self._write(tenure, known)

    def keep(self, write: Write, tenure: Tenure, done: Callable[[int], None]) -> None:
        self._write(tenure, write.ledger)
        done(write.version)

    def retire(self) -> None:
        if self._record is not None:
            self._record.remove()
            self._record = None

    def close(self) -> None:
        """Leave the record for whoever goes on."""
        if self._touch is not None:
            self._touch.cancel()

    def _write(self, tenure: Tenure, ledger: Ledger) -> None:
        if self._record is None:
            return
        had_problem = self._record.problem
        self._writes += 1
        self._record.write(
            Document(
                instance=tenure.instance,
                epoch=tenure.epoch,
                counter=self._writes,
                nonce=f"{self._node}/{self._writes}",
                leader=self._node,
                ledger=ledger,
            )
        )
        if self._record.problem and not had_problem:
            self._say(f"a restarted coordinator will know less: {self._record.problem}")

    def _touch_again(self) -> None:
        if self._record is not None:
            self._record.touch()
            self._touch = self._loop.call_later(TOUCH_EVERY_S, self._touch_again)
