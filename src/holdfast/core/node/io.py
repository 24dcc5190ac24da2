"""What an agent's core is told (events) and what it asks for (effects).

Events are in the past tense and come from the node's shell or from the coordinator.
Effects are in the imperative and are carried out by the shell; each one that completes
comes back as an event. Those that another machine of the node takes, or asks for, are in
`core.border`.
"""

from __future__ import annotations

from typing import Literal

from msgspec import field

from holdfast.core.border import CoordinatorLost as CoordinatorLost
from holdfast.core.border import Dial as Dial
from holdfast.core.border import KnowEnded as KnowEnded
from holdfast.core.border import Say as Say
from holdfast.core.border import Told as Told
from holdfast.core.protocol.messages import EndedMember, FrameGroup, FromNode
from holdfast.core.protocol.model import (
    Assignment,
    Endpoint,
    ErrorDetail,
    ExitStatus,
    Outcome,
    Record,
)

# Events: what happened on this node.


class NodeStarted(Record, frozen=True):
    """The shell is up.

    `preload` are the steps that a zygote should do (see `processes.zygote.preload`); `cold` says
    why none is used. `late` and `avoid` are remembered from an earlier job of the same program:
    what its workers imported late, and what cannot be imported ahead, with the reasons.
    """

    preload: tuple[str, ...] = ()
    cold: str = ""
    late: tuple[str, ...] = ()
    avoid: dict[str, str] = field(default_factory=dict)
    under: dict[str, tuple[str, ...]] = field(default_factory=dict)
    foreign: bool = False
    """Somebody else runs the workers: they are asked to end, and never killed from here."""
    notes: bool = False
    """A `LivenessLockTaken` will follow."""
    unfit: str = ""
    """Why this node must not take part, if it must not: it tells the coordinator, and goes."""


class EndpointReserved(Record, frozen=True):
    """A port is held for the master of the next round."""

    endpoint: Endpoint


class LivenessLockTaken(Record, frozen=True):
    """The node's note is on its machine, and held; by this mark its end can be told of.

    The mark is empty where it can have none.
    """

    mark: str


class EndedFound(Record, frozen=True):
    """It is proven that these nodes, which were on this machine before, have ended."""

    nodes: tuple[str, ...]
    members: tuple[EndedMember, ...] = ()
    """Those of them that were in a round."""


class StoreFailed(Record, frozen=True):
    """The process that was to serve the store ended."""

    reason: str


class SpawnerReady(Record, frozen=True):
    """The spawner is up; what the kernel offers it for keeping processes together."""

    pid: int
    subreaper: bool
    pidfd: bool


class ZygoteReady(Record, frozen=True):
    """The zygote has done these steps, has what is imported late, and can fork workers.

    Where a module needs what only a worker has, it waits in the middle of its import:
    `stopped_in` are the modules that are being imported there, innermost first.
    """

    preloaded: tuple[str, ...]
    took_s: float = 0.0
    late: tuple[str, ...] = ()
    stopped_in: tuple[str, ...] = ()
    reason: str = ""
    has_torch: bool = False
    """PyTorch is there, so that a process of ours can serve its store."""
    beside: bool = False
    """It was prepared while another one served, which it has replaced."""


class ModuleRejected(Record, frozen=True):
    """A step cannot be done ahead; the zygote that tried it is of no use."""

    module: str
    reason: str
    cost_s: float = 0.0
    beside: bool = False


class ModulesUnfit(Record, frozen=True):
    """Of what is imported late, these cannot be, and why; the zygote that tried is of no use."""

    unfit: dict[str, str]
    beside: bool = False


class ImportsLearned(Record, frozen=True):
    """What workers have imported after they began, and has not been told before."""

    modules: tuple[str, ...]
    under: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For some of them, what the program had set before: using it is not the same."""
    too_early: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of what was imported ahead, what has used a variable that the program then set, and which."""


class ImportLeft(Record, frozen=True):
    """A worker has finished the import in the middle of which the zygote had stopped."""

    took_s: float


class ZygoteLost(Record, frozen=True):
    """The zygote ended without being asked to."""

    reason: str
    beside: bool = False


class WorkerStarted(Record, frozen=True):
    """A worker's process exists."""

    round: int
    local_rank: int
    pid: int


class WorkerExited(Record, frozen=True):
    """A worker's process has ended; what it left behind has been read."""

    round: int
    local_rank: int
    pid: int
    status: ExitStatus
    error: ErrorDetail = ErrorDetail()
    stderr_tail: str = ""
    out_of_memory: str = ""
    error_file: str = ""
    wall_time: float = 0.0
    """Seconds since 1970 on this host's clock: for people, compared with nothing."""
    versions: str = ""
    """Of packages that workers here get, where there are other nodes to compare with."""


class StepReported(Record, frozen=True):
    """A worker said how far it is."""

    round: int
    local_rank: int
    step: int
    age_s: float = 0.0
    """How long before this was noticed it said so."""


class StallFound(Record, frozen=True):
    """All workers of this node stand still for longer than they may (`core.policy.hangs`)."""

    round: int
    words: str
    """How long, and where they are."""
    file: str = ""
    """Where their stacks are, in full."""
    suspect: int = 0
    """The rank that is most likely the cause, as far as this node knows."""
    places: tuple[FrameGroup, ...] = ()
    """Where they are."""
    still_s: float = 0.0
    never_spoke: bool = False
    """They never said how far they are: it is told, and nothing more."""
    needs_cause: bool = False
    """It is told only where it is known for which rank they wait."""


class WorkersLocated(Record, frozen=True):
    """Where the workers are that run, as far as they told."""

    round: int
    places: tuple[FrameGroup, ...] = ()
    file: str = ""
    """With their stacks in full; empty where nothing could be kept."""


class StallOver(Record, frozen=True):
    """They stood still, and do so no more."""

    round: int


class WorkerStuck(Record, frozen=True):
    """The kernel, or a signal, has held a worker for too long (`core.policy.stuck`)."""

    round: int
    local_rank: int
    words: str
    """What follows its name: "is stuck in the kernel for 30 s: it waits for …"."""
    ends: bool = False
    """It counts as failed: nothing can end it, and nobody waits for it any longer."""


class StragglerFound(Record, frozen=True):
    """A worker is slower than the others of this node, and has been for long."""

    round: int
    words: str


NO_STEP = -1
"""Of a worker that does not say at which it is."""
SavingAnswer = Literal["listens", "waits", "told", "saved", "goes on"]


class SaveAnswered(Record, frozen=True):
    """A worker asks whether it is to save, waits to hear where, was told, has saved, or goes on."""

    round: int
    local_rank: int
    answer: SavingAnswer
    step: int = NO_STEP
    serial: int = 1
    """Of what it was shown (`ShowSaving`)."""


class DeadlineMissed(Record, frozen=True):
    """A worker has taken longer than it may, and its stack is kept."""

    round: int
    local_rank: int
    deadline: str
    """Of what, in words: "the deadline of loading"."""
    place: str = ""
    """Where the worker is."""
    file: str = ""
    is_final: bool = False
    """It is the whole job's: another round would miss it, too."""


class Unexited(Record, frozen=True):
    """A worker that has not exited."""

    local_rank: int
    place: str = ""
    """Where it is, in words; empty where that is not known."""
    is_finalizing: bool = False
    """Its main thread was past the end of the program."""


class UnexitedFound(Record, frozen=True):
    """Where the workers are that have not exited, though others have finished."""

    round: int
    workers: tuple[Unexited, ...]
    file: str = ""
    """Of their stacks."""
    ends: bool = False


class AllGone(Record, frozen=True):
    """No process of any round is left on this node: the answer to a `KillEverything`."""

    round: int = 0
    """For which that was asked; 0 where nobody did, and the end of the lease has killed them."""


class ProcessesStuck(Record, frozen=True):
    """These were sent SIGKILL and are still there."""

    processes: tuple[str, ...]
    forbidden: tuple[str, ...] = ()
    """These belong to another user, so that not even SIGKILL could be sent to them."""


class SpawnerLost(Record, frozen=True):
    """The spawner ended without being asked to; the kernel has killed its workers."""

    reason: str
    left: tuple[str, ...] = ()
    """Processes that could not be ended."""


class SpawnerEnded(Record, frozen=True):
    """The spawner ended because it was asked to; nothing is left below it."""


class SignalReceived(Record, frozen=True):
    """Somebody sent this signal to the agent."""

    signal: int


class ClosingAsked(Record, frozen=True):
    """Whoever runs the workers wants no further round; how the job ends unless it succeeds."""

    outcome: Outcome


class Released(Record, frozen=True):
    """Whoever runs the workers has no further use for this node; the others may go on."""


class LauncherLost(Record, frozen=True):
    """The process that launched this job, and waits for its results, is gone."""


class NodeTimerFired(Record, frozen=True):
    """A timer that was asked for with `WakeNode` has run out."""

    name: str


class CoordinatorReached(Record, frozen=True):
    """There is a connection to the coordinator, or it lives in this very process."""

    hosting: bool = False


class LeaseRanOut(Record, frozen=True):
    """The spawner is stopping the workers, because the lease is about to end."""


class LeaveAsked(Record, frozen=True):
    """Somebody wants the node to leave the job (`holdfast drain`)."""

    by: str


NodeEvent = (
    NodeStarted
    | EndpointReserved
    | LivenessLockTaken
    | EndedFound
    | StoreFailed
    | SpawnerReady
    | ZygoteReady
    | ModuleRejected
    | ModulesUnfit
    | ImportsLearned
    | ImportLeft
    | ZygoteLost
    | WorkerStarted
    | WorkerExited
    | StepReported
    | StallFound
    | StallOver
    | WorkersLocated
    | StragglerFound
    | WorkerStuck
    | DeadlineMissed
    | UnexitedFound
    | SaveAnswered
    | AllGone
    | ProcessesStuck
    | SpawnerLost
    | SpawnerEnded
    | SignalReceived
    | LeaveAsked
    | ClosingAsked
    | Released
    | LauncherLost
    | NodeTimerFired
    | CoordinatorReached
    | CoordinatorLost
    | LeaseRanOut
    | Told
)


# Effects: what the shell is to do.


class ReserveEndpoint(Record, frozen=True):
    """Hold a fresh port for the next round's master, and say `EndpointReserved`.

    With `store`, let clients of PyTorch's store knock there from now on; the process that
    answers is started with the workers.
    """

    store: bool = False


class StartZygote(Record, frozen=True):
    """Start a process that does these steps; it replaces any older one.

    With `beside`, the older one serves until this one is ready. `late` is imported too, where
    that makes no difference; what is to be avoided is imported by workers only.
    """

    steps: tuple[str, ...]
    late: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    under: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For some of what is late, what the program has set by then."""
    beside: bool = False


class Remember(Record, frozen=True):
    """Keep for the next job of this program what its workers import late, and what to avoid."""

    late: tuple[str, ...]
    avoid: dict[str, str]
    under: dict[str, tuple[str, ...]] = field(default_factory=dict)


class DropZygote(Record, frozen=True):
    """Workers start cold from now on."""


class KillZygote(Record, frozen=True):
    """SIGKILL to the zygote. `ZygoteLost` follows, after the birth of all whom it has forked."""


class RecordSeat(Record, frozen=True):
    """Have the node's note say that this is its seat; nothing waits for that."""

    instance: int
    round: int
    seat: int
    path: tuple[str, ...]


class RemoveLivenessLocks(Record, frozen=True):
    """The job is over: nobody will ask this machine who was on it."""


class StartWorkers(Record, frozen=True):
    """Start these local ranks of the round."""

    assignment: Assignment
    local_ranks: tuple[int, ...]
    warm: bool


class LocateWorkers(Record, frozen=True):
    """Ask the workers that run where they are; `WorkersLocated` tells."""

    round: int


class SignalWorkers(Record, frozen=True):
    """Send a signal to these workers that still run."""

    signal: int
    local_ranks: tuple[int, ...]
    stops: bool = True
    """Whether they are to end, for which stopped processes are continued; else it only tells
    them something."""


class ShowSaving(Record, frozen=True):
    """Show the workers that they are to save, until when on this host's clock, and at which step.

    Without a step, those that say theirs wait for one. `SaveAnswered` follows from those that look.
    """

    until: float
    reason: str
    step: int | None = None
    serial: int = 1
    """Another one is another time to save, for workers that have saved before."""
    leaves: bool = True


class HideSaving(Record, frozen=True):
    """Show the workers that there is nothing to save any more."""


class CloseRound(Record, frozen=True):
    """Nothing of the round is left: take in the last of its output, and forget its workers."""


class KillEverything(Record, frozen=True):
    """SIGKILL to every process of the round and all its descendants, then say `AllGone`."""

    round: int = 0


class LookAtUnexited(Record, frozen=True):
    """Say where the workers are that have not exited, as `UnexitedFound`."""

    round: int
    ends: bool
    """Whether they are then ended."""


class ListStuck(Record, frozen=True):
    """Say which processes are still there, as `ProcessesStuck`."""


class EndSpawner(Record, frozen=True):
    """Kill all that is left, end the spawner, and say `SpawnerEnded`."""


class KillSpawner(Record, frozen=True):
    """SIGKILL to the spawner itself, and to all that comes up from below it; it ends then."""


class HangUp(Record, frozen=True):
    """Close a connection on which nothing comes any more. Nothing follows."""


class SetDeadlines(Record, frozen=True):
    """Have the spawner stop the workers at the one time, and kill them at the other.

    The times are on this host's clock, as `now` is.
    """

    stop_at: float
    kill_at: float


class WakeNode(Record, frozen=True):
    """Come back with `NodeTimerFired` after this long; replaces one of that name."""

    name: str
    after_s: float


class Report(Record, frozen=True):
    """Tell the coordinator; lost where there is no connection (see `core.protocol.messages`)."""

    message: FromNode


class Finish(Record, frozen=True):
    """Print the outcome and end with its exit status."""

    outcome: Outcome


NodeEffect = (
    ReserveEndpoint
    | StartZygote
    | Remember
    | DropZygote
    | KillZygote
    | RecordSeat
    | RemoveLivenessLocks
    | KnowEnded
    | StartWorkers
    | LocateWorkers
    | SignalWorkers
    | ShowSaving
    | HideSaving
    | CloseRound
    | KillEverything
    | ListStuck
    | LookAtUnexited
    | EndSpawner
    | KillSpawner
    | Dial
    | HangUp
    | SetDeadlines
    | WakeNode
    | Report
    | Say
    | Finish
)
