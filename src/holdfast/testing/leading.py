"""The coordinator's shell in a simulated process: its desk, its leadership, its connections.

Rules
1. With a shared register every process runs `leadership.step`, and has a desk while it leads.
   Embedded, one host has a desk as long as its agent lives, and its disk is the register.
2. What is to be said waits in an outbox until the process gets to send it, and `gate` is asked
   then. A process that is paused in between asks after it woke up.
3. Only the latest connection of a node counts: what an older one brings is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core import coordinator, leadership
from holdfast.core import desk as desks
from holdfast.core.agent_io import Told
from holdfast.core.beginning import elected
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    CoordinatorTimerFired,
    Depose,
    Disconnect,
    Explain,
    Resign,
    Retire,
    Tell,
    WakeCoordinator,
    Write,
    Written,
)
from holdfast.core.coordinator_state import CoordinatorState
from holdfast.core.document import Document
from holdfast.core.leadership import (
    LeadershipState,
)
from holdfast.core.leadership_io import (
    Announce,
    Call,
    Confirm,
    DialWanted,
    Lead,
    LeadershipEffect,
    LeadershipEvent,
    LeadershipStarted,
    LeadershipTimerFired,
    LeaderTetherEnded,
    LearnOutcome,
    LedgerWanted,
    NobodyFound,
    Outranked,
    Pointed,
    ReadRegister,
    ResignationWanted,
    StepDown,
    WakeLeadership,
    WatchRegister,
    WriteRegister,
)
from holdfast.core.leases import NodeGone
from holdfast.core.messages import CloseJob, HeartbeatAnswered, NodeGreeted, Welcomed
from holdfast.core.model import Tenure
from holdfast.testing.facts import NodeDeclaredGone, Recorded, RoundEnding, Spoke, SteppedDown
from holdfast.testing.network import TO_CLIENT, Connection

if TYPE_CHECKING:
    from holdfast.testing.process import Process

DISK_S = 0.004
EMBEDDED_HOST = 0
TOLERANCE_S = 0.001


class Leading:
    """What of the coordinator is in one process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.machine = process.machine
        self.cluster = process.cluster
        self.host = process.host
        self.embedded = self.cluster.plan.embedded
        self.desk: desks.Desk | None = None
        self.retired = False
        self.state = LeadershipState(process.node, self.machine.config.leases, pushes=True)
        self.latest: dict[str, Connection] = {}
        self.outbox: list[Tell] = []
        self.kept: list[Tell] = []
        self._flushing = False
        self._ending: tuple[int, object] = (0, None)
        self._sent_at: dict[str, float] = {}
        """When each document was first sent to the register."""
        self._secure_from = 0.0
        """When the last document that the register took was sent."""

    # Its life.

    @property
    def accepts(self) -> bool:
        return self.desk is not None

    @property
    def busy(self) -> bool:
        return self.desk is not None and not self.retired

    def begin(self) -> None:
        if not self.embedded:
            self._lead_on(LeadershipStarted())
        elif self.host == EMBEDDED_HOST:
            self._begin_embedded()

    def _begin_embedded(self) -> None:
        """Go on from the record on the disk, under a new epoch, which is written down first."""
        document: Document | None = self.machine.disk
        config, now = self.machine.config, self._now()
        if document is None:
            state = CoordinatorState(config)
        else:
            tenure = Tenure(document.instance, document.epoch + 1)
            state = coordinator.take_over(
                config, tenure, document.ledger, now, config.leases.gone_after_s
            )
            self._to_disk(state.tenure, document.ledger)
        self._open(state)

    def _open(self, state: CoordinatorState) -> None:
        self.desk = desks.open_desk(state)
        self.retired = False
        self.latest, self.outbox, self.kept = {}, [], []
        self._ending = (0, None)
        text = f"coordinates, tenure {state.tenure}"
        self.cluster.tell_story(self.machine, text)
        self._decide(CoordinatorTimerFired("begin"))

    def close(self) -> None:
        self.desk = None

    def resign(self) -> None:
        if not self.embedded:
            self._lead_on(ResignationWanted("its node leaves"))

    def _now(self) -> float:
        return self.machine.clock.now()

    # Whom to dial.

    def find_coordinator(self) -> None:
        if not self.embedded:
            self._lead_on(DialWanted())
        elif self.host == EMBEDDED_HOST:
            self.process.post(self.process.reached_own)
        else:
            self.process.call([EMBEDDED_HOST])

    def pointed(self, connection: Connection, message: Welcomed) -> None:
        if not self.embedded:
            leader = connection.server.node  # type: ignore[attr-defined]
            self._lead_on(Pointed(leader, message.successors))

    def leader_gone(self, connection: Connection) -> None:
        if not self.embedded:
            leader = connection.server.node  # type: ignore[attr-defined]
            self._lead_on(LeaderTetherEnded(leader))

    # Leadership.

    def answered(self, event: LeadershipEvent) -> None:
        """What the register says."""
        self.process.post(self._lead_on, event)

    def recorded(self, document: Document) -> None:
        sent_at = self._sent_at.pop(document.nonce, 0.0)
        self._secure_from = max(self._secure_from, sent_at)
        self.cluster.note(Recorded(self.cluster.timeline.now, self.host, document))

    def _lead_on(self, event: LeadershipEvent) -> None:
        for effect in leadership.step(self.state, event, self._now()):
            self._carry_on(effect)

    def _carry_on(self, effect: LeadershipEffect) -> None:
        match effect:
            case ReadRegister() | WriteRegister():
                if isinstance(effect, WriteRegister):
                    self._sent_at.setdefault(effect.document.nonce, self._now())
                self.cluster.register.ask(self, effect)
            case WakeLeadership():
                self.process.set_timer(("leadership", effect.name), effect.after_s, self._timer)
            case Lead():
                self._lead(effect)
            case Confirm():
                if self.desk is not None:
                    self._decide(Written(effect.version))
                    self._send_kept()
            case StepDown():
                self._step_down(effect.reason)
            case Call():
                self._call(effect.nodes)
            case NobodyFound():
                self.process.post(self.process.found_nobody, effect.reason)
            case LearnOutcome():
                self._learn(effect)
            case WatchRegister():
                self.cluster.register.watch(self, effect.on)
            case Announce():
                self.cluster.tell_story(self.machine, effect.text)

    def _timer(self, name: str) -> None:
        self._lead_on(LeadershipTimerFired(name))

    def _lead(self, effect: Lead) -> None:
        config = self.machine.config
        self._open(elected(config, self.process.node, effect).state(config, self._now()))
        self.process.post(self.process.reached_own)

    def _step_down(self, reason: str) -> None:
        self.cluster.tell_story(self.machine, f"coordinates no more: {reason}")
        resigned = self.state.pending is not None and self.state.pending.purpose == "resign"
        now = self.cluster.timeline.now
        self.cluster.note(SteppedDown(now, self.host, self.process.node, resigned))
        self.desk = None
        for connection in self.latest.values():
            self.cluster.network.hang_up(connection, TO_CLIENT)
        self.latest, self.outbox, self.kept = {}, [], []
        self.process.post(self.process.lost_own, reason)
        self.process.post(self.process.end_if_done)

    def _call(self, nodes: tuple[str, ...]) -> None:
        if nodes == (self.process.node,):
            if self.desk is not None:
                self.process.post(self.process.reached_own)
            return
        self.process.call([self.cluster.host_of(node) for node in nodes])

    def _learn(self, effect: LearnOutcome) -> None:
        seen = self.state.seen
        tenure = seen.tenure if seen is not None else Tenure()
        self.process.post_agent(Told(CloseJob(effect.outcome), tenure))

    # The desk.

    def frame(self, connection: Connection, message: Any) -> None:
        if self.desk is None:
            return
        node = connection.client.node  # type: ignore[attr-defined]
        if isinstance(message, NodeGreeted):
            self.latest[node] = connection
            self._forget_unsent(node)
        if self.latest.get(node) is connection:
            self._after(desks.receive(self.desk, node, message, self._now()))

    def hear_own(self, message: Any) -> None:
        if self.desk is not None:
            if isinstance(message, NodeGreeted):
                self._forget_unsent(self.process.node)
            self._after(desks.receive(self.desk, self.process.node, message, self._now()))

    def disconnected(self, connection: Connection) -> None:
        node = connection.client.node  # type: ignore[attr-defined]
        if self.desk is not None and self.latest.get(node) is connection:
            del self.latest[node]
            self._after(desks.disconnected(self.desk, node, self._now()))

    def tether_ended(self, connection: Connection) -> None:
        """In order: the others end in silence."""
        node = connection.client.node  # type: ignore[attr-defined]
        if self.desk is not None and self.latest.get(node, connection) is connection:
            self._after(desks.tether_ended(self.desk, node, True, self._now()))

    def _coordinator_timer(self, name: str) -> None:
        if self.desk is None:
            return
        if name == desks.LEASES_TIMER:
            self._after(desks.check_leases(self.desk, self._now()))
        else:
            self._decide(CoordinatorTimerFired(name))

    def _decide(self, event: Any) -> None:
        if self.desk is not None:
            self._after(desks.decide(self.desk, event, self._now()))

    def _after(self, effects: list[CoordinatorEffect]) -> None:
        self._note_steps()
        for effect in effects:
            self._coordinate(effect)

    def _coordinate(self, effect: CoordinatorEffect) -> None:
        match effect:
            case Tell():
                self._say(effect)
            case Write():
                self._write(effect)
            case WakeCoordinator():
                key = ("coordinator", effect.name)
                self.process.set_timer(key, effect.after_s, self._coordinator_timer)
            case Disconnect():
                self._disconnect(effect.node)
            case Depose():
                self._lead_on(Outranked(effect.tenure))
            case Resign():
                self._lead_on(ResignationWanted(effect.reason))
            case Retire():
                self.retired = True
                self.process.end_if_done()
            case Explain():
                self.cluster.tell_story(self.machine, f"coordinator: {effect.text}")
            case _:
                pass

    def _disconnect(self, node: str) -> None:
        connection = self.latest.pop(node, None)
        if connection is not None:
            self.cluster.network.hang_up(connection, TO_CLIENT)
        elif node == self.process.node:
            self.process.post(self.process.lost_own, "its coordinator took it for gone")

    # Writing.

    def _write(self, effect: Write) -> None:
        if not self.embedded:
            wanted = LedgerWanted(effect.version, effect.ledger, effect.successors, effect.places)
            self._lead_on(wanted)
            return
        assert self.desk is not None
        self.machine.after(DISK_S, self._written, self.desk, effect)

    def _written(self, desk: desks.Desk, effect: Write) -> None:
        if self.desk is desk:
            self._to_disk(desk.state.tenure, effect.ledger)
            self.process.post(self._decide, Written(effect.version))

    def _to_disk(self, tenure: Tenure, ledger: Any) -> None:
        last: Document | None = self.machine.disk
        counter = last.counter + 1 if last is not None else 1
        document = Document(
            tenure.instance, tenure.epoch, counter, "", self.process.node, (), ledger
        )
        self.machine.disk = document
        self.recorded(document)

    # Speaking.

    def _say(self, tell: Tell) -> None:
        if isinstance(tell.message, HeartbeatAnswered):
            self._send(tell)
            return
        self.outbox.append(tell)
        if self.cluster.interrupts(self.machine):
            self.cluster.pause_mid_word(self.machine)
        if not self._flushing:
            self._flushing = True
            self.machine.after(0.0003, self.process.post, self._flush)

    def _forget_unsent(self, node: str) -> None:
        """A greeting begins anew: its answer tells all, and nothing older may come after it."""
        self.outbox = [tell for tell in self.outbox if tell.node != node]
        self.kept = [tell for tell in self.kept if tell.node != node]

    def _flush(self) -> None:
        self._flushing = False
        outbox, self.outbox = self.outbox, []
        for tell in outbox:
            self._send(tell)

    def _send_kept(self) -> None:
        kept, self.kept = self.kept, []
        for tell in kept:
            self._send(tell)

    def _send(self, tell: Tell) -> None:
        if self.desk is None:
            return
        if not self.embedded:
            now = self._now()
            heard = desks.all_heard(self.desk, now)
            verdict = leadership.gate(self.state, tell.message, heard, now)
            if verdict == "keep":
                self.kept.append(tell)
            if verdict != "send":
                return
            self._note_overdue(tell.message, now)
        told = Told(tell.message, self.desk.state.tenure)
        if tell.node == self.process.node:
            self.process.post_agent(told)
        elif tell.node in self.latest:
            self.cluster.network.send(self.latest[tell.node], TO_CLIENT, told)

    # For the checkers.

    def _note_overdue(self, message: Any, now: float) -> None:
        """Beyond the tenure nothing is said; only leases are renewed, while all are heard."""
        terms = self.machine.config.leases
        beyond_s = now - self._secure_from - terms.tenure_s
        if beyond_s <= TOLERANCE_S:
            return
        text = ""
        if not isinstance(message, HeartbeatAnswered):
            text = f"said {type(message).__name__} {beyond_s:.2f} s after its tenure"
        elif beyond_s > terms.hold_s + TOLERANCE_S:
            text = f"renewed a lease {beyond_s:.2f} s after its tenure"
        elif self._silent_member(now):
            text = f"renewed a lease on hold without {self._silent_member(now)}"
        if text:
            self.cluster.note(Spoke(self.cluster.timeline.now, self.host, text))

    def _silent_member(self, now: float) -> str:
        assert self.desk is not None
        current, book = self.desk.state.round, self.desk.book
        for name in current.members if current is not None else ():
            watch = book.watches.get(name)
            silent = watch is None or now - watch.heard_at > book.terms.suspect_s + TOLERANCE_S
            if silent and current is not None and name not in current.succeeded:
                return name or "a node that has not reported"
        return ""

    def _note_steps(self) -> None:
        desk = self.desk
        if desk is None:
            return
        now = self.cluster.timeline.now
        for taken in desk.taken:
            if isinstance(taken.event, NodeGone):
                in_tenure = self.embedded or leadership.may_speak(self.state, self._now())
                self.cluster.note(NodeDeclaredGone(now, taken.event.node, self.host, in_tenure))
                text = f"coordinator: {taken.event.node} is gone: {taken.event.reason}"
                self.cluster.tell_story(self.machine, text)
        desk.taken.clear()
        current = desk.state.round
        ending = (current.number, current.ending) if current is not None else (0, None)
        if ending != self._ending:
            self._ending = ending
            if current is not None and current.ending is not None and current.announced:
                self._note_ending(desk)

    def _note_ending(self, desk: desks.Desk) -> None:
        current, since = desk.state.round, desk.state.newcomer_since
        assert current is not None
        assert current.ending is not None
        now = self._now()
        self.cluster.note(
            RoundEnding(
                self.cluster.timeline.now,
                current.number,
                current.ending,
                self.host,
                now - current.started_at,
                None if since is None else now - since,
            )
        )
        text = f"coordinator: round {current.number} ends ({current.ending}): {current.stop_reason}"
        self.cluster.tell_story(self.machine, text)
