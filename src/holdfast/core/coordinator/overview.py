"""How the job is, as its coordinator knows it: a view, which changes nothing."""

from __future__ import annotations

from itertools import islice

from holdfast.core.coordinator.liveness import Liveness
from holdfast.core.coordinator.round import (
    AnyRound,
    FormingRound,
    InheritedRound,
    RunningRound,
    StoppingRound,
)
from holdfast.core.coordinator.state import CoordinatorState, Member, name_of
from holdfast.core.protocol.bounds import TEXT_MOST, cut
from holdfast.core.protocol.requests import (
    NODES_TOLD_MOST,
    Condition,
    JobAsked,
    JobTold,
    NodeOverview,
    SaveStage,
    SaveTold,
    Stage,
)


def overview(liveness: Liveness, request: JobAsked, now: float) -> JobTold:
    state, own = liveness.state, liveness.desk.own_node
    current, config = state.round, state.config
    last = request.first_node + NODES_TOLD_MOST
    nodes = islice(state.members, request.first_node, last)
    course = None if current is None or isinstance(current, FormingRound) else current.course
    return JobTold(
        run_id=config.run_id,
        stage=_stage(state),
        round=state.round_number,
        world_size=_world_size(state),
        round_age_s=_age_s(state, now),
        coordinator=name_of(state, own),
        min_nodes=state.min_nodes,
        max_nodes=state.max_nodes,
        restarts=state.budget.charges,
        max_restarts=config.restarts.max_restarts,
        step=course.furthest_step if course is not None else None,
        waiting=cut(state.wait.reason, TEXT_MOST) if current is None else "",
        nodes=tuple(_node(liveness, node, now) for node in nodes),
        node_count=len(state.members),
        outcome=state.outcome,
        scaled_by=state.limits.by if state.limits is not None else "",
        save=_save(current),
    )


def _save(current: AnyRound | None) -> SaveTold | None:
    if isinstance(current, FormingRound | None):
        return None
    saving = current.saving if isinstance(current, RunningRound | InheritedRound) else None
    if saving is not None and saving.requested:
        left = saving.unheard | saving.unsaved
        stage: SaveStage = "saving" if saving.step is not None else "agreeing"
        return SaveTold(saving.number, stage, saving.step, len(left))
    ended = current.course.save
    return SaveTold(ended.number, ended.result, ended.step) if ended is not None else None


def _stage(state: CoordinatorState) -> Stage:
    if state.end is not None:
        return "over"
    match state.round:
        case RunningRound() | InheritedRound():
            return "running"
        case StoppingRound():
            return "stopping"
        case _:
            return "waiting"


def _age_s(state: CoordinatorState, now: float) -> float:
    current = state.round
    if current is None:
        return 0.0
    since = current.formed_at if isinstance(current, FormingRound) else current.started_at
    return max(0.0, now - since)


def _world_size(state: CoordinatorState) -> int:
    """0 where another coordinator formed the round, and nobody told this one."""
    if isinstance(state.round, InheritedRound | None):
        return 0
    told = next(iter(state.round.assignments.values()), None)
    return told.world_size if told is not None else 0


def _node(liveness: Liveness, node: str, now: float) -> NodeOverview:
    state = liveness.state
    member, current = state.members[node], state.round
    told = {} if isinstance(current, InheritedRound | None) else current.assignments
    assignment = told.get(node)
    watch = liveness.book.watches.get(node)
    condition, note = _condition(state, node, member)
    return NodeOverview(
        node=node,
        name=member.name,
        host=member.info.host,
        condition=condition,
        group_rank=current.seats.ranks.get(node) if current is not None else None,
        first_rank=assignment.workers[0].rank if assignment is not None else None,
        workers=member.info.slots,
        heard_s=max(0.0, now - watch.heard_at) if watch is not None else 0.0,
        note=cut(note),
    )


def _condition(state: CoordinatorState, node: str, member: Member) -> tuple[Condition, str]:
    """In one word or two, and what there is to say about it."""
    if member.suspected or member.revoked:
        return "silent", member.suspected
    if member.draining:
        return "leaving", member.draining
    current = state.round
    if current is not None and node in current.seats:
        if not isinstance(current, FormingRound) and node in current.course.succeeded:
            return "finished", ""
        return "in the round", ""
    if member.ready:
        return ("standing by" if current is not None else "ready"), ""
    return "getting ready", ""
