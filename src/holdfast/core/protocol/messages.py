"""The messages between agents and the coordinator.

Past tense: a node's report. Imperative: the coordinator's command.
All messages about a round carry its number; one that names an older round is ignored.
All messages of the coordinator are sent under its term (`model.Term`).
Each field has its bounds (`core.protocol.bounds`); the messages that a node may send are checked
in `core.coordinator`.

A connection may break at any time, so no single message may be necessary: the
first message on every connection (`NodeGreeted`) repeats all of the node's reports, and
the coordinator answers with all that the node has to know.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from holdfast.core.protocol.bounds import (
    SLOTS_MOST,
    Count,
    Line,
    Name,
    NameOrNone,
    Number,
    Packed,
    Patience,
    Rank,
    Seconds,
    SignalNumber,
    Text,
)
from holdfast.core.protocol.model import (
    Assignment,
    Endpoint,
    Failures,
    NodeInfo,
    Outcome,
    Record,
    Term,
)

FEW = 16
"""More successors than a coordinator ever names."""
ENDED_TOLD = 64
"""Ended nodes of one machine in one report."""
NAMED_MOST = 64
"""Nodes that are named in a request, or as not having answered it."""
LOCATIONS_MOST = 16
"""Locations of one node's workers in one report."""
Condition = Literal["running", "failed", "succeeded", "left", "stopping", "stopped"]
"""*left*: all workers have ended, after they were told to save: that is no success."""


class Seen(Struct, frozen=True, omit_defaults=True):
    """The highest term that a node has heard of, for a coordinator that starts with less."""

    term: Term = Term()
    round: Number = 0
    charges: Count = 0


class SavingReport(Struct, frozen=True, omit_defaults=True):
    """A save of the workers, as far as a node knows of it."""

    number: Number
    reason: Line
    within_s: Patience
    step: Number | None = None


class RoundReport(Struct, frozen=True, omit_defaults=True):
    """A node's state in its last round."""

    round: Number
    group_rank: Count
    group_size: Count
    condition: Condition
    failures: Failures = ()
    instance: Number = 0
    """The job's instance when the round was announced: another may have the same round number."""
    saving: SavingReport | None = None
    """The save that its workers may not have finished."""
    saved: Number = 0
    """The last save of the round after which it went on."""
    lease_ended: bool = False
    """It had to stop healthy workers, because its lease was not renewed."""


class EndedMember(Struct, frozen=True, omit_defaults=True):
    """A node that has ended, by proof of its machine, and its last seat."""

    node: Name
    instance: Number
    round: Number
    seat: Count


EndedMembers = Annotated[tuple[EndedMember, ...], Meta(max_length=ENDED_TOLD)]


class NodeGreeted(Record, frozen=True):
    """The first message on every connection: the node's identity, history and state."""

    info: NodeInfo
    seen: Seen = Seen()
    report: RoundReport | None = None
    endpoint: Endpoint | None = None
    """Reserved for the next round's master; without one the node is not ready for a round."""
    draining: Line = ""
    """Why it wants to leave, if it does."""
    within_s: Patience = 0.0
    """How long it can wait for workers to save, if it wants to leave."""
    heartbeat: Number = 0
    """It counts as this heartbeat too, so that the lease is good before any round is offered."""
    closing: Outcome | None = None
    """How the job is to end, if the node's caller wants no further round."""
    settings: Annotated[dict[NameOrNone, NameOrNone], Meta(max_length=64)] = field(
        default_factory=dict
    )
    """The node's settings for the job, except defaults (`core.protocol.settings`)."""
    ended: EndedMembers = ()
    """Nodes of the job that have ended on its machine, before it was started."""


class Heartbeat(Record, frozen=True):
    """The node is alive. Its lease counts from when it sent this, once it is answered."""

    number: Number


class NodeJoined(Record, frozen=True):
    """A node is ready to run workers, and holds this endpoint reserved for a master."""

    info: NodeInfo
    endpoint: Endpoint


class WorkersFailed(Record, frozen=True):
    """The first failures of a round on this node, in brief. Its other workers still run."""

    round: Number
    failures: Failures


class FailuresDescribed(Record, frozen=True):
    """All known details of this node's failures, on the coordinator's request."""

    round: Number
    failures: Failures


class WorkersSucceeded(Record, frozen=True):
    """All workers of this node ended well."""

    round: Number


class WorkersProgressed(Record, frozen=True):
    """The furthest step that a worker of this node has reported."""

    round: Number
    step: Number
    age_s: Seconds = 0.0
    """Seconds between the step and this report."""


class FrameGroup(Struct, frozen=True, array_like=True):
    """Workers of one node at the same location."""

    ranks: Annotated[tuple[Rank, ...], Meta(max_length=SLOTS_MOST)]
    function: Line = ""
    where: Line = ""
    kernel: Line = ""
    """The kernel's state of them, if notable."""


class WorkersStalled(Record, frozen=True):
    """All workers of this node have stalled for too long."""

    round: Number
    locations: Annotated[tuple[FrameGroup, ...], Meta(max_length=LOCATIONS_MOST)] = ()
    """Their locations, the largest group first."""
    stalled_s: Seconds = 0.0
    never_reported: bool = False
    """They never reported a step: the stall is only reported, unless a cause is known."""
    needs_cause: bool = False
    """It counts only if the rank for which they wait is known."""
    has_early_end: bool = False
    """A worker of this node has ended with exit code 0."""


class WorkersResumed(Record, frozen=True):
    """Stalled workers are progressing again."""

    round: Number


class RoundStopped(Record, frozen=True):
    """No process of the round is left on this node; the endpoint is for the next one."""

    round: Number
    failures: Failures
    endpoint: Endpoint
    ran: bool = True
    """False where nothing was started: the node has no state of this round."""
    lease_ended: bool = False
    """As in `RoundReport`."""


class NodeDraining(Record, frozen=True):
    """The node was asked to leave: it asks to be released from its round."""

    reason: Line
    within_s: Patience = 0.0
    """How long it can wait for workers to save."""
    at_once: bool = False
    """It waits for nothing: its own workers are being stopped already."""


class SaveHeard(Record, frozen=True):
    """Every listening worker here knows of the save; the furthest waits at `step`."""

    round: Number
    listening: bool = False
    """Whether any worker listens: only then is anything waited for."""
    step: Number | None = None
    number: Number = 0
    """The number of the `SaveNow`."""
    unasked: bool = False
    """Some worker here has never asked."""


class WorkersSaved(Record, frozen=True):
    """No worker of this node has anything left to save."""

    round: Number
    left: bool = False
    """All of them have ended: the round cannot go on with this node."""
    number: Number = 0
    """The number of the `SaveNow`."""


class NodeLeft(Record, frozen=True):
    """The node takes no further part, for this reason. No process of any round is left on it."""

    reason: Line
    signal: SignalNumber | None = None
    failures: Failures = ()
    kind: NameOrNone = ""
    """The kind (`core.policy.kinds`), if it leaves because something failed on it."""
    unfit: bool = False
    """It never took part: it did not pass its own check, and `reason` says why."""


class ClosingWanted(Record, frozen=True):
    """The node's caller wants no further round; how the job ends unless the present one
    succeeds."""

    outcome: Outcome


class MembersEnded(Record, frozen=True):
    """News of nodes that have ended on this node's machine."""

    ended: EndedMembers


class Welcomed(Record, frozen=True):
    """The coordinator knows the node; `successors` are dialled when it is lost."""

    successors: Annotated[tuple[Name, ...], Meta(max_length=FEW)] = ()
    waiting: Text = ""
    """The reason for the job's wait, if it waits."""
    leader: NameOrNone = ""
    """The node that carries this coordinator, in jobs where any node can."""
    addresses: Annotated[dict[Name, Endpoint], Meta(max_length=FEW)] = field(default_factory=dict)
    """The addresses of the leader and its successors."""
    name: NameOrNone = ""
    """The node's name (`core.protocol.naming`); empty if sent before."""
    warning: Text = ""
    """Settings of the node that differ from the job's, if any (`core.protocol.settings`)."""


class HeartbeatAnswered(Record, frozen=True):
    """The lease is renewed, from the moment that heartbeat was sent."""

    number: Number


class StandBy(Record, frozen=True):
    """There is no seat for the node now; it takes one over when free."""

    reason: Text


class RunRound(Record, frozen=True):
    """Start the workers of a round."""

    assignment: Assignment
    note: Text = ""
    """A sentence about quarantined hosts."""


EndingKind = Literal["failure", "loss", "drain", "newcomers", "asked"]
"""Why a round ends (`core.rounds.ENDINGS`)."""


class StopRound(Record, frozen=True):
    """Stop the workers of a round, then say `RoundStopped`."""

    round: Number
    reason: Text
    about: NameOrNone = ""
    """The node with whose name the reason begins, if it does: on itself it is "this node"."""
    goes_on: bool = False
    """Enough members that do not want to leave are left: the job is not at its end."""
    locate: bool = False
    """Locate each worker before it is stopped (`core.features.hangs`)."""
    kind: EndingKind | None = None
    """The cause; None for a round that is over already."""


class SaveNow(Record, frozen=True):
    """Have the workers of a round save, before it ends in order or on request. All are told.

    First without a step: workers that can, wait at theirs (`SaveHeard`). Then with the step at
    which all of them save, the furthest that any had reached.
    """

    round: Number
    reason: Line
    within_s: Patience
    step: Number | None = None
    about: NameOrNone = ""
    """The node with whose name the reason begins, if it does."""
    number: Number = 0
    """The number of the save in its round."""
    leaves: bool = True
    """Whether the round ends when all have saved."""


class SaveOver(Record, frozen=True):
    """Nothing is to be saved any more, and the round goes on."""

    round: Number
    number: Number
    saved: bool = False
    """All workers that ask have saved. Otherwise they did not agree in time, or none asks."""


class DescribeFailures(Record, frozen=True):
    """Send `FailuresDescribed` for this round."""

    round: Number


class TellHang(Record, frozen=True):
    """The whole job is stalled: print that, with the locations of this node's workers."""

    round: Number
    ends: bool = False
    """End the most likely cause, so that the round is tried again."""
    rank: Rank | None = None
    """The rank to end, if the locations of all workers of the job have shown it."""


class ExpectExits(Record, frozen=True):
    """Half of the nodes have finished well: the workers of this one should exit soon."""

    round: Number


class CloseJob(Record, frozen=True):
    """The job is over."""

    outcome: Outcome


# Requests about the job, and their answers (`core.features.requests`). Their content is
# packed: nodes that pass them on need not know it.


class RequestMade(Record, frozen=True):
    """A client on this node's machine makes a request about the job (`core.protocol.requests`)."""

    number: Number
    """This node's number for the request."""
    request: Packed
    of: Literal["coordinator", "all", "some"] = "coordinator"
    """The nodes to answer: the coordinator's node, all, or `nodes`."""
    nodes: Annotated[tuple[Name, ...], Meta(max_length=NAMED_MOST)] = ()
    """By their names, or their identities."""


class RequestAnswered(Record, frozen=True):
    """This node's answer to `ForwardRequest`."""

    number: Number
    answer: Packed


class ForwardRequest(Record, frozen=True):
    """Answer this, with `RequestAnswered`."""

    number: Number
    request: Packed


class PassResponse(Record, frozen=True):
    """One node's answer to a request that was made here."""

    number: Number
    node: Name
    """The node's name."""
    answer: Packed


class CloseRequest(Record, frozen=True):
    """The request is settled: no further answer comes."""

    number: Number
    refused: Line = ""
    """Why no node was asked, if so."""
    missing: Annotated[tuple[Name, ...], Meta(max_length=NAMED_MOST)] = ()
    """Nodes that did not answer; the first of them, if there are many."""
    missing_count: Count = 0


# The protocol, and what features add to it (`core.features`).

ProtocolFromNode = (
    NodeGreeted
    | Heartbeat
    | NodeJoined
    | WorkersFailed
    | WorkersSucceeded
    | WorkersProgressed
    | RoundStopped
    | NodeDraining
    | NodeLeft
    | ClosingWanted
)
FeaturesFromNode = (
    FailuresDescribed
    | WorkersStalled
    | WorkersResumed
    | SaveHeard
    | WorkersSaved
    | MembersEnded
    | RequestMade
    | RequestAnswered
)
FromNode = ProtocolFromNode | FeaturesFromNode
ProtocolToNode = Welcomed | HeartbeatAnswered | StandBy | RunRound | StopRound | CloseJob
FeaturesToNode = (
    DescribeFailures
    | TellHang
    | ExpectExits
    | SaveNow
    | SaveOver
    | ForwardRequest
    | PassResponse
    | CloseRequest
)
ToNode = ProtocolToNode | FeaturesToNode
OfRequests = ForwardRequest | PassResponse | CloseRequest
"""Messages that a node's machine does not get: they decide nothing."""
