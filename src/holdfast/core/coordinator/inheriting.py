"""What is special about a round that an earlier coordinator formed.

Rules
1. A member that died with the earlier coordinator, by proof, or left with it, is lost: the round
   ends at once, and nothing waits for it longer than for any node whose tether has ended.
2. A round may have been written down without anybody having been told of it. When nodes report
   that have not heard of it, and they are all of its members, it has never run: it is over.
3. A member that is known to have succeeded is not waited for, and its loss is none. If it is there
   after all, and has not stopped since, it has its seat.
4. Charges that are not written down are believed when two nodes remember them, and as far as a job
   that goes on can have been charged. One node alone could use up the budget of all.
"""

from __future__ import annotations

from holdfast.core.coordinator import ending as ending
from holdfast.core.coordinator import judging as judging
from holdfast.core.coordinator.io import CoordinatorEffect, Explain
from holdfast.core.coordinator.round import (
    DepartedLeader,
    FinishedSeat,
    InheritedRound,
    MissingReports,
    StopCause,
    StoppingRound,
    ToldRound,
    UnreportedSeat,
)
from holdfast.core.coordinator.state import CoordinatorState, Member
from holdfast.core.protocol.document import roll
from holdfast.core.protocol.messages import RoundReport
from holdfast.core.protocol.naming import host_of

WITNESSES = 2
SAID_AFTER_S = 2.0
"""A takeover that lasts longer is explained: it looks like a hang."""


def begin_without(state: CoordinatorState, node: str, seat: int, now: float) -> None:
    """The node of the earlier coordinator, which held that seat, is dead."""
    current = state.round
    if current is None or seat >= len(current.seats):
        return
    if not isinstance(current.seats.by_rank[seat], UnreportedSeat):
        return
    current.seats.take(seat, node)
    ending.end(state, current, StopCause("loss", _about(node)), now)
    assert isinstance(state.round, StoppingRound), "a member is dead, and the round goes on"
    gone_at = state.looks["departed"] = now + state.config.leases.tether_s
    state.round.departed = DepartedLeader(node, gone_at)


def remembered(state: CoordinatorState, node: str, charges: int) -> int:
    """How many charges nodes remember that are here, as far as they bear each other out."""
    claims = state.budget.remembered
    if charges > state.budget.charges:
        claims[node] = charges
    known = [told for name, told in claims.items() if name in state.members or name == node]
    if len(known) < WITNESSES:
        return 0
    believed = sorted(known)[-WITNESSES]
    policy = state.config.restarts
    return believed if policy.window_s is not None else min(believed, policy.max_restarts)


def take_seat(current: ToldRound, standing: RoundReport, node: str) -> None:
    """A node says that it is a member, and on which seat."""
    seats, rank = current.seats, standing.group_rank
    if node in seats:
        return
    match seats.by_rank[rank]:
        case UnreportedSeat():
            seats.take(rank, node)
        case FinishedSeat() if standing.condition == "succeeded":
            seats.take(rank, node)
            current.course.done.discard(rank)


def reported(state: CoordinatorState, standing: RoundReport, now: float) -> list[CoordinatorEffect]:
    """A member has said where it stands. When all have, and all still run, the round goes on."""
    current = state.round
    if not isinstance(current, InheritedRound | StoppingRound) or current.missing is None:
        return []
    # One that has succeeded is not needed for a hold, and so ends none by leaving.
    if not current.missing.reported and standing.condition != "succeeded":
        _first_report(state, current.missing, now)
    if current.seats.unreported:
        return []
    ending.finish_takeover(state, now)
    if isinstance(current, StoppingRound):
        current.started_at = now
        return []
    return [Explain(f"{_all_nodes(current)} reported: it goes on")]


def _first_report(state: CoordinatorState, missing: MissingReports, now: float) -> None:
    """A coordinator that holds the leases without its register needs all members for that.

    This one has left it, so it can have renewed the others' for `suspect_s` more at most.
    """
    missing.reported = True
    leases = state.config.leases
    until = now + leases.suspect_s * (1 + leases.drift) + leases.gone_after_s
    missing.until = state.looks["missing"] = min(missing.until, until)


def _all_nodes(current: InheritedRound) -> str:
    if current.course.done:
        return f"all nodes of round {current.number} that are not done have"
    if len(current.seats) == 1:
        return f"the node of round {current.number} has"
    return f"all {len(current.seats)} nodes of round {current.number} have"


def _about(node: str) -> str:
    return f"the node that was the coordinator, on {host_of(node)}, is gone with all its processes"


def look(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """See whether a round that was taken over is over without more reports."""
    current = state.round
    if isinstance(current, StoppingRound):
        _bury(state, current, now)
    if not isinstance(current, InheritedRound | StoppingRound) or current.missing is None:
        return []
    effects = judging.close_if_all_succeeded(state, current)
    effects += _say_who_is_awaited(state, current, now)
    return effects + _close_if_never_run(state, current, now)


def _bury(state: CoordinatorState, current: StoppingRound, now: float) -> None:
    """The member that died with the last coordinator is gone, once nothing of it can be left."""
    departed = current.departed
    if departed is None or now < departed.gone_at or departed.node in current.exited:
        return
    state.looks.pop("departed", None)
    current.exited[departed.node] = "gone"
    current.lost_hosts.add(host_of(departed.node))
    ending.note_loss(current, _about(departed.node))


def _say_who_is_awaited(
    state: CoordinatorState, current: InheritedRound | StoppingRound, now: float
) -> list[CoordinatorEffect]:
    unheard, missing = current.seats.unreported, current.missing
    if now < state.looks.get("awaited", now + 1) or missing is None or not unheard:
        return []
    del state.looks["awaited"]
    nodes = "1 node" if unheard == 1 else f"{unheard} nodes"
    state.wait.reason = (
        f"waiting up to {missing.until - now:.0f} s for {nodes} of round "
        f"{current.number}, which may still run"
    )
    return [Explain(state.wait.reason, topic="waiting", within_s=missing.until - now)]


def _close_if_never_run(
    state: CoordinatorState, current: InheritedRound | StoppingRound, now: float
) -> list[CoordinatorEffect]:
    seats, wanted = current.seats, current.seats.unreported
    departed = current.departed if isinstance(current, StoppingRound) else None
    dead = departed.node if departed is not None else ""
    # First by number alone: thousands report, one after the other.
    without_seat = len(state.members) - len(seats.ranks) + (departed is not None)
    if current.course.done or not wanted or not wanted <= without_seat <= wanted + 1:
        return []
    members = _unaware(state, current, wanted)
    if members is None:
        return []
    # Whoever has no state must not come first because of a seat that it never took.
    has_run = any(name != dead for name in seats.ranks)
    cause = StopCause("loss", f"round {current.number} had not begun")
    effects = ending.end(state, current, cause, now)
    stopping = state.round
    assert isinstance(stopping, StoppingRound), "it was ended"
    stopping.has_run = has_run
    # Who has state comes first: the seats of a round that never was order the next one.
    members.sort(key=lambda name: _by_state(state.members[name]))
    for rank, name in zip(seats.unreported_ranks(), members, strict=True):
        seats.take(rank, name)
        stopping.exited[name] = "back"
    ending.finish_takeover(state, now)
    return effects


def _by_state(member: Member) -> tuple[int, int, int]:
    return (-member.last_round, member.last_rank, member.arrival)


def _unaware(state: CoordinatorState, current: ToldRound, wanted: int) -> list[str] | None:
    """Those who hold the unreported seats, if they are here and have not heard of the round.

    Besides them one more node may be here; with several it would take a search to tell.
    """
    names = [
        name
        for name, member in state.members.items()
        if name not in current.seats and member.last_round < current.number
    ]
    if current.seats.known_roll is None or not wanted <= len(names) <= wanted + 1:
        return None  # Some of them have run it, or it is not known who they are.
    others = roll(names) ^ roll(current.seats.ranks) ^ current.seats.known_roll
    stranger = next((name for name in names if roll((name,)) == others), None)
    if len(names) == wanted and others == 0:
        return names
    if len(names) > wanted and stranger is not None:
        return [name for name in names if name != stranger]
    return None
