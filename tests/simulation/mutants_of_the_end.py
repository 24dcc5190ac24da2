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
    Mutant(
        "the answer to an older write is taken for the outcome's",
        "§11.3",
        "core.coordinator:_outcome_written",
        "version < end.version",
        "version < 1",
        "unwritten",
        (76, 79, 88),
        shown_by="written_first",
    ),
    Mutant(
        "a node that comes between the decision and its writing is never told",
        "§11.3",
        "core.coordinator:_tell_outcome",
        "    end.unaware.add(node)\n",
        "    if end.is_told:\n        end.unaware.add(node)\n",
        "unwritten",
        (32, 107),
        shown_by="progress",
    ),
    Mutant(
        "the coordinator retires before the outcome is written down",
        "§11.3",
        "core.coordinator:_retire",
        'if end is None or end.stage != "told":',
        'if end is None or end.stage == "retired":',
        "unwritten",
        (557,),
    ),
    Mutant(
        "a leader that resigns forgets the outcome that was to be written",
        "§11.3",
        "core.election:_resign",
        "if state.pending is not None or state.wanted is not None:",
        "if state.pending is not None and state.wanted is None:",
        "unwritten",
        (30, 47, 70),
    ),
    Mutant(
        "the outcome is written down only once it was told",
        "§11.3",
        "core.coordinator:ledger",
        "brief(state.outcome)",
        "brief(state.outcome if state.end is not None and state.end.is_told else None)",
        "unwritten",
        (0, 1, 3),
        shown_by="written_first",
    ),
)
