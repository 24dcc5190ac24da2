"""The two contenders: the same flags, the same environment, the same programs."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from msgspec import Struct, field

from benchmarks.figures import HOLDFAST, TORCHRUN

PROGRAMS = Path(__file__).parent / "programs"
SETTINGS = ("BENCH_", "HOLDFAST_", "OMP_", "PET_", "PYTHON", "STACK_", "TORCH")
"""Variables that could favour one of the two. What a shell happens to have set is no
condition that another run could repeat."""
UNSHARED_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""torchrun at its best: without it, restarted workers may read the addresses of dead ones."""


class Meeting(Struct, frozen=True):
    """Where the nodes of a job meet, and how many of them."""

    port: int
    nodes: str
    settings: dict[str, str]

    @property
    def job(self) -> str:
        return f"bench-{self.port}"


class Launcher(Struct, frozen=True):
    """A launcher as it is called."""

    name: str
    words: tuple[str, ...]
    """The command and what always follows it."""
    variables: dict[str, str] = field(default_factory=dict)
    backend: str = "c10d"
    """Through which several nodes meet."""

    def command(self, workers: int, program: str, *options: str) -> list[str]:
        """The command line for a program of `programs/`; its arguments come after this."""
        number = ["--nproc-per-node", str(workers)]
        return [*self.words, "--standalone", *number, *options, str(PROGRAMS / program)]

    def node_command(self, meeting: Meeting, program: str, *options: str) -> list[str]:
        """The command line of one node of several, with one worker."""
        where = ("--rdzv-backend", self.backend, "--rdzv-endpoint", f"127.0.0.1:{meeting.port}")
        named = ("--rdzv-id", meeting.job, "--local-addr", "127.0.0.1")
        settings = ",".join(f"{name}={value}" for name, value in meeting.settings.items())
        size = ("--nnodes", meeting.nodes, "--nproc-per-node", "1", "--max-restarts", "3")
        words = [*self.words, *size, *where, *named, "--rdzv-conf", settings, *options]
        return [*words, str(PROGRAMS / program)]

    def environment(self, scratch: Path) -> dict[str, str]:
        """What it runs in. One thread per worker is what both would give them anyway."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
        return {**kept, "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch), **self.variables}


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _installed(command: str) -> str:
    """The command that is installed beside the interpreter that runs this."""
    return str(Path(sys.executable).parent / command)


holdfast = Launcher(HOLDFAST, (_installed("holdfast"), "run"))
torchrun = Launcher(TORCHRUN, (_installed("torchrun"),), UNSHARED_STORE)
torchrun_by_default = Launcher(f"{TORCHRUN} by default", (_installed("torchrun"),))
torchrun_with_shared_store = Launcher(TORCHRUN, (_installed("torchrun"),))
torchrun_with_holdfast = Launcher(HOLDFAST, (_installed("torchrun"),), backend="holdfast")
"""The stock launcher, which meets through us."""
CONTENDERS = (holdfast, torchrun)
