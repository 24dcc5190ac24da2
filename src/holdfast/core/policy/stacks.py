"""The locations of a job's workers, in words: equal stacks together, the outlier named.

Rules
1. A worker's location is the innermost line of the user's own code; its activity is the innermost
   function that was called from there. Meaningless wrappers are skipped. Where the user's
   function called a library that is no collective, both are named.
2. Workers at the same location are one group, whatever else differs in their stacks. The largest
   group comes first; of groups that are equally large, the one with the lowest rank.
3. In a small group each rank is named, with its node where there are several: a rank that is not
   with the others is most often the one that they wait for.
4. The kernel's state of a worker (it waits for a file, it is stopped) is part of its location:
   ranks that wait in the same function for different things are not alike.
5. Ranks in a collective wait for the others, also where the wait is hidden in a function of another
   name (`_HOMES`: DDP's all-reduce runs inside `backward`). A lock, a sleep, a queue or a data
   loader is no collective, nor is a socket of the standard library's. A rank in none, while others
   are in one, is the outlier; where all are or none is, the only rank alone at its location.
   Where two are alone, there is no outlier.

The text of a stack is foreign (a program may have any file names): it is read line by line, other
lines are skipped, and all of it is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from holdfast.core.protocol.messages import FrameGroup
from holdfast.core.protocol.model import StackFrame as StackFrame

FRAMES_MOST = 100
"""More than `faulthandler` writes of one thread."""
GROUPS_TOLD = 6
NAMED_MOST = 4
"""Ranks of a group that are named one by one; of more, only the number."""

SOCKET = "waiting for a socket"
"""The kernel's state of a worker that waits for a peer in a system call."""
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?),? in (?P<function>.*)')
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-fA-F]+")
_LIBRARY = re.compile(r"/site-packages/|/dist-packages/|/lib(64)?/python3[^/]*/|^<")
_PACKAGE = re.compile(r"/site-packages/|/dist-packages/")
_STANDARD = re.compile(
    r"/lib(?:64)?/python3[^/]*/(?:.*/)?(?P<module>(?!__init__\.)\w+)(?:/__init__)?\.py$"
)
_OWN = re.compile(r"/holdfast/(processes|worker)/")
_EMPTY_NAMES = frozenset(
    {"wrapper", "wrapped", "inner", "_fn", "fn", "__call__", "decorate_context", "<lambda>",
     "_wrapped_call_impl", "_call_impl", "wait_for", "_wait", "__exit__", "__enter__"}
)  # fmt: skip
_UNTOLD = frozenset({"<module>", "<lambda>"})
"""Unnamed functions of the user's own."""
_COLLECTIVES = frozenset(
    {"all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all",
     "all_to_all_single", "barrier", "monitored_barrier", "broadcast", "broadcast_object_list",
     "gather", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send", "recv",
     "irecv", "wait", "synchronize", "init_process_group",
     "Allreduce", "allreduce", "Barrier", "Recv", "Bcast"}
)  # fmt: skip
"""Functions in which a worker does nothing but wait for other ranks."""
_WAITING = _COLLECTIVES | {"acquire", "join", "get", "select", "poll", "accept", "sleep", "result"}
"""Functions in which a worker does nothing but wait."""


class _Home(Struct, frozen=True):
    """A part of PyTorch in which a wait is hidden."""

    path: str
    function: str
    """Empty for all of the file or folder."""
    shown: str
    collective: bool = True


_HOMES = (
    _Home("/torch/autograd/graph.py", "_engine_run_backward", "backward"),
    _Home("/torch/nn/parallel/distributed.py", "", "DDP"),
    _Home("/torch/distributed/fsdp/", "", "FSDP"),
    _Home("/torch/distributed/pipelining/", "", "pipeline"),
    _Home("/torch/distributed/distributed_c10d.py", "init_process_group", "init_process_group"),
    _Home("/torch/distributed/distributed_c10d.py", "new_group", "new_group"),
    _Home("/torch/distributed/distributed_c10d.py", "split_group", "split_group"),
    _Home("/torch/utils/data/dataloader.py", "", "DataLoader", collective=False),
)
_PASSED_ON = re.compile(r"/torch/(?:distributed/|_ops\.py$|utils/_contextlib\.py$)")
"""Frames between a hidden wait and the wait itself, beside the standard library's."""
_HIDDEN = frozenset(home.shown for home in _HOMES if home.collective)


class WorkerStack(Struct, frozen=True):
    """One worker's location at one moment."""

    rank: int
    node: str = ""
    """Empty where there is only one."""
    frames: tuple[StackFrame, ...] = ()
    """Of its main thread, innermost first; empty where it gave none."""
    kernel: str = ""
    """The kernel's state of it, if notable: "waiting for /data/train.bin"."""

    @property
    def location(self) -> StackLocation:
        """Rule 1."""
        frames = [frame for frame in self.frames if not _OWN.search(frame.file)]
        if not frames:
            return StackLocation("", "", self.kernel)
        last = next((n for n, frame in enumerate(frames) if not _LIBRARY.search(frame.file)), None)
        inside = frames if last is None else frames[: last + 1]
        at = inside[0] if last is None else frames[last]
        where = f"{_short(at.file.rpartition('/')[2])}:{at.line}"
        location = StackLocation(_short(_function_of(inside)), where, self.kernel)
        if last is None or location.in_collective or at.function in {location.function, *_UNTOLD}:
            return location
        return StackLocation(location.function, f"{where} ({_short(at.function)})", self.kernel)


class StackLocation(Struct, frozen=True):
    """The common location of a group."""

    function: str
    where: str
    """Of the user's own code, where there is any: "train.py:41"."""
    kernel: str

    @property
    def waits(self) -> bool:
        """Whether it waits, by the name of the function, or because it reads from a socket."""
        return self.function.rpartition(".")[2] in _WAITING or self.kernel == SOCKET

    @property
    def in_collective(self) -> bool:
        """Whether it waits for other ranks, by the name of the function (rule 5)."""
        return self.function in _COLLECTIVES | _HIDDEN

    @property
    def may_be_in_collective(self) -> bool:
        """Whether it may wait for them unseen: in native code, over a socket."""
        return self.in_collective or (self.kernel == SOCKET and "." not in self.function)

    def shortly(self) -> str:
        """As part of a sentence: "in load_batch at data.py:88"."""
        return f"in {self.function} at {self.where}" if self.function else self.kernel

    def in_words(self, is_one: bool) -> str:
        """What follows the names of the ranks."""
        be = "is" if is_one else "are"
        if not self.function:
            none = "gives no stack" if is_one else "give no stack"
            return f"{be} {self.kernel}" if self.kernel else none
        if self.waits or self.may_be_in_collective:
            be = "waits" if is_one else "wait"
        about = f", {self.kernel}" if self.kernel else ""
        return f"{be} in {self.function} at {self.where}{about}"


class StackGroup(Struct, frozen=True):
    """Workers at the same location, by rank."""

    location: StackLocation
    stacks: tuple[WorkerStack, ...]

    def in_words(self) -> str:
        ranks = [stack.rank for stack in self.stacks]
        return f"{_named(self.stacks)} {self.location.in_words(len(ranks) == 1)}"


def read_stack(text: str) -> tuple[StackFrame, ...]:
    """The main thread of what `faulthandler` wrote of all threads: the last one in it."""
    frames: list[StackFrame] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            frames = []
        elif (found := _FRAME.fullmatch(line)) and len(frames) < FRAMES_MOST:
            frames.append(_frame_of(found))
    return tuple(frames)


def read_traceback(text: str) -> tuple[StackFrame, ...]:
    """The frames of an exception, innermost first: of the last one, where one followed another."""
    _, _, last = text.rpartition("Traceback (most recent call last):")
    found = [match for line in last.splitlines() if (match := _FRAME.fullmatch(line))]
    return tuple(_frame_of(match) for match in reversed(found[-FRAMES_MOST:]))


def location_of_error(traceback: str) -> StackLocation | None:
    """The location where an exception was raised; None if not known."""
    frames, _, _ = traceback.rpartition("\n")
    return _location_in(frames)


@lru_cache(maxsize=64)
def _location_in(frames: str) -> StackLocation | None:
    """Of thousands of ranks most have the same frames."""
    found = read_traceback(frames)
    return WorkerStack(0, frames=found).location if found else None


def _frame_of(found: re.Match[str]) -> StackFrame:
    number = found["line"]
    at = int(number) if number.isdecimal() and len(number) < 10 else 0
    return StackFrame(found["file"], at, found["function"])


def is_past_program(text: str) -> bool:
    """Whether the main thread in such a text has left the program: no module's code is in it.

    Then it waits for threads, or runs functions registered with `atexit`. Of a stack that was too
    deep to be written as a whole this cannot be known.
    """
    frames = read_stack(text)
    is_whole = any(map(_THREAD.match, text.splitlines())) and len(frames) < FRAMES_MOST
    return is_whole and all(frame.function != "<module>" for frame in frames)


def without_own_frames(text: str) -> str:
    """The same text without the lines of Holdfast below a warm worker's program."""
    return "\n".join(line for line in text.splitlines() if not _OWN.search(line))


def grouped(stacks: Iterable[WorkerStack]) -> tuple[StackGroup, ...]:
    """Group workers by location (rule 2)."""
    return grouped_by((stack.location, stack) for stack in stacks)


def grouped_by(found: Iterable[tuple[StackLocation, WorkerStack]]) -> tuple[StackGroup, ...]:
    """The same for known locations: nodes send these, and not all frames."""
    locations: dict[StackLocation, list[WorkerStack]] = {}
    for location, stack in sorted(found, key=lambda one: one[1].rank):
        locations.setdefault(location, []).append(stack)
    groups = [StackGroup(location, tuple(stacks)) for location, stacks in locations.items()]
    return tuple(sorted(groups, key=lambda group: (-len(group.stacks), group.stacks[0].rank)))


def odd_one(groups: tuple[StackGroup, ...]) -> WorkerStack | None:
    """The rank that others wait for, as far as their stacks show (rule 5)."""
    absent = not_in_collective(groups)
    if absent and len(absent) < len(groups):
        return min(absent, key=lambda group: (len(group.stacks), group.stacks[0].rank)).stacks[0]
    alone = [group for group in groups if len(group.stacks) == 1]
    return alone[0].stacks[0] if len(alone) == 1 and len(groups) > 1 else None


def not_in_collective(groups: tuple[StackGroup, ...]) -> list[StackGroup]:
    """Ranks that do not wait for others, as far as all locations show (rule 5)."""
    if any(group.location.in_collective for group in groups):
        return [group for group in groups if not group.location.in_collective]
    return [group for group in groups if not group.location.may_be_in_collective]


def in_words(groups: tuple[StackGroup, ...]) -> str:
    """One sentence for all of them."""
    if not groups:
        return "no worker runs"
    told = "; ".join(group.in_words() for group in groups[:GROUPS_TOLD])
    left = sum(len(group.stacks) for group in groups[GROUPS_TOLD:])
    return f"{told}; {left} more are each somewhere else" if left else told


def _function_of(inside: list[StackFrame]) -> str:
    """A worker's activity, from the frames below its own code, innermost first."""
    for frame in inside:
        for home in _HOMES:
            if home.path in frame.file and home.function in ("", frame.function):
                return home.shown
        if not (_is_standard(frame) or _PASSED_ON.search(frame.file)):
            break
    telling = [frame for frame in inside if frame.function not in _EMPTY_NAMES]
    frame = (telling or inside)[0]
    standard = _STANDARD.search(frame.file) if _is_standard(frame) else None
    return f"{standard['module']}.{frame.function}" if standard else frame.function


def _is_standard(frame: StackFrame) -> bool:
    return bool(_STANDARD.search(frame.file)) and not _PACKAGE.search(frame.file)


def told_location(location: FrameGroup) -> StackLocation:
    """The location that a node reported."""
    return StackLocation(location.function, location.where, location.kernel)


def _named(stacks: tuple[WorkerStack, ...]) -> str:
    if len(stacks) == 1:
        return f"rank {stacks[0].rank}{_on(stacks[0].node)}"
    if len(stacks) > NAMED_MOST:
        return f"{len(stacks)} ranks"
    names = [f"{stack.rank}{_on(stack.node)}" for stack in stacks]
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def _on(node: str) -> str:
    return f" on {node}" if node else ""


def _short(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:79]}…"
