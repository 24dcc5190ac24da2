"""How the times of a job have to relate, and how long recovery takes at worst.

A time that is longer than another which cuts it off means nothing, and some relations
carry the promise that two rounds never run at once. So the whole hierarchy is checked
before a job over several nodes starts; a job of one node needs no lease, and none of this
touches it.

Rules, for lease L, heartbeat h, stop reserve r, kill margin K, drift d, term T, takeover E
1. 0 < h < L/2: one lost heartbeat does not cost a node its lease.
2. 2h ≤ suspicion < L: nor does one lost heartbeat end a round, and the round ends before
   the lease does.
3. A broken connection is given up before its silence would be suspected, and a tether's
   end proves more, sooner, than silence does.
4. r + 2h < L: with one heartbeat lost, workers are not asked to stop for it.
5. T(1+d) < E: a coordinator has fallen silent before another one speaks.
6. max(3h, h + E) + reconnecting < L − r: a takeover is over before any node has to stop
   workers. A node hangs up on a silent coordinator at the third heartbeat after the last that
   was answered; the takeover itself goes on meanwhile.
7. H ≥ L, and the longest minimum of a round is not below the shortest.
   Two attempts to reach a coordinator fit into L − r, if each may take a second (`one_dial_s`).

Where it is known how long before its end a node is asked to leave (`notice_s`), in any job
8. Saving and then stopping the workers, or waiting for a replacement and then stopping them, is
   over when the notice is. `within_notice` makes times that hold this rule.

`derive` makes times that hold these rules from the one or two that were given: the
defaults, in proportion. `describe` explains a choice.

The intuition: silence is judged twice. Suspicion comes early and only *ends* a round,
which is always safe. Being *gone* comes late, at L' = L(1+d)+K, when the node's own
spawner has killed its workers even if its agent was stalled; only then may another
take its seat.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.protocol.errors import UsageError

TYPE_CHECKING = False  # As in `typing`, without its import. `config` itself imports this module.
if TYPE_CHECKING:
    from holdfast.core.policy.config import JobConfig, Leases, Timeouts

KILL_MARGIN_LEAST_S = 0.5
"""However short the lease, the kernel of a busy machine gets this long to deliver a kill."""
ONE_DIAL_LEAST_S = 1.0
"""However short the lease, a busy coordinator gets this long to answer."""
ROUNDING = 1e-9
NOTICE_FOR_STOPPING = 3.0
"""The part of a notice for stopping the workers, at most: one in so many."""
HANGS_UP_AT = 3
"""The heartbeat, counted from the last that was answered, at which a node gives a silent
connection up: two in a row are without an answer, and time is left to find another."""


def check(config: JobConfig) -> None:
    """Raise `UsageError` for the first two times that contradict each other."""
    several = _relations(config.leases, config.timeouts) if config.max_nodes > 1 else ()
    for relation in (*_about_the_notice(config.timeouts), *several):
        if not relation.holds:
            raise UsageError(relation.message, relation.hint)


class Relation(Struct, frozen=True):
    """One rule for one job: whether it holds, and the message if it does not."""

    holds: bool
    message: str
    hint: str


def _relations(leases: Leases, timeouts: Timeouts) -> Iterator[Relation]:
    yield from _about_silence(leases)
    yield from _about_the_coordinator(leases)
    yield Relation(
        timeouts.min_round_s <= timeouts.min_round_max_s,
        f"the shortest time of a round, {_s(timeouts.min_round_s)}, is above its own limit, "
        f"{_s(timeouts.min_round_max_s)}",
        "lower --min-round-time",
    )
    yield Relation(
        max(timeouts.dial_s, timeouts.redial_s) <= timeouts.seek_s,
        f"one attempt to reach the coordinator, {_s(max(timeouts.dial_s, timeouts.redial_s))}, is "
        f"longer than all of them together may take, {_s(timeouts.seek_s)}",
        "raise seek_s",
    )


def _about_the_notice(timeouts: Timeouts) -> Iterator[Relation]:
    notice, stop = timeouts.notice_s, timeouts.shutdown_s
    if notice is None:
        return
    for option, wait in (
        ("--save-timeout", timeouts.save_s),
        ("--drain-timeout", timeouts.drain_s),
    ):
        yield Relation(
            wait + stop <= notice * (1 + ROUNDING),
            f"{option} {wait:g} and --shutdown-timeout {stop:g} are longer than the {_s(notice)} "
            "in which this node is killed (--notice)",
            f"lower one of them, or give --notice alone: {option} and the grace follow from it",
        )


def _about_silence(leases: Leases) -> Iterator[Relation]:
    lease, heartbeat = leases.lease_s, leases.heartbeat_s
    yield Relation(
        0 < heartbeat < lease / 2,
        f"a heartbeat every {_s(heartbeat)} does not fit a lease of {_s(lease)}",
        "it must be above zero and below half of the lease: "
        "give --lease alone, and the heartbeat follows from it",
    )
    yield Relation(
        2 * heartbeat <= leases.suspect_s < lease,
        f"a node cannot be suspected after {_s(leases.suspect_s)} of silence with a heartbeat "
        f"every {_s(heartbeat)} and a lease of {_s(lease)}",
        "the suspicion must come after two heartbeats and before the end of the lease",
    )
    yield Relation(
        leases.reconnect_s <= leases.suspect_s,
        f"a node that has {_s(leases.reconnect_s)} to come back is suspected after "
        f"{_s(leases.suspect_s)} already",
        "the time to reconnect must be at most that of the suspicion",
    )
    yield Relation(
        leases.tether_s < lease,
        f"a lease of {_s(lease)} is shorter than the {_s(leases.tether_s)} after which a node "
        "without a tether is known to be dead",
        "raise --lease: 1 or more",
    )
    yield Relation(
        leases.stop_reserve_s + 2 * heartbeat < lease,
        f"a lease of {_s(lease)} has no room for two heartbeats of {_s(heartbeat)} and "
        f"{_s(leases.stop_reserve_s)} to stop the workers",
        "raise --lease or lower --heartbeat",
    )
    yield Relation(
        0 <= leases.drift < 1,
        f"clocks that drift by {leases.drift:.0%} are too far apart",
        "the drift must be a small fraction such as 0.01",
    )


def _about_the_coordinator(leases: Leases) -> Iterator[Relation]:
    longest_term = leases.term_s * (1 + leases.drift)
    yield Relation(
        longest_term < leases.takeover_s,
        f"a coordinator with a term of {_s(leases.term_s)} could still speak when another "
        f"takes over after {_s(leases.takeover_s)}",
        "the term, with the drift of clocks, must end before the takeover",
    )
    notice = _takeover_s(leases)
    left = leases.lease_s - leases.stop_reserve_s
    yield Relation(
        notice < left,
        f"a takeover may last {_s(notice)}, but nodes with a lease of {_s(leases.lease_s)} "
        f"stop their workers after {_s(left)}",
        "raise --lease or lower --heartbeat; given alone, each sets the other times to match",
    )
    yield Relation(
        leases.hold_s >= leases.lease_s,
        f"a hold of {_s(leases.hold_s)} ends before the lease of {_s(leases.lease_s)} would",
        "hold_s must be at least the lease",
    )


def _takeover_s(leases: Leases) -> float:
    """The longest that a node is without a coordinator when one falls silent."""
    noticed = HANGS_UP_AT * leases.heartbeat_s
    taken_over = leases.heartbeat_s + leases.takeover_s
    return max(noticed, taken_over) + leases.reconnect_s


def one_dial_s(config: JobConfig) -> float:
    """How long one attempt to reach the coordinator may take: a short lease leaves less."""
    leases, timeouts = config.leases, config.timeouts
    longest = timeouts.dial_s if config.rendezvous.is_embedded else timeouts.redial_s
    left = leases.lease_s - leases.stop_reserve_s
    return min(longest, max(left / 2, ONE_DIAL_LEAST_S))


def derive(defaults: Leases, chosen: Mapping[str, float]) -> Leases:
    """The times that go with the given ones, by the names of their fields.

    A given time is kept as it is, even where `check` will refuse it. A heartbeat or a
    suspicion that is long for the default lease stretches it in proportion; a short one
    does not shorten it.
    """
    if not chosen:
        return defaults
    lease = chosen.get("lease_s", 0.0) or max(
        defaults.lease_s,
        chosen.get("heartbeat_s", 0.0) * defaults.lease_s / defaults.heartbeat_s,
        chosen.get("suspect_s", 0.0) * defaults.lease_s / defaults.suspect_s,
    )
    scale = lease / defaults.lease_s
    suspect = max(scale * defaults.suspect_s, 2 * chosen.get("heartbeat_s", 0.0))
    suspect = chosen.get("suspect_s", suspect)
    heartbeat = min(scale, suspect / defaults.suspect_s) * defaults.heartbeat_s
    derived = {
        "lease_s": lease,
        "heartbeat_s": heartbeat,
        "suspect_s": suspect,
        "stop_reserve_s": scale * defaults.stop_reserve_s,
        "kill_margin_s": max(scale * defaults.kill_margin_s, KILL_MARGIN_LEAST_S),
        "term_s": scale * defaults.term_s,
        "takeover_s": scale * defaults.takeover_s,
        "hold_s": max(defaults.hold_s, lease),
        # A broken connection is not silence: a longer lease is no reason to be slower.
        "reconnect_s": min(scale * defaults.reconnect_s, defaults.reconnect_s, suspect),
    }
    return replace(defaults, **{**derived, **chosen})


def within_notice(timeouts: Timeouts, chosen: Collection[str]) -> Timeouts:
    """The times that go with a notice: given ones, by the names of fields, are kept.

    A third of it at most is for stopping; saving has the rest, and so has a replacement to come.
    """
    notice = timeouts.notice_s
    if notice is None:
        return timeouts
    stop = timeouts.shutdown_s
    if "shutdown_s" not in chosen:
        stop = min(stop, notice / NOTICE_FOR_STOPPING)
    rest = max(notice - stop, 0.0)
    save = timeouts.save_s if "save_s" in chosen else rest
    drain = timeouts.drain_s if "drain_s" in chosen else min(timeouts.drain_s, rest)
    return replace(timeouts, shutdown_s=stop, save_s=save, drain_s=drain)


def describe(config: JobConfig) -> tuple[str, ...]:
    """How long recovery takes at worst: what a job over several nodes begins with."""
    leases = config.leases
    worst = (
        f"worst-case recovery: {_s(leases.tether_s)} after all processes of a node die, "
        f"{_s(leases.gone_after_s)} after a machine falls silent "
        f"(lease {_s(leases.lease_s)}); up to {_s(config.timeouts.shutdown_s)} more if workers "
        "use their grace"
    )
    return worst, _about_its_death(config)


def _about_its_death(config: JobConfig) -> str:
    leases = config.leases
    if config.rendezvous.is_embedded:
        return (
            f"if {config.rendezvous.endpoint or 'the coordinator'} dies, the job goes on at most "
            f"{_s(leases.gone_after_s)} after it is back, or ends after "
            f"{_s(config.timeouts.join_s)} (--join-timeout)"
        )
    held_s = leases.takeover_s + leases.suspect_s * (1 + leases.drift) + leases.gone_after_s
    return (
        f"if the coordinator dies, another one takes over within {_s(_takeover_s(leases))}; if it "
        f"falls silent, the workers beside it are replaced after about {held_s:.0f} s"
    )


def notes(config: JobConfig) -> tuple[str, ...]:
    """Settings that are allowed, but probably not meant."""
    if config.max_nodes == 1:
        return ()
    join, gone = config.timeouts.join_s, config.leases.gone_after_s
    if join > gone:
        return ()
    note = (
        f"--join-timeout {join:g} may end the job before a lost machine can be replaced, "
        f"which takes up to {_s(gone)}"
    )
    return (note,)


def _s(seconds: float) -> str:
    return f"{round(seconds, 2):g} s"
