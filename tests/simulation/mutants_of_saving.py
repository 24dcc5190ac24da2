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
        (0,),
    ),
    Mutant(
        "whoever takes over knows nothing of the step that was decided",
        "§8.6",
        "core.coordinator.saving:_take_up",
        "saving, step = current.saving, told.step",
        "saving, step = current.saving, None",
        "saves",
        (0,),
    ),
    Mutant(
        "a node speaks of an earlier time to save, and is believed",
        "§8.7",
        "core.coordinator.saving:heard",
        "if message.number != saving.number:",
        "if False:",
        "saves",
        (0,),
    ),
    Mutant(
        "a worker speaks of an earlier time to save, and is believed",
        "§8.7",
        "core.node.saving:answered",
        "event.serial == state.saving.serial",
        "event.serial",
        "saves",
        (0,),
    ),
    Mutant(
        "a wait is given up though not all have reported to who took over",
        "§8.6",
        "core.coordinator.saving:look",
        "or current.seats.unreported",
        "",
        "saves",
        (0,),
    ),
)
