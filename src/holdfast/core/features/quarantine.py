"""Quarantine of hosts on which rounds keep failing.

`core.policy.quarantine` has the rules; this module applies them: the host to blame, the nodes that
take part all the same, the ledger's record and the messages.

Rules
1. A host is blamed when its round is judged, and checked when the next one forms. A quarantined
   node stands by: it is told why and for how long, and takes no seat before.
2. Too few nodes without it: it takes part. All nodes are told either way, with the round.
3. Records of hosts are written down as numbers and durations: names may be long, and clocks of
   different hosts are never compared.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.coordinator_hooks import CoordinatorFeature
from holdfast.core.membership import HostRecord
from holdfast.core.policy import quarantine as policy
from holdfast.core.policy import restarts, sentences
from holdfast.core.policy import root_cause as rootcause
from holdfast.core.protocol.document import Ledger, roll
from holdfast.core.protocol.model import NodeInfo
from holdfast.core.protocol.naming import host_of
from holdfast.core.rounds import Round

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.coordinator import CoordinatorState


class HostQuarantine(CoordinatorFeature):
    """Attaches quarantine to the coordinator."""

    def due(self, state: CoordinatorState, what: str, now: float) -> None:
        if what == "quarantine":
            state.rewrite = True  # A successor must not quarantine that host once more.
            wake_at_next_end(state, now)

    def refusal(self, state: CoordinatorState, node: str, now: float) -> str:
        known = state.record_of(node)
        if known is not None and known.is_paused(now):
            return sentences.paused_here(known.paused_until - now, known.losses)
        record = record_of(state, node, out(state, now))
        if record is None:
            return ""
        why = sentences.failed_there(record.failures, "here")
        after = state.config.quarantine.after
        return sentences.quarantined_here(record.until - now, why, after)

    def round_formed(
        self, state: CoordinatorState, seated: tuple[NodeInfo, ...], now: float
    ) -> str:
        """Returns the sentences about quarantined hosts."""
        kept = out(state, now)
        if not kept:
            return ""
        hosts = {number_of(info.host): info.host for info in seated}
        said = []
        for number, record in kept.items():
            why = sentences.failed_there(record.failures)
            if number in hosts:
                state.hosts[number] = policy.let_in(record, now)
                limits = state.min_nodes, state.max_nodes
                said.append(sentences.needed_all_the_same(hosts[number], why, *limits))
            elif not record.told and (host := record.host or _name(state, number)):
                state.hosts[number] = replace(record, host=host, told=True)
                said.append(sentences.quarantined(host, record.until - now, why))
        return "; ".join(said)

    def round_judged(
        self, state: CoordinatorState, ended: Round, cause: rootcause.Cause | None, now: float
    ) -> None:
        self._count_losses(state, ended, now)
        self._blame(state, ended, cause, now)
        _forget(state, now)

    def _count_losses(self, state: CoordinatorState, ended: Round, now: float) -> None:
        """Count the lost hosts, or forget earlier losses if the job has made progress."""
        if state.group.budget.fruitless == 0:
            state.hosts = {n: replace(record, losses=0) for n, record in state.hosts.items()}
            return
        for host in ended.stop.lost_hosts if ended.stop is not None else ():
            number = number_of(host)
            before = state.hosts.get(number, HostRecord(host))
            record = state.hosts[number] = replace(before, losses=before.losses + 1)
            state.pause(host, now + policy.pause_s(state.config.restarts, record.losses))

    def _blame(
        self, state: CoordinatorState, ended: Round, cause: rootcause.Cause | None, now: float
    ) -> None:
        """Note the host that the round blames, if any."""
        rules, stop = state.config.quarantine, ended.stop
        if not rules.after or stop is None or not stop.has_run:
            return
        failed = cause if stop.cause.kind == "failure" and not stop.lost else None
        host = policy.blamed_host(failed, stop.lost_hosts, _hosts_of(state, failed))
        if not host:
            return
        how = restarts.fingerprint(failed.first) if failed is not None else ""
        blamed = number_of(host)
        for number, record in list(state.hosts.items()):
            if number != blamed:
                state.hosts[number] = policy.failed_elsewhere(record, how, now)
                if record.is_out(now) and not state.hosts[number].is_out(now):
                    state.group.wait.note = sentences.not_the_host(record.host, host)
        before = state.hosts.get(blamed, HostRecord(host))
        state.hosts[blamed] = policy.blamed(rules, replace(before, host=host), how, now)

    def took_over(self, state: CoordinatorState, written: Ledger, now: float) -> None:
        for kept in written.hosts:
            state.hosts[kept.host] = HostRecord(
                "",
                kept.failures,
                kept.quarantines,
                now + kept.left_s,
                losses=kept.losses,
                paused_until=now + kept.pause_s,
            )
        wake_at_next_end(state, now)


def _hosts_of(state: CoordinatorState, cause: rootcause.Cause | None) -> dict[str, str]:
    if cause is None:
        return {}
    nodes = {failure.node for failure in (cause.first, *cause.also_failed, *cause.stopped)}
    known = {node: state.members.get(node) for node in nodes}
    return {node: one.info.host if one else host_of(node) for node, one in known.items()}


def _forget(state: CoordinatorState, now: float) -> None:
    """Expire old records of hosts."""
    rules = state.config.quarantine
    known = {n: policy.remembered(rules, record, now) for n, record in state.hosts.items()}
    state.hosts = {n: r for n, r in known.items() if not policy.is_forgotten(r, now)}
    wake_at_next_end(state, now)


def wake_at_next_end(state: CoordinatorState, now: float) -> None:
    """Wake up when the next quarantine ends: it is written down, lest a takeover repeats it."""
    ends = [record.until for record in out(state, now).values()]
    if ends:
        state.deadlines["quarantine"] = min(ends)


def number_of(host: str) -> int:
    return roll((host,))


def out(state: CoordinatorState, now: float) -> dict[int, HostRecord]:
    """The quarantined hosts. Few are ever known, and mostly none."""
    return {number: record for number, record in state.hosts.items() if record.is_out(now)}


def record_of(state: CoordinatorState, node: str, kept: dict[int, HostRecord]) -> HostRecord | None:
    """The record that quarantines this node, if any; `kept` are those that are `out`."""
    return kept.get(number_of(state.members[node].info.host)) if kept else None


def _name(state: CoordinatorState, number: int) -> str:
    hosts = {member.info.host for member in state.members.values()}
    return next((host for host in sorted(hosts) if number_of(host) == number), "")
