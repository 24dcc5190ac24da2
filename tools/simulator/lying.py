"""What a node says that was admitted, and lies. None of it may have an effect on the job."""

from __future__ import annotations

from holdfast.core.coordinator import CoordinatorState
from holdfast.core.protocol.messages import (
    ClosingWanted,
    FailuresDescribed,
    FromNode,
    NodeGreeted,
    NodeLeft,
    RoundStopped,
    Seen,
    WorkersFailed,
    WorkersProgressed,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import Endpoint, ExitStatus, Failure, NodeInfo, Outcome, Term

LIAR = "liar"
_INFO = NodeInfo(LIAR, LIAR, slots=1)
_GREETING = NodeGreeted(_INFO)
_PLACE = Endpoint("10.0.0.1", 1)
_WISH = ClosingWanted(Outcome("failed", "the liar wants it", 1))


def lies(state: CoordinatorState, variety: int) -> tuple[FromNode, ...]:
    """Words under the name of `LIAR`, which knows what everybody knows."""
    round = state.group.round_number
    members = state.group.round.seats.nodes() if state.group.round is not None else []
    other = next(iter(members), "nobody")
    forged = Failure(other, other, 0, 0, "default", 1, ExitStatus(code=1), 0.0)
    own = Failure(LIAR, LIAR, 0, 0, "default", 1, ExitStatus(code=1), 0.0)
    known: tuple[tuple[FromNode, ...], ...] = (
        (NodeGreeted(NodeInfo("nobody", LIAR, slots=1), endpoint=_PLACE),),
        (NodeGreeted(NodeInfo(other, LIAR, slots=1), endpoint=_PLACE),),
        (_WISH,),
        (NodeGreeted(_INFO, Seen(Term(1, 0), 2**50)),),
        (_GREETING, ClosingWanted(Outcome("succeeded", "all is well", 0))),
        (_GREETING, WorkersFailed(round, (forged,)), FailuresDescribed(round, (forged,))),
        (_GREETING, WorkersFailed(round, (own,)), FailuresDescribed(round, (own,))),
        (_GREETING, WorkersSucceeded(round), WorkersProgressed(round, 10**9)),
        (_GREETING, RoundStopped(round, (), _PLACE), NodeLeft("enough")),
    )
    return known[variety % len(known)]
