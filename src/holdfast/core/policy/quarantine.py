"""When a host is quarantined, because rounds keep failing on it.

Rules
1. A round that failed blames one host, or none. A worker's failure blames the host of the first
   failure that was observed, unless workers failed by themselves on other hosts too (then it is
   the program), or its only error is that a peer was lost or did not come in time (then it
   blames the host of the peer, where that is known). A loss blames the lost host, unless several
   were lost in one round (then it is the network).
2. A round that blames another host ends the row: a failure in several hosts is not this host's.
3. `after` rounds in a row that blame a host quarantine it for `first_s`. After that it is on
   trial: the next round that fails there quarantines it again, for twice as long, up to
   `longest_s`.
4. If a host is quarantined and the same failure comes on another one, it was not the host: its
   quarantine ends at once.
5. With each `forget_s` without a failure blamed on a host, one quarantine is forgotten, and the
   row of rounds, too.
6. A job never waits for nodes because of this: where too few would be left, those whose quarantine
   ends soonest take part (`core.seating` does that, and `core.features.quarantine` says so).
7. A host pauses after each loss of a node on it but the first, longer each time: a loss costs no
   restart, so nothing else slows down a host that comes and dies. The job waits for it. Losses are
   forgotten when the job makes progress.

The intuition: a bad machine (a card that falls off the bus, a full disk) takes one restart after
the other, and the budget is the whole job's. If failures struck by chance, three in a row on one
of many hosts would be rare; if they did, the price is one node less for five minutes.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.core.membership import HostRecord
from holdfast.core.policy import root_cause as rootcause
from holdfast.core.policy.config import Quarantine, RestartPolicy

DOUBLINGS_MOST = 30


def blamed_host(cause: rootcause.Cause | None, lost: Iterable[str], hosts: dict[str, str]) -> str:
    """The host that a failed round blames; empty if none. `hosts` maps nodes to theirs."""
    gone = set(lost)
    if gone:
        return gone.pop() if len(gone) == 1 else ""
    culprit = None if cause is None else rootcause.culprit(cause)
    if cause is None or culprit is None:
        return ""
    host = hosts.get(culprit.node, "")
    if culprit is not cause.first:
        return host  # The other failures followed from it.
    elsewhere = any(hosts.get(other.node, "") != host for other in cause.also_failed)
    return "" if elsewhere else host


def blamed(policy: Quarantine, before: HostRecord, cause: str, now: float) -> HostRecord:
    """One more round failed on this host."""
    record = remembered(policy, before, now)
    failures, quarantines = record.failures + 1, record.quarantines
    needed = policy.after if quarantines == 0 else 1
    again = replace(record, failures=failures, until=now, cause=cause, told=False)
    if failures < needed:
        return again
    until = now + quarantine_s(policy, quarantines + 1)
    return replace(again, quarantines=quarantines + 1, until=until)


def quarantine_s(policy: Quarantine, quarantines: int) -> float:
    """How long quarantine number `quarantines` of a host lasts."""
    return min(policy.first_s * 2.0 ** min(quarantines - 1, DOUBLINGS_MOST), policy.longest_s)


def failed_elsewhere(record: HostRecord, cause: str, now: float) -> HostRecord:
    """A round failed on another host (rules 2 and 4)."""
    if not record.is_out(now):
        return replace(record, failures=0, told=False)
    if not cause or cause != record.cause:
        return record
    quarantines = record.quarantines - 1
    return replace(record, failures=0, quarantines=quarantines, until=now, told=False)


def let_in(record: HostRecord, now: float) -> HostRecord:
    """The job cannot do without it: a quarantine that was not applied does not count."""
    return replace(record, quarantines=max(record.quarantines - 1, 0), until=now, told=False)


def remembered(policy: Quarantine, record: HostRecord, now: float) -> HostRecord:
    """The record that is left after this time (rule 5)."""
    quiet = int(max(0.0, now - record.until) / policy.forget_s)
    if not quiet:
        return record
    quarantines = max(0, record.quarantines - quiet)
    return replace(record, failures=0, quarantines=quarantines, told=False)


def pause_s(policy: RestartPolicy, losses: int) -> float:
    """How long a host pauses after so many losses (rule 7)."""
    if losses <= 1:
        return 0.0
    doubled_s = policy.backoff_first_s * 2.0 ** min(losses - 2, DOUBLINGS_MOST)
    return min(doubled_s, policy.backoff_max_s)


def is_forgotten(record: HostRecord, now: float) -> bool:
    counts = record.failures or record.quarantines or record.losses
    return not (counts or record.is_out(now) or record.is_paused(now))
