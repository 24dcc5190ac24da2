"""Bugs in how many nodes a job has after somebody asked for another number (design §3)."""

from __future__ import annotations

from .planting import Mutant

MUTANTS = (
    Mutant(
        "whoever takes over has never heard of the number that was asked for",
        "§3.8",
        "core.coordinator:take_over",
        "group.closing, group.limits = written.closing, written.limits",
        "group.closing = written.closing",
        "scaled",
        (41, 43, 45),
    ),
    Mutant(
        "a round forms with fewer nodes than were asked for",
        "§3.8",
        "core.rounds:_view",
        "minimum=state.min_nodes",
        "minimum=state.config.min_nodes",
        "scaled",
        (45,),
    ),
    Mutant(
        "a round with more nodes than were asked for goes on",
        "§3.8",
        "core.rounds:_cause_to_end",
        "len(current.seats) <= limits.most",
        "limits.most",
        "scaled",
        (16, 19, 38),
    ),
)
