"""How the times of a job have to relate, and how long recovery takes at worst.

Some relations carry the promise that two rounds never run at once. A user chooses a lease, a
heartbeat or a suspicion; `derive` makes the other times in proportion, so that most relations hold
by themselves. Those that a choice can break are checked before a job over several nodes starts; a
job of one node needs no lease.

Rules, for lease L, heartbeat h, stop reserve r, kill margin K, drift d, term T, takeover E.
`derive` keeps the ones with a star, whatever was chosen.
1. 2h ≤ suspicion < L: one lost heartbeat does not end a round, and a round ends before the lease.
2.* A broken connection is given up before its silence would be suspected, and
   the end of a tether proves more, sooner, than silence does: it is below L.
3.* T(1+d) < E: a coordinator has fallen silent before another one speaks.
4. max(3h, h + E) + reconnecting < L − r: a takeover is over before any node has to stop its
   workers. A node hangs up on a silent coordinator at the third heartbeat after the last that
   was answered; the takeover itself goes on meanwhile. So a lost heartbeat costs no lease.
5.* H ≥ L. Two attempts to reach a coordinator fit into L − r, if each may take a second
   (`one_dial_s`).

Where it is known how long before its end a node is asked to leave (`notice_s`), in any job
6. Saving and then stopping the workers, or waiting for a replacement and then stopping them, is
   over when the notice is. `within_notice` makes times that hold this rule.

The intuition: silence is judged twice. Suspicion comes early and only *ends* a round,
which is always safe. Being *gone* comes late, at L' = L(1+d)+K, when the node's own
spawner has killed its workers even if its agent was stalled; only then may another
take its seat.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
    _check_notice(config.timeouts)
    if config.max_nodes > 1:
        _check_leases(config.leases)


def _check_notice(timeouts: Timeouts) -> None:
    notice, stop = timeouts.notice_s, timeouts.shutdown_s
    if notice is None:
        return
    waits = (("--save-timeout", timeouts.save_s), ("--drain-timeout", timeouts.drain_s))
    for option, wait in waits:
        if wait + stop > notice * (1 + ROUNDING):
            raise UsageError(
                f"{option} {wait:g} and --shutdown-timeout {stop:g} are longer than the "
                f"{_s(notice)} in which this node is killed (--notice)",
                f"lower one of them, or give --notice alone: {option} and the grace follow from it",
            )


def _check_leases(leases: Leases) -> None:
    lease, heartbeat = leases.lease_s, leases.heartbeat_s
    if not leases.tether_s < lease:
        raise UsageError(
            f"a lease of {_s(lease)} is shorter than the {_s(leases.tether_s)} after which a node "
            "without a tether is known to be dead",
            "raise --lease: 1 or more",
        )
    if heartbeat <= 0:
        raise UsageError(
            "a heartbeat every 0 s cannot be sent", "give --lease alone: the heartbeat follows"
        )
    takeover, left = _takeover_s(leases), lease - leases.stop_reserve_s
    if not takeover < left:
        raise UsageError(
            f"a heartbeat every {_s(heartbeat)} does not fit a lease of {_s(lease)}: a takeover "
            f"may last {_s(takeover)}, but nodes stop their workers after {_s(left)}",
            "raise --lease or lower --heartbeat; given alone, each sets the other times to match",
        )
    if not 2 * heartbeat <= leases.suspect_s < lease:
        raise UsageError(
            f"a node cannot be suspected after {_s(leases.suspect_s)} of silence with a heartbeat "
            f"every {_s(heartbeat)} and a lease of {_s(lease)}",
            "the suspicion must come after two heartbeats and before the end of the lease",
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
