"""The planted failures: what is done, and what has to be said of it.

A row is a failure. On one machine the culprit is rank 1 of three; on three hosts it is rank 1 on
host2. What has to be said is the kind of cause, who it was, and words that tell what happened.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import NamedTuple

from .staging import Stage
from .surroundings import (
    Surroundings,
    full_shared_memory,
    little_memory,
    no_surroundings,
    on_others_only,
    small_disk,
)

ONE, THREE = 1, 3
BOTH = (ONE, THREE)
GIVES_UP = ("--join-timeout=3",)
"""Nobody comes to replace what was lost."""


class Planted(NamedTuple):
    """A failure, where it is planted, and what has to be said."""

    name: str
    kind: str
    words: tuple[str, ...] = ()
    """That have to be in the agent's text."""
    program: str = "nothing"
    """What the culprit does (`plain_job.py`)."""
    act: Callable[[Stage], None] | None = None
    """What is done from outside."""
    nodes: tuple[int, ...] = BOTH
    options: tuple[str, ...] = ()
    around: Callable[..., Surroundings] = no_surroundings
    sure: str = "surely"
    whole_node: bool = False
    """It is the host that is named, with its ranks."""
    torchrun: tuple[str, ...] | None = None
    """Words of which torchrun's summary should have one to tell the kind; None: it is not run."""


def kill(stage: Stage) -> None:
    stage.send_worker(signal.SIGKILL)


PLANTED = (
    Planted("an exception", "exception", ("ValueError: the batch is empty",), "exception",
            torchrun=("ValueError",)),
    Planted("an exception in a thread", "exception in a thread", ("shard 7 has no header",),
            "in_a_thread", torchrun=("ValueError",)),
    Planted("sys.exit(3)", "exit code", ("ended with exit code 3",), "exit_code",
            torchrun=("exitcode  : 3",)),
    Planted("a NaN guard that exits", "exit code", ("(last line: loss is NaN at step 3, ending)",),
            "not_a_number", torchrun=("NaN",)),
    Planted("a segmentation fault", "crash", ("SIGSEGV",), "segfault", torchrun=("SIGSEGV",)),
    Planted("an abort", "abort", ("SIGABRT", "Assertion `size > 0' failed"), "abort",
            torchrun=("SIGABRT",)),
    Planted("SIGKILL from outside", "killed from outside", ("SIGKILL",), act=kill,
            torchrun=("SIGKILL",)),
    Planted("a damaged checkpoint", "damaged file", ("pickle data was truncated",),
            "bad_checkpoint", torchrun=("Unpickling",)),
    Planted("too many open files", "too many open files", ("Too many open files",),
            "too_many_files", torchrun=("Too many open files",)),
    Planted("one rank leaves the loop early", "ended too early",
            ("rank 1 on", "had ended with exit code 0"), "ends_too_early",
            sure="most likely", torchrun=("rank      : 1",)),
    Planted("a killed agent", "killed agent", ("all its processes have ended",),
            act=Stage.kill_agent, nodes=(THREE,), options=GIVES_UP, whole_node=True),
    Planted("a killed spawner", "killed spawner", ("the spawner on", "SIGKILL"),
            act=Stage.kill_spawner, options=GIVES_UP, whole_node=True),
    Planted("a lost host", "lost host or network", ("silent",), act=Stage.lose_host,
            nodes=(THREE,), options=("--join-timeout=8",), sure="most likely", whole_node=True),
    Planted("a cut network", "lost host or network", ("silent",), act=Stage.cut,
            nodes=(THREE,), options=("--join-timeout=8",), sure="most likely", whole_node=True),
    Planted("a missing file on one host", "missing file", ("data/shard-0001.bin",),
            "missing_file", nodes=(THREE,), around=on_others_only("data/shard-0001.bin")),
    Planted("a missing module on one host", "missing module", ("tokenizer_of_the_job",),
            "missing_module", nodes=(THREE,), around=on_others_only("tokenizer_of_the_job.py")),
    Planted("a full disk", "full disk", ("No space left on device",), "disk_full",
            around=small_disk, torchrun=("No space left",)),
    Planted("a bus error, with a full /dev/shm", "bus error", ("SIGBUS",), "bus_error",
            around=full_shared_memory, torchrun=("SIGBUS",)),
    Planted("out of memory, in a control group", "out of memory", ("out-of-memory killer",),
            "out_of_memory", around=little_memory, torchrun=("memory",)),
)  # fmt: skip
