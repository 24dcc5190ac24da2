"""The link where any node can be the coordinator: found, elected and fenced through a register.

Every node listens; only the one that the register names admits others. A node that loses the
coordinator dials those that may be it now, or finds through the register that it is its own turn.
Which of that happens is decided in `core.election`, which is driven here: its requests go to the
register, its timers to the clock, and what it decides makes and ends the coordinator.

Rules
1. A node that does not lead says so to whoever dials it, and keeps no connection.
2. The orderly end of our tether to the leader, seen from our end, means that nothing of its node
   is left: whoever lets go of a tether for another reason resets it. The leader's spawner holds
   the tethers of its successors too, so that it is not the agent's end alone. With TLS there is no
   tether: the leader's term is then waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast.core import border, coordinator, election
from holdfast.core.election import ElectionEvent, ElectionState, ElectionTimerFired, SendVerdict
from holdfast.core.node_io import CoordinatorReached, HangUp, Report
from holdfast.core.policy.timing import one_dial_s
from holdfast.core.protocol.document import decode, encode
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.messages import HeartbeatAnswered, ToNode, Welcomed
from holdfast.core.protocol.model import Endpoint, Term
from holdfast.core.protocol.naming import host_of
from holdfast.engine.coordinating import Coordinating
from holdfast.engine.link import NetworkedLink
from holdfast.engine.ports import Closable, Network, RegisterPort
from holdfast.registers.register_thread import NoAnswer, Reply
from holdfast.runtime.loop import Inbox, Timers

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

NOT_LEADING = "this node is not the coordinator"
FOREIGN = "it contains data that Holdfast did not write"


class Elected(NetworkedLink):
    """The coordinator of a job of several nodes, on any of them."""

    def __init__(self, engine: Engine, network: Network, register: RegisterPort) -> None:
        self._engine, self._network, self._register = engine, network, register
        line = self._line = network.line(self)
        self._exchange = network.exchange(self)
        self._exchange.closed_because = NOT_LEADING
        self._endpoint: Endpoint = network.listen(self._exchange)
        self._address = self._endpoint.address
        config = engine.config
        self.election = ElectionState(
            engine.node,
            config.leases,
            nodes_max=config.max_nodes,
            instance=engine.ports.instance(),
            endpoint=self._endpoint,
            can_watch=register.tells_of_changes,
            can_forget=register.can_forget,
            resign_s=config.timeouts.resign_s,
        )
        """Who leads, as this node sees it."""
        self._inbox: Inbox[ElectionEvent] = Inbox(self._take)
        put = self._inbox.put
        timers = self._timers = Timers(engine.clock, lambda name: put(ElectionTimerFired(name)))
        self._leader = ""
        self._leader_address: Endpoint | None = None
        self._heard = Term()
        self._watched: Closable | None = None
        """The end of the leader's tether, and so of the leader."""
        self._tethers: set[str] = set()
        """Nodes that have a tether to us."""
        self._shared: frozenset[str] = frozenset()
        """Those of them whose tether the processes of this node hold too."""
        engine.routes |= {
            Report: self.report,
            HangUp: lambda effect: line.close(),
            **dict.fromkeys((border.Dial, border.KnowEnded), put),
            **dict.fromkeys((border.Write, border.Resign, border.Depose, border.Retire), put),
            election.ReadRegister: lambda effect: register.read(self._on_read),
            election.WriteRegister: self._write,
            election.WatchRegister: self._watch,
            election.ForgetRegister: self._forget,
            election.WakeElection: lambda effect: timers.set(effect.name, effect.after_s),
            election.Lead: self._lead,
            election.Renewed: self._renewed,
            election.StepDown: self._step_down,
            election.DialNodes: self._dial_nodes,
        }

    @property
    def store_address(self) -> Endpoint | None:
        return self._endpoint if self.coordinating is not None else self._leader_address

    @property
    def is_needed(self) -> bool:
        coordinator = self.coordinating.state if self.coordinating is not None else None
        return election.is_needed(self.election, coordinator)

    def begin(self) -> None:
        self._inbox.put(election.ElectionStarted())

    def leave(self) -> None:
        """border.Resign if others go on: they need not wait until this node is missed."""
        self._inbox.put(border.HandOverAsked())
        if self.coordinating is not None:
            self.coordinating.post(border.HandOverAsked())

    def close(self) -> None:
        self._stop_watching()
        self._line.close()
        super().close()
        self._exchange.close()
        self._timers.cancel()
        self._register.close()

    def _take(self, event: ElectionEvent) -> None:
        now = self._engine.clock.now()
        before = replace(self.election)
        effects = election.step(self.election, event, now)
        self._engine.journal.election(now, before, event, effects)
        for effect in effects:
            self._engine.routes[type(effect)](effect)

    # The register.

    def _write(self, effect: election.WriteRegister) -> None:
        nonce = effect.document.nonce

        def on_wrote(reply: Reply) -> None:
            self._inbox.put(_event(reply, nonce))

        is_over = effect.document.ledger.outcome is not None
        keep_s = election.FORGOTTEN_AFTER_S if is_over else None
        self._register.write(encode(effect.document), effect.token, on_wrote, keep_s)

    def _watch(self, effect: election.WatchRegister) -> None:
        if effect.on:
            self._register.watch(self.election.token, self._on_read)
        else:
            self._register.stop_watching()

    def _forget(self, effect: election.ForgetRegister) -> None:
        self._timers.cancel()
        forgot = election.RegisterForgot()
        self._register.forget_after(effect.after_s, lambda reply: self._inbox.put(forgot))

    def _on_read(self, reply: Reply) -> None:
        self._inbox.put(_event(reply))

    # Being the coordinator.

    def _lead(self, effect: election.Lead) -> None:
        engine, now = self._engine, self._engine.clock.now()
        beginning = coordinator.elected(engine.config, engine.node, effect)
        engine.journal.began(now, beginning)
        state = beginning.state(engine.config, now)
        self.coordinating = Coordinating(state, engine, self._exchange, self._may_send)
        number = state.group.round_number
        if self._exchange.keys is not None:
            self._exchange.keys.open(number)  # The last leader's are lost with it.
        self._exchange.closed_because = ""
        known = f", and goes on from round {number}" if number else ""
        engine.say(f"this node is the coordinator, on {self._endpoint}{known}")
        self._line.close()
        self._reach_here()
        self.coordinating.begin()

    def _may_send(
        self, message: ToNode, all_heard: Callable[[float], bool], now: float
    ) -> SendVerdict:
        verdict = election.may_send(self.election, message, all_heard, now)
        is_denied = verdict == "drop"
        if isinstance(message, HeartbeatAnswered) and is_denied != self.election.hold_over:
            self._inbox.put(election.HoldJudged(not is_denied))
        return verdict

    def _renewed(self, effect: election.Renewed) -> None:
        if self.coordinating is not None:
            self.coordinating.speak_again()
            self._share_tethers()

    def _step_down(self, effect: election.StepDown) -> None:
        coordinating, self.coordinating = self.coordinating, None
        end = coordinating.state.end if coordinating is not None else None
        is_over = end is not None and end.is_told
        if not is_over:
            self._engine.say(f"this node is no longer the coordinator: {effect.reason}")
        if coordinating is not None:
            coordinating.close()
        self._exchange.closed_because = NOT_LEADING
        if not is_over:  # Else some may still need the round's keys, until this node goes.
            self._exchange.dismiss()
        self._share_tethers()
        self._engine.post(border.CoordinatorLost(effect.reason))

    # The tethers of nodes to us.

    def on_tether(self, node: str) -> None:
        self._tethers.add(node)
        self._shared -= {node}  # A newer one than the one that is held.
        self._share_tethers()

    def on_tether_ended(self, node: str, clean: bool) -> None:
        self._tethers.discard(node)
        super().on_tether_ended(node, clean)

    def _share_tethers(self) -> None:
        """Have the processes of this node hold the tethers of those who would take over."""
        follows = self.coordinating.state.succession if self.coordinating is not None else None
        wanted = frozenset(follows.successors if follows is not None else ()) & self._tethers
        if wanted == self._shared:
            return
        self._shared = wanted
        found = [self._exchange.share_tether(node) for node in sorted(wanted)]
        self._engine.ports.processes.share_tethers([each for each in found if each is not None])

    # The line to the leader.

    def _dial_nodes(self, effect: election.DialNodes) -> None:
        if self.coordinating is not None:
            self._reach_here()
        elif effect.endpoints:
            self._line.dial(effect.endpoints, one_dial_s(self._engine.config))
        else:
            hosts = ", ".join(dict.fromkeys(map(host_of, effect.nodes)))
            reason = f"the register does not say where {hosts} can be reached"
            self._engine.post(border.CoordinatorLost(reason))

    def on_connected(self, local_address: str) -> None:
        # The old tether tells of whoever led before, and must not get another's name.
        self._stop_watching()
        self._leader = ""
        self._engine.post(CoordinatorReached())

    def on_line_lost(self, reason: str, permanent: bool) -> None:
        """Of those that were dialled, or of the coordinator that we had."""
        # Whoever was welcomed once has the right token: it is a stranger at an old place who
        # refuses us for good.
        self._engine.post(border.CoordinatorLost(reason, permanent and self._heard == Term()))

    def on_unusable(self, error: UsageError) -> None:
        # The files for TLS: somebody may be replacing them while the job runs.
        self._engine.post(border.CoordinatorLost(error.message, self._heard == Term()))

    def on_told(self, term: Term, message: ToNode) -> None:
        told = border.Told(message, term)
        self._engine.post(told)
        if isinstance(message, Welcomed) and term >= self._heard:
            self._heard, self._leader = term, message.leader
            self._leader_address = message.addresses.get(message.leader, self._leader_address)
            self._inbox.put(told)

    def on_own_tether(self, tether: int) -> None:
        self._stop_watching()
        self._watched = self._network.watch_end(tether, self._on_leader_gone)
        self._engine.ports.processes.hold_tether(tether)

    def _on_leader_gone(self) -> None:
        if self._leader:
            self._inbox.put(election.LeaderTetherEnded(self._leader))

    def _stop_watching(self) -> None:
        if self._watched is not None:
            self._watched.close()
            self._watched = None


def _event(reply: Reply, nonce: str = "") -> ElectionEvent:
    """What the register answered; `nonce` is that of the document that was to be written."""
    is_write = bool(nonce)
    if isinstance(reply, NoAnswer):
        return election.RegisterUnclear(is_write, nonce, reply.reason, reply.refused)
    try:
        document = decode(reply.content) if reply.content else None
    except msgspec.DecodeError:
        reason = FOREIGN if is_write else f"{FOREIGN}; is another program using this prefix?"
        return election.RegisterUnclear(is_write, nonce, reason, refused=not is_write)
    if is_write:
        return election.RegisterWrote(reply.has_set, document, reply.token, nonce)
    return election.RegisterRead(document, reply.token, reply.expired)
