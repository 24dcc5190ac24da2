"""Bugs in how all save, before a round ends in order or while it goes on (design §8)."""

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
        "core.features.saving.node:NodeSaving._begin",
        "worker.waits_at, worker.heard, worker.saved = None, False, False",
        "pass",
        "saves",
        (63, 64, 108),
    ),
    Mutant(
        "workers that have saved and ended end the round while others save",
        "§8.4",
        "core.coordinator.saving:holds_up",
        "return goes_on or not is_over(current, now)",
        "return goes_on",
        "orderly",
        (6, 13, 21),
    ),
    Mutant(
        "a node that joins ends the round at once",
        "§8.8",
        "core.coordinator.forming:_end_in_order",
        "if saving.is_over(current, now):",
        "if True:",
        "orderly",
        (4, 1, 0),
    ),
    Mutant(
        "a failure waits until all have saved",
        "§8.8",
        "core.coordinator.ending:failed",
        "if current is None or not message.failures:",
        "if current is None or getattr(current, 'saving', None) or not message.failures:",
        "orderly",
        (104, 89),
    ),
    Mutant(
        "whoever takes over while all save forgets the restart",
        "§8.8",
        "core.coordinator.step:take_over",
        "state.closing = written.closing",
        "state.closing, written = written.closing, replace(written, restart='')",
        "restarts",
        (16, 21, 11),
    ),
    Mutant(
        "a second save is taken for the first",
        "§8.7",
        "core.coordinator.saving:_next_number",
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
