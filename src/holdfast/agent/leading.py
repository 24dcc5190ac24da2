"""`core.leadership` on the loop: its questions go to the register, its timers to the clock.

It is the keeper of the coordinator that it makes: what that one decides is written to the
register before it counts, and what it wants to say is said only while its tenure lasts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from holdfast.agent.contact import Owner
from holdfast.control.registers.asking import Asking, NoAnswer, Reply
from holdfast.core import leadership
from holdfast.core.coordinator_io import Write
from holdfast.core.document import Document, decode, encode
from holdfast.core.leadership_io import (
    Announce,
    Call,
    Confirm,
    Lead,
    LeadershipEffect,
    LeadershipEvent,
    LeadershipTimerFired,
    LeaderTetherEnded,
    LearnOutcome,
    LedgerWanted,
    NobodyFound,
    Outranked,
    ReadRegister,
    RegisterRead,
    RegisterUnclear,
    RegisterWrote,
    ResignationWanted,
    StepDown,
    WakeLeadership,
    WatchRegister,
    WriteRegister,
)
from holdfast.core.leadership_state import LeadershipState, gate, may_speak
from holdfast.core.messages import ToNode
from holdfast.core.model import Endpoint, Outcome, Tenure
from holdfast.workers import linux
from holdfast.workers.event_loop import Cancellable

FORGOTTEN_AFTER_S = 60.0
"""How long latecomers learn the outcome from the register, where it can forget."""
FOREIGN = "it contains data that Holdfast did not write"
NOTEWORTHY_EVENTS = (LeaderTetherEnded, Outranked, ResignationWanted)
NOTEWORTHY_EFFECTS = (Lead, StepDown, Call, NobodyFound, LearnOutcome, Announce)


class Stage(Protocol):
    """Where what was decided is carried out."""

    def lead(self, effect: Lead) -> None: ...
    def renewed(self) -> None: ...
    def step_down(self, reason: str) -> None: ...
    def call(self, effect: Call) -> None: ...
    def nobody_found(self, reason: str, permanent: bool) -> None: ...
    def learn_outcome(self, outcome: Outcome, tenure: Tenure) -> None: ...


class Leading:
    """Who leads, as this node sees it."""

    def __init__(self, owner: Owner, asking: Asking, stage: Stage, place: Endpoint) -> None:
        self._owner, self._asking, self._stage = owner, asking, stage
        self.state = LeadershipState(
            owner.node,
            owner.config.leases,
            crowd=owner.config.max_nodes,
            instance=int(time.time()),
            place=place,
            pushes=asking.tells_of_changes,
        )
        self._inbox: deque[LeadershipEvent] = deque()
        self._busy = False
        self._timers: dict[str, Cancellable] = {}
        self._on_written: Callable[[int], None] = lambda version: None
        self.is_retiring = False
        self.is_over = False
        """The job is over and all is done; nothing more happens here."""

    @property
    def is_resigning(self) -> bool:
        if self.state.is_over and self.state.unanswered:
            return False  # It would only have been tidied up.
        pending = self.state.pending
        return self.state.resigns or (pending is not None and pending.purpose == "resign")

    def take(self, event: LeadershipEvent) -> None:
        """Take a step, after those that are under way."""
        self._inbox.append(event)
        if self._busy or self.is_retiring:
            return
        self._busy = True
        try:
            while self._inbox and not self.is_retiring:
                self._step(self._inbox.popleft())
        finally:
            self._busy = False

    def _step(self, event: LeadershipEvent) -> None:
        now = linux.now()
        effects = leadership.step(self.state, event, now)
        if _is_noteworthy(event, effects):
            self._owner.journal.leadership(now, event, effects)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: LeadershipEffect) -> None:
        match effect:
            case ReadRegister():
                self._asking.read(self._on_read)
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
            case Call():
                self._stage.call(effect)
            case NobodyFound():
                self._stage.nobody_found(effect.reason, effect.permanent)
            case LearnOutcome():
                tenure = self.state.seen.tenure if self.state.seen is not None else Tenure()
                self._stage.learn_outcome(effect.outcome, tenure)
            case Announce():
                self._owner.say(effect.text)
            case WakeLeadership():
                self._wake(effect.name, effect.after_s)

    def _wake(self, name: str, after_s: float) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        fired = LeadershipTimerFired(name)
        self._timers[name] = self._owner.loop.call_later(after_s, self.take, fired)

    # The register.

    def _write(self, effect: WriteRegister) -> None:
        nonce = effect.document.nonce

        def on_wrote(reply: Reply) -> None:
            self.take(_wrote(reply, nonce))

        is_over = effect.document.ledger.outcome is not None
        keep_s = FORGOTTEN_AFTER_S if is_over else None
        self._asking.write(encode(effect.document), effect.token, on_wrote, keep_s)

    def _watch(self, on: bool) -> None:
        if on:
            self._asking.watch(self.state.token, self._on_read)
        else:
            self._asking.stop_watching()

    def _on_read(self, reply: Reply) -> None:
        self.take(_read(reply))

    # As the keeper of a coordinator.

    def keep(self, write: Write, tenure: Tenure, done: Callable[[int], None]) -> None:
        self._on_written = done
        wanted = LedgerWanted(write.version, write.ledger, write.successors, write.places)
        self.take(wanted)

    def gate(
        self, message: ToNode, all_heard: Callable[[float], bool], now: float
    ) -> Literal["send", "keep", "drop"]:
        is_holding = not may_speak(self.state, now) and all_heard(now)
        return gate(self.state, message, is_holding, now)

    def retire(self) -> None:
        """The register may forget the job after a while; one that cannot is left as if new."""
        if not self._asking.can_forget:
            self.take(ResignationWanted("the job is over", is_over=True))
            return
        self.is_retiring = True
        self._stop_timers()
        self._asking.forget_after(FORGOTTEN_AFTER_S, self._on_forgotten)

    def _on_forgotten(self, reply: Reply) -> None:
        self.is_over = True

    def outranked(self, tenure: Tenure) -> None:
        self.take(Outranked(tenure))

    def resign(self, reason: str) -> None:
        self.take(ResignationWanted(reason))

    def close(self) -> None:
        self._stop_timers()
        self._asking.close()

    def _stop_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()


def _is_noteworthy(event: LeadershipEvent, effects: list[LeadershipEffect]) -> bool:
    """Whether it changed something: a quiet job would write little else than renewals."""
    told = any(isinstance(effect, NOTEWORTHY_EFFECTS) for effect in effects)
    return told or isinstance(event, NOTEWORTHY_EVENTS)


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
