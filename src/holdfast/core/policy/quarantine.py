"""When a host is kept out of a job for a while, because rounds keep failing on it.

Rules
1. A round that failed blames one host, or none. A worker's failure blames the host of the first
   failure that was observed, unless workers failed by themselves on other hosts too (then it is
   the program), or all that it says is that a peer was lost or did not come in time (then it
   blames the host of the peer, where that is known). A loss blames the host that was
   lost, unless several were in one round (then it is the network).
2. A round that blames another host ends the row: what fails here and there is not this host.
3. `after` rounds in a row that blame a host keep it out for `first_s`. After a stay it is on
   trial: the next round that fails there keeps it out again, for twice as long, up to `longest_s`.
4. If a host is kept out and the same failure comes on another one, it was not the host: it may
   come back at once.
5. With each `forget_s` in which nothing is said against a host, one stay is forgotten; the row of
   rounds, too.
6. A job never waits for nodes because of this: where too few would be left, those whose time is
   over soonest take part (`core.features.quarantine` sees to that, and says so).

The intuition: a bad machine (a card that falls off the bus, a full disk) takes one restart after
the other, and the budget is the whole job's. If failures struck by chance, three in a row on one
of many hosts would be rare; if that is how it was, the price is one node less for five minutes.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from holdfast.core.policy import root_cause as rootcause
from holdfast.core.policy.config import Quarantine

DOUBLINGS_MOST = 30


class HostRecord(Struct, frozen=True):
    """What is held against one host."""

    host: str
    """Its name; empty where it was written down by another coordinator, which kept a number."""
    failures: int = 0
    """Rounds in a row that blame it."""
    stays: int = 0
    """How often it was kept out, as far as that is not forgotten."""
    until: float = 0.0
    """When its stay is over; when it was last blamed, if it was not kept out for that."""
    cause: str = ""
    """What equal failures have in common (`restarts.fingerprint`)."""
    told: bool = False
    """Whether it was said that it is kept out."""

    def is_out(self, now: float) -> bool:
        return now < self.until


def blamed_host(cause: rootcause.Cause | None, lost: Iterable[str], hosts: dict[str, str]) -> str:
    """Which host a round that failed blames; empty where none. `hosts` has those of nodes."""
    gone = set(lost)
    if gone:
        return gone.pop() if len(gone) == 1 else ""
    culprit = None if cause is None else rootcause.culprit(cause)
    if cause is None or culprit is None:
        return ""
    host = hosts.get(culprit.node, "")
    if culprit is not cause.first:
        return host  # The others failed because of it.
    elsewhere = any(hosts.get(other.node, "") != host for other in cause.also_failed)
    return "" if elsewhere else host


def blamed(policy: Quarantine, before: HostRecord, cause: str, now: float) -> HostRecord:
    """One more round failed on this host."""
    record = remembered(policy, before, now)
    failures, stays = record.failures + 1, record.stays
    needed = policy.after if stays == 0 else 1
    if failures < needed:
        return HostRecord(record.host, failures, stays, now, cause)
    return HostRecord(record.host, failures, stays + 1, now + stay_s(policy, stays + 1), cause)


def stay_s(policy: Quarantine, stays: int) -> float:
    """How long the host is kept out, this being stay number `stays`."""
    return min(policy.first_s * 2.0 ** min(stays - 1, DOUBLINGS_MOST), policy.longest_s)


def failed_elsewhere(record: HostRecord, cause: str, now: float) -> HostRecord:
    """A round failed on another host (rules 2 and 4)."""
    if not record.is_out(now):
        return HostRecord(record.host, 0, record.stays, record.until, record.cause)
    if not cause or cause != record.cause:
        return record
    return HostRecord(record.host, 0, record.stays - 1, now, record.cause)


def let_in(record: HostRecord, now: float) -> HostRecord:
    """The job cannot do without it: a stay that did not take place does not count."""
    stays = max(record.stays - 1, 0)
    return HostRecord(record.host, record.failures, stays, now, record.cause)


def remembered(policy: Quarantine, record: HostRecord, now: float) -> HostRecord:
    """What is still held against a host (rule 5)."""
    quiet = int(max(0.0, now - record.until) / policy.forget_s)
    if not quiet:
        return record
    return HostRecord(record.host, 0, max(0, record.stays - quiet), record.until, record.cause)


def is_forgotten(record: HostRecord, now: float) -> bool:
    return not (record.failures or record.stays or record.is_out(now))


def reason(record: HostRecord, where: str = "there") -> str:
    """In words, why."""
    if record.failures > 1:
        return f"{record.failures} rounds in a row failed {where}"
    return f"a round failed {where} again"
