"""Bugs in who is told of a hang, and when (design §10)."""

from __future__ import annotations

from .planting import Mutant

MUTANTS = (
    Mutant(
        "a job hangs when any of its nodes stands still",
        "§10.1",
        "core.features.hangs:_check",
        "if not current.seats.has_succeeded(node)",
        "if node in stalls.reports",
        "unheard",
        (94, 5, 54),
        also=(
            (
                "core.features.hangs:_are_enough",
                "known >= len(current.seats)",
                "known > 0",
            ),
        ),
    ),
    Mutant(
        "what a node said on a connection that broke is still believed",
        "§10.4",
        "core.features.hangs:Hangs.connected",
        "current.stalls.reports.pop(node, None)",
        "current.stalls.reports.get(node)",
        "unheard",
        (105, 58, 47),
    ),
    Mutant(
        "a node that may not have heard of the hang is not told again",
        "§10.4",
        "core.features.hangs:Hangs.connected",
        "current.stalls.case.told.discard(node)",
        "current.stalls.case.told.add(node)",
        "unheard",
        (73, 111, 95),
    ),
    Mutant(
        "a node does not tell another coordinator that its workers stand still",
        "§10.4",
        "core.node:reached",
        "effects += [one for each in state.features for one in each.connected(state)]",
        "pass",
        "unheard",
        (10, 73, 95),
    ),
    Mutant(
        "a node does not tell that its workers move again",
        "§10.2",
        "core.features.hangs:NodeHangs._resumed",
        "return [*said, Report(WorkersResumed(event.round))]",
        "return said",
        "unheard",
        (85, 90, 55),
    ),
    Mutant(
        "who moves ends no stall",
        "§10.2",
        "core.features.hangs:Hangs.heard",
        "stalls.case = None",
        "pass",
        "unheard",
        (35, 61, 8),
    ),
    Mutant(
        "nobody is ended for a hang",
        "§10.3",
        "core.features.hangs:_check",
        "ends = node == case.node",
        "ends = False",
        "unheard",
        (94, 49, 4),
    ),
    Mutant(
        "it is not looked at again when a node has finished",
        "§10.1",
        "core.features.hangs:Hangs.member_succeeded",
        "return _check(state)",
        "return []",
        "unheard",
        (27, 10, 8),
    ),
)
