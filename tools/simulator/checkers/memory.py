"""Whether what was written down was lost: numbers that nobody remembers are free again then.

Two things lose it: a coordinator's host that comes back without its record, and a register that
is restarted empty. Nodes that greet tell the next coordinator what they have heard, and it goes on
above that; each of them goes on to refuse what is older than that. Whoever claims an empty
register goes on from what it was shown last; only one that was never shown anything begins a new
instance.
"""

from __future__ import annotations

from msgspec import Struct
from tools.simulator.facts import Fact, FaultStruck, Recorded
from tools.simulator.plan import Plan

EMPTIED = "register restarts empty"


TELL_OF_MEMORY = (FaultStruck, Recorded)
"""The facts that it has to see."""


class CoordinatorMemory(Struct):
    """What a run's coordinators keep from one life to the next."""

    plan: Plan
    emptied: bool = False
    """The register has been empty since the last write."""
    was_emptied: bool = False
    """The register was empty at some time."""
    possible: bool = False
    """Whether anything can be lost at all."""

    def __post_init__(self) -> None:
        plan = self.plan
        self.possible = plan.register.kind == "forgetful" or not plan.keeps_record

    def was_lost(self, fact: Fact) -> bool:
        """Whether this is the first thing that a coordinator without a record wrote."""
        if not self.possible:
            return False
        if isinstance(fact, FaultStruck) and fact.kind == EMPTIED:
            self.emptied = self.was_emptied = True
        if not isinstance(fact, Recorded):
            return False
        emptied, self.emptied = self.emptied, False
        forgets = self.plan.embedded and not self.plan.keeps_record
        return (emptied and fact.blank) or (forgets and fact.document.counter == 1)
