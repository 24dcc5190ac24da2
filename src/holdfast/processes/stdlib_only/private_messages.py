"""What agent, spawner and zygote say to each other on their private sockets (see `wire.py`).

Rules
1. A message is a class with annotated fields; its name is its tag. A name that nobody knows, a
   field too many or one that is missing is a mistake of ours, and raises.
2. Requests are in the imperative, answers in the past tense or nouns. Descriptors that go with
   one are said where it is defined.
3. Fields are what `marshal` takes: texts, numbers, lists, tuples and dictionaries of these.

Not `dataclasses` or `typing`: each would cost the spawner's start more than all of this, which is
mostly the making of the classes. Type checkers see dataclasses all the same. Standard library only:
the spawner and the zygote load this file by path, and in a zygote the name of an installed package
(`requests`, say) would be in that one's way.
"""

from __future__ import annotations

import marshal

TYPE_CHECKING = False  # As in `typing`, whose import would cost the spawner's start dearly.
if TYPE_CHECKING:
    from typing import Any, Self, dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda kind: kind


KINDS: dict[str, type[Message]] = {}


@dataclass_transform(kw_only_default=True, eq_default=False)
class NamedFields:
    """Fields, by name; a value in the class makes one optional."""

    def __init__(self, **fields: Any) -> None:
        known = {name for kind in type(self).__mro__[:-1] for name in kind.__annotations__}
        wrong = [name for name in known - fields.keys() if not hasattr(type(self), name)]
        if wrong or not fields.keys() <= known:
            wrong += fields.keys() - known
            raise TypeError(f"{type(self).__name__}: missing or unknown: {', '.join(wrong)}")
        vars(self).update(fields)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"


class Message(NamedFields):
    """One that goes over a socket by itself."""

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls

    def _packed(self) -> dict[str, Any]:
        return vars(self)

    @classmethod
    def _unpacked(cls, fields: dict[str, Any]) -> Self:
        return cls(**fields)

    def to_bytes(self) -> bytes:
        return marshal.dumps((type(self).__name__, self._packed()))

    @staticmethod
    def from_bytes(body: bytes) -> Message:
        name, fields = marshal.loads(body)
        if name not in KINDS:
            raise TypeError(f"no message is called {name}")
        return KINDS[name]._unpacked(fields)


# From the agent to the spawner: processes.


class Execute(Message):
    """Start a command. Descriptors: stdin, stdout, stderr, then a tether, then those to keep."""

    name: str
    argv: list[str]
    env: dict[str, str]
    cpus: tuple[int, ...] | None = None
    keep: tuple[int, ...] = ()
    """The numbers at which the last descriptors are to be found."""


class ForkCall(Message):
    """Fork the spawner itself for a call that it knows by this name (`elastic/multiprocessing`).

    Descriptors: stdin, stdout, stderr, and the socket for the reply.
    """

    name: str
    cpus: tuple[int, ...] | None
    own_streams: list[int]


class WarmWorker(NamedFields):
    """One of those that a zygote is to fork."""

    name: str
    kind: str
    target: str
    interpreter: tuple[str, ...]
    command: list[str]
    argv: list[str]
    env: dict[str, str]
    """Only what differs from the environment that all have in common."""
    learns: bool
    """Whether it tells what it imports."""
    descriptors: int
    cpus: tuple[int, ...] | None
    keep: tuple[int, ...] = ()


class InCommon(NamedFields):
    """What is the same for all of them."""

    shared_env: dict[str, str]
    spawner: int
    error_writer: str = ""


class Fork(Message):
    """Have the zygote fork these. Descriptors: those of `Execute`, of one after the other.

    The spawner passes it on as it is.
    """

    common: InCommon
    workers: list[WarmWorker]

    def _packed(self) -> dict[str, Any]:
        return {"common": vars(self.common), "workers": [vars(one) for one in self.workers]}

    @classmethod
    def _unpacked(cls, fields: dict[str, Any]) -> Self:
        workers = [WarmWorker(**one) for one in fields["workers"]]
        return cls(common=InCommon(**fields["common"]), workers=workers)


class Signal(Message):
    number: int
    names: list[str]
    group: bool = False
    """Their process groups get it, and `GroupsGone` is said once all of these are empty."""
    wakes: bool = True
    """Whether stopped processes are continued, so that they handle it now."""


class Kill(Message):
    """Kill all but the zygote, and say `EverythingGone` with the same round."""

    round: int = 0


class ReportStuck(Message):
    pass


class Shutdown(Message):
    pass


class StopAndKillAt(Message):
    """Times on the clock of `linux.now`."""

    stop_at: float
    kill_at: float


class HoldTethers(Message):
    """Descriptors: all tethers to hold from now on."""


# From the agent to the spawner: the zygote.


class Preload(Message):
    """Have this imported ahead, by the zygote that waits for that, or a fresh one.

    The spawner passes it on as it is.
    """

    interpreter: str
    env: dict[str, str]
    steps: tuple[str, ...]
    late: tuple[str, ...]
    avoid: tuple[str, ...]
    under: dict[str, tuple[str, ...]]
    """For some of what is late: what the program was seen to set before it came to it."""
    trusted: tuple[str, ...]
    per_worker_names: tuple[str, ...]
    always_set: tuple[str, ...]
    program_folder: str | None
    own_folders: list[str]
    beside: bool = False
    options: tuple[str, ...] | None = None
    """For functions: the interpreter's own; it is then started in `env`."""
    sys_path: tuple[str, ...] | None = None
    """For functions: the caller's."""
    not_own: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    """Variables that the program may set beside the steps, by its text."""
    in_order: tuple[str, ...] = ()
    """Of what is late: what it imports before it sets any of them."""
    files: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """What was read to know all this, with when it was changed and how long it is."""


class CloseZygote(Message):
    pass


class SigkillZygote(Message):
    pass


# From the spawner to the agent.


class SpawnerIsUp(Message):
    pid: int
    is_subreaper: bool
    has_pidfd: bool


class OfWorker(Message):
    """Something has become of one process."""

    name: str


class Started(OfWorker):
    pid: int


class Exited(OfWorker):
    pid: int
    status: int
    """The exit code, or minus the signal's number."""


class ForkFailed(OfWorker):
    """It could not be made."""

    error: str


class EverythingGone(Message):
    """Nothing is left of what was to be killed: for the last `Kill`, or at the end of a lease."""

    round: int = 0
    """That of the `Kill`; 0 where there was none."""


class GroupsGone(Message):
    pass


class Stuck(Message):
    processes: list[str]
    forbidden: list[str]
    """Others, that the spawner may not signal."""


class LeaseOver(Message):
    """Workers have been sent SIGTERM for it."""


# From the zygote to the spawner, which passes all but the first on to the agent.


class Forked(Message):
    name: str
    pid: int


class OfZygote(Message):
    """Something has become of a zygote."""

    reason: str = ""
    """Why it is no better than that; empty where there is nothing to say."""
    took_s: float = 0.0
    beside: bool = False
    """Whether it is the one beside the one that serves, which the spawner knows."""


class Preloaded(OfZygote):
    steps: tuple[str, ...]
    late: tuple[str, ...]
    has_torch: bool


class StepRejected(OfZygote):
    step: str
    cost_s: float


class LateUnfit(OfZygote):
    reasons: dict[str, str]
    """By module."""


class Unsuitable(OfZygote):
    """No zygote will do for this program."""


class ZygoteEnded(OfZygote):
    """Said by the spawner."""
