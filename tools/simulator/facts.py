"""What really happened in a run, in true time: what the checkers look at.

The simulator writes these down where they happen, not where the core says that they did.
"""

from __future__ import annotations

from typing import Literal, TypeVar, cast

from msgspec import Struct

from holdfast.core.protocol.document import Document, NodeLimits
from holdfast.core.protocol.messages import CloseJob, HeartbeatAnswered, RunRound, StopRound
from holdfast.core.protocol.model import Outcome, Term

WorkerEnd = Literal["failed", "victim", "stopped", "killed", "succeeded", "suspended", "orphaned"]
"""The last: it had outlived both agent and spawner."""


class Fact(Struct, frozen=True):
    at: float


class AgentBegan(Fact, frozen=True):
    host: int
    node: str


class AgentDied(Fact, frozen=True):
    """The agent's process is no more, in whatever way."""

    host: int
    node: str


class AgentFinished(Fact, frozen=True):
    host: int
    node: str
    outcome: Outcome
    closed: bool
    """Whether that is the outcome of the job, or the node's own."""


class WorkerBegan(Fact, frozen=True):
    """A worker executes user code from now on."""

    host: int
    node: str
    round: int
    rank: int
    instance: int = 1
    """Of the job, under which its round was announced."""


class StartedBeforeReaped(Fact, frozen=True):
    """Workers were to start on a host that still had processes of another round."""

    host: int
    node: str
    round: int


class WorkerEnded(Fact, frozen=True):
    """A worker executes nothing any more (or not now, if its host was suspended)."""

    host: int
    node: str
    round: int
    rank: int
    how: WorkerEnd
    instance: int = 1


class LeaseEnded(Fact, frozen=True):
    """A node stops workers that did well, because nobody has renewed its lease."""

    node: str
    round: int


class WorkerListened(Fact, frozen=True):
    """A worker asks from now on whether it is to save."""

    host: int
    node: str
    round: int
    rank: int


class WorkerReleased(Fact, frozen=True):
    """A worker that waited to hear where all save goes on without having saved."""

    node: str
    round: int
    rank: int
    instance: int
    number: int


class SaveAsked(Fact, frozen=True):
    """A coordinator wants all workers of a round to save, until then at most if the round ends."""

    by_host: int
    round: int
    instance: int
    number: int
    until: float


class WorkerSaved(Fact, frozen=True):
    """A worker begins to save."""

    host: int
    node: str
    round: int
    rank: int
    instance: int
    step: int
    number: int = 0
    """Of the save."""


class CheckpointWritten(Fact, frozen=True):
    """A worker has nothing left to save."""

    node: str
    round: int
    rank: int


class NodeStalled(Fact, frozen=True):
    """The workers of a node do nothing any more, though they run."""

    host: int
    node: str
    round: int


class NodeResumed(Fact, frozen=True):
    """They go on, or are gone."""

    host: int
    node: str
    round: int


class HangDecided(Fact, frozen=True):
    """A coordinator says of a round that all of it stands still."""

    by_host: int
    round: int


class HangHeard(Fact, frozen=True):
    """A node is told so, and has something to say of it."""

    node: str
    round: int


class EndedForHang(Fact, frozen=True):
    """A node ends a worker, so that the round is tried again."""

    node: str
    round: int
    rank: int


class WorkerContinued(Fact, frozen=True):
    host: int
    node: str
    round: int
    rank: int
    instance: int = 1


class LeaseRenewed(Fact, frozen=True):
    """By the node's own clock, counted from when the answered heartbeat was sent."""

    node: str
    until: float


class Delivered(Fact, frozen=True):
    """A node took a word of a coordinator; `obeyed` where it did something about it."""

    node: str
    term: Term
    message: RunRound | StopRound | CloseJob | HeartbeatAnswered
    obeyed: bool


class NodeWelcomed(Fact, frozen=True):
    """A coordinator has answered the greeting of a node."""

    node: str


class Recorded(Fact, frozen=True):
    """A document is in the register, or on the disk of the coordinator's host."""

    host: int
    document: Document
    blank: bool = False
    """Nothing was there: it is the first one ever, or the register had lost its content."""
    known: Document | None = None
    """The one of the highest term that the writer had been shown when it sent this."""
    sent_at: float = 0.0
    """When its writer first sent it: it may have been long on its way."""

    @property
    def node(self) -> str:
        """Who wrote it."""
        return self.document.nonce.rpartition("/")[0]


class Spoke(Fact, frozen=True):
    """A coordinator said something after its term, or when it should have given up."""

    host: int
    text: str


class SteppedDown(Fact, frozen=True):
    """A coordinator gave up its place, because it wanted to or because another one had it."""

    host: int
    node: str
    resigned: bool
    in_term: bool = True
    """Whether it knew of a write that would have let it speak on."""
    deposed: bool = False
    """A node had heard of a higher term."""


class LeaderEnded(Fact, frozen=True):
    """All that there was on a leader's node is gone; `silent` where nobody is told by that."""

    host: int
    node: str
    silent: bool


class FirstWord(Fact, frozen=True):
    """A coordinator says something to another node for the first time."""

    host: int
    node: str
    term: Term


class NodeDeclaredGone(Fact, frozen=True):
    node: str
    by_host: int
    in_term: bool


class NodeRefused(Fact, frozen=True):
    """A coordinator takes an honest node for a liar."""

    by_host: int
    node: str
    reason: str


class RoundEnding(Fact, frozen=True):
    """A coordinator ends a round. Durations are on its own clock."""

    round: int
    kind: str
    by_host: int
    lasted_s: float
    newcomer_waited_s: float | None
    newcomers_fill_it: bool = False


class LimitsAsked(Fact, frozen=True):
    """A coordinator took it that the job is to have between so many nodes."""

    term: Term
    limits: NodeLimits


class RoundFormed(Fact, frozen=True):
    """A coordinator has settled who sits in a round; nobody was told yet."""

    term: Term
    round: int


class FaultStruck(Fact, frozen=True):
    kind: str
    host: int
    until: float
    node: str = ""


class NodeDrained(Fact, frozen=True):
    host: int
    node: str


class Healed(Fact, frozen=True):
    """No fault is at work any more."""


class Late(Fact, frozen=True):
    """What had to happen within a bound has not."""

    what: str


class CoreRaised(Fact, frozen=True):
    host: int
    error: str


History = list[Fact]
Kind = TypeVar("Kind", bound=Fact)


def only(history: History, *kinds: type[Kind]) -> list[Kind]:
    """The facts of these kinds, in their order: whoever checks something needs few of them."""
    wanted = frozenset(kinds)
    return cast("list[Kind]", [fact for fact in history if type(fact) in wanted])


class Violation(Struct, frozen=True):
    """A promise that was not kept."""

    checker: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.checker}: at {self.at:.3f} s {self.text}"
