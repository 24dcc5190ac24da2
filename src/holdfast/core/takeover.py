"""Takeover: a coordinator goes on with a round that an earlier one formed.

Rules
1. The round's seats are known by number only, until their nodes report. Nothing forms before all
   have, or must be gone. When all have, and all still run, the round goes on and nobody notices.
2. A member that died with the earlier coordinator, by proof, or left with it, is lost: the round
   ends at once, and waits for it no longer than for any node whose tether has ended.
3. A round may have been written down without being announced. When nodes report that have not
   heard of it, and they are all of its members, it never ran: it is over.
4. A member that is known to have succeeded is not waited for, and its loss does not count.
"""

from __future__ import annotations

from holdfast.core.coordinator_io import Explain, Tell
from holdfast.core.membership import Member
from holdfast.core.policy import sentences
from holdfast.core.protocol.document import Ledger, roll
from holdfast.core.protocol.messages import RoundReport, StopRound
from holdfast.core.protocol.naming import host_of
from holdfast.core.rounds import (
    DepartedLeader,
    Effects,
    MissingReports,
    Round,
    StopCause,
    announcement,
    close_if_all_succeeded,
    end,
    note_lost,
    reported,
)
from holdfast.core.seating import inherited_seats

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.coordinator import CoordinatorState

EXPLAIN_AFTER_S = 2.0
"""A takeover that lasts longer is explained: it looks like a hang."""


def inherit(state: CoordinatorState, written: Ledger, until: float) -> None:
    """Go on with the round that is written down, once its members have reported."""
    group = state.group
    group.round_number = max(group.round_number, written.round)
    group.wait.reason = ""
    group.round = Round(
        written.round,
        written.instance,
        inherited_seats(written),
        started_at=until,
        announced=True,
        missing=MissingReports(until, written.held),
        done=set(written.done),
        restart=written.restart,
    )
    state.deadlines["missing"] = until


def begin_without(state: CoordinatorState, node: str, rank: int, now: float) -> None:
    """The node of the earlier coordinator, which held that seat, is dead."""
    current = state.group.round
    if current is None or rank >= len(current.seats):
        return
    if current.seats.by_rank[rank].status != "unreported":
        return
    current.seats.take(rank, node)
    end(state, current, StopCause("loss", sentences.leader_gone(host_of(node))), now)
    assert current.stop is not None, "a member is dead, and the round goes on"
    gone_at = state.deadlines["departed"] = now + state.config.leases.tether_s
    current.stop.departed = DepartedLeader(node, gone_at)


def take_report(
    state: CoordinatorState, node: str, report: RoundReport | None, now: float
) -> Effects:
    """Reconcile a node's report on its round with what is known of it."""
    member, current = state.members[node], state.group.round
    if current is not None and report is not None and _is_about(current, report):
        if report.group_rank < report.group_size == len(current.seats):
            _take_seat(current, report, node)
        if current.seats.is_present(node):
            effects = reported(state, current, node, report, now)
            return effects + _note_report(state, current, report, now)
    elif current is not None and current.seats.is_present(node):
        member.round = current.number
        return _offer_again(state, current, node)
    if report is None or report.condition == "stopped":
        member.round = 0
        return []
    member.round = report.round
    return [Tell(node, StopRound(report.round, sentences.ROUND_OVER))]


def _is_about(current: Round, report: RoundReport) -> bool:
    """Whether the node is in the present round. Another instance may have one of that number."""
    known = report.instance and current.instance
    same = not known or report.instance == current.instance
    return current.announced and same and report.round == current.number


def _take_seat(current: Round, report: RoundReport, node: str) -> None:
    """A node reports that it is a member, and its seat. One that had finished before has its seat
    only if it has not stopped since."""
    seats, rank = current.seats, report.group_rank
    if node in seats:
        return
    status = seats.by_rank[rank].status
    if status == "unreported":
        seats.take(rank, node)
    elif status == "finished" and report.condition == "succeeded":
        seats.take(rank, node)
        current.done.discard(rank)


def _offer_again(state: CoordinatorState, current: Round, node: str) -> Effects:
    """It has not heard of the round that it is a member of: the message was lost."""
    if current.stop is not None:
        current.seats.note_exit(node, "idle")
        state.members[node].round = 0
    elif current.announced and node in current.assignments:
        return [Tell(node, announcement(current, node))]
    return []


def _note_report(
    state: CoordinatorState, current: Round, report: RoundReport, now: float
) -> Effects:
    """A member has reported. When all have, and all still run, the round goes on."""
    missing = current.missing
    if missing is None:
        return []
    # A succeeded member is not needed for a hold, and so ends none by leaving.
    if not missing.reported and report.condition != "succeeded":
        _note_first_report(state, missing, now)
    if current.seats.unreported:
        return []
    _finish(current, now)
    if current.stop is not None:
        return []
    number, size = current.number, len(current.seats)
    return [Explain(sentences.all_reported(number, size, bool(current.done)))]


def _note_first_report(state: CoordinatorState, missing: MissingReports, now: float) -> None:
    """A coordinator that holds the leases without its register needs all members for that.

    This one has left it, so it can have renewed the others' for `suspect_s` more at most.
    """
    missing.reported = True
    leases = state.config.leases
    until = now + leases.suspect_s * (1 + leases.drift) + leases.gone_after_s
    missing.until = state.deadlines["missing"] = min(missing.until, until)


def _finish(current: Round, now: float) -> None:
    """All have reported, or must be gone: no earlier coordinator holds a lease."""
    current.missing = None
    current.started_at = now


def check(state: CoordinatorState, now: float) -> Effects:
    """Whether a round that was taken over is over without more reports."""
    current = state.group.round
    if current is None:
        return []
    _bury_leader(state, current, now)
    if current.missing is None:
        return []
    close_if_all_succeeded(state, current)
    effects = _explain_takeover(state, current, now)
    return effects + _end_if_never_run(state, current, now)


def _bury_leader(state: CoordinatorState, current: Round, now: float) -> None:
    """The member that died with the last coordinator is gone, once all of its processes must be."""
    stop = current.stop
    departed = stop.departed if stop is not None else None
    if stop is None or departed is None or now < departed.gone_at:
        return
    if current.seats.exit_of(departed.node) is not None:
        return
    state.deadlines.pop("departed", None)
    current.seats.note_exit(departed.node, "gone")
    stop.lost_hosts.add(host_of(departed.node))
    note_lost(current, sentences.leader_gone(host_of(departed.node)))


def _explain_takeover(state: CoordinatorState, current: Round, now: float) -> Effects:
    unheard, missing = current.seats.unreported, current.missing
    if now < state.deadlines.get("awaited", now + 1) or missing is None or not unheard:
        return []
    del state.deadlines["awaited"]
    within_s = missing.until - now
    reason = sentences.awaiting_reports(current.number, unheard, within_s)
    state.group.wait.reason = reason
    return [Explain(reason, topic="waiting", within_s=within_s)]


def give_up_missing(state: CoordinatorState, now: float) -> Effects:
    """Members that have not reported by now must be gone."""
    current = state.group.round
    if current is None or current.missing is None or not current.seats.unreported:
        return []
    missing = current.seats.unreported_ranks()
    nodes = "1 node" if len(missing) == 1 else f"{len(missing)} nodes"
    reason = sentences.not_reported(nodes, current.number)
    effects = end(state, current, StopCause("loss", reason), now)
    current.seats.give_up_all()
    current.missing = None
    note_lost(current, sentences.not_reported(f"node {missing[0] + 1}", current.number))
    return effects


def _end_if_never_run(state: CoordinatorState, current: Round, now: float) -> Effects:
    seats, wanted = current.seats, current.seats.unreported
    departed = current.stop.departed if current.stop is not None else None
    dead = departed.node if departed is not None else ""
    # First by number alone: thousands report, one after the other.
    without_seat = len(state.members) - len(seats.by_node) + (departed is not None)
    if current.done or not wanted or not wanted <= without_seat <= wanted + 1:
        return []
    members = _unaware_members(state, current, wanted)
    if members is None:
        return []
    # A node without state must not come first because of a seat that it never took.
    has_run = any(name != dead for name in seats.by_node)
    cause = StopCause("loss", sentences.never_ran(current.number))
    effects = end(state, current, cause, now)
    assert current.stop is not None, "it was ended"
    current.stop.has_run = has_run
    # Nodes with state come first: the seats of a round that never was order the next one.
    members.sort(key=lambda name: _by_state(state.members[name]))
    for rank, name in zip(seats.unreported_ranks(), members, strict=True):
        seats.take(rank, name)
        seats.note_exit(name, "back")
    current.missing = None
    return effects


def _by_state(member: Member) -> tuple[int, int, int]:
    return (-member.last_round, member.last_rank, member.arrival)


def _unaware_members(state: CoordinatorState, current: Round, wanted: int) -> list[str] | None:
    """The nodes on the unreported seats, if they are here and have not heard of the round.

    One more node may be here besides them; with several, telling them apart would take a search.
    """
    names = [
        name
        for name, member in state.members.items()
        if name not in current.seats and member.last_round < current.number
    ]
    if current.seats.known_roll is None or not wanted <= len(names) <= wanted + 1:
        return None  # Some of them have run it, or its members are not known.
    others = roll(names) ^ roll(current.seats.by_node) ^ current.seats.known_roll
    stranger = next((name for name in names if roll((name,)) == others), None)
    if len(names) == wanted and others == 0:
        return names
    if len(names) > wanted and stranger is not None:
        return [name for name in names if name != stranger]
    return None
