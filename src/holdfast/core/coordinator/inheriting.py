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
from holdfast.core.coordinator.state import UNKNOWN, CoordinatorState, Member, RunningRound
from holdfast.core.protocol.document import roll
from holdfast.core.protocol.messages import Standing
from holdfast.core.protocol.naming import host_of

WITNESSES = 2
SAID_AFTER_S = 2.0
"""A takeover that lasts longer is explained: it looks like a hang."""


def begin_without(state: CoordinatorState, node: str, seat: int, now: float) -> None:
    """The node of the earlier coordinator, which held that seat, is dead."""
    current = state.round
    if current is None or seat >= len(current.members) or seat in current.done.values():
        return
    state.departed, state.departed_at = node, now
    current.seat(seat, node)
    state.looks["departed"] = now + state.config.leases.tether_s
    ending.end(state, current, "loss", _about(node), now)


def seat_done(current: RunningRound, seats: tuple[int, ...]) -> None:
    """Members that had succeeded stand in the round under the number of their seat."""
    for seat in seats:
        name = _done(seat, current)
        current.seat(seat, name)
        current.gone[name] = f"{name}, is not waited for"
        current.succeeded.add(name)
        current.done[name] = seat


def remembered(state: CoordinatorState, node: str, charges: int) -> int:
    """How many charges nodes remember that are here, as far as they bear each other out."""
    if charges > state.charges:
        state.remembered[node] = charges
    known = [
        told for name, told in state.remembered.items() if name in state.members or name == node
    ]
    if len(known) < WITNESSES:
        return 0
    believed = sorted(known)[-WITNESSES]
    policy = state.config.restarts
    return believed if policy.window_s is not None else min(believed, policy.max_restarts)


def take_seat(current: RunningRound, standing: Standing, node: str) -> None:
    """A node says that it is a member, and on which seat."""
    seat = standing.group_rank
    holder = current.members[seat]
    if holder == UNKNOWN:
        current.seat(seat, node)
    elif holder == _done(seat, current) and standing.condition == "succeeded":
        for known in (current.gone, current.seats, current.done):
            del known[holder]
        current.succeeded.discard(holder)
        current.seat(seat, node)


def _done(seat: int, current: RunningRound) -> str:
    return f"node {seat + 1} of round {current.number}, which had finished"


def _about(node: str) -> str:
    return f"the node that was the coordinator, on {host_of(node)}, is gone with all its processes"


def look(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """See whether a round that was taken over is over without more reports."""
    current = state.round
    if current is None or not (state.departed or current.missing_until is not None):
        return []
    if current.has(state.departed) and now >= state.departed_at + state.config.leases.tether_s:
        state.looks.pop("departed", None)
        current.gone.setdefault(state.departed, _about(state.departed))
    is_over = state.outcome is not None or current.ending is not None
    if not is_over and len(current.succeeded) == len(current.members):
        return judging.close(state, judging.ALL_SUCCEEDED)
    return _say_who_is_awaited(state, current, now) + _close_if_never_run(state, current, now)


def _say_who_is_awaited(
    state: CoordinatorState, current: RunningRound, now: float
) -> list[CoordinatorEffect]:
    unheard = len(current.members) - len(current.seats)
    if now < state.looks.get("awaited", now + 1) or current.missing_until is None or not unheard:
        return []
    del state.looks["awaited"]
    nodes = "1 node" if unheard == 1 else f"{unheard} nodes"
    state.waiting_for = (
        f"waiting up to {current.missing_until - now:.0f} s for {nodes} of round "
        f"{current.number}, which may still run"
    )
    return [Explain(state.waiting_for)]


def _close_if_never_run(
    state: CoordinatorState, current: RunningRound, now: float
) -> list[CoordinatorEffect]:
    wanted = len(current.members) - len(current.seats)
    # First by number alone: thousands report, one after the other.
    without_seat = len(state.members) - len(current.seats) + current.has(state.departed)
    if current.done or not wanted or not wanted <= without_seat <= wanted + 1:
        return []
    members = _unaware(state, current, wanted)
    if members is None:
        return []
    # Who has state comes first: the seats of a round that never was order the next one.
    members.sort(key=lambda name: _by_state(state.members[name]))
    unheard = [rank for rank, name in enumerate(current.members) if name == UNKNOWN]
    for rank, name in zip(unheard, members, strict=True):
        current.seat(rank, name)
        current.back.add(name)
    current.missing_until = None
    # Whoever has no state must not come first because of a seat that it never took.
    current.has_run = any(name not in (*members, state.departed) for name in current.seats)
    return ending.end(state, current, "loss", f"round {current.number} had not begun", now)


def _by_state(member: Member) -> tuple[int, int, int]:
    return (-member.last_round, member.last_rank, member.arrival)


def _unaware(state: CoordinatorState, current: RunningRound, wanted: int) -> list[str] | None:
    """Those who hold the unreported seats, if they are here and have not heard of the round.

    Besides them one more node may be here; with several it would take a search to tell.
    """
    names = [
        name
        for name, member in state.members.items()
        if not current.has(name) and member.last_round < current.number
    ]
    if not wanted <= len(names) <= wanted + 1:
        return None  # Some of them have run it.
    others = roll(names) ^ roll(current.seats) ^ state.inherited_roll
    stranger = next((name for name in names if roll((name,)) == others), None)
    if len(names) == wanted and others == 0:
        return names
    if len(names) > wanted and stranger is not None:
        return [name for name in names if name != stranger]
    return None
