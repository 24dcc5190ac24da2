"""What an agent remembers, and the phases of its life (drawn in `core.node.step`)."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

from holdfast.core.membership import NodeLease
from holdfast.core.node.io import StallFound
from holdfast.core.policy.config import JobConfig
from holdfast.core.policy.signals import LastSignal
from holdfast.core.protocol.messages import EndedMember, FrameGroup
from holdfast.core.protocol.model import Assignment, Endpoint, ExitStatus, Failure, Outcome, Term

GRACE_TIMER = "grace"
LOCATE_TIMER = "locate"
UNKILLABLE_TIMER = "unkillable"
EXIT_TIMER = "exit"
PRELOAD_TIMER = "preload"
BIRTH_TIMER = "birth"
HEARTBEAT_TIMER = "heartbeat"
REDIAL_TIMER = "redial"
SEEK_TIMER = "seek"
DRAIN_TIMER = "drain"
ASKED_TIMER = "asked too"
LOCK_TIMER = "note"
UNFIT_TIMER = "unfit"
IMPROVE_TIMER = "improve"
LOCK_WAIT_S = 2.0
"""How long a node waits for its note before it joins: the disk may not answer."""
PRELOAD_NOTICE_TIMER = "preload notice"
PRELOAD_NOTICE_S = 1.5
"""An import that takes longer than this is worth a line, so that nobody wonders."""


class Phase(StrEnum):
    PREPARING = "preparing"
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    CLOSING = "closing"
    FINISHED = "finished"


_THE_END = "CloseJob, a signal, the launcher gone, no contact for too long"
MOVES = {
    (Phase.PREPARING, Phase.WAITING): "an endpoint is held, and how workers start is known",
    (Phase.WAITING, Phase.RUNNING): "RunRound, under a lease that is good",
    (Phase.RUNNING, Phase.STOPPING): "StopRound, or the lease runs out",
    (Phase.STOPPING, Phase.WAITING): "all processes are gone, and an endpoint is held again",
    (Phase.PREPARING, Phase.CLOSING): _THE_END,
    (Phase.WAITING, Phase.CLOSING): _THE_END,
    (Phase.RUNNING, Phase.CLOSING): f"{_THE_END}, or let out of the round to leave",
    (Phase.STOPPING, Phase.CLOSING): f"{_THE_END}, or processes that cannot be killed",
    (Phase.CLOSING, Phase.FINISHED): "nothing is left",
    (Phase.PREPARING, Phase.FINISHED): "the spawner is lost",
    (Phase.WAITING, Phase.FINISHED): "the spawner is lost",
    (Phase.RUNNING, Phase.FINISHED): "the spawner is lost, or released after its workers succeeded",
    (Phase.STOPPING, Phase.FINISHED): "the spawner is lost, or processes that cannot be killed",
}
"""Every way from one phase to another, and what leads there. There are no others."""


class WorkerLife(Struct):
    """One worker of the current round, as this node sees it."""

    rank: int
    pid: int | None = None
    status: ExitStatus | None = None
    step: int | None = None
    """The last that it reported."""
    ended_early: bool = False
    """It ended well while its round still ran."""
    ended_at: float = 0.0
    place: FrameGroup | None = None
    """Where it was when its round was to end, where that was asked (`core.node.locating`)."""
    ended_for: str = ""
    """Why it was ended, in words, where it was because it hung or missed a deadline."""
    ended_kind: str = ""
    """The same as a kind of cause (`core.policy.kinds`)."""
    is_done: bool = False
    """It had done its work when it was ended, since it did not exit: it counts as finished."""
    ends_job: bool = False
    """It was ended for something that another round cannot help."""
    listens: bool = False
    """It asks whether it is to save."""
    waits_at: int | None = None
    """The step at which it waits to be told where all save."""
    told_to_save: bool = False
    """It knows that it is to save: that it ended well after that does not mean that it is done. Not
    any more once it has gone on."""
    heard: bool = False
    """It knows of what is to be saved now."""
    signalled: bool = False
    """It was sent the signal that asks for it."""
    saved: bool = False


class ExitWait(Struct):
    """The wait of one round for its last workers to exit."""

    told: bool = False
    ending: tuple[int, ...] = ()
    """Local ranks that were sent SIGTERM."""


class SavingHere(Struct):
    """The workers of this node are to save (`core.node.saving`)."""

    reason: str
    until: float
    number: int = 0
    serial: int = 1
    leaves: bool = True
    step: int | None = None
    heard_told: bool = False
    unasked_told: bool = False
    saved_told: bool = False
    left_told: bool = False


class NodeState(Struct):
    """Everything an agent remembers."""

    config: JobConfig
    node: str
    host: str
    phase: Phase = Phase.PREPARING
    dialling: bool = False
    """A coordinator is being looked for; what is said of it after that counts for nothing."""
    foreign: bool = False
    """Somebody else runs the workers."""
    endpoint: Endpoint | None = None
    store_failed: bool = False
    lock_pending: bool = False
    """It is not yet known whether the node will have a note on its machine."""
    mark: str = ""
    """By which the node's end can be told of; empty where it has no note."""
    ended: tuple[EndedMember, ...] = ()
    """Members of rounds that have ended on this machine: told on every connection."""
    preload: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    """What workers import after they began, as far as it is known."""
    avoid: dict[str, str] = field(default_factory=dict)
    """Modules that cannot be imported ahead, and why."""
    under: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For some of what is late, what the program has set by then."""
    has_torch: bool = False
    """The zygote has PyTorch, and can serve its store."""
    recalled: frozenset[str] = frozenset()
    """Those of them that are remembered for the next job."""
    stopped_in: tuple[str, ...] = ()
    """What the zygote was importing when it could not go on but in a worker, innermost first."""
    left_out_said: bool = False
    zygote_took_s: float = 0.0
    """How long the last one was made."""
    improving: bool = False
    """A better zygote is being prepared beside the one that serves."""
    improvements: int = 0
    """How many of them were begun."""
    has_more_to_learn: bool = False
    warm_pending: bool = True
    """It is not yet known whether a zygote will be there."""
    warm: bool = False
    assignment: Assignment | None = None
    instance: int = 0
    """Of the job, when that was announced."""
    last_round: int = 0
    workers: dict[int, WorkerLife] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    stopped_by_us: bool = False
    lease_ended: bool = False
    """Workers that did well had to be stopped, because nobody renewed the lease."""
    told_failure: bool = False
    killing: bool = False
    unanswered: int = 0
    """How often the wait for the killed to be gone has run out."""
    given_up: bool = False
    """What was killed is not gone, and the node leaves without it."""
    last_signal: LastSignal | None = None
    locating: bool = False
    """The workers are to be stopped once they have told where they are."""
    interrupted_by: int | None = None
    furthest_step: int | None = None
    stall: StallFound | None = None
    """The workers stand still for longer than they may."""
    hang_said: bool = False
    exit_wait: ExitWait | None = None
    """How the wait for the last workers of the round is going (`core.node.exits`)."""
    outcome: Outcome | None = None
    term: Term = Term()
    """The highest under which anything was heard: what comes under a lower one is ignored."""
    connected: bool = False
    unfit: str = ""
    """Why it takes no part, if it does not."""
    hosting: bool = False
    without_contact_since: float | None = None
    attempts: int = 0
    """How often was dialled in vain."""
    lease: NodeLease | None = None
    """None in a job of one node: nobody could take its place."""
    closing: Outcome | None = None
    """No further round is wanted, and how the job ends unless the present one succeeds."""
    draining_by: int | None = None
    """The signal that asked the node to go, while its round still runs."""
    save_until: float = 0.0
    """How long it can wait for workers to save, once it was asked to go."""
    leave_asked: str = ""
    """Who asked it to leave, in a sentence about it, where that was no signal."""
    let_out: bool = False
    """The coordinator has ended the round for it."""
    goes_on: bool = False
    """Others are left when it goes who do not want to leave."""
    saving: SavingHere | None = None
    saves: int = 0
    """How many times workers of this node were asked to save."""
    saved: int = 0
    """The last save of the round after which it went on."""
    deaths_held: bool = False
    """A worker died of a signal that may be meant for the whole node: a moment shows whether."""

    name: str = ""
    """What this node is called: its host, unless another node of the job is there too."""
    warned: str = ""
    """What was said about settings that differ from the job's."""

    def __post_init__(self) -> None:
        self.name = self.name or self.host
        if self.config.max_nodes > 1 and self.lease is None:
            self.lease = NodeLease(self.config.leases)


def alive(state: NodeState) -> tuple[int, ...]:
    """Local ranks that have not ended, born or about to be."""
    return tuple(rank for rank, worker in state.workers.items() if worker.status is None)


def has_succeeded(state: NodeState) -> bool:
    """Whether all workers of a round that still runs have ended well, and since they were done."""
    if state.phase is not Phase.RUNNING or alive(state) or state.failures:
        return False
    return not any(one.told_to_save or one.signalled for one in state.workers.values())


def has_left(state: NodeState) -> bool:
    """Whether all workers of a round that runs have ended well, but only to let somebody go."""
    if state.phase is not Phase.RUNNING or alive(state) or state.failures or not state.workers:
        return False
    return not has_succeeded(state)


def worker_of(state: NodeState, round: int, local_rank: int) -> WorkerLife | None:
    if state.assignment is None or state.assignment.round != round:
        return None
    return state.workers.get(local_rank)
