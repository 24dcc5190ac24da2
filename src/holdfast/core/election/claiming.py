"""Whose turn it is to take over, and the claim itself (rules 12 and 13 of `core.election.step`).

Not all may try at once: there may be thousands. Successors go one after the other, anybody else
who looks for a coordinator after them, and a crowd that finds nothing at all spreads out.
"""

from __future__ import annotations

import zlib

from msgspec.structs import replace

from holdfast.core.election.io import ElectionEffect, WakeElection, WatchRegister, WriteRegister
from holdfast.core.election.state import (
    CROWD_S,
    FEW,
    STAGGER_S,
    WATCH_TIMER,
    ElectionState,
    PendingWrite,
    is_dead,
    next_document,
)
from holdfast.core.protocol.document import Document


def watch(state: ElectionState, now: float) -> list[ElectionEffect]:
    """Successors keep an eye on the register; the others leave it alone, unless they seek."""
    wanted = state.leading is None and (state.node in state.successors or state.calling)
    effects: list[ElectionEffect] = []
    if state.pushes and wanted != state.watching:
        state.watching = wanted
        effects.append(WatchRegister(wanted))
    if not wanted:
        return effects
    after_s = state.terms.term_s / 3
    if state.moved_at is not None:
        overdue_s = state.moved_at + state.terms.takeover_s + turn(state) - now
        # Where every sign of life is told, there is nothing to look for before it is overdue.
        sooner = 0 < overdue_s < after_s
        after_s = overdue_s if sooner or (state.pushes and overdue_s > after_s) else after_s
    return [*effects, WakeElection(WATCH_TIMER, after_s)]


def turn(state: ElectionState) -> float:
    """How long after the first this node may try, so that not all do at once."""
    if state.seen is None:
        return CROWD_S * (_spread(state) - 1) / 4 if state.crowd > FEW else 0.0
    if state.seen.leader in state.ended:
        return 0.0  # Nobody knows it but who is on that machine.
    if state.node in state.successors:
        return state.successors.index(state.node) * STAGGER_S
    return (len(state.successors) + _spread(state)) * STAGGER_S


def _spread(state: ElectionState) -> float:
    return 1 + 4 * zlib.crc32(f"{state.node}/{state.writes}".encode()) / 2**32


def claim_in_turn(state: ElectionState, now: float, *, free: bool) -> list[ElectionEffect]:
    """Claim the place, if it is free and it is our turn; else look again when it may be.

    It is `free` if nobody holds it for certain, and not only by silence.
    """
    since = state.freed_at if state.freed_at is not None else now
    state.freed_at = since if free else None
    if now < state.sits_out_until:
        return [WakeElection(WATCH_TIMER, state.sits_out_until - now)] if state.calling else []
    is_wanted = state.node in state.successors or state.calling
    if state.seen is not None and not (is_wanted or state.seen.leader in state.ended):
        return []
    if not free:
        assert state.moved_at is not None, "it was looked at"
        due = state.moved_at + state.terms.takeover_s + turn(state)
        return claim(state, now, holder_possible=True) if now >= due else []
    due = since + turn(state)
    if now >= due:
        return claim(state, now, holder_possible=False)
    later = WakeElection(WATCH_TIMER, due - now)
    return [later] if state.seen is None else [*watch(state, now), later]


def claim(state: ElectionState, now: float, *, holder_possible: bool) -> list[ElectionEffect]:
    last = state.seen or Document(state.instance, 0, 0, "", "")
    above = max(state.above, last.term)
    dead = last.left or (last.leader if is_dead(state, last.leader) else "")
    # That the last one is dead or has resigned says nothing of one before it.
    held = bool(last.ledger.size) and (holder_possible or last.ledger.held)
    claim = next_document(
        state,
        last,
        instance=above.instance,
        epoch=above.epoch + 1,
        # Whose seat it is has to be found out for the new leader.
        ledger=replace(last.ledger, leader_seat=None, held=held),
    )
    state.pending = PendingWrite(
        "claim",
        claim,
        state.token,
        now,
        holder_possible=held,
        dead=dead,
        dead_seat=last.ledger.leader_seat if dead else None,
    )
    return [WriteRegister(claim, state.token)]
