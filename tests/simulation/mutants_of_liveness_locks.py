"""Bugs in what a machine proves of nodes that ended on it, and what is made of it (design §4)."""

from __future__ import annotations

from .planting import Mutant

MUTANTS = (
    Mutant(
        "a note that somebody still holds is taken for one of the ended",
        "§4.9",
        "core.policy.liveness_locks:judge",
        "    if found.is_locked:\n",
        "    if False:\n",
        "again",
        (1, 6, 33),
    ),
    Mutant(
        "a note of an earlier start of the machine proves nothing",
        "§4.9",
        "core.policy.liveness_locks:judge",
        'return "ended" if known and outside and same_machine else "unknown"',
        'return "unknown"',
        "again",
        (96, 23, 10),
    ),
    Mutant(
        "who has ended on a machine is told to nobody",
        "§4.9",
        "core.features.liveness_locks:NodeLivenessLock._found",
        "self.ended = (*self.ended, *new)[-ENDED_TOLD:]",
        "new = ()",
        "again",
        (85, 96, 93),
    ),
    Mutant(
        "one that ended is believed to speak for all that have not reported",
        "§4.10",
        "core.features.liveness_locks:_member_ended",
        "        current.seats.give_up(one.seat)\n",
        '        current.seats.give_up(one.seat)\n        state.deadlines["missing"] = now\n',
        "again",
        (41, 4, 33),
    ),
    Mutant(
        "a leader that ended on this machine is waited for",
        "§5.12",
        "core.election:_is_dead",
        "leader in state.ended",
        "False",
        "again",
        (52, 154, 94),
        also=(
            ("core.election:_look_again", "if state.role is not Role.FOLLOWER or", "if True or"),
        ),
    ),
    Mutant(
        "whoever proves the leader's end waits for its turn",
        "§5.12",
        "core.election:_turn",
        "        return 0.0  # Only nodes on that machine know it.\n",
        "        return state.leases.takeover_s\n",
        "again",
        (52, 154, 94),
    ),
)
