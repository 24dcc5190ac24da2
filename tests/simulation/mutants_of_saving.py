"""Bugs in how all save, before a round ends in order or while it goes on (design §8)."""

from __future__ import annotations

from .planting import Mutant

MUTANTS = (
    Mutant(
        "a step that was decided is given up, and some have saved there",
        "§8.6",
        "core.features.saving:Saving.check",
        "if save.step is None:",
        "if True:",
        "saves",
        (153, 182, 176),
    ),
    Mutant(
        "where all save is decided without those who have not asked yet",
        "§8.6",
        "core.features.saving:_steps_known",
        "if save.unasked and not save.leaves:",
        "if False:",
        "saves",
        (522,),
    ),
    Mutant(
        "what a worker said of an earlier time to save counts for this one",
        "§8.7",
        "core.features.saving:NodeSaving._begin",
        "worker.waits_at, worker.heard, worker.saved = None, False, False",
        "pass",
        "saves",
        (63, 64, 108),
    ),
    Mutant(
        "workers that have saved and ended end the round while others save",
        "§8.4",
        "core.features.saving:_holds_up",
        "return goes_on or not is_over(current, now)",
        "return goes_on",
        "orderly",
        (6, 13, 21),
    ),
    Mutant(
        "a node that joins ends the round at once",
        "§8.8",
        "core.rounds:_end_in_order",
        "if may_end(state, current, now):",
        "if True:",
        "orderly",
        (4, 1, 0),
    ),
    Mutant(
        "a failure waits until all have saved",
        "§8.8",
        "core.rounds:failed",
        "if current is None or not message.failures:",
        "if current is None or (current.saves and current.saves.current) or not message.failures:",
        "orderly",
        (104, 89),
    ),
    Mutant(
        "whoever takes over while all save forgets the restart",
        "§8.8",
        "core.coordinator:take_over",
        "group.closing, group.limits = written.closing, written.limits",
        "group.closing, written = written.closing, replace(written, restart='')",
        "restarts",
        (16, 21, 11),
    ),
    Mutant(
        "a second save is taken for the first",
        "§8.7",
        "core.features.saving:_next_number",
        "return known + 1",
        "return 1",
        "orderly",
        (40, 66, 16),
    ),
    Mutant(
        "a node that saves before it leaves stops its workers when it loses the coordinator",
        "§8.9",
        "core.node:lost",
        "(permanent or may_leave_now(state))",
        "True",
        "disorderly",
        (144, 287, 93),
    ),
)
