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

from holdfast.core import desk as desks
from holdfast.core import leadership
from holdfast.core.agent_io import Told
from holdfast.core.beginning import Beginning, elected, next_life
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    CoordinatorTimerFired,
    Depose,
    Disconnect,
    Explain,
    Refuse,
    Resign,
    Retire,
    Tell,
    WakeCoordinator,
    Write,
    Written,
)
from holdfast.core.coordinator_state import CoordinatorState
from holdfast.core.document import Document
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
    RegisterRead,
    RegisterWrote,
    ResignationWanted,
    StepDown,
    WakeLeadership,
    WatchRegister,
    WriteRegister,
)
from holdfast.core.leadership_state import LeadershipState
from holdfast.core.messages import CloseJob, NodeGreeted, Welcomed
from holdfast.core.model import Tenure
from holdfast.testing.facts import NodeRefused, Recorded, SteppedDown
from holdfast.testing.lying import LIAR, lies
from holdfast.testing.network import TO_CLIENT, Connection
from holdfast.testing.noting import Notes
from holdfast.testing.speaking import Outbox

if TYPE_CHECKING:
    from holdfast.testing.cluster import Cluster
    from holdfast.testing.process import Process

DISK_S = 0.004
EMBEDDED_HOST = 0


class Leading:
    """What of the coordinator is in one process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.machine = process.machine
        self.cluster: Cluster = process.cluster
        self.host = process.host
        self.embedded = self.cluster.plan.embedded
        self.desk: desks.Desk | None = None
        self.retired = False
        self.state = LeadershipState(
            process.node,
            self.machine.config.leases,
            # A later one is larger, as with the seconds of a calendar.
            instance=1 + int(self.cluster.timeline.now),
            pushes=self.cluster.register.pushes,
        )
        self.latest: dict[str, Connection] = {}
        self._newest: dict[str, int] = {}
        self.outbox = Outbox(self)
        self.notes: Notes | None = None
        self._deposed = False
        self._sent: dict[str, tuple[float, float, Document | None]] = {}
        """When each document was first sent to the register, and what was known then."""
        self._shown: Document | None = None
        """What the register has shown, of the highest tenure."""
        self.secure_from = 0.0
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
        config, now = self.machine.config, self.now()
        if document is not None and document.ledger.outcome is not None:
            # The job is over, and those who have not heard so are told: nobody runs it anew here.
            tenure = Tenure(document.instance, document.epoch + 1)
            beginning = Beginning(tenure, ledger=document.ledger)
        else:
            # Without its record, under the very tenure of its first life: the hardest case.
            beginning = next_life(config, document, instance=1)
        state = beginning.state(config, now)
        if document is not None:
            self._to_disk(state.tenure, document.ledger)
        self._open(state)

    def _open(self, state: CoordinatorState) -> None:
        self.desk = desks.open_desk(state)
        self.retired = False
        self.latest = {}
        self.outbox.clear()
        self.notes, self._deposed = Notes(self, self.desk), False
        text = f"coordinates, tenure {state.tenure}"
        self.cluster.tell_story(self.machine, text)
        self._decide(CoordinatorTimerFired("begin"))

    def close(self) -> None:
        self.desk = None

    def let_go(self) -> None:
        """The process ends in order."""
        self.cluster.register.release(self)

    def resign(self) -> None:
        if not self.embedded:
            # The agent has finished: nothing of any round is left here.
            self._lead_on(ResignationWanted("its node leaves", not self.process.spawner.workers))

    def now(self) -> float:
        return self.machine.clock.now()

    # Whom to dial.

    def find_coordinator(self) -> None:
        if not self.embedded:
            self._lead_on(DialWanted())
        elif self.host == EMBEDDED_HOST:
            self.process.post(self.process.reached_own)
        else:
            self.process.call([EMBEDDED_HOST])

    def pointed(self, connection: Connection, message: Welcomed, tenure: Tenure) -> None:
        if not self.embedded:
            leader = connection.server.node  # type: ignore[attr-defined]
            self._lead_on(Pointed(leader, message.successors, tenure=tenure))

    def leader_gone(self, connection: Connection) -> None:
        if not self.embedded:
            leader = connection.server.node  # type: ignore[attr-defined]
            self._lead_on(LeaderTetherEnded(leader))

    # Leadership.

    @property
    def token(self) -> int:
        return self.state.token

    def answered(self, event: LeadershipEvent) -> None:
        """What the register says."""
        self.process.post(self._take_answer, event)

    def _take_answer(self, event: LeadershipEvent) -> None:
        if self.reached_point():
            self.process.post(self._take_answer, event)
            return
        shown = event.document if isinstance(event, RegisterRead | RegisterWrote) else None
        if shown is not None and (self._shown is None or shown.tenure >= self._shown.tenure):
            self._shown = shown
        self._lead_on(event)

    def reached_point(self) -> bool:
        """Where a coordinator, or who wants to be one, may be struck. Whether it sleeps now."""
        if self.desk is None and self.state.pending is None:
            return False
        self.cluster.reached_point(self.process)
        return self.process.frozen

    def recorded(self, document: Document, blank: bool) -> None:
        now = self.cluster.timeline.now
        here, sent_at, known = self._sent.pop(document.nonce, (0.0, now, None))
        self.secure_from = max(self.secure_from, here)
        self.cluster.note(Recorded(now, self.host, document, blank, known, sent_at))

    def _lead_on(self, event: LeadershipEvent) -> None:
        for effect in leadership.step(self.state, event, self.now()):
            self._carry_on(effect)

    def _carry_on(self, effect: LeadershipEffect) -> None:
        match effect:
            case ReadRegister() | WriteRegister():
                if isinstance(effect, WriteRegister):
                    sent = (self.now(), self.cluster.timeline.now, self._shown)
                    self._sent.setdefault(effect.document.nonce, sent)
                self.reached_point()
                self.cluster.register.ask(self, effect)
            case WakeLeadership():
                self.process.set_timer(("leadership", effect.name), effect.after_s, self._timer)
            case Lead():
                self._lead(effect)
            case Confirm():
                # As the agent does it: what could not be said comes before what is decided now.
                self.outbox.send_kept()
                if effect.version:
                    self._decide(Written(effect.version))
            case StepDown():
                self._step_down(effect.reason)
            case Call():
                self._call(effect.nodes)
            case NobodyFound():
                self.process.post(self.process.found_nobody, effect.reason, effect.permanent)
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
        self._open(elected(config, self.process.node, effect).state(config, self.now()))
        self.process.post(self.process.reached_own)

    def _step_down(self, reason: str) -> None:
        self.cluster.tell_story(self.machine, f"coordinates no more: {reason}")
        resigned = self.state.pending is not None and self.state.pending.purpose == "resign"
        now = self.cluster.timeline.now
        in_tenure = self.now() < self.state.written_at + self.state.terms.tenure_s
        why = (resigned, in_tenure, self._deposed)
        self.cluster.note(SteppedDown(now, self.host, self.process.node, *why))
        self.desk = None
        for connection in self.latest.values():
            self.cluster.network.hang_up(connection, TO_CLIENT)
        self.latest = {}
        self.outbox.clear()
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
        if connection.number < self._newest.get(node, 0):
            return  # Closed when the newer one was admitted, with all that was on its way.
        if isinstance(message, NodeGreeted):
            self.latest[node], self._newest[node] = connection, connection.number
            self.outbox.forget(node)
        if self.latest.get(node) is connection:
            self._after(desks.receive(self.desk, node, message, self.now()))

    def hear_own(self, message: Any) -> None:
        if self.desk is not None:
            if isinstance(message, NodeGreeted):
                self.outbox.forget(self.process.node)
            self._after(desks.receive(self.desk, self.process.node, message, self.now()))

    def hear_liar(self, variety: int) -> None:
        if self.desk is not None:
            for word in lies(self.desk.state, variety):
                self._after(desks.receive(self.desk, LIAR, word, self.now()))
            self._after(desks.disconnected(self.desk, LIAR, self.now()))

    def disconnected(self, connection: Connection) -> None:
        node = connection.client.node  # type: ignore[attr-defined]
        if self.desk is not None and self.latest.get(node) is connection:
            del self.latest[node]
            self._after(desks.disconnected(self.desk, node, self.now()))

    def tether_ended(self, connection: Connection) -> None:
        """In order: the others end in silence."""
        node = connection.client.node  # type: ignore[attr-defined]
        if self.desk is not None and self.latest.get(node, connection) is connection:
            self._after(desks.tether_ended(self.desk, node, True, self.now()))

    def _coordinator_timer(self, name: str) -> None:
        if self.desk is None:
            return
        if name == desks.LEASES_TIMER:
            self._after(desks.check_leases(self.desk, self.now()))
        else:
            self._decide(CoordinatorTimerFired(name))

    def _decide(self, event: Any) -> None:
        if self.desk is not None:
            self._after(desks.decide(self.desk, event, self.now()))

    def _after(self, effects: list[CoordinatorEffect]) -> None:
        if self.notes is not None:
            self.notes.decided()
        for effect in effects:
            self._coordinate(effect)

    def _coordinate(self, effect: CoordinatorEffect) -> None:
        match effect:
            case Tell():
                self.outbox.say(effect)
            case Write():
                self._write(effect)
            case WakeCoordinator():
                key = ("coordinator", effect.name)
                self.process.set_timer(key, effect.after_s, self._coordinator_timer)
            case Disconnect():
                self._disconnect(effect.node)
            case Refuse():
                self._refuse(effect)
            case Depose():
                self._deposed = True
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

    def _refuse(self, effect: Refuse) -> None:
        if effect.node != LIAR:
            now = self.cluster.timeline.now
            self.cluster.note(NodeRefused(now, self.host, effect.node, effect.reason))
        self._disconnect(effect.node)

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
        self.recorded(document, last is None)
