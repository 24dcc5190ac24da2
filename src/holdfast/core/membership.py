"""The nodes of a job, and leases: who may run workers, and when a silent node counts as gone.

A lease has two sides that never compare clocks: each counts on its own, and only durations are
agreed.

Rules of the node (`NodeLease`)
1. The lease ends `lease_s` after the node *sent* the last heartbeat that was answered under
   the highest term it knows. Counted from the answer, a slow network would lengthen it.
2. Workers are asked to stop `stop_reserve_s` before its end, and killed at its end.
3. Nothing is started without a lease that is still good.

Rules of the coordinator (`LeaseBook`)
4. A node is *suspected* when its connection broke and it did not come back within
   `reconnect_s`, or when it was silent for `suspect_s`. That ends rounds, and replaces nobody.
5. A node is *gone* `tether_s` after its tether ended in order, or L' = L(1+d)+K after its last
   heartbeat was *received*. A tether that was reset or timed out proves nothing.
6. Input comes first: the caller of `check` has handled all readable input. When the call comes
   late, the coordinator itself stalled, and all deadlines move by as much: heartbeats
   that were not read were not missed.

Why 5 is safe: the node sent the heartbeat before we received it, so its lease, on its own
clock, ends at most L after our receipt; on ours that is L(1+d). Its workers have got SIGKILL
by then, and K is what the kernel may take to deliver it.
"""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core.policy.config import Leases
from holdfast.core.protocol.document import HOSTS_KEPT, HostKept, roll
from holdfast.core.protocol.model import Endpoint, NodeInfo, Record
from holdfast.core.protocol.naming import Names, host_of

BROKEN = "its connection broke and did not come back"
OUTSTANDING = 64
"""How many unanswered heartbeats a node remembers."""


class NodeLease(Struct):
    """The node's own permission to run workers."""

    terms: Leases
    sent: dict[int, float] = field(default_factory=dict)
    number: int = 0
    good_from: float | None = None
    """When the last heartbeat that was answered was sent."""

    def heartbeat(self, now: float) -> int:
        """Note that a heartbeat is being sent; return its number."""
        self.number += 1
        self.sent[self.number] = now
        if len(self.sent) > OUTSTANDING:
            del self.sent[next(iter(self.sent))]
        return self.number

    def answered(self, number: int) -> bool:
        """Count the lease from when that one was sent. Return whether that extended it."""
        sent_at = self.sent.get(number)
        if sent_at is None:
            return False
        self.sent = {other: at for other, at in self.sent.items() if other > number}
        if self.good_from is not None and sent_at <= self.good_from:
            return False
        self.good_from = sent_at
        return True

    def forget(self) -> None:
        """Under a new term only its own answers count; what was granted stays granted."""
        self.sent = {}

    @property
    def stop_at(self) -> float:
        return self.kill_at - self.terms.stop_reserve_s

    @property
    def kill_at(self) -> float:
        return 0.0 if self.good_from is None else self.good_from + self.terms.lease_s

    def good(self, now: float) -> bool:
        """Whether workers may be started now."""
        return self.good_from is not None and now < self.stop_at


class NodeSuspected(Record, frozen=True):
    """A node may be lost: its round ends, but no other node takes its seat yet."""

    node: str
    reason: str
    silent_s: float = 0.0
    """Seconds since it was last heard."""


class NodeHeardAgain(Record, frozen=True):
    """A suspected node is alive after all."""

    node: str


class NodeGone(Record, frozen=True):
    """It is proven that no process of that node executes user code any more."""

    node: str
    reason: str
    silent_s: float = 0.0
    ended: bool = False
    """All its processes have ended, by proof of its machine; otherwise it was silent."""


LeaseVerdict = NodeSuspected | NodeHeardAgain | NodeGone


class NodeLiveness(Struct):
    """The coordinator's lease record of one node."""

    heard_at: float
    lost_at: float | None = None
    """When its connection broke, while it has no other."""
    tether_ended_at: float | None = None
    suspected: bool = False
    revoked: bool = False
    """It did not obey: its lease runs out, whatever it says."""


class LeaseBook(Struct):
    """The coordinator's record of when each node was heard."""

    terms: Leases
    watches: dict[str, NodeLiveness] = field(default_factory=dict)
    """Ordered by when they were last heard: the most silent first."""
    in_doubt: dict[str, None] = field(default_factory=dict)
    """Nodes without a connection or tether: the few whose deadlines are short."""
    due: float | None = None
    """No verdict can fall before this. Being heard moves only the true time, not this: the search
    for it is left to the next check, because thousands may be in doubt at once."""

    def heartbeat(self, node: str, now: float) -> bool:
        """Note a received heartbeat. Return whether to answer it."""
        watch = self.watches.get(node)
        if watch is None or watch.revoked:
            return False
        del self.watches[node]
        watch.heard_at = now
        self.watches[node] = watch
        return True

    def back(self, node: str) -> list[LeaseVerdict]:
        """Call after a heartbeat: the verdict on a node that was wrongly suspected."""
        watch = self.watches.get(node)
        if watch is None or not watch.suspected or watch.lost_at is not None:
            return []
        watch.suspected = False
        self._expect(watch)
        return [NodeHeardAgain(node)]

    def connected(self, node: str, now: float) -> None:
        """The node greeted on a fresh connection."""
        self.watches.setdefault(node, NodeLiveness(now))
        watch = self.watches[node]
        watch.lost_at = watch.tether_ended_at = None
        watch.suspected = False
        self.in_doubt.pop(node, None)
        self.heartbeat(node, now)
        self._expect(watch)

    def revoke(self, node: str) -> None:
        """Stop answering this node: it will be gone when its lease has run out."""
        if node in self.watches:
            self.watches[node].revoked = True

    def reinstate(self, node: str) -> None:
        """The node has stopped its workers after all."""
        if node in self.watches:
            self.watches[node].revoked = False

    def disconnected(self, node: str, now: float) -> None:
        """The node's connection ended, for any reason."""
        if node in self.watches:
            self.watches[node].lost_at = now
            self.in_doubt[node] = None
            self._expect(self.watches[node])

    def tether_ended(self, node: str, now: float) -> None:
        """The tether ended in order: its holder is gone, or about to be."""
        if node in self.watches:
            self.watches[node].tether_ended_at = now
            self.in_doubt[node] = None
            self._expect(self.watches[node])

    def forget(self, node: str) -> None:
        """The node left, or is gone: expect nothing more of it."""
        self.watches.pop(node, None)
        self.in_doubt.pop(node, None)

    def next_check(self) -> float | None:
        """The next deadline: no verdict can fall before that."""
        return self.due if self.watches else None

    def _expect(self, watch: NodeLiveness) -> None:
        """The verdict on this node can now fall sooner than before."""
        due = self._due(watch)
        self.due = due if self.due is None else min(self.due, due)

    def _next_verdict(self) -> float | None:
        """The time of the next verdict, unless a node is heard before."""
        due = [self._due(self.watches[node]) for node in self.in_doubt]
        for watch in self.watches.values():
            due.append(self._due(watch))
            if not watch.suspected:
                break  # All nodes after this one were heard later.
        return min(due, default=None)

    def _due(self, watch: NodeLiveness) -> float:
        terms = self.terms
        due = [watch.heard_at + (terms.gone_after_s if watch.suspected else terms.suspect_s)]
        if watch.tether_ended_at is not None:
            due.append(watch.tether_ended_at + terms.tether_s)
        if watch.lost_at is not None and not watch.suspected:
            due.append(watch.lost_at + terms.reconnect_s)
        return min(due)

    def check(self, now: float, due_at: float) -> list[LeaseVerdict]:
        """Judge all nodes. `due_at` is when this was to be called: lateness is our own stall."""
        stalled_s = max(0.0, now - due_at)
        if stalled_s > self.terms.tether_s:
            self._extend(stalled_s, now)
        verdicts: list[LeaseVerdict] = []
        for node in list(self.in_doubt):
            self._judge(node, now, verdicts)
        for node, watch in list(self.watches.items()):
            self._judge(node, now, verdicts)
            if not watch.suspected and now < watch.heard_at + self.terms.suspect_s:
                break  # All nodes after this one were heard later.
        self.due = self._next_verdict()
        return verdicts

    def _extend(self, by_s: float, now: float) -> None:
        """Nodes heard during the stall count as heard now at the latest: the order stays true."""
        for watch in self.watches.values():
            watch.heard_at = min(watch.heard_at + by_s, now)
            if watch.lost_at is not None:
                watch.lost_at = min(watch.lost_at + by_s, now)

    def _judge(self, node: str, now: float, verdicts: list[LeaseVerdict]) -> None:
        watch = self.watches.get(node)
        if watch is None:
            return
        silent_s = now - watch.heard_at
        ended_at, lost_at = watch.tether_ended_at, watch.lost_at
        if ended_at is not None and now >= ended_at + self.terms.tether_s:
            verdicts.append(NodeGone(node, "all its processes have ended", silent_s, ended=True))
        elif now >= watch.heard_at + self.terms.gone_after_s:
            verdicts.append(NodeGone(node, f"it was silent for {silent_s:.1f} s", silent_s))
        elif watch.suspected:
            return
        elif lost_at is not None and now >= lost_at + self.terms.reconnect_s:
            watch.suspected = True
            verdicts.append(NodeSuspected(node, BROKEN, silent_s))
            return
        elif now >= watch.heard_at + self.terms.suspect_s:
            watch.suspected = True
            reason = f"it has been silent for {silent_s:.1f} s"
            verdicts.append(NodeSuspected(node, reason, silent_s))
            return
        else:
            return
        self.forget(node)


# The nodes.


class Member(Struct):
    """A node as the coordinator knows it."""

    info: NodeInfo
    arrival: int
    name: str = ""
    """Its name in every sentence."""
    endpoint: Endpoint | None = None
    round: int = 0
    """The round of which it may still have processes; 0 if none."""
    last_round: int = 0
    """The last round that it ran, as reported in its greeting."""
    last_rank: int = 0
    draining: str = ""
    drain_until: float = 0.0
    suspected: str = ""
    revoked: bool = False
    warned: bool = False
    """The user was told that its settings differ."""

    @property
    def ready(self) -> bool:
        """Whether it is a candidate for the next round, as far as the node itself goes."""
        free = self.endpoint is not None and not self.round
        return free and not (self.draining or self.suspected or self.revoked)


class HostRecord(Struct, frozen=True):
    """What is held against one host, and until when its nodes are to get no seat."""

    host: str
    """Its name; empty if recorded by another coordinator, which kept a number."""
    failures: int = 0
    """Rounds in a row that failed because of it (`core.policy.quarantine`)."""
    quarantines: int = 0
    """Quarantines so far, as far as not forgotten."""
    until: float = 0.0
    """When its quarantine ends, or when it was last blamed without one."""
    cause: str = ""
    """The fingerprint of its failures (`restarts.fingerprint`)."""
    told: bool = False
    """Whether its quarantine was announced."""
    losses: int = 0
    """Rounds that lost a node on it since the job last made progress."""
    paused_until: float = 0.0
    """No round takes its nodes before this, whether or not the job can do without them."""

    def is_out(self, now: float) -> bool:
        """Whether it is quarantined: its nodes get a seat only where the job needs them."""
        return now < self.until

    def is_paused(self, now: float) -> bool:
        return now < self.paused_until

    @property
    def matters_until(self) -> float:
        return max(self.until, self.paused_until)


class Membership(Struct):
    """The nodes that have greeted, or joined, and are neither gone nor have left."""

    members: dict[str, Member] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    ready: dict[str, None] = field(default_factory=dict)
    """Nodes that could take a seat, in the order in which they became ready."""
    arrivals: int = 0
    roles: set[str] = field(default_factory=set)
    hosts: dict[int, HostRecord] = field(default_factory=dict)
    """Hosts with a record, by the number of their name (`document.roll`)."""

    def admit(self, info: NodeInfo) -> Member:
        """The member of that identity: new, or updated by a new greeting."""
        member = self.members.get(info.node)
        if member is None:
            self.arrivals += 1
            member = Member(info, self.arrivals, self.names.give(info))
            self.members[info.node] = member
            self.roles.add(info.role)
        member.info = info
        return member

    def remove(self, node: str) -> Member | None:
        """Remove a node that is gone or has left; return its record."""
        member = self.members.pop(node, None)
        if member is not None:
            self.names.release(member.name)
            self.update_ready(node)
        return member

    def name_of(self, node: str) -> str:
        """A node's name; its host, if it is not a member."""
        member = self.members.get(node)
        return member.name if member is not None else host_of(node)

    def update_ready(self, node: str) -> None:
        """Update whether the node is ready: call it after each change of its member."""
        member = self.members.get(node)
        if member is not None and member.ready:
            self.ready.setdefault(node, None)
        else:
            self.ready.pop(node, None)

    def pause(self, host: str, until: float) -> None:
        """Let no round take the nodes of this host before then."""
        number = roll((host,))
        record = self.hosts.get(number, HostRecord(host))
        self.hosts[number] = replace(record, paused_until=max(until, record.paused_until))

    def kept_hosts(self, now: float) -> tuple[HostKept, ...]:
        """The records as they are written down: those that matter longest, if there are many."""
        kept = sorted(self.hosts.items(), key=lambda item: -item[1].matters_until)[:HOSTS_KEPT]
        return tuple(
            HostKept(
                number,
                record.failures,
                record.quarantines,
                round(record.until - now, 1),
                record.losses,
                max(0.0, round(record.paused_until - now, 1)),
            )
            for number, record in sorted(kept)
        )

    def record_of(self, node: str) -> HostRecord | None:
        """The record of a member's host, if any."""
        return self.hosts.get(roll((self.members[node].info.host,))) if self.hosts else None
