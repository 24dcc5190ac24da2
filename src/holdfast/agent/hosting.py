"""The coordinator, where this node carries it: `core.desk` on a clock and sockets.

The desk decides; this moves messages and keeps its timers. What has to be written down goes to a
`Keeper`, which also has the last word on whether something may be said. The agent of the same
node is a node like any other, only that its messages do not go through a socket.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol

from msgspec import Struct

from holdfast.core import coordinator, desk
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
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
from holdfast.core.coordinator_state import CoordinatorState
from holdfast.core.messages import (
    CloseJob,
    FromNode,
    NodeGreeted,
    RunRound,
    StopRound,
    ToNode,
    Welcomed,
)
from holdfast.core.model import Tenure
from holdfast.core.naming import on_itself
from holdfast.workers import linux
from holdfast.workers.event_loop import Cancellable, Inbox, Loop


class Post(Protocol):
    """How messages reach nodes over the network."""

    def send(self, node: str, tenure: Tenure, message: ToNode) -> bool: ...
    def drop(self, node: str) -> None: ...
    def refuse(self, node: str, kind: str, reason: str) -> None: ...


class RoundKeys(Protocol):
    """The keys that the nodes of a round share."""

    def open(self, round: int) -> None:
        """The keys of a round can be used from now on, and those of older ones no more."""
        ...

    def end(self, round: int) -> None:
        """They can be used no more; whoever waits for one is told."""
        ...


class Keeper(Protocol):
    """Where the coordinator's decisions are kept, and what follows from that."""

    def keep(self, write: Write, tenure: Tenure, done: Callable[[int], None]) -> None:
        """Write it down; `done` with the version, once it is."""
        ...

    def gate(
        self, message: ToNode, all_heard: Callable[[float], bool], now: float
    ) -> Literal["send", "keep", "drop"]:
        """Whether this may be said now, or is kept until `CoordinatorHost.speak_again`.

        `all_heard` costs something in a crowd: it is asked only where it matters.
        """
        ...

    def retire(self) -> None:
        """The job is over, and everybody knows."""
        ...

    def outranked(self, tenure: Tenure) -> None:
        """Somebody leads under a higher tenure."""
        ...

    def resign(self, reason: str) -> None:
        """Somebody else should lead."""
        ...


class NothingKept:
    """For a job of one node: its coordinator dies with it."""

    def keep(self, write: Write, tenure: Tenure, done: Callable[[int], None]) -> None:
        done(write.version)

    def gate(
        self, message: ToNode, all_heard: Callable[[float], bool], now: float
    ) -> Literal["send", "keep", "drop"]:
        return "send"

    def retire(self) -> None:
        pass

    def outranked(self, tenure: Tenure) -> None:
        pass  # An embedded coordinator cannot be replaced.

    def resign(self, reason: str) -> None:
        pass


class Surroundings(Struct):
    """What a coordinator needs of the agent that it lives in."""

    loop: Loop
    node: str
    say: Callable[[str], None]
    tell_agent: Callable[[ToNode, Tenure], None]
    journal: Callable[[float, desk.Desk], None]
    """Writes down the steps that the desk has taken."""


class CoordinatorHost:
    """A coordinator at work. Without a `post` it serves a job of one node."""

    def __init__(self, state: CoordinatorState, around: Surroundings, keeper: Keeper) -> None:
        self.post: Post | None = None
        self.keys: RoundKeys | None = None
        self._desk = desk.open_desk(state)
        self._around, self._keeper = around, keeper
        self._timers: dict[str, Cancellable] = {}
        self._inbox: Inbox[Callable[[float], list[CoordinatorEffect]]] = Inbox(self._step)
        self._closed = False
        self._refused: set[str] = set()
        """What was refused, by kind, as far as it was said."""
        self._own_name = ""
        """What the node is called that this coordinator lives on."""
        self._unsaid: list[Tell] = []
        """What may not be said now, but will be if the tenure is renewed."""

    @property
    def state(self) -> CoordinatorState:
        return self._desk.state

    # What comes in.

    def receive(self, node: str, message: FromNode) -> None:
        if isinstance(message, NodeGreeted):
            # A greeting begins anew: its answer tells all, and nothing older may follow it.
            self._unsaid = [tell for tell in self._unsaid if tell.node != node]
        self._take(lambda now: desk.receive(self._desk, node, message, now))

    def on_message(self, node: str, message: FromNode) -> None:
        self.receive(node, message)

    def on_lost(self, node: str, reason: str) -> None:
        self._take(lambda now: desk.disconnected(self._desk, node, now))

    def on_tether(self, node: str) -> None:
        pass

    def on_tether_ended(self, node: str, clean: bool) -> None:
        self._take(lambda now: desk.tether_ended(self._desk, node, clean, now))

    def _on_timer(self, name: str) -> None:
        if name == desk.LEASES_TIMER:
            # What can be read now is read before that, in the loop's next turn: `core.leases`.
            loop = self._around.loop
            loop.call_soon(loop.call_soon, self._check_leases)
            return
        self._take(lambda now: desk.decide(self._desk, CoordinatorTimerFired(name), now))

    def _check_leases(self) -> None:
        self._take(lambda now: desk.check_leases(self._desk, now))

    def begin(self) -> None:
        """Set the timers that a coordinator which takes over starts with."""
        timer = CoordinatorTimerFired(coordinator.LOOK_TIMER)
        self._take(lambda now: desk.decide(self._desk, timer, now))

    def written(self, version: int) -> None:
        """That version is written down."""
        self._take(lambda now: desk.decide(self._desk, Written(version), now))

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
        for timer in self._timers.values():
            timer.cancel()

    # What goes out.

    def _take(self, step: Callable[[float], list[CoordinatorEffect]]) -> None:
        if self._closed:
            return
        self._inbox.put(step)

    def _step(self, step: Callable[[float], list[CoordinatorEffect]]) -> None:
        now = linux.now()
        effects = step(now)
        self._around.journal(now, self._desk)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: CoordinatorEffect) -> None:
        if self._closed:
            return  # One of the effects before this one has ended the tenure.
        match effect:
            case Tell():
                self._tell(effect)
            case Write():
                self._keeper.keep(effect, self.state.tenure, self.written)
            case WakeCoordinator():
                self._wake(effect.name, effect.after_s)
            case Explain():
                self._around.say(on_itself(effect.text, effect.about, self._own_name))
            case Retire():
                self._keeper.retire()
            case Disconnect():
                if self.post is not None:
                    self.post.drop(effect.node)
            case Refuse():
                self._refuse(effect)
            case Depose():
                self._keeper.outranked(effect.tenure)
            case Resign():
                self._keeper.resign(effect.reason)
            case Revoke() | Reinstate() | Raise():
                pass  # The desk has seen to it.

    def _refuse(self, effect: Refuse) -> None:
        """Say it once for each kind: whoever does it again and again shall not fill a console."""
        if self.post is None or effect.node == self._around.node:
            return  # Our own agent speaks to the next coordinator before it has greeted it.
        if effect.kind not in self._refused:
            self._refused.add(effect.kind)
            self._around.say(f"refused a node that may not be what it seems: {effect.reason}")
        self.post.refuse(effect.node, effect.kind, effect.reason)

    def _tell(self, tell: Tell) -> None:
        now = linux.now()  # Not when it was decided: we may have been stopped in between.
        verdict = self._keeper.gate(tell.message, partial(desk.all_heard, self._desk), now)
        if verdict == "keep":
            self._unsaid.append(tell)
        if verdict != "send":
            return
        if self.keys is not None:
            self._serve_keys(self.keys, tell.message)
        if tell.node == self._around.node:
            if isinstance(tell.message, Welcomed):
                self._own_name = tell.message.name or self._own_name
            self._around.tell_agent(tell.message, self.state.tenure)
        elif self.post is not None:
            self.post.send(tell.node, self.state.tenure, tell.message)

    def _serve_keys(self, keys: RoundKeys, told: ToNode) -> None:
        """A round has keys of its own, from before anybody is told of it until it is stopped.

        After a success they stay: whoever is done may still wait there for the others. One who
        was lost, or of another life of the job, may be told to stop while the round goes on.
        """
        current = self.state.round
        if isinstance(told, RunRound):
            keys.open(told.assignment.round)
        elif isinstance(told, StopRound) and (current is None or current.ending is not None):
            keys.end(told.round)
        elif isinstance(told, CloseJob) and told.outcome.verdict != "succeeded":
            keys.end(self.state.round_number)

    def _wake(self, name: str, after_s: float) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = self._around.loop.call_later(after_s, self._on_timer, name)
