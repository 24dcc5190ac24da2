"""What agents and the coordinator say to each other.

Past tense: something a node tells. Imperative: something the coordinator asks for.
Everything that concerns a round carries its number; what names an older one is ignored.
Whatever the coordinator says is sent under its term (`model.Term`).
Each field has its bounds (`core.protocol.bounds`); who may say what of whom is in
`core.coordinator`.

A connection may break at any time, so no single message may be needed for the truth: the
first word on every connection (`NodeGreeted`) tells all that the node would have told, and
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
"""Nodes that may have ended on one machine, and are told of."""
NAMED_MOST = 64
"""Nodes that are named in a request, or as those who did not answer it."""
PLACES_MOST = 16
"""Places of a program at which workers of one node are, and are told of."""
Condition = Literal["running", "failed", "succeeded", "left", "stopping", "stopped"]
"""*left*: all workers have ended, after they were told to save: that is no success."""


class Seen(Struct, frozen=True, omit_defaults=True):
    """The highest that a node has heard of, for a coordinator that starts with less."""

    term: Term = Term()
    round: Number = 0
    charges: Count = 0


class SavingReport(Struct, frozen=True, omit_defaults=True):
    """Workers are to save, as far as a node knows of it."""

    number: Number
    reason: Line
    within_s: Patience
    step: Number | None = None


class RoundReport(Struct, frozen=True, omit_defaults=True):
    """Where a node is in the last round that it was part of."""

    round: Number
    group_rank: Count
    group_size: Count
    condition: Condition
    failures: Failures = ()
    instance: Number = 0
    """Of the job, when the round was announced: another one may have a round of that number."""
    saving: SavingReport | None = None
    """What its workers were asked to save, and may not have."""
    saved: Number = 0
    """The last save of the round after which it went on."""
    lease_ended: bool = False
    """It had to stop workers that did well, because nobody renewed its lease."""


class EndedMember(Struct, frozen=True, omit_defaults=True):
    """A node that has ended, by proof of the machine that it ran on, and its last seat."""

    node: Name
    instance: Number
    round: Number
    seat: Count


EndedMembers = Annotated[tuple[EndedMember, ...], Meta(max_length=ENDED_TOLD)]


class NodeGreeted(Record, frozen=True):
    """The first word on every connection: who, what it has seen, and where it stands."""

    info: NodeInfo
    seen: Seen = Seen()
    standing: RoundReport | None = None
    endpoint: Endpoint | None = None
    """Held for the next round's master; without one the node is not ready for a round."""
    draining: Line = ""
    """Why it wants to leave, if it does."""
    within_s: Patience = 0.0
    """How long it can wait for workers to save, if it wants to leave."""
    heartbeat: Number = 0
    """It counts as this one too, so that the lease is good before any round is offered."""
    closing: Outcome | None = None
    """How the job is to end, where whoever runs the node wants no further round."""
    settings: Annotated[dict[NameOrNone, NameOrNone], Meta(max_length=64)] = field(
        default_factory=dict
    )
    """What it was told about the job, as far as it is no default (`core.protocol.settings`)."""
    ended: EndedMembers = ()
    """Nodes of the job that have ended on its machine, before it was started."""


class Heartbeat(Record, frozen=True):
    """The node is there. Its lease counts from when it sent this, once it is answered."""

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
    """All that is known of this node's failures, because the coordinator asked."""

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
    """How long before this was sent it was made."""


class FrameGroup(Struct, frozen=True, array_like=True):
    """Workers of one node that are at the same place of their program."""

    ranks: Annotated[tuple[Rank, ...], Meta(max_length=SLOTS_MOST)]
    function: Line = ""
    where: Line = ""
    kernel: Line = ""
    """What the kernel says of them, if that is worth a word."""


class WorkersStalled(Record, frozen=True):
    """All workers of this node stand still for longer than they may."""

    round: Number
    places: Annotated[tuple[FrameGroup, ...], Meta(max_length=PLACES_MOST)] = ()
    """Where they are, the largest group first."""
    still_s: Seconds = 0.0
    never_spoke: bool = False
    """They never said how far they are: it is told, and nothing more, unless a cause is known."""
    needs_cause: bool = False
    """It counts only where it is known for which rank they wait."""
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
    """Somebody wants the node to go: it asks to be let out of its round."""

    reason: Line
    within_s: Patience = 0.0
    """How long it can wait for workers to save."""
    at_once: bool = False
    """It waits for nothing: its own workers are being stopped already."""


class SaveHeard(Record, frozen=True):
    """Every listening worker here knows that it is to save; the furthest waits at `step`."""

    round: Number
    listening: bool = False
    """Whether there is any: only then is anything to be waited for."""
    step: Number | None = None
    number: Number = 0
    """Of `SaveNow`."""
    unasked: bool = False
    """Some worker here has never asked."""


class WorkersSaved(Record, frozen=True):
    """No worker of this node has anything left to save."""

    round: Number
    left: bool = False
    """All of them have ended: the round cannot go on with this node."""
    number: Number = 0
    """Of `SaveNow`."""


class NodeLeft(Record, frozen=True):
    """The node takes no further part, and why. No process of any round is left on it."""

    reason: Line
    signal: SignalNumber | None = None
    failures: Failures = ()
    kind: NameOrNone = ""
    """Of `core.policy.kinds`, where it leaves because something went wrong on it."""
    unfit: bool = False
    """It never took part: it did not pass its own check, and `reason` says why."""


class ClosingWanted(Record, frozen=True):
    """Whoever runs the node wants no further round; how the job ends unless the present one does
    well."""

    outcome: Outcome


class MembersEnded(Record, frozen=True):
    """More is known of nodes that have ended on this node's machine."""

    ended: EndedMembers


class Welcomed(Record, frozen=True):
    """The coordinator knows the node; `successors` are dialled when it is lost."""

    successors: Annotated[tuple[Name, ...], Meta(max_length=FEW)] = ()
    waiting: Text = ""
    """What the job is waiting for, if it waits."""
    leader: NameOrNone = ""
    """The node that carries this coordinator, in jobs where any node can."""
    places: Annotated[dict[Name, Endpoint], Meta(max_length=FEW)] = field(default_factory=dict)
    """Where the leader and its successors can be dialled."""
    name: NameOrNone = ""
    """What the node is called (`core.protocol.naming`); empty where that was said before."""
    warning: Text = ""
    """How the node was started otherwise than the job, if it was (`core.protocol.settings`)."""


class HeartbeatAnswered(Record, frozen=True):
    """The lease is renewed, from the moment that heartbeat was sent."""

    number: Number


class StandBy(Record, frozen=True):
    """There is no seat for the node now; it takes over when one is free."""

    reason: Text


class RunRound(Record, frozen=True):
    """Start the workers of a round."""

    assignment: Assignment
    note: Text = ""
    """Who is not in it, or in it all the same, because rounds kept failing there."""


EndingKind = Literal["failure", "loss", "drain", "newcomers", "asked"]
"""Why a round ends (`core.rounds.ENDINGS`)."""


class StopRound(Record, frozen=True):
    """Stop the workers of a round, then say `RoundStopped`."""

    round: Number
    reason: Text
    about: NameOrNone = ""
    """The node with whose name the reason begins, if it does: on itself it is "this node"."""
    goes_on: bool = False
    """Enough members are left who do not want to leave: the job is not at its end."""
    locate: bool = False
    """Find out where each worker is before it is stopped (`core.features.hangs.node`)."""
    kind: EndingKind | None = None
    """What ended it; None for a round that is over already."""


class SaveNow(Record, frozen=True):
    """Have the workers of a round save, before it ends in order or on request. All are told.

    First without a step: those who can, wait where they are (`SaveHeard`). Then with the step at
    which all of them save, the furthest that any had reached.
    """

    round: Number
    reason: Line
    within_s: Patience
    step: Number | None = None
    about: NameOrNone = ""
    """The node with whose name the reason begins, if it does."""
    number: Number = 0
    """Which save of the round it is."""
    leaves: bool = True
    """Whether the round ends when all have saved."""


class SaveOver(Record, frozen=True):
    """Nothing is to be saved any more, and the round goes on."""

    round: Number
    number: Number
    saved: bool = False
    """All workers that ask have saved. Else they were not agreed in time, or nobody asks."""


class DescribeFailures(Record, frozen=True):
    """Say `FailuresDescribed` for this round."""

    round: Number


class TellHang(Record, frozen=True):
    """The whole job stands still: say so, with where this node's workers are."""

    round: Number
    ends: bool = False
    """End the worker that is most likely the cause, so that the round is tried again."""
    rank: Rank | None = None
    """Which one that is, where the places of all workers of the job have shown it."""


class ExpectExits(Record, frozen=True):
    """Half of the nodes have finished well: the workers of this one should exit soon."""

    round: Number


class CloseJob(Record, frozen=True):
    """The job is over."""

    outcome: Outcome


# Requests about the job, and their answers (`core.features.requests`). What is asked and
# what is answered are packed: who passes them on need not know what they say.


class RequestMade(Record, frozen=True):
    """Somebody on this node's machine asks something of the job (`core.protocol.requests`)."""

    number: Number
    """By which the answers are told apart, here."""
    request: Packed
    of: Literal["coordinator", "all", "some"] = "coordinator"
    """Whose answer is wanted: that of the coordinator's node, of all, or of `nodes`."""
    nodes: Annotated[tuple[Name, ...], Meta(max_length=NAMED_MOST)] = ()
    """By their names, or their identities."""


class RequestAnswered(Record, frozen=True):
    """What this node answers to `ForwardRequest`."""

    number: Number
    answer: Packed


class ForwardRequest(Record, frozen=True):
    """Answer this, with `RequestAnswered`."""

    number: Number
    request: Packed


class PassResponse(Record, frozen=True):
    """What a node answered to a request that was asked here."""

    number: Number
    node: Name
    """What it is called."""
    answer: Packed


class CloseRequest(Record, frozen=True):
    """No further answer comes."""

    number: Number
    refused: Line = ""
    """Why nobody was asked, if so."""
    missing: Annotated[tuple[Name, ...], Meta(max_length=NAMED_MOST)] = ()
    """Who did not answer; the first of them, if there are many."""
    missing_count: Count = 0


FromNode = (
    NodeGreeted
    | Heartbeat
    | NodeJoined
    | WorkersFailed
    | FailuresDescribed
    | WorkersSucceeded
    | WorkersProgressed
    | WorkersStalled
    | WorkersResumed
    | RoundStopped
    | NodeDraining
    | SaveHeard
    | WorkersSaved
    | NodeLeft
    | ClosingWanted
    | MembersEnded
    | RequestMade
    | RequestAnswered
)
ToNode = (
    Welcomed
    | HeartbeatAnswered
    | StandBy
    | RunRound
    | SaveNow
    | SaveOver
    | StopRound
    | DescribeFailures
    | TellHang
    | ExpectExits
    | CloseJob
    | ForwardRequest
    | PassResponse
    | CloseRequest
)
OfRequests = ForwardRequest | PassResponse | CloseRequest
"""What a node's machine does not hear of: it decides nothing."""
