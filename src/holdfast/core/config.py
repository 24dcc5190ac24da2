"""The one configuration of a job: frozen, validated, the only home of defaults.

It is parsed once, at an edge (the command line, `holdfast.launch`), and handed inward.
Nothing below reads the environment of the process to find a setting.

Rules
- Every default is written here and nowhere else.
- `validate()` refuses combinations that cannot work, with a sentence and a hint.
- Durations are seconds and end in `_s`.
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct, field

from holdfast.core.errors import UsageError
from holdfast.core.model import Endpoint

DEFAULT_PORT = 29400
"""Where an embedded coordinator listens, unless the endpoint names another port."""
ETCD_PORT = 2379
STATIC_MASTER = Endpoint("127.0.0.1", 29500)

ProgramKind = Literal["script", "module", "command", "run_path", "function"]


class Program(Struct, frozen=True):
    """What the workers run."""

    kind: ProgramKind
    target: str
    """Script path, module name, command, or the file with the pickled function."""
    arguments: tuple[str, ...] = ()
    interpreter: str = ""
    """The Python that runs it; empty for plain commands."""


class RestartPolicy(Struct, frozen=True):
    """When a failed round is tried again (see `core.restarts`)."""

    max_restarts: int = 0
    window_s: float | None = None
    backoff_first_s: float = 1.0
    backoff_max_s: float = 60.0
    same_cause_limit: int = 5
    progress_after_s: float = 60.0
    non_retryable_exit_codes: tuple[int, ...] = ()


class Timeouts(Struct, frozen=True):
    """How long each wait may take."""

    shutdown_s: float = 30.0
    """Grace between the stop signal and SIGKILL, on every stop path."""
    unkillable_s: float = 10.0
    """How long after SIGKILL a process may still be there before it counts as stuck."""
    preload_s: float = 60.0
    """How long the preloading of modules may take before workers start cold."""
    join_s: float = 600.0
    last_call_s: float = 5.0


class WarmStart(Struct, frozen=True):
    """Whether workers are forked from a process with the heavy imports done."""

    enabled: bool = True
    preload: tuple[str, ...] = ()


class Output(Struct, frozen=True):
    """Where the workers' output goes. Streams: 1 stdout, 2 stderr, 3 both, 0 neither."""

    log_dir: str | None = None
    """None makes a temporary directory; `os.devnull` writes nothing at all."""
    redirects: dict[int, int] = field(default_factory=dict)
    tee: dict[int, int] = field(default_factory=dict)
    redirects_default: int = 0
    tee_default: int = 0
    local_ranks_filter: tuple[int, ...] | None = None
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()
    prefix_template: str | None = None

    def redirected(self, local_rank: int) -> int:
        return self.redirects.get(local_rank, self.redirects_default)

    def teed(self, local_rank: int) -> int:
        return self.tee.get(local_rank, self.tee_default)


class Rendezvous(Struct, frozen=True):
    """How the nodes of the job find each other."""

    backend: str = "holdfast"
    endpoint: str = ""
    options: dict[str, str] = field(default_factory=dict)
    standalone: bool = False


DEFAULT_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


class JobConfig(Struct, frozen=True):
    """Everything that was decided before the job started."""

    run_id: str
    program: Program
    slots: int = 1
    role: str = "default"
    min_nodes: int = 1
    max_nodes: int = 1
    node_rank: int | None = None
    master_address: str | None = None
    master_port: int | None = None
    local_address: str | None = None
    rendezvous: Rendezvous = Rendezvous()
    restarts: RestartPolicy = RestartPolicy()
    timeouts: Timeouts = Timeouts()
    warm: WarmStart = WarmStart()
    output: Output = Output()
    signals: tuple[str, ...] = DEFAULT_SIGNALS
    start_method: str = "spawn"
    monitor_interval_s: float = 0.1
    event_log_handler: str = "null"
    logs_specs: str | None = None
    numa_binding: str | None = None
    virtual_local_rank: bool = False
    worker_store: bool = False
    """Rank 0 serves PyTorch's store itself, instead of a process of ours."""

    def validate(self) -> JobConfig:
        """Return self, or raise `UsageError` naming the first thing that cannot work."""
        _require(
            self.slots >= 1,
            "the number of workers per node must be at least 1",
            "--nproc-per-node takes a positive number, cpu, gpu, xpu or auto",
        )
        _require(
            self.min_nodes >= 1,
            "the number of nodes must be at least 1",
            "write --nnodes 2, or --nnodes 1:4 for an elastic job",
        )
        _require(
            self.max_nodes >= self.min_nodes,
            f"at most {self.max_nodes} nodes is less than at least {self.min_nodes}",
            "write the smaller number first: --nnodes MIN:MAX",
        )
        _require(
            self.restarts.max_restarts >= 0,
            "--max-restarts cannot be negative",
            "0 means that the first failure ends the job",
        )
        _require(bool(self.role), "the role's name is empty", "--role trainer, for instance")
        _require(
            self.master_port is None or 0 <= self.master_port <= 65535,
            f"{self.master_port} is not a port",
            "ports go from 0 to 65535",
        )
        _require(
            self.restarts.same_cause_limit >= 0,
            "same_cause_limit cannot be negative",
            "0 means that alike failures are never counted",
        )
        for name, value in _durations(self.timeouts) + _durations(self.restarts):
            _require(
                math.isfinite(value) and value >= 0,
                f"{name} must be zero or more seconds",
                "write a plain number such as 30 or 2.5",
            )
        return self


def _durations(settings: Timeouts | RestartPolicy) -> list[tuple[str, float]]:
    names = [name for name in settings.__struct_fields__ if name.endswith("_s")]
    values = [(name, getattr(settings, name)) for name in names]
    return [(name, value) for name, value in values if value is not None]


def _require(holds: bool, message: str, hint: str) -> None:
    if not holds:
        raise UsageError(message, hint)
