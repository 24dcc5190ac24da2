"""How the job is, as its coordinator knows it: a view, which changes nothing."""

from __future__ import annotations

from itertools import islice

from holdfast.core.coordinator import Coordinator, CoordinatorState
from holdfast.core.membership import Member
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
from holdfast.core.rounds import Round


def overview(coordinator: Coordinator, request: JobAsked, now: float) -> JobTold:
    state, own = coordinator.state, coordinator.requests.own_node
    group, config = state.group, state.config
    last = request.first_node + NODES_TOLD_MOST
    nodes = islice(state.members, request.first_node, last)
    current = group.round
    return JobTold(
        run_id=config.run_id,
        stage=_stage(state),
        round=group.round_number,
        world_size=_world_size(current),
        round_age_s=max(0.0, now - current.started_at) if current is not None else 0.0,
        coordinator=state.name_of(own),
        min_nodes=state.min_nodes,
        max_nodes=state.max_nodes,
        restarts=group.budget.charges,
        max_restarts=config.restarts.max_restarts,
        step=current.furthest_step if current is not None else None,
        waiting=cut(group.wait.reason, TEXT_MOST) if current is None else "",
        nodes=tuple(_node(coordinator, node, now) for node in nodes),
        node_count=len(state.members),
        outcome=state.outcome,
        scaled_by=group.limits.by if group.limits is not None else "",
        save=_save(current),
    )


def _save(current: Round | None) -> SaveTold | None:
    if current is None or current.saves is None:
        return None
    save, ended = current.saves.current, current.saves.ended
    if current.is_running and save is not None and save.requested:
        left = save.unheard | save.unsaved
        stage: SaveStage = "saving" if save.step is not None else "agreeing"
        return SaveTold(save.number, stage, save.step, len(left))
    return SaveTold(ended.number, ended.result, ended.step) if ended is not None else None


def _stage(state: CoordinatorState) -> Stage:
    current = state.group.round
    if state.end is not None:
        return "over"
    if current is None or not (current.announced or current.stop is not None):
        return "waiting"
    return "running" if current.stop is None else "stopping"


def _world_size(current: Round | None) -> int:
    """0 where another coordinator formed the round, and nobody told this one."""
    told = next(iter(current.assignments.values()), None) if current is not None else None
    return told.world_size if told is not None else 0


def _node(coordinator: Coordinator, node: str, now: float) -> NodeOverview:
    state = coordinator.state
    member, current = state.members[node], state.group.round
    assignment = current.assignments.get(node) if current is not None else None
    seat = current.seats.by_node.get(node) if current is not None else None
    watch = coordinator.leases.watches.get(node)
    condition, note = _condition(state, node, member)
    return NodeOverview(
        node=node,
        name=member.name,
        host=member.info.host,
        condition=condition,
        group_rank=seat.rank if seat is not None else None,
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
    current = state.group.round
    if current is not None and node in current.seats:
        return ("finished" if current.seats.has_succeeded(node) else "in the round"), ""
    if member.ready:
        return ("standing by" if current is not None else "ready"), ""
    return "getting ready", ""
