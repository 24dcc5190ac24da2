"""What outsiders ask of a job, and what nodes answer: the verbs and the dashboard speak in these.

A request goes to the coordinator's node, to all nodes or to some (`messages.RequestMade.of`);
each of these gives one answer. They are packed into the messages that carry them, so that who
passes them on does not load this, and a job that nobody asks never does.

Rules
1. A request has one bounded answer. Who wants more asks again, from where the answer ended.
2. News are asked for with `wait_s`: the answer comes when there are some, or after that time.
   So nobody asks again and again, and nobody is sent what it did not ask for.
3. A node that cannot answer, or do what is wanted, says why (`NotKnown`).
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
from holdfast.core.protocol.model import Outcome, Record

NODES_TOLD_MOST = 2000
"""In one answer; of a larger job the next are asked for."""
EVENTS_TOLD_MOST = 500
ROUNDS_TOLD_MOST = 200
SEGMENTS_TOLD_MOST = 1000
LOGS_TOLD_BYTES = 1 << 18
WAIT_MOST_S = 25.0
Waiting = Annotated[float, Meta(ge=0.0, le=WAIT_MOST_S)]
"""How long an answer may wait for something to tell."""
Condition = Literal[
    "in the round", "finished", "standing by", "ready", "getting ready", "leaving", "silent"
]
FaultKind = Literal["kill worker", "pause worker", "kill node"]
SaveStage = Literal["agreeing", "saving", "saved", "nobody looks", "given up"]
Stage = Literal["waiting", "running", "stopping", "over"]


# What the coordinator knows.


class JobAsked(Record, frozen=True):
    """How is the job? Of the coordinator."""

    first_node: Count = 0
    """Where in the list of nodes the answer is to begin."""


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
    """How long ago it was last heard of; 0 where there is one node only."""
    note: Line = ""
    """Why it leaves, or is silent."""


class SaveTold(Struct, frozen=True, array_like=True):
    """All workers were asked to save in this round, nobody leaving."""

    number: Number
    """Which time it is."""
    stage: SaveStage
    step: Number | None = None
    nodes_left: Count = 0
    """How many have not said yet where they are, or that they have saved."""


class JobTold(Record, frozen=True):
    """How the job is."""

    run_id: NameOrNone
    stage: Stage
    round: Number
    """0 before the first one."""
    world_size: Rank
    round_age_s: Seconds
    """How long the present round has lasted."""
    coordinator: NameOrNone
    """The node that is the coordinator."""
    min_nodes: Count
    max_nodes: Count
    restarts: Count
    """How many were counted against `--max-restarts`."""
    max_restarts: Count
    step: Number | None
    """The furthest that any worker reported in this round."""
    waiting: Text
    """What is waited for, if anything is."""
    nodes: Annotated[tuple[NodeOverview, ...], Meta(max_length=NODES_TOLD_MOST)]
    node_count: Count
    """How many there are in all."""
    outcome: Outcome | None = None
    scaled_by: NameOrNone = ""
    """Who asked for that many nodes, where somebody did while it ran."""
    save: SaveTold | None = None


# What each node knows.


class RanksAsked(Record, frozen=True):
    """How are your workers? Of nodes."""


class RankOverview(Struct, frozen=True, array_like=True):
    """One worker, as its node knows it."""

    rank: Rank
    local_rank: Count
    pid: Number
    state: NameOrNone
    """In words: "running", "stopped", "stuck in the kernel", "finished"."""
    step: Number | None = None
    step_age_s: Seconds | None = None
    """How long ago it reported that."""
    steps_per_s: Seconds | None = None
    phase: NameOrNone = ""
    cpu: Seconds | None = None
    """Processors that it and its children use, since somebody last asked; None at first."""
    memory_bytes: Number | None = None
    """Resident, of it and its children."""


class RanksTold(Record, frozen=True):
    """How its workers are."""

    host: Host
    ranks: Annotated[tuple[RankOverview, ...], Meta(max_length=SLOTS_MOST)]
    load: Seconds | None = None
    """Of the machine, over a minute, for each of its processors."""
    memory_free_bytes: Number | None = None
    accelerators: Annotated[tuple[Line, ...], Meta(max_length=64)] = ()


class StacksAsked(Record, frozen=True):
    """Where are your workers? Of nodes."""

    reason: Line = "somebody asked"


class FrameTold(Struct, frozen=True, array_like=True):
    file: Line
    line: Count
    function: Line


class StackTold(Struct, frozen=True, array_like=True):
    """Where one worker is."""

    rank: Rank
    frames: Annotated[tuple[FrameTold, ...], Meta(max_length=128)]
    """Of its main thread, innermost first; empty where it gave none."""
    kernel: Line = ""


class StacksTold(Record, frozen=True):
    """Where its workers are."""

    stacks: Annotated[tuple[StackTold, ...], Meta(max_length=SLOTS_MOST)]
    file: Line = ""
    """Where all of it is written, on that node."""


class LogsAsked(Record, frozen=True):
    """What have your workers written? Of nodes."""

    after: Annotated[dict[NameOrNone, Number], Meta(max_length=20_000)] = field(
        default_factory=dict
    )
    """By the name of each node, the number of its last block that is known."""
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=SLOTS_MOST)] = ()
    """Of whom; empty for all."""
    wait_s: Waiting = 0.0


class LogBlock(Struct, frozen=True, array_like=True):
    """What a worker wrote at once; a line may go on in the next one."""

    at: Seconds
    """Seconds since 1970, by that node's clock."""
    rank: Rank
    stream: Literal[1, 2]
    text: Packed


class LogsTold(Record, frozen=True):
    blocks: Annotated[tuple[LogBlock, ...], Meta(max_length=100_000)]
    last: Number
    """The number to go on from."""
    files: Annotated[tuple[Line, ...], Meta(max_length=2 * SLOTS_MOST)] = ()
    """Of workers that write straight into a file: "rank 3: /logs/…/stdout.log"."""
    newest: Number = 0
    """The number of the last block there is: where it is above `last`, there is more to ask for."""


class EventsAsked(Record, frozen=True):
    """What has happened? Of the coordinator's node, which knows most, or of any."""

    after: Number = 0
    """The number of the last event that is known."""
    wait_s: Waiting = 0.0


class EventsTold(Record, frozen=True):
    events: Annotated[tuple[Packed, ...], Meta(max_length=EVENTS_TOLD_MOST)]
    """Each an `observe.story.StoryEvent`."""
    last: Number
    """The number of the last of them, to go on from."""


class HistoryAsked(Record, frozen=True):
    """What has become of the job so far? Of the coordinator's node, which knows most, or of any."""


class HistoryTold(Record, frozen=True):
    """The job's history up to now: where its time went, and what interrupted it."""

    total_s: Seconds
    parts_s: Annotated[dict[Name, Seconds], Meta(max_length=32)]
    """By the parts of `observe.goodput`."""
    reports_steps: bool = False
    interruptions: Annotated[tuple[Packed, ...], Meta(max_length=ROUNDS_TOLD_MOST)] = ()
    """Each an `observe.goodput.Interruption`."""
    steps_per_s: Seconds | None = None
    """How fast the furthest step grew, while steps were made."""
    step_age_s: Seconds | None = None
    """How long ago the furthest step of the present round was made."""
    segments: Annotated[tuple[Packed, ...], Meta(max_length=SEGMENTS_TOLD_MOST)] = ()
    """The last of them, each an `observe.goodput.Segment`."""
    nodes: Annotated[dict[Name, Packed], Meta(max_length=ROUNDS_TOLD_MOST)] = field(
        default_factory=dict
    )
    """Some of them, each an `observe.history.NodeHistory`."""


class DashboardAsked(Record, frozen=True):
    """Where is your dashboard? Of nodes. The answer opens it: for those who may ask anything."""


class DashboardTold(Record, frozen=True):
    url: Line
    key: Name

    @property
    def link(self) -> str:
        """What a browser can be given."""
        return f"{self.url}#key={self.key}"


# What is wanted, not only known.


class DrainWanted(Record, frozen=True):
    """Leave the job when it suits, as on a signal that asks for it. Of some nodes."""

    by: Name
    """Who wants it, in words."""


class RestartWanted(Record, frozen=True):
    """End the round and begin the next, at no charge. Of the coordinator."""

    by: Name


class StopWanted(Record, frozen=True):
    """End the job: workers get SIGTERM, and their grace. Of the coordinator."""

    by: Name


class ScaleWanted(Record, frozen=True):
    """Have between so many nodes from now on. Of the coordinator."""

    least: Count
    most: Count
    by: Name


class SaveWanted(Record, frozen=True):
    """Have all workers save, and go on. Of the coordinator."""

    by: Name
    within_s: Annotated[float, Meta(gt=0.0, le=86_400.0)] = 120.0


class InjectFault(Record, frozen=True):
    """Inject this fault into yourself (`holdfast chaos`). Of one node, where it is allowed."""

    what: FaultKind
    rank: Rank | None = None
    """Which worker; None for the node as a whole."""
    seconds: Annotated[float, Meta(ge=0.0, le=600.0)] = 0.0
    """How long a pause lasts."""


class UnderWay(Record, frozen=True):
    """It is being done; its events tell how it goes."""


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
    """None for what is none of these: an outsider, or another version, may have made it."""
    try:
        request: JobRequest = _requests.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return request


def read_answer(packed: bytes) -> Answer:
    """What a node answered; one that cannot be read is an answer too."""
    try:
        answer: Answer = _answers.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return NotKnown("it answered what this version of Holdfast cannot read")
    return answer
