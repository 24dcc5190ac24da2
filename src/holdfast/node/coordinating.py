"""The coordinator's driver, on the node that is it.

`core.coordinator` decides; this moves messages and keeps its timers. What has to be written down
goes to a `Keeper`, which also has the last word on whether something may be said. The agent of the
same node is a node like any other, only that its messages do not go over the network.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from holdfast.core import coordinator as machine
from holdfast.core.coordinator import CoordinatorState
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    CoordinatorEvent,
    CoordinatorTimerFired,
    Depose,
    Disconnect,
    Explain,
    Raise,
    Refuse,
    Reinstate,
    Resign,
    Retire,
    Revoke,
    Tell,
    WakeCoordinator,
    Write,
    Written,
)
from holdfast.core.node.io import Told
from holdfast.core.protocol.messages import (
    CloseJob,
    FromNode,
    NodeGreeted,
    RunRound,
    StopRound,
    ToNode,
    Welcomed,
)
from holdfast.core.protocol.model import Term
from holdfast.core.protocol.naming import on_itself
from holdfast.node.ports import Exchange, RoundKeys
from holdfast.runtime.loop import Inbox
from holdfast.runtime.timers import Timers

if TYPE_CHECKING:
    from holdfast.node.engine import Engine

Verdict = Literal["send", "keep", "drop"]


class Keeper(Protocol):
    """Where the coordinator's decisions are kept, and what follows from that."""

    def keep(self, write: Write, term: Term, done: Callable[[int], None]) -> None:
        """Write it down; `done` with the version, once it is."""
        ...

    def gate(self, message: ToNode, all_heard: Callable[[float], bool], now: float) -> Verdict:
        """Whether this may be said now, or is kept until `Coordinating.speak_again`.

        `all_heard` costs something in a crowd: it is asked only where it matters.
        """
        ...

    def retire(self) -> None:
        """The job is over, and everybody knows."""
        ...

    def outranked(self, term: Term) -> None:
        """Somebody leads under a higher term."""
        ...

    def resign(self, effect: Resign) -> None:
        """Somebody else should lead."""
        ...


class NothingKept:
    """For a job of one node: its coordinator dies with it."""

    def keep(self, write: Write, term: Term, done: Callable[[int], None]) -> None:
        done(write.version)

    def gate(self, message: ToNode, all_heard: Callable[[float], bool], now: float) -> Verdict:
        return "send"

    def retire(self) -> None:
        pass

    def outranked(self, term: Term) -> None:
        pass  # An embedded coordinator cannot be replaced.

    def resign(self, effect: Resign) -> None:
        pass


class Coordinating:
    """A coordinator at work. Without an exchange it serves a job of one node."""

    def __init__(
        self,
        state: CoordinatorState,
        engine: Engine,
        keeper: Keeper,
        exchange: Exchange | None = None,
    ) -> None:
        self.liveness = machine.coordinator_of(state, engine.node)
        self._engine, self._keeper, self._exchange = engine, keeper, exchange
        self._timers = Timers(engine.clock, self._on_timer)
        self._inbox: Inbox[Callable[[float], list[CoordinatorEffect]]] = Inbox(self._step)
        self._closed = False
        self.messages = 0
        """How many were heard, for whoever wants to know what there is to do here."""
        self._refused: set[str] = set()
        """What was refused, by kind, as far as it was said."""
        self._own_name = ""
        """What the node is called that this coordinator lives on."""
        self._unsaid: list[Tell] = []
        """What may not be said now, but will be if the term is renewed."""

    @property
    def state(self) -> CoordinatorState:
        return self.liveness.state

    # What comes in.

    def on_message(self, node: str, message: FromNode) -> None:
        self.messages += 1
        if isinstance(message, NodeGreeted):
            # A greeting begins anew: its answer tells all, and nothing older may follow it.
            self._unsaid = [tell for tell in self._unsaid if tell.node != node]
        self._take(lambda now: machine.receive(self.liveness, node, message, now))

    def on_lost(self, node: str, reason: str) -> None:
        self._take(lambda now: machine.disconnected(self.liveness, node, now))

    def on_tether_ended(self, node: str, clean: bool) -> None:
        self._take(lambda now: machine.tether_ended(self.liveness, node, clean, now))

    def _on_timer(self, name: str) -> None:
        if name == machine.LEASES_TIMER:
            # What can be read now is read first, in the next turn: `core.membership`.
            clock = self._engine.clock
            clock.call_soon(clock.call_soon, self._check_leases)
            return
        if name == machine.REQUESTS_TIMER:
            self._take(lambda now: machine.check_requests(self.liveness, now))
            return
        self.decide(CoordinatorTimerFired(name))

    def _check_leases(self) -> None:
        self._take(lambda now: machine.check_leases(self.liveness, now))

    def begin(self) -> None:
        """Set the timers that a coordinator which takes over starts with."""
        self.decide(CoordinatorTimerFired(machine.DEADLINES_TIMER))

    def written(self, version: int) -> None:
        """That version is written down."""
        self.decide(Written(version))

    def decide(self, event: CoordinatorEvent) -> None:
        """Something has happened that it has to decide about."""
        self._take(lambda now: machine.decide(self.liveness, event, now))

    def speak_again(self) -> None:
        """Say what could not be said, as far as it may be said now."""
        unsaid, self._unsaid = self._unsaid, []
        for tell in unsaid:
            self._tell(tell)

    def close(self) -> None:
        """Be the coordinator no more; what is written down stays for the next one."""
        self._closed = True
        self._inbox.clear()
        self._unsaid.clear()
        self._timers.cancel()

    # What goes out.

    def _take(self, step: Callable[[float], list[CoordinatorEffect]]) -> None:
        if not self._closed:
            self._inbox.put(step)

    def _step(self, step: Callable[[float], list[CoordinatorEffect]]) -> None:
        now = self._engine.clock.now()
        effects = step(now)
        self._engine.journal.taken(now, self.liveness)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: CoordinatorEffect) -> None:
        if self._closed:
            return  # One of the effects before this one has ended the term.
        match effect:
            case Tell():
                self._tell(effect)
            case Write():
                self._keeper.keep(effect, self.state.term, self.written)
            case WakeCoordinator():
                self._timers.set(effect.name, effect.after_s)
            case Explain():
                self._engine.say(on_itself(effect.text, effect.about, self._own_name))
            case Retire():
                self._keeper.retire()
            case Disconnect():
                if self._exchange is not None:
                    self._exchange.drop(effect.node)
            case Refuse():
                self._refuse(effect)
            case Depose():
                self._keeper.outranked(effect.term)
            case Resign():
                self._keeper.resign(effect)
            case Revoke() | Reinstate() | Raise():
                pass  # `core.coordinator` has seen to it.

    def _refuse(self, effect: Refuse) -> None:
        """Say it once for each kind: whoever does it again and again shall not fill a console."""
        if self._exchange is None or effect.node == self._engine.node:
            return  # Our own agent speaks to the next coordinator before it has greeted it.
        if effect.kind not in self._refused:
            self._refused.add(effect.kind)
            self._engine.say(f"refused a node that may not be what it seems: {effect.reason}")
        self._exchange.refuse(effect.node, effect.kind, effect.reason)

    def _tell(self, tell: Tell) -> None:
        now = self._engine.clock.now()  # Not when it was decided: we may have been stopped since.
        verdict = self._keeper.gate(tell.message, partial(machine.all_heard, self.liveness), now)
        if verdict == "keep":
            self._unsaid.append(tell)
        if verdict != "send":
            return
        if self._exchange is not None and self._exchange.keys is not None:
            self._serve_keys(self._exchange.keys, tell.message)
        if tell.node == self._engine.node:
            if isinstance(tell.message, Welcomed):
                self._own_name = tell.message.name or self._own_name
            self._engine.post(Told(tell.message, self.state.term))
        elif self._exchange is not None:
            self._exchange.send(tell.node, self.state.term, tell.message)

    def _serve_keys(self, keys: RoundKeys, told: ToNode) -> None:
        """A round has keys of its own, from before anybody is told of it until it is stopped.

        After a success they stay: whoever is done may still wait there for the others. One who
        was lost, or of another life of the job, may be told to stop while the round goes on.
        """
        current = self.state.group.round
        if isinstance(told, RunRound):
            keys.open(told.assignment.round)
        elif isinstance(told, StopRound) and (current is None or current.stop is not None):
            keys.end(told.round)
        elif isinstance(told, CloseJob) and told.outcome.verdict != "succeeded":
            keys.end(self.state.group.round_number)
