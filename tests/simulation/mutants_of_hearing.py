"""Bugs in what a coordinator believes of whom (design §7)."""

from __future__ import annotations

from .planting import Mutant

MUTANTS = (
    Mutant(
        "words count before a greeting",
        "§7.1",
        "core.objections:objection",
        "if not (has_greeted and node in state.members) and state.outcome is None:",
        "if False:",
        "liars",
        (31, 35, 34),
    ),
    Mutant(
        "a greeting counts for every later connection",
        "§7.1",
        "core.objections:objection",
        "has_greeted and node in state.members",
        "node in state.members",
        "liars",
        (149, 160, 193),
    ),
    Mutant(
        "a node speaks under any name",
        "§7.2",
        "core.objections:_name",
        "if said == node:",
        "if True:",
        "liars",
        (4, 10, 15),
    ),
    Mutant(
        "whatever a node remembers is believed",
        "§7.3",
        "core.objections:_memory",
        "    if is_true:",
        "    if True:",
        "liars",
        (37, 35, 3),
    ),
    Mutant(
        "whoever remembers more than we do is taken for a liar",
        "§7.3",
        "core.objections:_memory",
        "seen.round <= state.group.round_number + LEAP",
        "seen.round <= state.group.round_number",
        "forgetful",
        (70, 16, 83),
    ),
    Mutant(
        "a node may want the job to have succeeded",
        "§7.4",
        "core.objections:_closing",
        'if outcome.verdict == "succeeded":',
        "if False:",
        "liars",
        (77, 92, 33),
    ),
    Mutant(
        "a round is spoken of by one who is not in it",
        "§7.5",
        "core.rounds:Group.told_round",
        "return current if node in current.seats else None",
        "return current",
        "liars",
        (17, 35, 72),
    ),
    Mutant(
        "a node that ended in another round is taken for a member of this one",
        "§7.6",
        "core.features.liveness_locks:_has_seat",
        "one.round != current.number or ",
        "",
        "again",
        (1, 9, 2),
    ),
)
