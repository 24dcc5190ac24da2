"""Bugs in how a node leaves, and how all save before it does (design §8)."""

from __future__ import annotations

from .planting import Mutant

MUTANTS = (
    Mutant(
        "where all save is decided before all have said how far they are",
        "§8.2",
        "core.features.saving:_steps_known",
        "if save.furthest is None or not _all_have_heard(current, save):",
        "if save.furthest is None:",
        "asked",
        (30, 76, 48),
    ),
    Mutant(
        "all save at the step of whoever was heard last",
        "§8.2",
        "core.features.saving:_steps_known",
        "save.furthest = max(message.step, save.furthest or 0)",
        "save.furthest = message.step",
        "asked",
        (79, 31, 87),
    ),
    Mutant(
        "a node tells only how far its first worker is",
        "§8.2",
        "core.features.saving:NodeSaving._reports",
        "max(steps, default=None)",
        "next(iter(steps), None)",
        "asked",
        (25, 24, 16),
    ),
    Mutant(
        "a node speaks for workers that have not heard yet",
        "§8.3",
        "core.features.saving:NodeSaving._reports",
        "all(_has_heard(saving, one) for one in listeners)",
        "any(_has_heard(saving, one) for one in listeners)",
        "asked",
        (30, 25, 16),
    ),
    Mutant(
        "the same signal at once again is a second one",
        "§8.10",
        "core.node:signalled",
        "is_repeat(number, now, leaving.last_signal)",
        "False",
        "asked",
        (31, 16, 21),
    ),
    Mutant(
        "a worker that dies of the signal before its node hears it has failed",
        "§8.5",
        "core.node:worker_failed",
        "may_be_drain and asks_to_leave(state, number)",
        "False",
        "asked",
        (5, 24, 19),
    ),
    Mutant(
        "a node is let out though others save",
        "§8.4",
        "core.rounds:let_out",
        "not may_end(state, current, now)",
        "False",
        "asked",
        (76, 11, 21),
    ),
    Mutant(
        "a node says that its workers have saved when they have only heard",
        "§8.3",
        "core.features.saving:NodeSaving._reports",
        "all(one.saved for one in listeners)",
        "True",
        "asked",
        (11, 76, 21),
    ),
)
