"""The link where an endpoint names the coordinator's host.

Whoever has the claim to the endpoint (`Claim`) is the coordinator, the others dial it. Which of the
two this node is may change: each time it dials, it looks. What the coordinator decides is in a
record on its host's disk, from which the next life of it goes on.

Rules
1. Nobody else can lead, so nothing is ever kept back.
2. Every decision is in the record before it counts as written. While its disk does not answer,
   what runs goes on, and new decisions wait.
3. A disk that cannot be written is told, and stops nothing: the nodes' own memory stands for
   what is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.border import (
    CoordinatorLost,
    Depose,
    Dial,
    KnowEnded,
    Resign,
    Retire,
    Told,
    Write,
    Written,
)
from holdfast.core.coordinator import CoordinatorState, is_owed, ledger, next_life
from holdfast.core.node_io import CoordinatorReached, HangUp, Report
from holdfast.core.policy.timing import one_dial_s
from holdfast.core.protocol.document import Document, Ledger
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.messages import ToNode
from holdfast.core.protocol.model import Endpoint, Term
from holdfast.engine.coordinating import Coordinating
from holdfast.engine.link import NetworkedLink
from holdfast.engine.ports import Claim, Exchange, Network, RecordPort

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

TOUCH_EVERY_S = 60.0


class Embedded(NetworkedLink):
    """The coordinator of a job of several nodes, here or at the endpoint's host."""

    def __init__(self, engine: Engine, network: Network, claim: Claim) -> None:
        self._engine, self._network, self._claim = engine, network, claim
        line = self._line = network.line(self)
        self._record: RecordWriter | None = None
        self._exchange: Exchange | None = None
        self._address = engine.config.local_address or ""
        self._is_opening = self._is_closed = False
        """Whether it is being found out if this node is to host, and the record is read."""
        engine.routes |= {
            Report: self.report,
            Dial: self._dial,
            HangUp: lambda effect: line.close(),
            Write: self._write,
            Retire: self._retire,
            # Who hosts does not depend on who did before, and nobody else can.
            **dict.fromkeys((KnowEnded, Resign, Depose), engine.ignore),
        }

    @property
    def is_needed(self) -> bool:
        return self.coordinating is not None and is_owed(self.coordinating.state)

    @property
    def store_address(self) -> Endpoint:
        return self._claim.endpoint

    def close(self) -> None:
        self._is_closed = True
        self._line.close()
        for part in (self.coordinating, self._record, self._exchange):
            if part is not None:
                part.close()
        self.coordinating = self._record = self._exchange = None
        self._claim.close()

    # The line to the host.

    def _dial(self, effect: Dial) -> None:
        """Be the coordinator if the endpoint is this node's to have; else dial it."""
        if self.coordinating is not None:
            self._reach_here()
        elif not self._is_opening:
            self._is_opening = True
            self._claim.take(self._on_here, self._on_elsewhere)

    def _on_elsewhere(self) -> None:
        self._is_opening = False
        self._line.dial((self._claim.endpoint,), one_dial_s(self._engine.config))

    def on_connected(self, local_address: str) -> None:
        if not self._engine.config.local_address:
            self._address = local_address
        self._engine.post(CoordinatorReached())

    def on_line_lost(self, reason: str, permanent: bool) -> None:
        self._engine.post(CoordinatorLost(reason, permanent))

    def on_unusable(self, error: UsageError) -> None:
        raise error

    def on_told(self, term: Term, message: ToNode) -> None:
        self._engine.post(Told(message, term))

    def on_own_tether(self, tether: int) -> None:
        self._engine.ports.processes.hold_tether(tether)

    # Being the coordinator.

    def _on_here(self) -> None:
        record = self._engine.ports.record
        if record is None:
            self._open(None)  # It dies with this node: there is nothing to go on from.
        else:
            record.read(self._open)

    def _open(self, written: Document | None) -> None:
        """Make the coordinator; nobody hears of it before it is written under which term."""
        if self._is_closed:
            return
        engine, record = self._engine, self._engine.ports.record
        state = self._beginning(written)
        if record is not None:
            writes = written.counter if written is not None else 0
            self._record = RecordWriter(engine, record, writes)
        self._exchange = self._network.exchange(self)
        coordinating = Coordinating(state, engine, self._exchange)
        if self._record is None:
            self._serve(coordinating)
        else:
            known = ledger(state, self._engine.clock.now())
            self._record.write(state.term, known, partial(self._serve, coordinating))

    def _beginning(self, written: Document | None) -> CoordinatorState:
        """Go on from the record of an earlier coordinator of this job, or begin."""
        config, now = self._engine.config, self._engine.clock.now()
        beginning = next_life(config, written, self._engine.ports.instance())
        known = beginning.ledger
        if known is not None and known.outcome is not None:
            self._engine.say(
                "this job has already finished; telling the nodes that have not heard of it"
            )
        elif known is not None and known.round:
            self._engine.say(f"going on from the record of round {known.round}")
        self._engine.journal.began(now, beginning)
        return beginning.state(config, now)

    def _serve(self, coordinating: Coordinating) -> None:
        if self._is_closed or self._exchange is None:
            return
        self.coordinating, self._is_opening = coordinating, False
        self._address = self._address or self._claim.endpoint.address
        self._claim.serve(self._exchange)
        coordinating.begin()
        self._reach_here()

    # What is written down.

    def _write(self, effect: Write) -> None:
        coordinating = self.coordinating
        assert coordinating is not None, "nobody else wants anything written down"
        done = partial(coordinating.post, Written(effect.version))
        if self._record is None:
            done()
        else:
            self._record.write(coordinating.state.term, effect.ledger, done)

    def _retire(self, effect: Retire) -> None:
        if self._record is not None:
            self._record.remove()


class RecordWriter:
    """Writes what the coordinator decides to the record, one document after the other."""

    def __init__(self, engine: Engine, record: RecordPort, writes: int) -> None:
        """`writes` is the counter of the document that was found there: it only grows."""
        self._engine, self._record, self._writes = engine, record, writes
        self._had_problem = self._is_over = False
        self._touch = engine.clock.call_later(TOUCH_EVERY_S, self._touch_again)

    def write(self, term: Term, known: Ledger, done: Callable[[], None]) -> None:
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
            ledger=known,
        )
        self._record.write(document, partial(self._on_written, done))

    def remove(self) -> None:
        """The job is over, and everybody knows."""
        if not self._is_over:
            self._is_over = True
            self._record.remove()

    def close(self) -> None:
        """Leave the record for whoever goes on."""
        self._touch.cancel()

    def _on_written(self, done: Callable[[], None], problem: str) -> None:
        if problem and not self._had_problem:
            self._engine.say(f"a restarted coordinator will know less: {problem}")
        self._had_problem = bool(problem)
        done()

    def _touch_again(self) -> None:
        if not self._is_over:
            self._record.touch()
            self._touch = self._engine.clock.call_later(TOUCH_EVERY_S, self._touch_again)
