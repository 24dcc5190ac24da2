"""The keeper of an embedded coordinator: a record on its host's disk.

Rules
1. Nobody else can lead, so nothing is ever gated.
2. Every decision is in the record before it counts as written. While its disk does not answer,
   what runs goes on, and new decisions wait.
3. A disk that cannot be written is told, and stops nothing: the nodes' own memory stands for
   what is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.coordinator_io import Write
from holdfast.core.protocol.document import Document, Ledger
from holdfast.core.protocol.model import Term
from holdfast.node.coordinating import NothingKept
from holdfast.node.ports import RecordPort

if TYPE_CHECKING:
    from holdfast.node.engine import Engine

TOUCH_EVERY_S = 60.0


class RecordKeeper(NothingKept):
    """Writes every decision to the record before it counts as written."""

    def __init__(self, engine: Engine, record: RecordPort, counter: int) -> None:
        """`counter` is that of the document that was found there: it only grows."""
        self._engine, self._record = engine, record
        self._writes = counter
        self._had_problem = self._is_over = False
        self._touch = engine.clock.call_later(TOUCH_EVERY_S, self._touch_again)

    def begin(self, term: Term, known: Ledger, done: Callable[[], None]) -> None:
        """Write down under which term we speak, before anybody hears us: that is for `done`."""
        self._write(term, known, done)

    def keep(self, write: Write, term: Term, done: Callable[[int], None]) -> None:
        self._write(term, write.ledger, partial(done, write.version))

    def retire(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._record.remove()

    def close(self) -> None:
        """Leave the record for whoever goes on."""
        self._touch.cancel()

    def _write(self, term: Term, ledger: Ledger, done: Callable[[], None]) -> None:
        if self._is_over:
            self._engine.clock.call_soon(done)
            return
        self._writes += 1
        document = Document(
            instance=term.instance,
            epoch=term.epoch,
            counter=self._writes,
            nonce=f"{self._engine.node}/{self._writes}",
            leader=self._engine.node,
            ledger=ledger,
        )
        self._record.write(document, partial(self._on_written, done))

    def _on_written(self, done: Callable[[], None], problem: str) -> None:
        if problem and not self._had_problem:
            self._engine.say(f"a restarted coordinator will know less: {problem}")
        self._had_problem = bool(problem)
        done()

    def _touch_again(self) -> None:
        if not self._is_over:
            self._record.touch()
            self._touch = self._engine.clock.call_later(TOUCH_EVERY_S, self._touch_again)
