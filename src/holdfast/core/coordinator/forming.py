"""How the next round comes about: who sits in it, when, and how it is announced.

Rules
1. Looking is cheap: it happens after every event, and takes the same time for ten nodes as
   for ten thousand. Only forming itself goes through all of them, once.
2. Ranks are complete before the round is announced, and it is announced only once it is
   written down. If something ended it meanwhile, it is never announced.
3. A wait is explained when its reason changes; a crowd that arrives is not counted aloud.
4. Where ranks are fixed, the job waits for ranks, not for numbers, and says for which; a node
   whose rank is another's is told so, and stands by.
5. Fixed ranks come with a fixed master: each node's workers get its address and port just as
   they were given on that node, which may know the master by a name of its own.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.coordinator import ending as ending
from holdfast.core.coordinator import judging as judging
from holdfast.core.coordinator import saving as saving
from holdfast.core.coordinator.io import CoordinatorEffect, Explain, Tell
from holdfast.core.coordinator.round import (
    AnyRound,
    FormingRound,
    InheritedRound,
    NodeSeat,
    RunningRound,
    StopCause,
    StoppingRound,
    seats_of,
)
from holdfast.core.coordinator.state import (
    CoordinatorState,
    name_of,
    update_ready,
)
from holdfast.core.policy import ranks, rounds
from holdfast.core.protocol import exit_status, marks
from holdfast.core.protocol.messages import RunRound, StandBy
from holdfast.core.protocol.model import Assignment, Endpoint, NodeInfo, Outcome

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.policy.quarantine import HostRecord

COUNTED_ALOUD = 8
"""Up to this many nodes every arrival is told; beyond it, once in a while."""
ALOUD_EVERY_S = 5.0


def consider(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """After every event: form a round, make room in the running one, or wait."""
    current = state.round
    if current is None:
        if state.closing is not None:
            return judging.close(state, state.closing)
        if state.config.max_nodes == 1 and not state.ready:
            return []  # Nobody is waited for: the only node is getting ready.
        return _form(state, now)
    if isinstance(current, RunningRound | InheritedRound):
        cause = _cause_to_end(state, current, now)
        if cause is not None:
            effects = _end_in_order(state, current, cause, now)
        else:
            effects = saving.call_off(state, current, now)
        return effects + ending.let_out(state, now) + ending.left_by_workers(state, now)
    return []


def _form(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    candidates, wait_until = _candidates(state, now)
    _count(state, candidates, now)
    decision = rounds.decide(_view(state, candidates), now)
    state.looks.pop("form", None)
    if wait_until is not None:
        state.looks["form"] = wait_until
    match decision:
        case rounds.Form():
            return _prepare(state, now)
        case rounds.WaitLonger():
            if decision.wake_at is not None:
                state.looks["form"] = min(decision.wake_at, wait_until or decision.wake_at)
            short = candidates < state.min_nodes and now >= state.wait.not_before
            missing = _missing_ranks(state, ": ", now) if short else ""
            within_s = 0.0 if decision.wake_at is None else decision.wake_at - now
            return _explain_wait(state, decision.reason + missing, within_s, now)
        case rounds.Fail():
            reason = decision.reason + _missing_ranks(state, "; missing: ", now)
            return judging.close(state, _never_formed(state, reason))


def _never_formed(state: CoordinatorState, reason: str) -> Outcome:
    """Too few were there: because one was lost, if one was."""
    if state.loss is None:
        return Outcome("not_formed", reason, exit_status.NOT_FORMED)
    found = state.loss.blame
    reason = f"{reason}, after {found.who} was lost"
    return Outcome("not_formed", reason, exit_status.NOT_FORMED, blame=found)


def _candidates(state: CoordinatorState, now: float) -> tuple[int, float | None]:
    """How many could sit now, and when the first of those who sit out may come back."""
    fixed = state.config.has_fixed_ranks
    if fixed and _is_gathering(state):
        return len(state.ready), None  # At most so many, and far from enough.
    all_may = not state.penalties and not _quarantined(state, now)
    if not fixed and all_may and (len(state.roles) < 2 or not state.holders):
        return len(state.ready), None  # A seat is a role's only once one of that role held it.
    able = _able(state, now)
    until = _next_return(state, now) if len(able) < len(state.ready) else None
    return _places(state, able), until


def _places(state: CoordinatorState, able: list[str]) -> int:
    """How many of them would get a seat."""
    if state.config.has_fixed_ranks:
        return len(_by_rank(state, able))
    if len(state.roles) < 2 or len(able) < state.min_nodes:
        return min(len(able), state.max_nodes)
    return len(_seated(state, able))


def _next_return(state: CoordinatorState, now: float) -> float:
    """When the first host of those that sit out may come back."""
    kept = _quarantined(state, now).values()
    pausing = (one.until for one in state.penalties.values() if now < one.until)
    return min((*pausing, *(record.until for record in kept)))


def _seated(state: CoordinatorState, able: list[str]) -> tuple[NodeInfo, ...]:
    """Those of them who would get a seat, in the order of their ranks."""
    if state.config.has_fixed_ranks:
        return tuple(_by_rank(state, able).values())
    seated = ranks.select(_arrived(state, able), state.holders, state.max_nodes)
    return ranks.order(seated, _in_order(state))


def _arrived(state: CoordinatorState, nodes: list[str]) -> list[NodeInfo]:
    in_turn = sorted(nodes, key=lambda name: state.members[name].arrival)
    return [state.members[name].info for name in in_turn]


def _in_order(state: CoordinatorState) -> tuple[str, ...]:
    """Who has state, the newest and oldest first: former members, then who ran before them.

    A coordinator that took over between two rounds knows the former only by what they said.
    """
    former = set(state.former)
    others = [
        (-member.last_round, member.last_rank, name)
        for name, member in state.members.items()
        if member.last_round and name not in former
    ]
    return (*state.former, *(name for _, _, name in sorted(others)))


def _able(state: CoordinatorState, now: float) -> list[str]:
    """Who may sit: without those that are kept out, as far as the job can do without them."""
    able, quarantined = _split_quarantined(state, now)
    for name in quarantined:
        if _places(state, able) >= state.min_nodes:
            break
        able.append(name)
    return able


def _split_quarantined(state: CoordinatorState, now: float) -> tuple[list[str], list[str]]:
    """Who may sit, and who is kept out: those whose time is over soonest in front."""
    kept = _quarantined(state, now)
    present = [name for name in state.ready if not _pauses(state, name, now)]
    if not kept:
        return present, []
    from holdfast.core.coordinator import quarantine

    records = {name: quarantine.record_of(state, name, kept) for name in present}
    held = {name: record.until for name, record in records.items() if record is not None}
    return [name for name in present if name not in held], sorted(held, key=held.__getitem__)


def _quarantined(state: CoordinatorState, now: float) -> dict[int, HostRecord]:
    """The hosts that are kept out now; what knows of that is loaded once there is any."""
    if not state.hosts:
        return {}
    from holdfast.core.coordinator import quarantine

    return quarantine.out(state, now)


def _pauses(state: CoordinatorState, node: str, now: float) -> bool:
    penalty = state.penalties.get(state.members[node].info.host)
    return penalty is not None and now < penalty.until


def _count(state: CoordinatorState, candidates: int, now: float) -> None:
    """Keep the times from which the waits for latecomers and for too few are counted."""
    wait = state.wait
    if candidates >= state.min_nodes:
        wait.short_since = None
        if wait.enough_since is None:
            wait.enough_since = now
    else:
        wait.enough_since = None
        if wait.short_since is None:
            wait.short_since = now


def _view(state: CoordinatorState, candidates: int) -> rounds.View:
    return rounds.View(
        candidates=candidates,
        minimum=state.min_nodes,
        maximum=state.max_nodes,
        timeouts=state.config.timeouts,
        first_round=state.round_number == 0,
        enough_since=state.wait.enough_since,
        short_since=state.wait.short_since,
        not_before=state.wait.not_before,
    )


def _explain_wait(
    state: CoordinatorState, reason: str, within_s: float, now: float
) -> list[CoordinatorEffect]:
    wait = state.wait
    if reason == wait.reason or not state.ready:
        return []
    crowd = len(state.ready) > COUNTED_ALOUD and wait.reason != ""
    wait.reason = reason
    if crowd and now < wait.said_at + ALOUD_EVERY_S:
        return []
    wait.said_at = now
    return [Explain(reason, topic="waiting", within_s=within_s)]


def _prepare(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """Settle who sits where, and have it written down."""
    seated = _seated(state, _able(state, now))
    state.holders = ranks.seat_holders(state.holders, seated, state.max_nodes)
    members = [info.node for info in seated]
    state.round_number += 1
    state.formed += 1
    state.version += 1
    wait = state.wait
    wait.reason = ""
    wait.note = "; ".join(filter(None, (wait.note, _about_quarantined(state, seated, now))))
    wait.newcomer_since = wait.enough_since = wait.short_since = None
    state.round = FormingRound(
        state.round_number,
        state.term.instance,
        seats_of(members),
        state.version,
        formed_at=now,
        assignments=_assignments(state, seated),
        note=wait.note,
    )
    if any(info.mark for info in seated):
        state.round.seats.marks = marks.grow([info.mark for info in seated])
    for name in members:
        state.members[name].round = state.round_number
        update_ready(state, name)
    return []


def _about_quarantined(state: CoordinatorState, seated: tuple[NodeInfo, ...], now: float) -> str:
    if not _quarantined(state, now):
        return ""
    from holdfast.core.coordinator import quarantine

    return quarantine.seated(state, seated, now)


def _assignments(state: CoordinatorState, seated: tuple[NodeInfo, ...]) -> dict[str, Assignment]:
    """What each of them will be told."""
    assigned = ranks.assign(
        seated,
        round=state.round_number,
        restart_count=state.budget.charges,
        master=_endpoint(state, seated[0].node),
    )
    if not state.config.has_fixed_ranks:
        return assigned
    # Masters are kept as they were given (rule 5).
    return {
        node: replace(assignment, master=_endpoint(state, node))
        for node, assignment in assigned.items()
    }


def _endpoint(state: CoordinatorState, node: str) -> Endpoint:
    held = state.members[node].endpoint
    assert held is not None, "a node without an endpoint was a candidate"
    return held


def written(state: CoordinatorState, version: int, now: float) -> list[CoordinatorEffect]:
    """What was written down may be told."""
    formed = state.round
    if isinstance(formed, FormingRound) and version >= formed.version:
        return _announce(state, formed, now)
    return []


def _announce(state: CoordinatorState, formed: FormingRound, now: float) -> list[CoordinatorEffect]:
    state.round = formed.announced(now)
    state.loss = None
    state.wait.note = ""
    effects: list[CoordinatorEffect] = [Explain(formed.note)] if formed.note else []
    effects += [Tell(name, announcement(formed, name)) for name in formed.seats.nodes()]
    for name in state.ready:
        effects += stand_by(state, name, now)
    return effects


def announcement(current: FormingRound | RunningRound, node: str) -> RunRound:
    """What a member is told of a round that was formed here."""
    path = marks.path_of(current.seats.marks, current.seats.ranks[node])
    return RunRound(current.assignments[node], path, current.note)


# A round that runs.


def stand_by(state: CoordinatorState, node: str, now: float) -> list[CoordinatorEffect]:
    """Say to a node that has no seat what it waits for."""
    current = state.round
    if node not in state.ready:
        return []  # It is still getting ready, or has an older round to stop.
    if isinstance(current, InheritedRound | StoppingRound):
        return []
    reason = _refused_rank(state, node) if state.config.has_fixed_ranks else ""
    if reason:
        return [Tell(node, StandBy(reason))]
    if current is None:
        return _displaced_by(state, node)
    if _quarantined(state, now):
        from holdfast.core.coordinator import quarantine

        if reason := quarantine.standing(state, node, now):
            return [Tell(node, StandBy(reason))]
    return [Tell(node, StandBy(_no_seat(state, current)))]


def _no_seat(state: CoordinatorState, current: FormingRound | RunningRound) -> str:
    runs = f"round {current.number} runs with {len(current.seats)} of at most"
    standing = f"{runs} {state.max_nodes} nodes: standing by"
    if len(current.seats) < state.max_nodes:
        standing = f"{runs} {state.max_nodes} nodes: this one will be taken in soon"
    if _is_the_last(state, current):
        standing = f"round {current.number} is coming to its end: standing by"
    return standing


def _end_in_order(
    state: CoordinatorState, current: RunningRound | InheritedRound, cause: StopCause, now: float
) -> list[CoordinatorEffect]:
    """End the round once all workers that ask have saved."""
    effects: list[CoordinatorEffect] = []
    if current.saving is None or not current.saving.leaves:
        until = now + state.config.timeouts.save_s
        effects = saving.begin(state, current, ("", cause.reason), until, now)
    if saving.is_over(current, now):
        effects += ending.end(state, current, cause, now)
    return effects


def _cause_to_end(
    state: CoordinatorState, current: RunningRound | InheritedRound, now: float
) -> StopCause | None:
    """A restart was asked for, or the round has more nodes than it may, or there is room for those
    that wait. These two wait while all save on request, as long as that may take."""
    if current.course.restart:
        return StopCause("asked", f"{current.course.restart} asked for a restart")
    requested = current.saving is not None and not current.saving.leaves
    if requested and not saving.is_over(current, now):
        return None
    limits = state.limits
    if limits is None or len(current.seats) <= limits.most or _is_the_last(state, current):
        return _room_for_newcomers(state, current, now)
    return StopCause("asked", f"{limits.by} asked for {rounds.at_most(limits.most)}")


def _room_for_newcomers(
    state: CoordinatorState, current: RunningRound | InheritedRound, now: float
) -> StopCause | None:
    size, wait = len(current.seats), state.wait
    full = size >= state.max_nodes
    newcomers = 0 if full or _is_the_last(state, current) else _newcomers(state, current, now)
    if not newcomers:
        wait.newcomer_since = None
        return None
    if wait.newcomer_since is None:
        wait.newcomer_since = now
    decision = rounds.make_room(
        rounds.Occupancy(
            size=size,
            maximum=state.max_nodes,
            newcomers=newcomers,
            newcomer_since=wait.newcomer_since,
            started_at=current.started_at,
            fruitless=state.budget.fruitless,
            closing=_is_the_last(state, current) or isinstance(current, InheritedRound),
            timeouts=state.config.timeouts,
        ),
        now,
    )
    if isinstance(decision, rounds.WaitLonger) and decision.wake_at is not None:
        state.looks["room"] = decision.wake_at
    if not isinstance(decision, rounds.Form):
        return None
    joined = "a node has joined" if newcomers == 1 else f"{newcomers} nodes have joined"
    return StopCause("newcomers", joined)


def _is_the_last(state: CoordinatorState, current: AnyRound) -> bool:
    """As far as can be told: admitting newcomers no longer pays."""
    if state.closing is not None:
        return True
    return not isinstance(current, FormingRound) and current.course.has_success


def _newcomers(state: CoordinatorState, current: RunningRound | InheritedRound, now: float) -> int:
    """How many wait for whom there would be a seat. Who sits out is looked for when it may come."""
    waiting = list(state.ready)
    if state.ready and (state.penalties or state.hosts):
        waiting, _ = _split_quarantined(state, now)
        if len(waiting) < len(state.ready):
            state.looks["room"] = _next_return(state, now)
    if not waiting or len(state.roles) < 2:
        return len(waiting)
    present = [name for name in current.seats.nodes() if name in state.members]
    return len(_seated(state, [*present, *waiting])) - len(present)


# Fixed ranks.


def _is_gathering(state: CoordinatorState) -> bool:
    """Many have come and many are missing: nobody is gone through at each arrival (rule 1)."""
    return COUNTED_ALOUD < len(state.ready) < state.min_nodes - COUNTED_ALOUD


def _by_rank(state: CoordinatorState, able: list[str]) -> dict[int, NodeInfo]:
    return ranks.by_rank(_arrived(state, able), _in_order(state), state.max_nodes)


def _missing_ranks(state: CoordinatorState, after: str, now: float) -> str:
    """In words, where ranks are fixed: which nobody has come for, and which two have."""
    if not state.config.has_fixed_ranks or _is_gathering(state):
        return ""
    able = _able(state, now)
    seated = _by_rank(state, able)
    missing = tuple(str(rank) for rank in range(state.max_nodes) if rank not in seated)
    said = f"{after}rank{'' if len(missing) == 1 else 's'} {rounds.names(missing)}"
    for other in _arrived(state, able):
        holder = seated.get(-1 if other.rank_hint is None else other.rank_hint)
        if holder is not None and holder.node != other.node:
            rivals = f"{name_of(state, holder.node)} and by {name_of(state, other.node)}"
            said += f"; rank {other.rank_hint} is claimed by {rivals}"
            break
    return said


def _refused_rank(state: CoordinatorState, node: str) -> str:
    """Why a node does not get the rank that it was started with; empty if nothing is wrong."""
    info, size = state.members[node].info, state.max_nodes
    rank = info.rank_hint
    if rank is None:
        return "this job has fixed ranks, and this node came without --node-rank: standing by"
    if not 0 <= rank < size:
        return f"this node came with --node-rank {rank} to a job of {size} nodes: standing by"
    holder = _holder(state, rank)
    if holder is None or holder.node == node:
        return ""
    other = name_of(state, holder.node)
    return f"--node-rank {rank} is taken by {other}: this node stands by until that one is gone"


def _displaced_by(state: CoordinatorState, node: str) -> list[CoordinatorEffect]:
    """Tell those who were ready sooner, and came later, that the rank is this node's."""
    if not state.config.has_fixed_ranks or _is_gathering(state):
        return []
    rank = state.members[node].info.rank_hint
    rivals = [name for name in state.ready if state.members[name].info.rank_hint == rank]
    reasons = {name: _refused_rank(state, name) for name in rivals if name != node}
    return [Tell(name, StandBy(reason)) for name, reason in reasons.items()]


def _holder(state: CoordinatorState, rank: int) -> NodeInfo | None:
    """Who has this rank: in the round, or for the next one, as far as that can be said."""
    current = state.round
    if current is not None:
        seat = current.seats.by_rank[rank] if rank < len(current.seats) else None
        member = state.members.get(seat.node) if isinstance(seat, NodeSeat) else None
        return member.info if member is not None else None
    return None if _is_gathering(state) else _by_rank(state, list(state.ready)).get(rank)
