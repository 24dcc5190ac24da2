"""Events and effects of a node's machine (`core.node`).

Events, in the past tense, come from the node's shell or from the coordinator. Effects, in the
imperative, are carried out by the shell; one that completes comes back as an event. Those shared
with another machine of the node are in `core.border`.
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

# Events of the kernel.


class NodeStarted(Record, frozen=True):
    """The shell is up.

    `preload` are the steps that a zygote should do (see `processes.zygote.preload`); `cold` says
    why none is used. The others are remembered from an earlier job of the program: its late
    imports, modules that cannot be imported ahead and why, and the variables set by then.
    """

    preload: tuple[str, ...] = ()
    cold: str = ""
    late: tuple[str, ...] = ()
    avoid: dict[str, str] = field(default_factory=dict)
    under: dict[str, tuple[str, ...]] = field(default_factory=dict)
    foreign: bool = False
    """The caller runs the workers: they are asked to end, and never killed from here."""
    locks: bool = False
    """A `LivenessLockTaken` will follow."""
    unfit: str = ""
    """Why this node must not take part: it tells the coordinator, and leaves."""


class EndpointReserved(Record, frozen=True):
    """A port is held for the master of the next round."""

    endpoint: Endpoint


class StoreFailed(Record, frozen=True):
    """The process that serves the store has ended."""

    reason: str


class SpawnerReady(Record, frozen=True):
    """The spawner is up; what the kernel offers it to keep processes together."""

    pid: int
    subreaper: bool
    pidfd: bool


class WorkerStarted(Record, frozen=True):
    """A worker's process exists."""

    round: int
    local_rank: int
    pid: int


class WorkerExited(Record, frozen=True):
    """A worker's process has ended, and its remaining output has been read."""

    round: int
    local_rank: int
    pid: int
    status: ExitStatus
    error: ErrorDetail = ErrorDetail()
    stderr_tail: str = ""
    out_of_memory: str = ""
    error_file: str = ""
    wall_time: float = 0.0
    """Seconds since 1970 on this host's clock, for people."""
    versions: str = ""
    """Versions of packages here, where there are other nodes to compare with."""


class StepReported(Record, frozen=True):
    """A worker has reported its step."""

    round: int
    local_rank: int
    step: int
    age_s: float = 0.0
    """Seconds since it did so."""


class AllGone(Record, frozen=True):
    """No process of any round is left on this node."""

    round: int = 0
    """The round of the `KillEverything`; 0 if the end of the lease has killed them."""


class ProcessesStuck(Record, frozen=True):
    """Killed processes are still there."""

    processes: tuple[str, ...]
    forbidden: tuple[str, ...] = ()
    """Processes of another user, to which not even SIGKILL could be sent."""


class SpawnerLost(Record, frozen=True):
    """The spawner has ended unasked; the kernel has killed its workers."""

    reason: str
    left: tuple[str, ...] = ()
    """Processes that could not be ended."""


class SpawnerEnded(Record, frozen=True):
    """The spawner has ended as requested; nothing is left below it."""


class SignalReceived(Record, frozen=True):
    """The agent received this signal."""

    signal: int


class ClosingAsked(Record, frozen=True):
    """The caller that runs the workers wants no further round; how the job ends, if it fails."""

    outcome: Outcome


class Released(Record, frozen=True):
    """The caller that runs the workers is done with this node; the others may go on."""


class LauncherLost(Record, frozen=True):
    """The process that launched this job, and waits for its result, is gone."""


class NodeTimerFired(Record, frozen=True):
    """A timer set by `WakeNode` has run out."""

    name: str


class CoordinatorReached(Record, frozen=True):
    """There is a connection to the coordinator, or it runs in this very process."""

    hosting: bool = False


class LeaseRanOut(Record, frozen=True):
    """The spawner is stopping the workers, because the lease is about to end."""


class LeaveAsked(Record, frozen=True):
    """An operator wants the node to leave the job (`holdfast drain`)."""

    by: str


KernelEvent = (
    NodeStarted | EndpointReserved | StoreFailed | SpawnerReady | WorkerStarted | WorkerExited
    | StepReported | AllGone | ProcessesStuck | SpawnerLost | SpawnerEnded | SignalReceived
    | ClosingAsked | Released | LauncherLost | NodeTimerFired | CoordinatorReached | LeaseRanOut
    | LeaveAsked | CoordinatorLost | Told
)  # fmt: skip


# Events of features (`core.features`).


class LivenessLockTaken(Record, frozen=True):
    """The node holds its liveness lock, or has none."""

    is_held: bool = True


class EndedFound(Record, frozen=True):
    """Nodes that were on this machine before are proven to have ended."""

    nodes: tuple[str, ...]
    members: tuple[EndedMember, ...] = ()
    """Ended nodes that had a seat in a round."""


class ZygoteReady(Record, frozen=True):
    """The zygote has done these steps and imports, and can fork workers.

    Where a module can only be imported in a worker, it waits in the middle of its import:
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
    """A step cannot be done ahead; the zygote that tried it is useless."""

    module: str
    reason: str
    cost_s: float = 0.0
    beside: bool = False


class ModulesUnfit(Record, frozen=True):
    """Late imports that cannot be done ahead, and why; the zygote that tried is useless."""

    unfit: dict[str, str]
    beside: bool = False


class ImportsLearned(Record, frozen=True):
    """Workers have imported these after they began, for the first time."""

    modules: tuple[str, ...]
    under: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Environment variables that the program had set before, where that makes a difference."""
    too_early: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Modules imported ahead that used variables which the program set later, and which."""


class ImportLeft(Record, frozen=True):
    """A worker has finished an import in the middle of which the zygote had stopped."""

    took_s: float


class ZygoteLost(Record, frozen=True):
    """The zygote ended without being asked to."""

    reason: str
    beside: bool = False


class StallFound(Record, frozen=True):
    """All workers of this node have stalled for too long (`core.policy.hangs`)."""

    round: int
    words: str
    """How long, and where they are."""
    file: str = ""
    """The path of their full stacks."""
    suspect: int = 0
    """The rank that is the most likely cause, as far as this node knows."""
    locations: tuple[FrameGroup, ...] = ()
    stalled_s: float = 0.0
    never_reported: bool = False
    """They never reported a step: the stall is only told of."""
    needs_cause: bool = False
    """It counts only if the rank for which they wait is known."""


class WorkersLocated(Record, frozen=True):
    """Running workers have been located, as far as possible."""

    round: int
    locations: tuple[FrameGroup, ...] = ()
    file: str = ""
    """The path of their full stacks; empty if they could not be kept."""


class StallOver(Record, frozen=True):
    """Stalled workers are progressing again."""

    round: int


class WorkerStuck(Record, frozen=True):
    """A worker is stuck in the kernel, or stopped by a signal (`core.policy.stuck`)."""

    round: int
    local_rank: int
    words: str
    """What follows its name: "is stuck in the kernel for 30 s: it waits for …"."""
    ends: bool = False
    """It counts as failed: it is not waited for any longer."""


class StragglerFound(Record, frozen=True):
    """A worker has been slower than the others of this node for some time."""

    round: int
    words: str


class DeadlineMissed(Record, frozen=True):
    """A worker has taken longer than it may, and its stack is kept."""

    round: int
    local_rank: int
    deadline: str
    """In words: "the deadline of loading"."""
    location: str = ""
    """Where the worker is."""
    file: str = ""
    is_final: bool = False
    """The deadline is the whole job's: another round would miss it, too."""


NO_STEP = -1
"""Of a worker that does not say its own."""
SavingAnswer = Literal["listens", "waits", "told", "saved", "goes on"]


class SaveAnswered(Record, frozen=True):
    """A worker listens, waits to hear where to save, was told, has saved, or goes on."""

    round: int
    local_rank: int
    answer: SavingAnswer
    step: int = NO_STEP
    serial: int = 1
    """The number of the `ShowSaving` that it answers."""


class Unexited(Record, frozen=True):
    """A worker that has not exited."""

    local_rank: int
    location: str = ""
    """Its location, in words, if known."""
    is_finalizing: bool = False
    """Its main thread was past the end of the program."""


class UnexitedFound(Record, frozen=True):
    """Workers that have not exited, though others have finished, with their locations."""

    round: int
    workers: tuple[Unexited, ...]
    file: str = ""
    """The path of their stacks."""
    ends: bool = False


FeatureEvent = (
    LivenessLockTaken | EndedFound | ZygoteReady | ModuleRejected | ModulesUnfit | ImportsLearned
    | ImportLeft | ZygoteLost | StallFound | WorkersLocated | StallOver | WorkerStuck
    | StragglerFound | DeadlineMissed | SaveAnswered | UnexitedFound
)  # fmt: skip
NodeEvent = KernelEvent | FeatureEvent


# Effects of the kernel.


class ReserveEndpoint(Record, frozen=True):
    """Hold a fresh port for the next round's master, as `EndpointReserved`.

    With `store`, listen there for clients of PyTorch's store from now on; the process that serves
    it is started with the workers.
    """

    store: bool = False


class StartWorkers(Record, frozen=True):
    """Start these local ranks of the round."""

    assignment: Assignment
    local_ranks: tuple[int, ...]
    warm: bool


class SignalWorkers(Record, frozen=True):
    """Send a signal to these workers that still run."""

    signal: int
    local_ranks: tuple[int, ...]
    stops: bool = True
    """Whether they are to end: stopped processes are continued for that."""


class CloseRound(Record, frozen=True):
    """No process of the round is left: read the last of its output, and forget its workers."""


class KillEverything(Record, frozen=True):
    """SIGKILL to every process of the round and all its descendants; `AllGone` follows."""

    round: int = 0


class ListStuck(Record, frozen=True):
    """List the processes that are still there, as `ProcessesStuck`."""


class EndSpawner(Record, frozen=True):
    """Kill all that is left, and end the spawner; `SpawnerEnded` follows."""


class KillSpawner(Record, frozen=True):
    """SIGKILL to the spawner itself, and to all processes that it leaves."""


class HangUp(Record, frozen=True):
    """Close a connection on which no heartbeat is answered any more."""


class SetDeadlines(Record, frozen=True):
    """Have the spawner stop workers at one time, and kill them at another, on this host's clock."""

    stop_at: float
    kill_at: float


class WakeNode(Record, frozen=True):
    """Set a timer, in place of one of that name; `NodeTimerFired` follows."""

    name: str
    after_s: float


class Report(Record, frozen=True):
    """Send a message to the coordinator; lost where there is no connection."""

    message: FromNode


class Finish(Record, frozen=True):
    """Print the outcome and end with its exit status."""

    outcome: Outcome


KernelEffect = (
    ReserveEndpoint | StartWorkers | SignalWorkers | CloseRound | KillEverything | ListStuck
    | EndSpawner | KillSpawner | HangUp | SetDeadlines | WakeNode | Report | Finish | Dial | Say
)  # fmt: skip


# Effects of features.


class RecordSeat(Record, frozen=True):
    """Record the node's seat in its liveness lock; nothing waits for that."""

    instance: int
    round: int
    seat: int


class RemoveLivenessLocks(Record, frozen=True):
    """The job is over: no later node will ask this machine about it."""


class StartZygote(Record, frozen=True):
    """Start a zygote that does these steps, in place of any older one; with `beside`, once it is
    ready. `late` is imported too, where that makes no difference; `avoid` is left to the workers.
    """

    steps: tuple[str, ...]
    late: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    under: dict[str, tuple[str, ...]] = field(default_factory=dict)
    beside: bool = False


class Remember(Record, frozen=True):
    """Keep for the next job of this program what workers import late, and what to avoid."""

    late: tuple[str, ...]
    avoid: dict[str, str]
    under: dict[str, tuple[str, ...]] = field(default_factory=dict)


class DropZygote(Record, frozen=True):
    """Workers start cold from now on."""


class KillZygote(Record, frozen=True):
    """SIGKILL to the zygote. `ZygoteLost` follows the `WorkerStarted` of all that it has forked."""


class LocateWorkers(Record, frozen=True):
    """Locate running workers; `WorkersLocated` follows."""

    round: int


class ShowSaving(Record, frozen=True):
    """Ask workers to save, until when on this host's clock, and at which step.

    Without a step, those that report theirs wait for one. Those that listen answer
    (`SaveAnswered`).
    """

    until: float
    reason: str
    step: int | None = None
    serial: int = 1
    """The number of this save."""
    leaves: bool = True


class HideSaving(Record, frozen=True):
    """Tell workers that there is nothing to save any more."""


class LookAtUnexited(Record, frozen=True):
    """Locate workers that have not exited; `UnexitedFound` follows."""

    round: int
    ends: bool


FeatureEffect = (
    RecordSeat | RemoveLivenessLocks | StartZygote | Remember | DropZygote | KillZygote
    | LocateWorkers | ShowSaving | HideSaving | LookAtUnexited | KnowEnded
)  # fmt: skip
NodeEffect = KernelEffect | FeatureEffect
