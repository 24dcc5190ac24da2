"""The election's driver: its requests go to the register, its timers to the clock.

It is the keeper of the coordinator that it makes: what that one decides is written to the
register before it counts, and what it wants to say is said only while its term lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast.core import election
from holdfast.core.border import CoordinatorLost, Depose, Resign, Retire, Say, Told, Write, Written
from holdfast.core.election import (
    FORGOTTEN_AFTER_S,
    DialNodes,
    ElectionEffect,
    ElectionEvent,
    ElectionState,
    ElectionTimerFired,
    ForgetRegister,
    HoldJudged,
    Lead,
    ReadRegister,
    RegisterForgot,
    RegisterRead,
    RegisterUnclear,
    RegisterWrote,
    Renewed,
    StepDown,
    WakeElection,
    WatchRegister,
    WriteRegister,
    may_send,
)
from holdfast.core.protocol.document import Document, decode, encode
from holdfast.core.protocol.messages import HeartbeatAnswered, ToNode
from holdfast.core.protocol.model import Endpoint, Term
from holdfast.engine.coordinating import Verdict
from holdfast.engine.ports import RegisterPort
from holdfast.registers.register_thread import NoAnswer, Reply
from holdfast.runtime.loop import Inbox
from holdfast.runtime.timers import Timers

if TYPE_CHECKING:
    from holdfast.engine.elected import Elected
    from holdfast.engine.engine import Engine

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
            nodes_max=engine.config.max_nodes,
            instance=engine.ports.instance(),
            endpoint=place,
            can_watch=register.tells_of_changes,
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
        before = replace(self.state)
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
            case Renewed():
                self._stage.renewed()
            case Written():
                self._on_written(effect.version)
            case StepDown():
                self._stage.step_down(effect.reason)
            case DialNodes():
                self._stage.call(effect)
            case CoordinatorLost() | Told():
                self._engine.post(effect)
            case ForgetRegister():
                self._timers.cancel()
                self._register.forget_after(effect.after_s, self._on_forgotten)
            case Say():
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
        self.take(write)

    def gate(self, message: ToNode, all_heard: Callable[[float], bool], now: float) -> Verdict:
        verdict = may_send(self.state, message, all_heard, now)
        if isinstance(message, HeartbeatAnswered) and self.state.hold_over != (verdict == "drop"):
            self.take(HoldJudged(verdict == "send"))
        return verdict

    def retire(self) -> None:
        self.take(Retire())

    def outranked(self, term: Term) -> None:
        self.take(Depose(term))

    def resign(self, effect: Resign) -> None:
        self.take(effect)

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
