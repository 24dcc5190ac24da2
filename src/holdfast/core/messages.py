"""What agents and the coordinator say to each other.

Past tense: something a node tells. Imperative: something the coordinator asks for.
Everything that concerns a round carries its number; what names an older one is ignored.
"""

from __future__ import annotations

from holdfast.core.model import Assignment, Endpoint, Failure, NodeInfo, Outcome, Record


class NodeJoined(Record, frozen=True):
    """A node is ready to run workers, and holds this endpoint reserved for a master."""

    info: NodeInfo
    endpoint: Endpoint


class WorkersFailed(Record, frozen=True):
    """The first failures of a round on this node. Its other workers still run."""

    round: int
    failures: tuple[Failure, ...]


class WorkersSucceeded(Record, frozen=True):
    """All workers of this node ended well."""

    round: int


class WorkersProgressed(Record, frozen=True):
    """The furthest step that a worker of this node has reported."""

    round: int
    step: int


class RoundStopped(Record, frozen=True):
    """No process of the round is left on this node; the endpoint is for the next one."""

    round: int
    failures: tuple[Failure, ...]
    endpoint: Endpoint


class NodeLeft(Record, frozen=True):
    """The node takes no further part, and why."""

    reason: str
    signal: int | None = None
    failures: tuple[Failure, ...] = ()


class RunRound(Record, frozen=True):
    """Start the workers of a round."""

    assignment: Assignment


class StopRound(Record, frozen=True):
    """Stop the workers of a round, then say `RoundStopped`."""

    round: int
    reason: str


class CloseJob(Record, frozen=True):
    """The job is over."""

    outcome: Outcome


FromNode = (
    NodeJoined | WorkersFailed | WorkersSucceeded | WorkersProgressed | RoundStopped | NodeLeft
)
ToNode = RunRound | StopRound | CloseJob
