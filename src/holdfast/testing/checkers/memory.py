"""Whether the coordinator lost its record: numbers that nobody remembers are free again then.

Nodes that greet tell the next life what they have heard, and it goes on above that; each of
them goes on to refuse what is older than that.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.testing.facts import Fact, Recorded
from holdfast.testing.plan import Plan


class Memory(Struct):
    """What a run's coordinator keeps from one life to the next."""

    plan: Plan

    def was_lost(self, fact: Fact) -> bool:
        """Whether this is the first thing that a coordinator without a record wrote."""
        lost = self.plan.embedded and not self.plan.keeps_record
        return lost and isinstance(fact, Recorded) and fact.document.counter == 1
