"""Requests about a job and the nodes' answers, as used by the verbs and the dashboard.

A request goes to the coordinator's node, to all nodes or to some (`messages.RequestMade.of`);
each of these gives one answer. They are packed into the messages that carry them, so that nodes
that pass them on do not load this, and a job without requests never does.

Rules
1. A request has one bounded answer. A client that needs more asks again, from its end.
2. News are requested with `wait_s`: the answer comes when there are some, or after that time.
   So there is no polling, and no unrequested answer.
3. A node that cannot answer, or do what is requested, says why (`NotKnown`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from holdfast.core.protocol.bounds import (
    SLOTS_MOST,
    Count,
    Host,
    Line,
    Name,
    NameOrNone,
    Number,
    Packed,
    Rank,
    Seconds,
    Text,
)
from holdfast.core.protocol.model import Outcome, Record, StackFrame

NODES_TOLD_MOST = 2000
"""In one answer; a larger job takes several requests."""
EVENTS_TOLD_MOST = 500
ROUNDS_TOLD_MOST = 200
SEGMENTS_TOLD_MOST = 1000
LOGS_TOLD_BYTES = 1 << 18
WAIT_MOST_S = 25.0
Waiting = Annotated[float, Meta(ge=0.0, le=WAIT_MOST_S)]
"""How long an answer may wait for news."""
Condition = Literal[
    "in the round", "finished", "standing by", "ready", "getting ready", "leaving", "silent"
]
FaultKind = Literal["kill worker", "pause worker", "kill node"]
SaveStage = Literal["agreeing", "saving", "saved", "nobody looks", "given up"]
Stage = Literal["waiting", "running", "stopping", "over"]


# Facts of the coordinator.


class JobAsked(Record, frozen=True):
    """The status of the job. For the coordinator."""

    first_node: Count = 0
    """The position in the list of nodes at which the answer begins."""


class NodeOverview(Struct, frozen=True, array_like=True):
    """One node, as the coordinator knows it."""

    node: Name
    name: NameOrNone
    host: Host
    condition: Condition
    group_rank: Count | None = None
    first_rank: Rank | None = None
    workers: Count = 0
    heard_s: Seconds = 0.0
    """Seconds since it was last heard; 0 in a job of one node."""
    note: Line = ""
    """Why it leaves, or is silent."""


class SaveTold(Struct, frozen=True, array_like=True):
    """All workers were asked to save in this round, while no node leaves."""

    number: Number
    """The number of the save."""
    stage: SaveStage
    step: Number | None = None
    nodes_left: Count = 0
    """How many have not reported their step yet, or that they have saved."""


class JobTold(Record, frozen=True):
    """The status of the job."""

    run_id: NameOrNone
    stage: Stage
    round: Number
    """0 before the first one."""
    world_size: Rank
    round_age_s: Seconds
    """How long the present round has lasted."""
    coordinator: NameOrNone
    """The coordinator's node."""
    min_nodes: Count
    max_nodes: Count
    restarts: Count
    """Restarts that were counted against `--max-restarts`."""
    max_restarts: Count
    step: Number | None
    """The furthest step that any worker reported in this round."""
    waiting: Text
    """The reason for a wait, if any."""
    nodes: Annotated[tuple[NodeOverview, ...], Meta(max_length=NODES_TOLD_MOST)]
    node_count: Count
    """How many there are in all."""
    outcome: Outcome | None = None
    scaled_by: NameOrNone = ""
    """The operator who changed the number of nodes, if any."""
    save: SaveTold | None = None


# Facts of each node.


class RanksAsked(Record, frozen=True):
    """The status of a node's workers."""


class RankOverview(Struct, frozen=True, array_like=True):
    """One worker, as its node knows it."""

    rank: Rank
    local_rank: Count
    pid: Number
    state: NameOrNone
    """In words: "running", "stopped", "stuck in the kernel", "finished"."""
    step: Number | None = None
    step_age_s: Seconds | None = None
    """Seconds since it reported that step."""
    steps_per_s: Seconds | None = None
    phase: NameOrNone = ""
    cpu: Seconds | None = None
    """Processors that it and its children use, since the last request; None at first."""
    memory_bytes: Number | None = None
    """Resident, of it and its children."""


class RanksTold(Record, frozen=True):
    """The status of a node's workers."""

    host: Host
    ranks: Annotated[tuple[RankOverview, ...], Meta(max_length=SLOTS_MOST)]
    load: Seconds | None = None
    """Of the machine, over a minute, for each of its processors."""
    memory_free_bytes: Number | None = None
    accelerators: Annotated[tuple[Line, ...], Meta(max_length=64)] = ()


class StacksAsked(Record, frozen=True):
    """A request for workers' stacks. For nodes."""

    reason: Line = "somebody asked"


class StackTold(Struct, frozen=True, array_like=True):
    """One worker's stack."""

    rank: Rank
    frames: Annotated[tuple[StackFrame, ...], Meta(max_length=128)]
    """Of its main thread, innermost first; empty where it gave none."""
    kernel: Line = ""


class StacksTold(Record, frozen=True):
    """The stacks of a node's workers."""

    stacks: Annotated[tuple[StackTold, ...], Meta(max_length=SLOTS_MOST)]
    file: Line = ""
    """The path of the full text, on that node."""


class LogsAsked(Record, frozen=True):
    """A request for workers' output. For nodes."""

    after: Annotated[dict[NameOrNone, Number], Meta(max_length=20_000)] = field(
        default_factory=dict
    )
    """By the name of each node, the number of its last block that the client has."""
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=SLOTS_MOST)] = ()
    """The ranks; empty for all."""
    wait_s: Waiting = 0.0


class LogBlock(Struct, frozen=True, array_like=True):
    """One block of a worker's output; a line may continue in the next one."""

    at: Seconds
    """Seconds since 1970, by that node's clock."""
    rank: Rank
    stream: Literal[1, 2]
    text: Packed


class LogsTold(Record, frozen=True):
    blocks: Annotated[tuple[LogBlock, ...], Meta(max_length=100_000)]
    last: Number
    """The number to continue from."""
    files: Annotated[tuple[Line, ...], Meta(max_length=2 * SLOTS_MOST)] = ()
    """Of workers that write straight into a file: "rank 3: /logs/…/stdout.log"."""
    newest: Number = 0
    """The number of the last block there is: if it is above `last`, there is more to request."""


class EventsAsked(Record, frozen=True):
    """A request for events. For the coordinator's node, which knows most, or any."""

    after: Number = 0
    """The number of the last event that the client has."""
    wait_s: Waiting = 0.0


class EventsTold(Record, frozen=True):
    events: Annotated[tuple[Packed, ...], Meta(max_length=EVENTS_TOLD_MOST)]
    """Each an `observe.story.StoryEvent`."""
    last: Number
    """The number of the last of them, to continue from."""


class HistoryAsked(Record, frozen=True):
    """A request for the job's history so far. For the coordinator's node, or any."""


class HistoryTold(Record, frozen=True):
    """The job's history up to now: where its time went, and its interruptions."""

    total_s: Seconds
    parts_s: Annotated[dict[Name, Seconds], Meta(max_length=32)]
    """By the parts of `observe.goodput`."""
    reports_steps: bool = False
    interruptions: Annotated[tuple[Packed, ...], Meta(max_length=ROUNDS_TOLD_MOST)] = ()
    """Each an `observe.goodput.Interruption`."""
    steps_per_s: Seconds | None = None
    """How fast the furthest step grew, while steps were made."""
    step_age_s: Seconds | None = None
    """Seconds since the furthest step of the present round."""
    segments: Annotated[tuple[Packed, ...], Meta(max_length=SEGMENTS_TOLD_MOST)] = ()
    """The last of them, each an `observe.goodput.Segment`."""
    nodes: Annotated[dict[Name, Packed], Meta(max_length=ROUNDS_TOLD_MOST)] = field(
        default_factory=dict
    )
    """Some of them, each an `observe.history.NodeHistory`."""


class DashboardAsked(Record, frozen=True):
    """A request for the dashboard's address. For nodes. Its answer gives access to the page."""


class DashboardTold(Record, frozen=True):
    url: Line
    key: Name

    @property
    def link(self) -> str:
        """The address for a browser."""
        return f"{self.url}#key={self.key}"


# Commands.


class DrainWanted(Record, frozen=True):
    """Leave the job when it suits, as on a signal to leave. For some nodes."""

    by: Name
    """The operator, in words."""


class RestartWanted(Record, frozen=True):
    """End the round and begin the next, at no charge. For the coordinator."""

    by: Name


class StopWanted(Record, frozen=True):
    """End the job: workers get SIGTERM, and their grace. For the coordinator."""

    by: Name


class ScaleWanted(Record, frozen=True):
    """Change the least and the greatest number of nodes. For the coordinator."""

    least: Count
    most: Count
    by: Name


class SaveWanted(Record, frozen=True):
    """Have all workers save, and go on. For the coordinator."""

    by: Name
    within_s: Annotated[float, Meta(gt=0.0, le=86_400.0)] = 120.0


class InjectFault(Record, frozen=True):
    """Inject this fault into yourself (`holdfast chaos`). For one node, where it is allowed."""

    what: FaultKind
    rank: Rank | None = None
    """The worker; None for the node as a whole."""
    seconds: Annotated[float, Meta(ge=0.0, le=600.0)] = 0.0
    """The length of a pause."""


class UnderWay(Record, frozen=True):
    """The command is under way; events report its progress."""


class NotKnown(Record, frozen=True):
    """This node cannot answer that, and why."""

    reason: Line


JobRequest = (
    JobAsked
    | RanksAsked
    | StacksAsked
    | LogsAsked
    | EventsAsked
    | HistoryAsked
    | DashboardAsked
    | DrainWanted
    | RestartWanted
    | StopWanted
    | ScaleWanted
    | SaveWanted
    | InjectFault
)
Answer = (
    JobTold
    | RanksTold
    | StacksTold
    | LogsTold
    | EventsTold
    | HistoryTold
    | DashboardTold
    | UnderWay
    | NotKnown
)

_requests: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(JobRequest)
_answers: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Answer)
_pack = msgspec.msgpack.Encoder().encode


def pack(said: JobRequest | Answer) -> bytes:
    return _pack(said)


def read_request(packed: bytes) -> JobRequest | None:
    """None for an unknown request: an outsider, or another version, may have made it."""
    try:
        request: JobRequest = _requests.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return request


def read_answer(packed: bytes) -> Answer:
    """A node's answer; an unreadable one is an answer too."""
    try:
        answer: Answer = _answers.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return NotKnown("it answered what this version of Holdfast cannot read")
    return answer
