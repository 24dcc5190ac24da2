"""Bugs in what still counts once it is decided how the job ends (design §11)."""

from __future__ import annotations

from .planting import Mutant

MUTANTS = (
    Mutant(
        "who wanted to leave is let out of a job that is over",
        "§11.1",
        "core.coordinator:_conclude",
        "    return []\n",
        "    return rounds.let_out(state, now) if state.group.round is not None else []\n",
        "unwritten",
        (3, 9, 26),
    ),
    Mutant(
        "a job that is over is looked at for a hang",
        "§11.1",
        "core.coordinator:_conclude",
        "    return []\n",
        "    message = event.message if isinstance(event, Heard) else None\n"
        "    is_stall = type(message).__name__ == 'WorkersStalled'\n"
        "    return _heard(state, event.node, message, now) if is_stall else []\n",
        "unwritten",
        (15, 32, 46),
    ),
    Mutant(
        "a failure in a job that is over ends the round, and is charged",
        "§11.1",
        "core.coordinator:_conclude",
        "    return []\n",
        "    is_word = isinstance(event, Heard)\n"
        "    taken = _heard(state, event.node, event.message, now) if is_word else []\n"
        "    return taken + rounds.settle(state, now)\n",
        "unwritten",
        (0, 3, 5),
    ),
    Mutant(
        "a round that forms is announced when the end of the job is written down",
        "§11.1",
        "core.coordinator:_conclude",
        "return _outcome_written(end, version)",
        "return [*rounds.written(state, version, now), *_outcome_written(end, version)]",
        "unwritten",
        (217, 346, 582),
    ),
    Mutant(
        "the leases of a job that is over are held without a member that has gone",
        "§5.15",
        "core.coordinator:all_heard",
        "if end is not None and end.member_lost:",
        "if False:",
        "unwritten",
        (12, 13, 31),
    ),
    Mutant(
        "who leads no more keeps its connections for an end that was never told",
        "§11.2",
        "engine.elected:Elected._step_down",
        "is_over = end is not None and end.is_told",
        "is_over = end is not None",
        "unwritten",
        (834,),
    ),
)
