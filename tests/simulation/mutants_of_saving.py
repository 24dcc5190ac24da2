"""Bugs in how all save on request while the round goes on (design §8)."""

from __future__ import annotations

from .planting import Mutant

MUTANTS = (
    Mutant(
        "a step that was decided is given up, and some have saved there",
        "§8.6",
        "core.coordinator.saving:look",
        "if saving.step is None:",
        "if True:",
        "saves",
        (153, 182, 176),
    ),
    Mutant(
        "where all save is decided without those who have not asked yet",
        "§8.6",
        "core.coordinator.saving:heard",
        "if saving.unasked and not saving.leaves:",
        "if False:",
        "saves",
        (522,),
    ),
    Mutant(
        "what a worker said of an earlier time to save counts for this one",
        "§8.7",
        "core.node.saving:_begin",
        "worker.waits_at, worker.heard, worker.saved = None, False, False",
        "pass",
        "saves",
        (63, 64, 108),
    ),
    Mutant(
        "who saved and ended for a node that goes with its work done waits for ever",
        "§8.5",
        "core.coordinator.ending:left_by_workers",
        "not (current.saving.leaves and saving.is_over(current, now))",
        "True",
        "endings",
        (957, 1519),
    ),
)
