"""With what a coordinator begins: nothing, the record of an earlier life, or a register's document.

A journal records it, so that what the coordinator decided can be replayed.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.coordinator import inheriting as coordinator_inheriting
from holdfast.core.coordinator import step as coordinator
from holdfast.core.coordinator.state import CoordinatorState, Succession
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.document import Document, Ledger
from holdfast.core.protocol.model import Term

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.election import Lead


class Beginning(Struct, frozen=True, omit_defaults=True):
    """What a coordinator begins with."""

    term: Term = Term(1, 1)
    embedded: bool = True
    leader: str = ""
    ledger: Ledger | None = None
    """What the last coordinator wrote down; None where nothing is known of one."""
    gone_after_s: float = 0.0
    """How long a node of the last round may run without having been heard."""
    successors: tuple[str, ...] = ()
    dead: str = ""
    """The last coordinator's own node, if that is proven to be dead."""
    dead_seat: int | None = None
    """Its seat in the round, if it had one."""

    def state(self, config: JobConfig, now: float) -> CoordinatorState:
        """The coordinator at its first moment."""
        follows = None if self.embedded else Succession(self.leader, self.successors)
        if self.ledger is None:
            return CoordinatorState(config, term=self.term, succession=follows)
        state = coordinator.take_over(config, self.term, self.ledger, now, self.gone_after_s)
        state.succession = follows
        if self.dead_seat is not None:
            coordinator_inheriting.begin_without(state, self.dead, self.dead_seat, now)
        return state


def next_life(config: JobConfig, written: Document | None, instance: int) -> Beginning:
    """How an embedded coordinator begins, from the record of an earlier one, if there is one.

    Without a record it is a new instance. One of a job that is over is left by a coordinator that
    died before everybody knew: those who have not heard so are told, and nobody runs it anew.
    """
    if written is None:
        return Beginning(Term(instance, 1), ledger=Ledger())
    term = Term(written.instance, written.epoch + 1)
    if written.ledger.outcome is not None:
        return Beginning(term, ledger=written.ledger)
    return Beginning(term, ledger=written.ledger, gone_after_s=config.leases.gone_after_s)


def elected(config: JobConfig, node: str, lead: Lead) -> Beginning:
    """How a coordinator begins that won its place through a register.

    An earlier one that may still hold leases without its register can have renewed them for
    `hold_s` at most, and every one of them lasts its own time after that.
    """
    leases, document = config.leases, lead.document
    held_s = leases.hold_s * (1 + leases.drift) if lead.holder_possible else 0.0
    return Beginning(
        document.term,
        embedded=False,
        leader=node,
        ledger=document.ledger,
        gone_after_s=held_s + leases.gone_after_s,
        successors=tuple(other for other in document.successors if other != node),
        dead=lead.dead,
        dead_seat=lead.dead_seat,
    )
