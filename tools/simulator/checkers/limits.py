"""No round has fewer nodes than the job needs or more than it may have, when it is formed.

Between how many it may have, somebody may have asked of a coordinator while the job ran. That
holds for every round that this coordinator forms from then on, and for whoever takes over from what
it wrote down.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field
from tools.simulator.checkers.memory import CoordinatorMemory
from tools.simulator.facts import (
    Delivered,
    History,
    LimitsAsked,
    Recorded,
    RoundFormed,
    Violation,
    only,
)
from tools.simulator.plan import Plan

from holdfast.core.protocol.document import NodeLimits
from holdfast.core.protocol.messages import RunRound
from holdfast.core.protocol.model import Term

Range = tuple[int, int]


class _Known(Struct):
    """Between how many nodes a job may have, as far as anybody was told."""

    start: Range
    asked: dict[Term, Range] = field(default_factory=dict)
    """What each coordinator was asked for last."""
    written: dict[Term, Range] = field(default_factory=dict)
    """What is in the last document of each."""

    def of(self, term: Term) -> Range:
        """What holds for a coordinator."""
        if term in self.asked:
            return self.asked[term]
        earlier = [each for each in self.written if each < term]
        return self.written[max(earlier)] if earlier else self.start


def check(plan: Plan, history: History) -> Iterator[Violation]:
    known = _Known((plan.config.min_nodes, plan.config.max_nodes))
    forgets = CoordinatorMemory(plan).possible
    formed: dict[tuple[Term, int], list[Range]] = {}
    for fact in only(history, Delivered, LimitsAsked, Recorded, RoundFormed):
        match fact:
            case LimitsAsked():
                known.asked[fact.term] = fact.limits.least, fact.limits.most
            case Recorded():
                limits = fact.document.ledger.limits
                known.written[fact.document.term] = _range(limits, known.start)
            case RoundFormed():
                held = known.of(fact.term)
                # What was written may be lost, and the job begins again with what it was told.
                possible = [held, known.start, *known.asked.values()] if forgets else [held]
                formed[fact.term, fact.round] = possible
            case Delivered(message=RunRound(assignment=assignment)):
                possible = formed.get((fact.term, assignment.round), [])
                size = assignment.group_size
                if possible and not any(least <= size <= most for least, most in possible):
                    text = f"round {assignment.round} has {size} nodes, and not {possible[0]}"
                    yield Violation("limits", fact.at, text)


def _range(limits: NodeLimits | None, start: Range) -> Range:
    return start if limits is None else (limits.least, limits.most)
