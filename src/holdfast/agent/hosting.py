"""The coordinator, where this node carries it: `core.desk` on a clock, sockets and a disk.

The desk decides; this moves messages, keeps its timers and writes its record. The agent of the
same node is a node like any other, only that its messages do not go through a socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from holdfast.core import coordinator, desk
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    CoordinatorTimerFired,
    Depose,
    Disconnect,
    Explain,
    Raise,
    Reinstate,
    Resign,
    Retire,
    Revoke,
    Tell,
    WakeCoordinator,
    Write,
    Written,
)
from holdfast.core.coordinator_state import CoordinatorState, ledger
from holdfast.core.document import Document, Ledger
from holdfast.core.messages import FromNode, RunRound, ToNode
from holdfast.core.model import Tenure
from holdfast.workers import linux
from holdfast.workers.event_loop import Cancellable, Loop

TOUCH_EVERY_S = 60.0


class Post(Protocol):
    """How messages reach nodes over the network."""

    def send(self, node: str, tenure: Tenure, message: ToNode) -> bool: ...
    def drop(self, node: str) -> None: ...
    def close(self) -> None: ...


class Storage(Protocol):
    """Where the coordinator writes down what must not be lost."""

    problem: str

    def write(self, document: Document) -> None: ...
    def touch(self) -> None: ...
    def remove(self) -> None: ...


class Surroundings(Struct):
    """What a coordinator needs of the agent that it lives in."""

    loop: Loop
    node: str
    say: Callable[[str], None]
    tell_agent: Callable[[ToNode, Tenure], None]
    journal: Callable[[float, desk.Desk], None]
    """Writes down the steps that the desk has taken."""


class CoordinatorHost:
    """A coordinator at work. Without `post` and `storage` it serves a job of one node."""

    def __init__(self, state: CoordinatorState, around: Surroundings) -> None:
        self.post: Post | None = None
        self.on_round: Callable[[int], None] = lambda number: None
        """Called with the number of each round before anybody is told of it."""
        self.storage: Storage | None = None
        self._desk = desk.open_desk(state)
        self._around = around
        self._timers: dict[str, Cancellable] = {}
        self._inbox: deque[Callable[[float], list[CoordinatorEffect]]] = deque()
        self._busy = False
        self._writes = 0
        self._touch: Cancellable | None = None

    @property
    def state(self) -> CoordinatorState:
        return self._desk.state

    def keep_record(self, storage: Storage) -> None:
        """Write down under which tenure we speak, before anybody hears us, and all decisions."""
        self.storage = storage
        storage.write(self._document(ledger(self.state)))
        self._touch_again()

    def _touch_again(self) -> None:
        if self.storage is not None:
            self.storage.touch()
            self._touch = self._around.loop.call_later(TOUCH_EVERY_S, self._touch_again)

    # What comes in.

    def receive(self, node: str, message: FromNode) -> None:
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

    def close(self) -> None:
        """Be the coordinator no more; the record stays for the next one."""
        for timer in self._timers.values():
            timer.cancel()
        if self._touch is not None:
            self._touch.cancel()
        if self.post is not None:
            self.post.close()

    # What goes out.

    def _take(self, step: Callable[[float], list[CoordinatorEffect]]) -> None:
        self._inbox.append(step)
        if self._busy:
            return
        self._busy = True
        try:
            while self._inbox:
                now = linux.now()
                effects = self._inbox.popleft()(now)
                self._around.journal(now, self._desk)
                for effect in effects:
                    self._carry_out(effect)
        finally:
            self._busy = False

    def _carry_out(self, effect: CoordinatorEffect) -> None:
        match effect:
            case Tell():
                self._tell(effect)
            case Write():
                self._write(effect)
            case WakeCoordinator():
                self._wake(effect.name, effect.after_s)
            case Explain():
                self._around.say(effect.text)
            case Retire():
                if self.storage is not None:
                    self.storage.remove()
                    self.storage = None
            case Disconnect():
                if self.post is not None:
                    self.post.drop(effect.node)
            case Revoke() | Reinstate() | Raise() | Depose() | Resign():
                pass  # The desk has seen to it; an embedded coordinator cannot be replaced.

    def _tell(self, effect: Tell) -> None:
        if isinstance(effect.message, RunRound):
            self.on_round(effect.message.assignment.round)
        if effect.node == self._around.node:
            self._around.tell_agent(effect.message, self.state.tenure)
        elif self.post is not None:
            self.post.send(effect.node, self.state.tenure, effect.message)

    def _write(self, effect: Write) -> None:
        if self.storage is not None:
            had_problem = self.storage.problem
            self.storage.write(self._document(effect.ledger))
            if self.storage.problem and not had_problem:
                self._around.say(f"a restarted coordinator will know less: {self.storage.problem}")
        version = effect.version
        self._inbox.append(lambda now: desk.decide(self._desk, Written(version), now))

    def _document(self, ledger: Ledger) -> Document:
        self._writes += 1
        tenure, node = self.state.tenure, self._around.node
        return Document(
            instance=tenure.instance,
            epoch=tenure.epoch,
            counter=self._writes,
            nonce=f"{node}/{self._writes}",
            leader=node,
            ledger=ledger,
        )

    def _wake(self, name: str, after_s: float) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = self._around.loop.call_later(after_s, self._on_timer, name)
