"""What checkers have to know of one process: what it does, and what it says too late.

It is the journal of that process's engine, which is told of every step of every machine.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tools.simulator import faults
from tools.simulator.facts import (
    CoreRaised,
    Delivered,
    EndedForHang,
    FirstWord,
    HangDecided,
    HangHeard,
    LeaseRenewed,
    LimitsAsked,
    NodeDeclaredGone,
    NodeWelcomed,
    RoundEnding,
    RoundFormed,
    SaveAsked,
    Spoke,
    SteppedDown,
)

from holdfast.core import election
from holdfast.core import invariants as coordinator_validate
from holdfast.core import node as node_machine
from holdfast.core.border import Depose
from holdfast.core.coordinator import Beginning, Coordinator, CoordinatorState
from holdfast.core.coordinator_io import CoordinatorEffect, Explain, OperatorAsked, Tell
from holdfast.core.election import (
    ElectionEffect,
    ElectionEvent,
    ElectionState,
    Role,
    StepDown,
    may_speak,
)
from holdfast.core.features.hangs import NodeHangs
from holdfast.core.features.saving import Save
from holdfast.core.membership import NodeGone
from holdfast.core.node_io import NodeEffect, NodeEvent, Report, SignalWorkers, Told
from holdfast.core.protocol.messages import (
    CloseJob,
    Heartbeat,
    HeartbeatAnswered,
    NodeGreeted,
    RunRound,
    StopRound,
    TellHang,
    ToNode,
    Welcomed,
)
from holdfast.core.protocol.model import Term
from holdfast.core.rounds import (
    Round,
    StopCause,
)

if TYPE_CHECKING:
    from tools.simulator.process import SimulatedProcess

    from holdfast.observe.journal import Journal

TOLERANCE_S = 0.001


def _beyond_the_end(effects: list[CoordinatorEffect]) -> Iterator[str]:
    """What a coordinator says of a job that is over, beside that it is."""
    for effect in effects:
        if isinstance(effect, Tell) and not isinstance(effect.message, Welcomed | CloseJob):
            yield f"the job is over, and {effect.node} is told {type(effect.message).__name__}"
        elif isinstance(effect, Explain) and effect.topic in ("restart", "re-form"):
            yield f"the job is over, and another round is announced: {effect.text}"


class Observer:
    """Writes down facts, and the story."""

    def __init__(self, process: SimulatedProcess, journal: Journal | None = None) -> None:
        """`journal` is written as that of a real node, if there is one."""
        self._process, self._journal = process, journal
        self._cluster = process.cluster
        self._heard = Term()
        self._sent: dict[int, float] = {}
        """When each heartbeat was handed to the network, on the host's clock."""
        self._lease_from = 0.0
        self._ending = 0
        self._formed: tuple[Term, int] | None = None
        """The round of which it was said that it ends, while it does."""
        self._save: tuple[int, int, float] | None = None
        """What was last to be saved, and until when."""
        self._first_words: set[Term] = set()
        self._over: CoordinatorState | None = None
        """Of the coordinator here, once it had decided how the job ends."""

    # The node.

    def agent(self, at: float, event: NodeEvent, effects: list[NodeEffect]) -> None:
        if self._journal is not None:
            self._journal.agent(at, event, effects)
        self._validate(node_machine.broken_invariants(self._process.state))
        if isinstance(event, Told):
            self._told(event, bool(effects))
        for effect in effects:
            if isinstance(effect, Report):
                self._reports(effect, at)
            elif isinstance(effect, SignalWorkers) and effect.signal == signal.SIGKILL:
                self._ends_for_hang(effect)

    def _ends_for_hang(self, effect: SignalWorkers) -> None:
        state, now = self._process.state, self._cluster.timeline.now
        assert state.assignment is not None, "workers run"
        for local_rank in effect.local_ranks:
            rank = state.workers[local_rank].rank
            fact = EndedForHang(now, self._process.node, state.assignment.round, rank)
            self._cluster.note(fact)

    def _reports(self, effect: Report, at: float) -> None:
        if isinstance(effect.message, Heartbeat):
            self._sent[effect.message.number] = at
        elif isinstance(effect.message, NodeGreeted):
            self._sent[effect.message.heartbeat] = at

    def _told(self, event: Told, obeyed: bool) -> None:
        message, now, node = event.message, self._cluster.timeline.now, self._process.node
        current = event.term >= self._heard
        self._heard = max(self._heard, event.term)
        if isinstance(message, HeartbeatAnswered):
            if current:
                self._renewed(message.number)
            elif obeyed:
                self._cluster.note(Delivered(now, node, event.term, message, True))
        elif isinstance(message, TellHang):
            if self._process.state.feature(NodeHangs).now.announced:
                self._cluster.note(HangHeard(now, node, message.round))
        elif isinstance(message, Welcomed):
            self._cluster.note(NodeWelcomed(now, node))
        elif isinstance(message, RunRound | StopRound | CloseJob):
            self._cluster.note(Delivered(now, node, event.term, message, obeyed))

    def _renewed(self, number: int) -> None:
        """The lease as it must be: from when the heartbeat was handed to the network."""
        sent_at = self._sent.pop(number, None)
        if sent_at is None or sent_at <= self._lease_from:
            return
        self._lease_from = sent_at
        machine = self._process.machine
        until = machine.clock.true_time(sent_at + machine.config.leases.lease_s)
        self._cluster.note(LeaseRenewed(self._cluster.timeline.now, self._process.node, until))

    def _validate(self, broken_invariants: Iterator[str]) -> None:
        for text in broken_invariants:
            now = self._cluster.timeline.now
            self._cluster.note(CoreRaised(now, self._process.host, text))

    # The coordinator.

    def began(self, at: float, beginning: Beginning) -> None:
        if self._journal is not None:
            self._journal.began(at, beginning)
        text = f"coordinates, term {beginning.term}"
        self._cluster.tell_story(self._process.machine, text)

    def taken(self, at: float, liveness: Coordinator) -> None:
        now, process = self._cluster.timeline.now, self._process
        if liveness.taken:  # Else it took no step, and is as it was: only the leases were seen to.
            self._validate(coordinator_validate.broken_invariants(liveness))
        for taken in liveness.taken:
            if self._journal is not None:
                self._journal.coordinator(at, taken.event, taken.effects)
            if self._over is liveness.state:
                self._validate(_beyond_the_end(taken.effects))
            if isinstance(taken.event, NodeGone):
                in_term = self._election is None or may_speak(self._election, at)
                gone = taken.event.node
                self._cluster.note(NodeDeclaredGone(now, gone, process.host, in_term))
                text = f"coordinator: {gone} is gone: {taken.event.reason}"
                self._cluster.tell_story(process.machine, text)
            elif isinstance(taken.event, OperatorAsked) and taken.event.limits is not None:
                asked = LimitsAsked(now, liveness.state.term, taken.event.limits)
                self._cluster.note(asked)
            self._hang_decided(taken.effects)
        liveness.taken.clear()
        self._over = liveness.state if liveness.state.end is not None else None
        group = liveness.state.group
        current = group.round
        formed_by = liveness.state.term, group.formed
        if group.formed and formed_by != self._formed:
            self._formed = formed_by
            formed = RoundFormed(now, liveness.state.term, group.round_number)
            self._cluster.note(formed)
        save = current.saves.current if current is not None and current.saves is not None else None
        if current is not None and current.is_running and save is not None:
            self._asks_to_save(current, save)
        stop = current.stop if current is not None else None
        number = current.number if current is not None and stop is not None else 0
        if number != self._ending:
            self._ending = number
            if current is not None and stop is not None:
                self._ends(liveness, current, stop.cause, at)

    def _asks_to_save(self, current: Round, saving: Save) -> None:
        save = current.number, saving.number, saving.until
        if save != self._save:
            self._save = save
            until = self._process.machine.clock.true_time(saving.until)
            of = current.number, current.instance, saving.number
            self._cluster.note(
                SaveAsked(self._cluster.timeline.now, self._process.host, *of, until)
            )

    def _hang_decided(self, effects: list[CoordinatorEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Tell) and isinstance(effect.message, TellHang):
                now, number = self._cluster.timeline.now, effect.message.round
                self._cluster.note(HangDecided(now, self._process.host, number))
                text = f"coordinator: round {number} hangs, {effect.node} is told"
                self._cluster.tell_story(self._process.machine, text)
                faults.lose_word_of_hang(self._cluster, effect.node)

    def _ends(self, liveness: Coordinator, current: Round, cause: StopCause, at: float) -> None:
        since = liveness.state.group.wait.newcomer_since
        nodes = len(liveness.state.ready.keys() - current.seats.by_node.keys()) + len(current.seats)
        self._cluster.note(
            RoundEnding(
                self._cluster.timeline.now,
                current.number,
                cause.kind,
                self._process.host,
                at - current.started_at,
                None if since is None else at - since,
                nodes >= liveness.state.max_nodes,
            )
        )
        text = f"coordinator: round {current.number} ends ({cause.kind}): {cause.reason}"
        self._cluster.tell_story(self._process.machine, text)

    def speaks(self, term: Term) -> None:
        if term not in self._first_words:
            self._first_words.add(term)
            now, process = self._cluster.timeline.now, self._process
            self._cluster.note(FirstWord(now, process.host, process.node, term))

    def says(self, message: ToNode) -> None:
        """Beyond the term nothing is said; only leases are renewed, while all are heard."""
        register = self._process.register
        if register is None:
            return
        terms = self._process.machine.config.leases
        now = self._process.reading()
        beyond_s = now - register.secure_from - terms.term_s
        if beyond_s <= TOLERANCE_S:
            return
        text = ""
        if not isinstance(message, HeartbeatAnswered):
            text = f"said {type(message).__name__} {beyond_s:.2f} s after its term"
        elif beyond_s > terms.hold_s + TOLERANCE_S:
            text = f"renewed a lease {beyond_s:.2f} s after its term"
        elif silent := self._silent_member(now):
            text = f"renewed a lease on hold without {silent}"
        if text:
            self._cluster.note(Spoke(self._cluster.timeline.now, self._process.host, text))

    def _silent_member(self, now: float) -> str:
        liveness = self._process.liveness
        current = liveness.state.group.round if liveness is not None else None
        if liveness is None or current is None:
            return ""
        if any(seat.status in ("unreported", "absent") for seat in current.seats.by_rank):
            return "a node that has not reported"
        suspect_s = liveness.leases.terms.suspect_s
        for name in current.seats.nodes():
            watch = liveness.leases.watches.get(name)
            silent = watch is None or now - watch.heard_at > suspect_s + TOLERANCE_S
            if silent and not current.seats.has_succeeded(name):
                return name
        return ""

    # The election.

    @property
    def _election(self) -> ElectionState | None:
        return self._process.election

    def election(
        self,
        at: float,
        before: ElectionState,
        event: ElectionEvent,
        effects: list[ElectionEffect],
    ) -> None:
        if self._journal is not None:
            self._journal.election(at, before, event, effects)
        state, process = self._election, self._process
        if state is not None:
            self._validate(election.broken_invariants(state))
        for effect in effects:
            if isinstance(effect, StepDown) and state is not None:
                text = f"coordinates no more: {effect.reason}"
                self._cluster.tell_story(process.machine, text)
                resigned = state.role is Role.RESIGNING
                in_term = at < state.written_at + state.leases.term_s
                why = (resigned, in_term, isinstance(event, Depose))
                now = self._cluster.timeline.now
                self._cluster.note(SteppedDown(now, process.host, process.node, *why))
