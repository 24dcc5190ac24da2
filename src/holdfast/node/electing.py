"""The election's driver: its requests go to the register, its timers to the clock.

It is the keeper of the coordinator that it makes: what that one decides is written to the
register before it counts, and what it wants to say is said only while its term lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.coordinator_io import Resign, Write
from holdfast.core.election import step as election
from holdfast.core.election.io import (
    Announce,
    Confirm,
    DialNodes,
    ElectionEffect,
    ElectionEvent,
    ElectionTimerFired,
    ForgetRegister,
    Lead,
    LearnOutcome,
    LedgerWanted,
    NobodyFound,
    OutcomeKnown,
    Outranked,
    ReadRegister,
    RegisterForgot,
    RegisterRead,
    RegisterUnclear,
    RegisterWrote,
    ResignationWanted,
    StepDown,
    WakeElection,
    WatchRegister,
    WriteRegister,
)
from holdfast.core.election.state import (
    FORGOTTEN_AFTER_S,
    ElectionState,
    gate,
    may_speak,
    snapshot,
)
from holdfast.core.protocol.document import Document, decode, encode
from holdfast.core.protocol.messages import ToNode
from holdfast.core.protocol.model import Endpoint, Term
from holdfast.node.coordinating import Verdict
from holdfast.node.ports import RegisterPort
from holdfast.registers.register_thread import NoAnswer, Reply
from holdfast.runtime.loop import Inbox
from holdfast.runtime.timers import Timers

if TYPE_CHECKING:
    from holdfast.node.elected import Elected
    from holdfast.node.engine import Engine

FOREIGN = "it contains data that Holdfast did not write"


class Electing:
    """Who leads, as this node sees it."""

    def __init__(
        self, engine: Engine, register: RegisterPort, stage: Elected, place: Endpoint
    ) -> None:
        self._engine, self._register, self._stage = engine, register, stage
        self.state = ElectionState(
            engine.node,
            engine.config.leases,
            crowd=engine.config.max_nodes,
            instance=engine.ports.instance(),
            place=place,
            pushes=register.tells_of_changes,
            can_forget=register.can_forget,
            resign_s=engine.config.timeouts.resign_s,
        )
        self._inbox: Inbox[ElectionEvent] = Inbox(self._step)
        self._timers = Timers(engine.clock, lambda name: self.take(ElectionTimerFired(name)))
        self._on_written: Callable[[int], None] = lambda version: None

    def take(self, event: ElectionEvent) -> None:
        """Take a step, after those that are under way."""
        self._inbox.put(event)

    def _step(self, event: ElectionEvent) -> None:
        now = self._engine.clock.now()
        before = snapshot(self.state)
        effects = election.step(self.state, event, now)
        self._engine.journal.election(now, before, event, effects)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: ElectionEffect) -> None:
        match effect:
            case WakeElection():
                self._timers.set(effect.name, effect.after_s)
            case ReadRegister():
                self._register.read(self._on_read)
            case WriteRegister():
                self._write(effect)
            case WatchRegister():
                self._watch(effect.on)
            case Lead():
                self._stage.lead(effect)
            case Confirm():
                self._stage.renewed()  # What could not be said comes before what is decided now.
                if effect.version:
                    self._on_written(effect.version)
            case StepDown():
                self._stage.step_down(effect.reason)
            case DialNodes():
                self._stage.call(effect)
            case NobodyFound():
                self._stage.lose(effect.reason, effect.permanent)
            case LearnOutcome():
                self._stage.learn_outcome(effect.outcome, effect.term)
            case ForgetRegister():
                self._timers.cancel()
                self._register.forget_after(effect.after_s, self._on_forgotten)
            case Announce():
                self._engine.say(effect.text)

    # The register.

    def _write(self, effect: WriteRegister) -> None:
        nonce = effect.document.nonce

        def on_wrote(reply: Reply) -> None:
            self.take(_wrote(reply, nonce))

        is_over = effect.document.ledger.outcome is not None
        keep_s = FORGOTTEN_AFTER_S if is_over else None
        self._register.write(encode(effect.document), effect.token, on_wrote, keep_s)

    def _watch(self, on: bool) -> None:
        if on:
            self._register.watch(self.state.token, self._on_read)
        else:
            self._register.stop_watching()

    def _on_forgotten(self, reply: Reply) -> None:
        self.take(RegisterForgot())

    def _on_read(self, reply: Reply) -> None:
        self.take(_read(reply))

    # As the keeper of a coordinator.

    def keep(self, write: Write, term: Term, done: Callable[[int], None]) -> None:
        self._on_written = done
        wanted = LedgerWanted(write.version, write.ledger, write.successors, write.places)
        self.take(wanted)

    def gate(self, message: ToNode, all_heard: Callable[[float], bool], now: float) -> Verdict:
        is_holding = not may_speak(self.state, now) and all_heard(now)
        return gate(self.state, message, is_holding, now)

    def retire(self) -> None:
        self.take(OutcomeKnown())

    def outranked(self, term: Term) -> None:
        self.take(Outranked(term))

    def resign(self, effect: Resign) -> None:
        self.take(ResignationWanted(effect.reason, effect.leaves))

    def close(self) -> None:
        self._timers.cancel()
        self._register.close()


def _read(reply: Reply) -> RegisterRead | RegisterUnclear:
    if isinstance(reply, NoAnswer):
        return RegisterUnclear(False, reason=reply.reason, refused=reply.refused)
    try:
        return RegisterRead(_document(reply.content), reply.token, reply.expired)
    except msgspec.DecodeError:
        reason = f"{FOREIGN}; is another program using this prefix?"
        return RegisterUnclear(False, reason=reason, refused=True)


def _wrote(reply: Reply, nonce: str) -> RegisterWrote | RegisterUnclear:
    if isinstance(reply, NoAnswer):
        return RegisterUnclear(True, nonce, reply.reason, reply.refused)
    try:
        return RegisterWrote(reply.has_set, _document(reply.content), reply.token, nonce)
    except msgspec.DecodeError:
        return RegisterUnclear(True, nonce, FOREIGN)


def _document(content: bytes | None) -> Document | None:
    return decode(content) if content else None
