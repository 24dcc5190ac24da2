"""The facts about a machine before a job runs on it. `machine` and `group` judge them.

A fact that could not be read is None, or empty: nobody is blamed for what is not known. Facts go
from node to node, so each has its bounds.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from holdfast.core.protocol.bounds import Count, Host, Line, Number, Path, Seconds

Short = Annotated[str, Meta(max_length=300)]
Few = Meta(max_length=64)


class DiskRoom(Struct, frozen=True):
    """A folder that is written to."""

    use: Short
    """Its purpose: "logs", "meeting", "shared memory", "temporary files"."""
    path: Path
    total_bytes: Number
    free_bytes: Number
    free_files: Number | None = None
    """None where the file system does not count them."""
    problem: Line = ""
    """Why it cannot be written to, if it cannot."""


class Limits(Struct, frozen=True):
    """None: without a limit."""

    open_files: Number | None = None
    open_files_hard: Number | None = None
    processes: Number | None = None
    locked_memory_bytes: Number | None = None
    cgroup_processes: Number | None = None


class Kernel(Struct, frozen=True):
    """Kernel features for holding processes together, and for looking into them."""

    release: Short = ""
    pidfd: bool = True
    subreaper: bool = True
    ptrace_scope: Count | None = None
    py_spy: Short = ""
    """Its path; empty where it is not installed."""


class OwnName(Struct, frozen=True):
    """How this machine's own name resolves here."""

    host: Host
    addresses: Annotated[tuple[Short, ...], Few] = ()
    problem: Line = ""


class Interface(Struct, frozen=True):
    name: Short
    address: Short
    loopback: bool = False


class Way(Struct, frozen=True):
    """The way to the endpoint, as seen from here."""

    endpoint: Short
    addresses: Annotated[tuple[Short, ...], Few] = ()
    is_here: bool | None = None
    """None where the name means nothing here."""
    answers: bool = False
    must_answer: bool = False
    """Whether it is there before the job is: etcd, or another store."""
    problem: Line = ""
    """Why it cannot be reached, or its port cannot be had."""


class MachineFacts(Struct, frozen=True):
    """All of it."""

    names: OwnName
    clock: Seconds
    """Since 1970."""
    python: Short = ""
    holdfast: Short = ""
    torch: Short = ""
    """Empty where it is not installed."""
    kernel: Kernel = Kernel()
    limits: Limits = Limits()
    processors: Count = 1
    memory_bytes: Number | None = None
    memory_free_bytes: Number | None = None
    disks: Annotated[tuple[DiskRoom, ...], Few] = ()
    interfaces: Annotated[tuple[Interface, ...], Meta(max_length=256)] = ()
    accelerators: Count = 0
    accelerator_words: Line = ""
    variables: Annotated[dict[Short, Line], Meta(max_length=256)] = {}
    """Those of the environment that can surprise."""
    way: Way | None = None
    compute_s: Seconds | None = None
    """How long a fixed piece of work took."""


class Wanted(Struct, frozen=True):
    """The job's requirements for each machine."""

    workers: Count = 1
    per_accelerator: bool = False
    """One worker for each accelerator: that many have to be there."""
    several_nodes: bool = False
