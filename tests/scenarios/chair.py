"""The coordinator's place on a host: empty on most, taken on one at a time.

Without a register the first host has it, and its record is on that host's disk. With a
register every host runs the leadership of the core, and whoever wins sits down.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.core import desk as desks
from holdfast.core import leadership
from holdfast.core.agent_io import CoordinatorLost, Told
from holdfast.core.beginning import elected, next_life
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    CoordinatorEvent,
    CoordinatorTimerFired,
    Depose,
    Resign,
    Retire,
    Tell,
    WakeCoordinator,
    Write,
    Written,
)
from holdfast.core.coordinator_state import CoordinatorState
from holdfast.core.document import Document, Ledger
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
    RegisterUnclear,
    ResignationWanted,
    StepDown,
    WakeLeadership,
    WatchRegister,
    WriteRegister,
)
from holdfast.core.leadership_state import LeadershipState, gate
from holdfast.core.messages import CloseJob, FromNode, NodeGreeted, Welcomed
from holdfast.core.model import Tenure

from .node_wording import beginning, ledger, step_in_words

if TYPE_CHECKING:
    from .host import Host
    from .world import Happening, Link, Register

FIRST_HOST = "a"


class Chair:
    """Where a coordinator sits, or may sit one day."""

    def __init__(self, host: Host) -> None:
        self.host, self.world = host, host.world
        self.desk: desks.Desk | None = None
        self.retired = False
        self.links: list[Link] = []
        self.latest: dict[str, Link] = {}
        self.record: Document | None = None
        """What is on this host's disk; it outlives the agent."""
        self.leading: LeadershipState | None = None
        self.kept: list[Tell] = []

    @property
    def taken(self) -> bool:
        return self.desk is not None

    @property
    def needed(self) -> bool:
        """The outcome is known, and somebody may not have heard it yet."""
        return self.desk is not None and not self.retired and self.desk.state.outcome is not None

    def begin(self) -> None:
        config = self.world.config
        assert config is not None
        if self.world.register is not None:
            self.leading = LeadershipState(self.host.node, config.leases)
            self._lead_on(LeadershipStarted())
        elif self.host.name == FIRST_HOST:
            self._begin_with_record()

    def _begin_with_record(self) -> None:
        config, now = self.world.config, self.host.clock()
        assert config is not None
        begun = next_life(config, self.record, self.host.life)
        if self.record is not None and begun.ledger is not None:
            self._save(begun.tenure, begun.ledger)
        self._sit(begun.state(config, now))

    def _sit(self, state: CoordinatorState) -> None:
        self.desk = desks.open_desk(state)
        self.retired = False
        self.latest, self.kept = {}, []
        self._note(beginning(self.host.name, state))

    def die(self, silently: bool) -> None:
        links, self.links = self.links, []
        self.desk, self.leading = None, None
        if not silently:
            for link in links:
                link.drop("the connection was closed")
                link.client.chair.leader_died(link)

    def _note(self, text: str) -> None:
        self.world.note("coordinator", text)

    # Who sits here.

    def find(self) -> None:
        """The agent of this host wants to be put through to the coordinator."""
        if self.world.register is not None:
            self._lead_on(DialWanted())
        elif self.host.name == FIRST_HOST:
            self.host.reached_own()
        else:
            self.host.call([FIRST_HOST])

    def overheard(self, told: Told) -> None:
        """A welcome says who leads, and who would follow."""
        link = self.host.link
        if self.leading is not None and isinstance(told.message, Welcomed) and link is not None:
            successors = told.message.successors
            self._lead_on(Pointed(link.server.node, successors, tenure=told.tenure))

    def leader_died(self, link: Link) -> None:
        """The end of the leader's tether: word of it is on its way to this host."""
        leader = f"{link.server.name}-{link.server_life}"
        if self.leading is not None:
            self.world.send(
                link.server,
                self.host,
                lambda: self.host.run(partial(self._lead_on, LeaderTetherEnded(leader))),
            )

    def _lead_on(self, event: LeadershipEvent) -> None:
        if self.leading is not None:
            for effect in leadership.step(self.leading, event, self.host.clock()):
                self._carry_on(effect)

    def _carry_on(self, effect: LeadershipEffect) -> None:
        match effect:
            case ReadRegister() | WriteRegister():
                assert self.world.register is not None
                answer = self._ask(self.world.register, effect)
                self._later(partial(self._lead_on, answer))
            case WakeLeadership():
                fired = LeadershipTimerFired(effect.name)
                self.host.wake(f"lead {effect.name}", effect.after_s, partial(self._lead_on, fired))
            case Lead():
                self._lead(effect)
            case Confirm():
                kept, self.kept = self.kept, []
                self._say(kept)
                if effect.version:
                    self._decide(Written(effect.version))
            case StepDown():
                self._stand_up(effect.reason)
            case Call():
                self._call(effect.nodes)
            case NobodyFound():
                reason = effect.reason
                self._later(lambda: self.host.found_nobody(reason))
            case Announce():
                self._note(f"on {self.host.name}: {effect.text}")
            case WatchRegister():
                pass  # The register of these stories tells nothing by itself.
            case LearnOutcome():
                seen = self.leading.seen if self.leading is not None else None
                tenure = seen.tenure if seen is not None else Tenure()
                self.host.post(Told(CloseJob(effect.outcome), tenure))

    def _ask(self, register: Register, request: ReadRegister | WriteRegister) -> LeadershipEvent:
        answer = register.ask(request)
        lost = isinstance(answer, RegisterUnclear) and not register.down
        if lost and isinstance(request, WriteRegister):
            what = ledger(request.document.ledger)
            self.world.note(
                "register", f"takes {self.host.name}'s write, {what}; the reply is lost"
            )
        return answer

    def _later(self, happen: Happening) -> None:
        self.world.soon(lambda: self.host.run(happen))

    def _call(self, nodes: tuple[str, ...]) -> None:
        if nodes == (self.host.node,):
            if self.desk is not None:
                self.host.reached_own()
        else:
            self.host.call([node.rpartition("-")[0] for node in nodes])

    def _lead(self, effect: Lead) -> None:
        config = self.world.config
        assert config is not None
        now = self.host.clock()
        self._sit(elected(config, self.host.node, effect).state(config, now))
        self.host.reached_own()

    def _stand_up(self, reason: str) -> None:
        self._note(f"on {self.host.name} says no more: {reason}")
        self.desk = None
        links, self.links = self.links, []
        for link in links:
            link.drop("the coordinator has stepped down")
        if self.host.hosting:
            self.host.hosting = False
            self.host.post(CoordinatorLost("it has stepped down"))

    # What comes in.

    def receive(self, link: Link, message: FromNode) -> None:
        if isinstance(message, NodeGreeted):
            self.latest[link.node] = link
        if self.latest.get(link.node) is link:
            self.hear(link.node, message)

    def hear(self, node: str, message: FromNode) -> None:
        if self.desk is not None:
            self._after(desks.receive(self.desk, node, message, self.host.clock()))

    def disconnected(self, link: Link) -> None:
        if self.desk is not None and self.latest.get(link.node) is link:
            self._after(desks.disconnected(self.desk, link.node, self.host.clock()))

    def tether_ended(self, link: Link) -> None:
        if self.desk is not None and self.latest.get(link.node) is link:
            self._after(desks.tether_ended(self.desk, link.node, True, self.host.clock()))

    def _timer(self, name: str) -> None:
        if self.desk is None:
            return
        if name == desks.LEASES_TIMER:
            self._after(desks.check_leases(self.desk, self.host.clock()))
        else:
            self._decide(CoordinatorTimerFired(name))

    def _decide(self, event: CoordinatorEvent) -> None:
        if self.desk is not None:
            self._after(desks.decide(self.desk, event, self.host.clock()))

    # What comes of it.

    def _after(self, effects: list[CoordinatorEffect]) -> None:
        assert self.desk is not None
        for taken in self.desk.taken:
            for text in step_in_words(taken):
                self._note(text)
        self.desk.taken.clear()
        self._say([effect for effect in effects if isinstance(effect, Tell)])
        for effect in effects:
            self._coordinate(effect)

    def _coordinate(self, effect: CoordinatorEffect) -> None:
        match effect:
            case Write():
                self._write(effect)
            case WakeCoordinator():
                name = effect.name
                self.host.wake(f"coordinate {name}", effect.after_s, partial(self._timer, name))
            case Depose():
                self._lead_on(Outranked(effect.tenure))
            case Resign():
                self._lead_on(ResignationWanted(effect.reason))
            case Retire():
                self.retired = True
                self.host.end_if_done()

    def _write(self, effect: Write) -> None:
        if self.world.register is not None:
            self._lead_on(LedgerWanted(effect.version, effect.ledger, effect.successors))
        elif self.desk is not None:
            self._save(self.desk.state.tenure, effect.ledger)
            self._later(partial(self._decide, Written(effect.version)))

    def _save(self, tenure: Tenure, known: Ledger) -> None:
        self.record = Document(tenure.instance, tenure.epoch, 1, "", self.host.node, (), known)

    def _say(self, tells: list[Tell]) -> None:
        for tell in tells:
            if self.desk is None:
                return
            if self.leading is not None:
                now = self.host.clock()
                heard = desks.all_heard(self.desk, now)
                verdict = gate(self.leading, tell.message, heard, now)
                if verdict == "keep":
                    self.kept.append(tell)
                if verdict != "send":
                    continue
            told = Told(tell.message, self.desk.state.tenure)
            if tell.node == self.host.node:
                self.host.post(told)
            elif tell.node in self.latest:
                self.latest[tell.node].tell_client(told)
