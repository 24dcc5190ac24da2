"""The coordinator's driver, on the node that is it.

`core.coordinator` decides; this moves messages and keeps its timers. What has to be written down
goes to the node's link, which also says whether something may be said (`MaySend`). The agent of the
same node is a node like any other, only that its messages do not go over the network.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core import coordinator as machine
from holdfast.core.border import Told, Written
from holdfast.core.coordinator import CoordinatorState
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    CoordinatorEvent,
    CoordinatorTimerFired,
    Disconnect,
    Explain,
    Raise,
    Refuse,
    Reinstate,
    Revoke,
    Tell,
    WakeCoordinator,
)
from holdfast.core.protocol.messages import (
    CloseJob,
    FromNode,
    NodeGreeted,
    RunRound,
    StopRound,
    ToNode,
    Welcomed,
)
from holdfast.core.protocol.naming import on_itself
from holdfast.engine.ports import Exchange, RoundKeys
from holdfast.runtime.loop import Inbox, Timers

if TYPE_CHECKING:
    from holdfast.core.election import SendVerdict
    from holdfast.engine.engine import Engine

    MaySend = Callable[[ToNode, Callable[[float], bool], float], SendVerdict]


class Coordinating:
    """A coordinator at work. Without an exchange it serves a job of one node."""

    def __init__(
        self,
        state: CoordinatorState,
        engine: Engine,
        exchange: Exchange | None = None,
        may_send: MaySend | None = None,
    ) -> None:
        """`may_send` says what becomes of a message; it is told how to find out whether all
        members have been heard. Without it, nothing is kept back."""
        self.liveness = machine.coordinator_of(state, engine.node)
        self._engine, self._exchange, self._may_send = engine, exchange, may_send
        timers = self._timers = Timers(engine.clock, self._on_timer)
        self._inbox: Inbox[Callable[[float], list[CoordinatorEffect]]] = Inbox(self._take)
        self._closed = False
        self.messages = 0
        """How many were heard, for whoever wants to know what there is to do here."""
        self._refused: set[str] = set()
        """What was refused, by kind, as far as it was said."""
        self._own_name = ""
        """What the node is called that this coordinator lives on."""
        self._unsaid: list[Tell] = []
        """What may not be said now, but will be if the term is renewed."""
        engine.routes |= {
            Tell: self._tell,
            Refuse: self._refuse,
            Disconnect: self._disconnect,
            Explain: self._explain,
            WakeCoordinator: lambda effect: timers.set(effect.name, effect.after_s),
            Written: self.post,
            # `core.coordinator` has seen to these.
            **dict.fromkeys((Revoke, Reinstate, Raise), engine.ignore),
        }

    @property
    def state(self) -> CoordinatorState:
        return self.liveness.state

    # What comes in.

    def on_message(self, node: str, message: FromNode) -> None:
        self.messages += 1
        if isinstance(message, NodeGreeted):
            # A greeting begins anew: its answer tells all, and nothing older may follow it.
            self._unsaid = [tell for tell in self._unsaid if tell.node != node]
        self._inbox.put(partial(machine.receive, self.liveness, node, message))

    def on_lost(self, node: str, reason: str) -> None:
        self._inbox.put(partial(machine.disconnected, self.liveness, node))

    def on_tether_ended(self, node: str, clean: bool) -> None:
        self._inbox.put(partial(machine.tether_ended, self.liveness, node, clean))

    def _on_timer(self, name: str) -> None:
        if name == machine.LEASES_TIMER:
            # What can be read now is read first, in the next turn: `core.membership`.
            check = partial(self._inbox.put, partial(machine.check_leases, self.liveness))
            self._engine.clock.call_soon(self._engine.clock.call_soon, check)
        elif name == machine.REQUESTS_TIMER:
            self._inbox.put(partial(machine.check_requests, self.liveness))
        else:
            self.post(CoordinatorTimerFired(name))

    def begin(self) -> None:
        """Set the timers that a coordinator which takes over starts with."""
        self.post(CoordinatorTimerFired(machine.DEADLINES_TIMER))

    def post(self, event: CoordinatorEvent) -> None:
        """Take an event, after those that came before it."""
        self._inbox.put(partial(machine.run_step, self.liveness, event))

    def speak_again(self) -> None:
        """Say what could not be said, as far as it may be said now."""
        unsaid, self._unsaid = self._unsaid, []
        for tell in unsaid:
            self._tell(tell)

    def close(self) -> None:
        """Be the coordinator no more; what is written down stays for the next one."""
        self._closed = True
        self._inbox.clear()
        self._inbox = Inbox(self._engine.ignore)
        self._unsaid.clear()
        self._timers.cancel()

    # What goes out.

    def _take(self, step: Callable[[float], list[CoordinatorEffect]]) -> None:
        now = self._engine.clock.now()
        effects = step(now)
        self._engine.journal.taken(now, self.liveness)
        for effect in effects:
            if self._closed:
                return  # One of the effects before this one has ended the term.
            self._engine.routes[type(effect)](effect)

    def _explain(self, effect: Explain) -> None:
        self._engine.say(on_itself(effect.text, effect.about, self._own_name))

    def _disconnect(self, effect: Disconnect) -> None:
        if self._exchange is not None:
            self._exchange.drop(effect.node)

    def _refuse(self, effect: Refuse) -> None:
        """Say it once for each kind: whoever does it again and again shall not fill a console."""
        if self._exchange is None or effect.node == self._engine.node:
            return  # Our own agent speaks to the next coordinator before it has greeted it.
        if effect.kind not in self._refused:
            self._refused.add(effect.kind)
            self._engine.say(f"refused a node that may not be what it seems: {effect.reason}")
        self._exchange.refuse(effect.node, effect.kind, effect.reason)

    def _tell(self, tell: Tell) -> None:
        now = self._engine.clock.now()  # Not when it was decided: we may have slept since.
        if self._may_send is not None:
            all_heard = partial(machine.all_heard, self.liveness)
            verdict = self._may_send(tell.message, all_heard, now)
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
