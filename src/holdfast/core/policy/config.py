"""The one configuration of a job: frozen, validated, the only home of defaults.

It is parsed once, at an edge (the command line, `holdfast.launch`), and handed inward.
Nothing below reads the environment of the process to find a setting.

Rules
- Every default is written here and nowhere else.
- A value was checked by its parser (`core.policy.texts`). `validate()` refuses what a caller of the
  API may have set, and combinations that cannot work, with a sentence and a hint; how
  the times have to relate to each other is in `core.policy.timing`.
- Durations are seconds and end in `_s`.
- No secret is in here: a configuration is written to the journal.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from holdfast.core.policy import timing
from holdfast.core.protocol.bounds import COUNT_MOST, HOST_MOST, NAME_MOST, SLOTS_MOST
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Endpoint

DASHBOARD_PORT = 8470
DEFAULT_PORT = 29400
"""Where an embedded coordinator listens, unless the endpoint names another port."""
ETCD_PORT = 2379
STATIC_MASTER = Endpoint("127.0.0.1", 29500)
EMBEDDED_BACKENDS = ("holdfast", "c10d")
"""Backends in which the endpoint's host carries the coordinator."""
STATIC_BACKEND = "static"
"""Embedded too, with fixed ranks: the node of rank 0 carries the coordinator."""
ETCD_BACKENDS = ("etcd", "etcd-v2")
BACKENDS = (*EMBEDDED_BACKENDS, *ETCD_BACKENDS, STATIC_BACKEND, "file")
BESIDE_THE_MASTER, UNPRIVILEGED = 100, 1024

BUILT_IN_CHECK = "built in"
HangPolicy = Literal["off", "warn", "restart"]
ProgramKind = Literal["script", "module", "command", "run_path", "function"]


def port_beside(master_port: int) -> int:
    """Where a static job's coordinator listens: 29400 for a master at 29500.

    Beside the master's, so that jobs with masters of their own on one host do not clash.
    """
    below = master_port - BESIDE_THE_MASTER
    return below if below >= UNPRIVILEGED else master_port + BESIDE_THE_MASTER


class Program(Struct, frozen=True):
    """The workers' program."""

    kind: ProgramKind
    target: str
    """Script path, module name, command, or the file with the pickled function."""
    arguments: tuple[str, ...] = ()
    interpreter: str = ""
    """The Python that runs it; empty for plain commands."""


class RestartPolicy(Struct, frozen=True):
    """When a failed round is tried again (see `core.policy.restarts`)."""

    max_restarts: int = 0
    window_s: float | None = None
    backoff_first_s: float = 1.0
    backoff_max_s: float = 60.0
    same_cause_limit: int = 5
    progress_after_s: float = 60.0
    non_retryable_exit_codes: tuple[int, ...] = ()
    fruitless_rounds_limit: int = 30
    """Rounds without progress in a row, whatever ended them, that end the job; 0: never."""


class Quarantine(Struct, frozen=True):
    """When a host on which rounds keep failing is quarantined (see `core.policy.quarantine`)."""

    after: int = 3
    """Rounds in a row that failed there; 0: never."""
    first_s: float = 300.0
    """The first quarantine; each further one is twice as long."""
    longest_s: float = 3600.0
    forget_s: float = 3600.0
    """After this long, one quarantine is forgotten."""


class Timeouts(Struct, frozen=True):
    """How long each wait may take."""

    shutdown_s: float = 30.0
    """Grace between the stop signal and SIGKILL, on every stop path."""
    unkillable_s: float = 10.0
    """How long after SIGKILL a process may still be there before it counts as stuck."""
    preload_s: float = 60.0
    """How long preloading modules may take before workers start cold."""
    join_s: float = 600.0
    """How long the job may have fewer nodes than it needs before it fails."""
    last_call_s: float = 5.0
    """How long the very first round waits for more nodes once there are enough."""
    scale_up_delay_s: float = 1.0
    """How long a newcomer waits for others before the running round is ended for them."""
    min_round_s: float = 2.0
    """No round is ended for a newcomer sooner; doubled by each fruitless round before it."""
    min_round_max_s: float = 60.0
    drain_s: float = 5.0
    """How long a leaving node waits for a replacement, if too few would be left."""
    save_s: float = 20.0
    """How long workers that listen (`holdfast.draining`) have to save before their round ends."""
    notice_s: float | None = None
    """How long after it was asked to leave this node is killed, if known; saving,
    waiting for a replacement and stopping then fit into it (`core.policy.timing`)."""
    close_s: float = 30.0
    """How long the coordinator's host waits at the end for nodes to take the outcome."""
    dial_s: float = 5.0
    """How long one attempt to reach the endpoint's host may take; less where the lease is short
    (`core.policy.timing.one_dial_s`), and so with the next."""
    redial_s: float = 2.0
    """How long one attempt to reach all possible leaders may take: the lease of a
    running round does not wait much longer."""
    seek_s: float = 6.0
    """How long finding and reaching the coordinator may take before it is tried anew."""
    check_s: float = 60.0
    """How long the command that checks a node (`--check`) may take."""
    resign_s: float = 3.0
    """How long a finished node waits until another one coordinates."""


class Leases(Struct, frozen=True):
    """How loss is detected, and how two rounds are prevented from running at once.

    The letters are those of the formulas in `core.policy.timing`.
    """

    lease_s: float = 10.0
    """L: how long a node may run workers after the last heartbeat that was answered."""
    heartbeat_s: float = 2.0
    """h: how often a node sends a heartbeat."""
    stop_reserve_s: float = 2.0
    """r: how long before the end of its lease a node asks its workers to end."""
    kill_margin_s: float = 2.0
    """K: the time within which SIGKILL is assumed to take effect."""
    drift: float = 0.01
    """d: by how much the clocks of two hosts may differ in rate."""
    suspect_s: float = 5.0
    """The silence of a node after which the round ends."""
    reconnect_s: float = 1.0
    """How long a node whose connection broke may take to come back before the round ends."""
    tether_s: float = 0.3
    """How long after the end of its tether a node counts as gone."""
    term_s: float = 3.0
    """T: how long a coordinator may speak after its last successful write."""
    takeover_s: float = 4.0
    """E: how long others wait without a sign of the coordinator before they take over."""
    hold_s: float = 60.0
    """H: how long a coordinator keeps a running round alive without its register."""

    @property
    def gone_after_s(self) -> float:
        """L': the silence after which no worker of a node can be running."""
        return self.lease_s * (1 + self.drift) + self.kill_margin_s


class SecuritySettings(Struct, frozen=True):
    """The paths of the secrets, which are never in the configuration themselves."""

    token_file: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_authority: str | None = None


class DashboardSettings(Struct, frozen=True):
    """Where a node serves the page of its job (`admin.dashboard`)."""

    port: int | None = None
    """None: nowhere; 0: any that is free."""
    host: str = "127.0.0.1"
    """A numeric address of this machine."""


class HealthSettings(Struct, frozen=True):
    """Where a node answers health probes (`agent.health_port`)."""

    port: int | None = None
    """None: nowhere; 0: any that is free."""
    host: str = ""
    """A numeric address of this machine; empty: all of them."""


class WarmStart(Struct, frozen=True):
    """Whether workers are forked from a process with the heavy imports done."""

    enabled: bool = True
    preload: tuple[str, ...] = ()


EXIT_NOTICE_S = 30.0
"""A worker that has not exited, though others finished well, is reported after this long."""


class Oversight(Struct, frozen=True):
    """The monitoring of running workers."""

    stacks: bool = True
    """Whether workers can be asked where they are (`processes.stdlib_only.stack_handler`)."""
    hang: HangPolicy = "warn"
    """The action for a job that is stalled (`core.policy.hangs`)."""
    hang_after_s: float = 300.0
    """How long workers may stall at least, whatever their earlier waits."""
    start_s: float | None = None
    """How long after its start a worker's first sign, a phase or a step, may take."""
    first_step_s: float | None = None
    """How long after its start a worker's first step may take, if limited."""
    hang_unreported_s: float = 1800.0
    """The same for workers that never report a step."""
    straggler_after_s: float = 90.0
    """How long a worker has to be slow to be reported (`core.policy.worker_progress`)."""
    run_s: float | None = None
    """How long the whole run may take, from the first round on, if there is a limit."""
    file_timer: bool = False
    """Whether PyTorch's file timer is served (`processes.monitoring.file_timer`)."""
    exit_s: float | None = None
    """How long a worker may take to exit once others have finished well, if there is a limit."""
    stuck_s: float = 0.0
    """How long a worker may be stuck in the kernel before it counts as failed; 0: never."""

    @property
    def hang_check_s(self) -> float:
        """How often workers are checked for it."""
        return min(60.0, self.hang_after_s / 5)

    @property
    def exit_notice_s(self) -> float | None:
        """How long until it is reported, if at all (`core.features.exits`)."""
        if self.hang == "off":
            return None
        limit_s = self.hang_after_s if self.exit_s is None else self.exit_s / 2
        return min(EXIT_NOTICE_S, limit_s)

    @property
    def has_limits(self) -> bool:
        return any(limit is not None for limit in (self.start_s, self.first_step_s, self.run_s))

    @property
    def checks_for_stuck(self) -> bool:
        """Whether workers are checked for being held (`core.policy.stuck`)."""
        return self.hang != "off" or self.stuck_s > 0

    @property
    def stuck_check_s(self) -> float:
        """The interval of these checks."""
        return min(self.hang_check_s, self.stuck_s / 4) if self.stuck_s else self.hang_check_s


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
    quiet: bool = False
    """Of our own lines only failures and the report."""
    verbose: bool = False
    json: bool = False
    """Our own lines are one object each (`observe.story`)."""
    timestamps: bool = False
    outcome_file: str | None = None
    """The file for the job's outcome, once it is decided, for the node's scheduler."""

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

    @property
    def is_embedded(self) -> bool:
        """Whether the endpoint's host carries the coordinator and its record."""
        if self.backend == STATIC_BACKEND:
            return True
        return self.backend in EMBEDDED_BACKENDS and "store_type" not in self.options


DEFAULT_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
DRAIN_SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2")
"""Signals by which schedulers ask for a machine back: Slurm's `--signal`, submitit's USR2."""


class JobConfig(Struct, frozen=True):
    """All that was decided before the job started."""

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
    topology_key: str = ""
    """Where this node is in the network; nodes with neighbouring keys get neighbouring ranks."""
    is_host: bool | None = None
    """Whether this node is the coordinator; None: find out from the endpoint."""
    snapshot_dir: str | None = None
    """Where the coordinator's host keeps its record; None: the shell chooses."""
    rendezvous: Rendezvous = Rendezvous()
    restarts: RestartPolicy = RestartPolicy()
    quarantine: Quarantine = Quarantine()
    timeouts: Timeouts = Timeouts()
    leases: Leases = Leases()
    security: SecuritySettings = SecuritySettings()
    warm: WarmStart = WarmStart()
    dashboard: DashboardSettings = DashboardSettings()
    health: HealthSettings = HealthSettings()
    otel: bool = False
    """Whether rounds and recoveries are exported to OpenTelemetry."""
    output: Output = Output()
    oversight: Oversight = Oversight()
    signals: tuple[str, ...] = DEFAULT_SIGNALS
    drain_signals: tuple[str, ...] = DRAIN_SIGNALS
    """The ones that ask the node to leave when it suits the job, instead of at once."""
    drain_worker_signal: str | None = None
    """The signal that all workers of the job get to save, if any."""
    start_method: str = "spawn"
    monitor_interval_s: float = 0.1
    event_log_handler: str = "null"
    logs_specs: str | None = None
    numa_binding: str | None = None
    virtual_local_rank: bool = False
    allow_chaos: bool = False
    """Whether clients may also inject faults into the job (`holdfast chaos`)."""
    worker_store: bool = False
    """Rank 0 serves PyTorch's store itself, instead of a process of ours."""
    check: str = ""
    """The check of a node before it joins: a command, `BUILT_IN_CHECK`, or none."""
    hidden_variables: tuple[str, ...] = ()
    """Variables of the agent that workers must not get: the scheduler's own ranks."""

    @property
    def has_fixed_ranks(self) -> bool:
        """Whether each node's rank is the one that it was started with, in every round."""
        return self.max_nodes > 1 and self.rendezvous.backend == STATIC_BACKEND

    @property
    def caught_signals(self) -> tuple[str, ...]:
        """The signals that the agent handles.

        torchrun's four only where `--signals-to-handle` has them: a user who left one out, for the
        agent to die of it, is not overruled by a default.
        """
        more = [name for name in self.drain_signals if name not in DEFAULT_SIGNALS]
        return tuple(dict.fromkeys((*self.signals, *more)))

    def validate(self) -> JobConfig:
        """Return self, or raise `UsageError` naming the first thing that cannot work."""
        self._check_sizes()
        self._check_names_and_addresses()
        self._check_what_goes_together()
        timing.check(self)
        return self

    def _check_sizes(self) -> None:
        _require(
            self.slots >= 1,
            "the number of workers per node must be at least 1",
            "--nproc-per-node takes a positive number, cpu, gpu, xpu or auto",
        )
        _require(
            self.slots <= SLOTS_MOST,
            f"{self.slots} workers on one node are more than {SLOTS_MOST}",
            "--nproc-per-node takes at most that many; start more nodes",
        )
        _require(
            self.min_nodes >= 1,
            "the number of nodes must be at least 1",
            "write --nnodes 2, or --nnodes 1:4 for an elastic job",
        )
        _require(
            self.max_nodes >= self.min_nodes,
            f"a maximum of {self.max_nodes} nodes is below the minimum of {self.min_nodes}",
            "write the smaller number first: --nnodes MIN:MAX",
        )
        _require(
            self.restarts.max_restarts >= 0,
            "--max-restarts cannot be negative",
            "0 means that the first failure ends the job",
        )

    def _check_names_and_addresses(self) -> None:
        _require(bool(self.role), "the role's name is empty", "--role trainer, for instance")
        for what, name in (("the role's name", self.role), ("the topology key", self.topology_key)):
            _require(
                len(name) <= NAME_MOST and name.isprintable(),
                f"{what} cannot be shown",
                f"up to {NAME_MOST} printable characters",
            )
        _require(
            self.node_rank is None or 0 <= self.node_rank <= COUNT_MOST,
            f"{self.node_rank} is not a node's rank",
            "--node-rank counts from 0",
        )
        for address in (self.master_address or "", self.local_address or ""):
            _require(
                len(address) <= HOST_MOST and address.isprintable() and " " not in address,
                f"{address[:HOST_MOST]!r} is not an address",
                "a host's name, or a numeric address",
            )

    def _check_what_goes_together(self) -> None:
        _require(
            self.output.quiet + self.output.verbose + self.output.json <= 1,
            "--quiet, --verbose and --json cannot be used together",
            "each says in which form the agent's own lines are: keep one",
        )
        _require(
            (self.security.tls_certificate is None) == (self.security.tls_key is None),
            "a certificate and its key go together",
            "give both --tls-cert and --tls-key, or neither",
        )


def _require(holds: bool, message: str, hint: str) -> None:
    if not holds:
        raise UsageError(message, hint)
