"""The hooks by which a feature extends the coordinator.

The kernel (`core.coordinator`, `core.rounds`, `core.membership`) knows no feature: it calls these.
Each hook does nothing unless a feature overrides it. A feature keeps what it remembers of a round
in that round (`Round.saves`, `Round.stalls`), and so begins anew with the next one.
"""

from __future__ import annotations

from holdfast.core.coordinator_io import CoordinatorEffect, CoordinatorEvent

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.coordinator import CoordinatorState
    from holdfast.core.policy.root_cause import Cause
    from holdfast.core.protocol.document import Ledger
    from holdfast.core.protocol.messages import FromNode, NodeGreeted, RoundReport
    from holdfast.core.protocol.model import Failure, NodeInfo
    from holdfast.core.rounds import Round

Effects = list[CoordinatorEffect]


class CoordinatorFeature:
    """A part of the coordinator beside the protocol."""

    events: tuple[type, ...] = ()
    """The events that this feature handles."""
    messages: tuple[type, ...] = ()
    """The messages of nodes that this feature handles."""

    def __repr__(self) -> str:
        """One object serves every coordinator: a feature has no state of its own."""
        return type(self).__name__

    def take(self, state: CoordinatorState, event: CoordinatorEvent, now: float) -> Effects:
        """Handle one of `events`."""
        return []

    def heard(self, state: CoordinatorState, node: str, message: FromNode, now: float) -> Effects:
        """Handle one of `messages` from a node."""
        return []

    def check(self, state: CoordinatorState, now: float) -> Effects:
        """After every event, while the job goes on."""
        return []

    def due(self, state: CoordinatorState, what: str, now: float) -> None:
        """A deadline of `CoordinatorState.deadlines` has passed."""

    # Nodes.

    def connected(self, state: CoordinatorState, node: str) -> None:
        """A node has a fresh connection: what it said on an older one may no longer be true."""

    def greeted(self, state: CoordinatorState, message: NodeGreeted, now: float) -> Effects:
        """A node has greeted, and its report on the present round was taken in."""
        return []

    def after_greeting(self, state: CoordinatorState) -> Effects:
        """All of a greeting was taken in."""
        return []

    def reported(
        self, state: CoordinatorState, node: str, report: RoundReport, now: float
    ) -> Effects:
        """A member of the present round has greeted again and reported its state."""
        return []

    def refusal(self, state: CoordinatorState, node: str, now: float) -> str:
        """Why a node that is ready gets no seat, as a sentence for it; empty if it may."""
        return ""

    # Rounds.

    def workers_failed(self, current: Round, node: str, told: tuple[Failure, ...]) -> Effects:
        """A member has reported failures of its workers."""
        return []

    def round_formed(
        self, state: CoordinatorState, seated: tuple[NodeInfo, ...], now: float
    ) -> str:
        """These have seats in the next round; returns what all nodes are told about that."""
        return ""

    def member_succeeded(self, state: CoordinatorState, current: Round) -> Effects:
        """All workers of a member have ended well."""
        return []

    def member_gone(self, current: Round, node: str) -> None:
        """A member is lost, or has left."""

    def end_coming(
        self,
        state: CoordinatorState,
        current: Round,
        what: tuple[str, str],
        until: float | None,
        now: float,
    ) -> Effects:
        """A round is to end in order, by then (None: after the usual wait). `what` names the node
        that it is about, if any, and says what is with it."""
        return []

    def end_not_needed(self, state: CoordinatorState, current: Round, now: float) -> Effects:
        """There is no reason to end a running round."""
        return []

    def may_end(self, current: Round, now: float) -> bool:
        """Whether an end in order waits for nothing more."""
        return True

    def keeps_round(self, current: Round, now: float) -> bool:
        """Whether the round is not to end for newcomers or for its size now."""
        return False

    def after_drain(self, state: CoordinatorState, now: float) -> Effects:
        """Nodes that wanted to leave the running round were released, where possible."""
        return []

    def round_judged(
        self, state: CoordinatorState, ended: Round, cause: Cause | None, now: float
    ) -> None:
        """Every member of a round that ended is back or gone."""

    # Takeover.

    def took_over(self, state: CoordinatorState, written: Ledger, now: float) -> None:
        """This coordinator continues from the last one's ledger."""
