"""The types of the protocol.

All data that crosses a border (core and shell, agent and coordinator, process and
journal) is one of these small frozen records. They are msgspec structs, so the same
definition validates input, and writes the journal line. Each field that
another machine may fill has its bounds (`core.protocol.bounds`).

Words used throughout: a *job* runs as a sequence of numbered *rounds*; in each round a
*node* runs `slots` *workers*; membership never changes inside a round.
"""

from __future__ import annotations

import signal
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from holdfast.core.protocol.bounds import (
    SLOTS_MOST,
    Count,
    ExitCode,
    ExitStatusOfJob,
    Host,
    Line,
    Name,
    NameOrNone,
    Number,
    Path,
    Rank,
    Seconds,
    SignalNumber,
    Slots,
    Text,
)
from holdfast.core.protocol.endpoint import Endpoint as Endpoint


class Record(Struct, frozen=True, tag=True, omit_defaults=True):
    """The parent of everything that is journalled: immutable, tagged with its name."""


class NodeInfo(Struct, frozen=True):
    """A node's description of itself when it joins."""

    node: Name
    """Identity: host name plus a random part; a restarted agent is a new node."""
    host: Host
    slots: Slots
    role: NameOrNone = "default"
    rank_hint: Count | None = None
    topology: NameOrNone = ""
    """Its topology key: nodes with neighbouring keys get neighbouring ranks."""
    address: Endpoint | None = None
    """Its address when it carries the coordinator, in jobs where any node can."""
    name: NameOrNone = ""
    """The name that an earlier coordinator gave it, which it keeps."""


class Term(Struct, frozen=True, order=True):
    """A coordinator's term: one instance of the job, one epoch of its coordinators.

    Ordered: a message under a lower term than one that was already heard has no effect.
    """

    instance: Number = 0
    epoch: Number = 0

    def __str__(self) -> str:
        return f"{self.instance}.{self.epoch}"


class Ranks(Struct, frozen=True):
    """The ranks of one worker in its round."""

    local_rank: Count
    rank: Rank
    role_rank: Rank


class Assignment(Struct, frozen=True):
    """One node's assignment in a round: O(1) in the size of the job."""

    round: Number
    restart_count: Count
    group_rank: Count
    group_size: Count
    world_size: Rank
    role_world_size: Rank
    workers: Annotated[tuple[Ranks, ...], Meta(max_length=SLOTS_MOST)]
    master: Endpoint


class ExitStatus(Struct, frozen=True):
    """How a process ended: `code` or `signal` is set.

    Neither is set for workers that a caller runs, and describes in its own words.
    """

    code: ExitCode | None = None
    signal: SignalNumber | None = None

    @classmethod
    def from_wait_status(cls, returncode: int) -> ExitStatus:
        """Build from the convention of `subprocess`: negative means a signal."""
        if returncode < 0:
            return cls(signal=-returncode)
        return cls(code=returncode)

    @property
    def is_known(self) -> bool:
        return self.code is not None or self.signal is not None

    @property
    def succeeded(self) -> bool:
        return self.code == 0

    @property
    def returncode(self) -> int:
        return -self.signal if self.signal is not None else self.code or 0

    def __str__(self) -> str:
        if not self.is_known:
            return "no status known"
        if self.signal is None:
            return f"exit code {self.code}"
        return f"signal {self.signal} ({signal_name(self.signal)})"


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `SIGRTMIN+2` and alike for those without a name of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        beyond = number - signal.SIGRTMIN
        return f"SIGRTMIN+{beyond}" if beyond >= 0 else f"SIG{number}"


class ErrorDetail(Struct, frozen=True, omit_defaults=True):
    """A failed worker's own message about its end, if any."""

    message: Text = ""
    """`<Type>: <text>` of the exception, or empty."""
    traceback: Text = ""
    timestamp: Seconds | None = None
    non_retryable: bool = False


class StackFrame(Struct, frozen=True, array_like=True):
    """One line of a stack."""

    file: Line
    line: Count
    function: Line


class EarlyEnd(Struct, frozen=True, omit_defaults=True):
    """A worker that had ended with exit code 0 while others of its round still ran."""

    rank: Rank
    step: Number | None = None
    """The last step that it reported, if any."""
    host: Host = ""


class Failure(Struct, frozen=True, omit_defaults=True):
    """One worker that did not succeed."""

    node: NameOrNone
    host: Host
    local_rank: Count
    rank: Rank
    role: NameOrNone
    pid: Number
    status: ExitStatus
    observed_at: Seconds
    """On the clock of its node, which counts from the machine's start."""
    error: ErrorDetail = ErrorDetail()
    stderr_tail: Text = ""
    """The last lines that it wrote to stderr."""
    out_of_memory: Text = ""
    """Evidence that the kernel's out-of-memory killer did it, in words, or empty."""
    stopped_by_us: bool = False
    """Whether it only ended because Holdfast stopped it."""
    error_file: Path = ""
    wall_time: Seconds = 0.0
    """Seconds since 1970 on that host's clock: for people, never compared."""
    raised_s: Seconds = 0.0
    """How long before its process ended it had raised its exception: a thread may keep it alive."""
    versions: Line = ""
    """Of packages on its node, where there are several nodes."""
    ended_for: NameOrNone = ""
    """The kind of cause (`core.policy.kinds`) for which we ended it ourselves, if we did."""
    ended_before: Annotated[tuple[EarlyEnd, ...], Meta(max_length=8)] = ()
    """Workers that had ended well by then, the first few: a missing peer may be one."""
    location: Line = ""
    """The location of a stopped worker when its round was to end: "in load at data.py:88"."""
    in_collective: bool = False
    """Whether it waited for other ranks there."""
    brief: bool = False
    """Only the essentials were sent; the node knows more."""


Failures = Annotated[tuple[Failure, ...], Meta(max_length=SLOTS_MOST)]
"""Of one node, or as many of all as one message holds."""


Certainty = Literal["certain", "likely", "unclear"]
"""*Certain*: the kernel, an exit status or an exception shows it. *Likely*: all evidence points
there. *Unclear*: the evidence decides nothing."""
EarlierCertainty = Literal["surely", "most likely", "perhaps"]
"""The same in journals of 0.1."""


class Blame(Struct, frozen=True, omit_defaults=True):
    """The cause of a round's end, as far as known: kind, origin, certainty and reason."""

    kind: NameOrNone
    """Of `core.policy.kinds`."""
    who: Line
    """"rank 1 on host2", or "host2 (ranks 4 to 7)"."""
    certainty: Certainty | EarlierCertainty = field(name="sure")
    why: Line = ""
    """The evidence."""


class Outcome(Struct, frozen=True, omit_defaults=True):
    """How the job ended, in the words that every node prints."""

    verdict: Literal["succeeded", "failed", "interrupted", "not_formed"]
    reason: Text
    """The failure, and why there was no further restart; or what interrupted it."""
    exit_status: ExitStatusOfJob
    """The exit status of `holdfast run`."""
    cause: Failure | None = None
    """The first observed failure, if a worker failed."""
    others: Failures = ()
    """Further failures, and workers that were stopped for it."""
    others_untold: Rank = 0
    """The number of omitted failures, in a job too large to tell every node of all."""
    asked: Literal["", "node", "job"] = ""
    """The party that was asked to leave, if that is how it ended: this node alone, or all."""
    blame: Blame | None = None
    """The cause, if the job did not end well."""

    def __post_init__(self) -> None:
        """Read from outside, a failure must never give status 0."""
        if (self.verdict == "succeeded") != (self.exit_status == 0):
            raise ValueError(f"{self.verdict} with the exit status {self.exit_status}")
