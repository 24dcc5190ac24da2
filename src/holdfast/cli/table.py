"""The options of `holdfast run`, as data.

Rules
- One row is one option. Parsing, help and the reference are made from these rows, so an
  option is added here and nowhere else (and, if it is a new setting, as a field of
  `core.policy.config`, where its default is written).
- `name` is spelled with dashes. Underscores on the command line and the names in the
  environment follow from it.
- `fields` says where the value goes: paths into `JobConfig`. A row without fields is
  input to a decision of `options` instead (the program, the number of workers, the endpoint).
"""

from __future__ import annotations

from operator import attrgetter

from msgspec import Struct

from holdfast.cli import rendezvous, values
from holdfast.core.policy import texts
from holdfast.core.policy.config import (
    DASHBOARD_PORT,
    DEFAULT_PORT,
    STATIC_MASTER,
    JobConfig,
    Program,
)
from holdfast.core.protocol.bounds import PORT_MOST
from holdfast.core.protocol.endpoint import host

MACHINES = "Which machines"
PROGRAM = "What to run"
OUTPUT = "Output"
FAILURE = "When something fails"
HANGS = "When a job hangs"
LOSS = "When machines come and go"
SECURITY = "Who may join"
WATCHING = "Watching it"
HEALTH = "Health and metrics"
WARM = "Faster starts"
TORCHRUN = "Compatibility with torchrun"
GROUPS = (
    MACHINES, PROGRAM, OUTPUT, FAILURE, HANGS, LOSS, SECURITY, WATCHING, HEALTH, WARM, TORCHRUN,
)  # fmt: skip

EVENT_HANDLERS = ("null", "console", "dynamic_rendezvous")
"""Built-in log classes: the last one is torchrun's own, and keeps nothing either."""
EVENT_HANDLER_GROUPS = ("holdfast.event_handlers",)
LOGS_SPECS_GROUPS = ("torchrun.logs_specs",)


class Option(Struct, frozen=True):
    """One option: its spelling, its meaning, its fields."""

    name: str
    group: str
    help: str
    parse: texts.Parser
    metavar: str = ""
    """The placeholder of the value; empty for a flag."""
    fields: tuple[str, ...] = ()
    """Where the parsed value goes; several fields share a tuple."""
    shown: str = ""
    """The default in words, if it is derived and not a field's plain default."""
    short: str = ""
    alone: str = ""
    """The value where a number is left out."""
    also_from: tuple[str, ...] = ()
    """Older names in the environment, asked last."""
    note: str = ""
    """Further notes, below its line in the help."""
    ours: bool = False
    """Whether torchrun lacks it."""

    @property
    def is_flag(self) -> bool:
        return not self.metavar

    @property
    def environment(self) -> tuple[str, ...]:
        """The variables that can set it, the strongest first."""
        name = self.name.replace("-", "_").upper()
        return (f"HOLDFAST_{name}", f"PET_{name}", *self.also_from)

    @property
    def default(self) -> str:
        """The default as a user would write it; empty if there is none to show."""
        if self.shown or self.is_flag or not self.fields:
            return self.shown
        value = attrgetter(self.fields[0])(UNCHANGED)
        if isinstance(value, tuple):
            return ",".join(map(str, value))
        if isinstance(value, (int, float)):
            return f"{value:g}"
        return str(value) if value else ""


UNCHANGED = JobConfig(run_id="", program=Program(kind="script", target=""))
"""The configuration without any option: the source of defaults."""


def _event_handler(name: str) -> str:
    return rendezvous.known_or_registered(
        texts.text(name), "event handler", EVENT_HANDLERS, EVENT_HANDLER_GROUPS
    )


def _logs_specs(name: str) -> str:
    return rendezvous.known_or_registered(texts.text(name), "logs spec", (), LOGS_SPECS_GROUPS)


# A table is read by its rows; the formatter would give every cell a line of its own.
# fmt: off
OPTIONS: tuple[Option, ...] = (
    Option("nproc-per-node", MACHINES, "workers here: N, cpu, gpu, xpu or auto",
           values.processes, metavar="N", short="n", fields=("slots",)),
    Option("nnodes", MACHINES, "nodes of the job, or their range",
           values.nodes, metavar="N|MIN:MAX", fields=("min_nodes", "max_nodes")),
    Option("standalone", MACHINES, "one node by itself, on a free port",
           texts.flag, fields=("rendezvous.standalone",)),
    Option("rdzv-endpoint", MACHINES, "where all nodes meet",
           values.plain, metavar="HOST[:PORT]", fields=("rendezvous.endpoint",),
           shown=f"port {DEFAULT_PORT}"),
    Option("rdzv-backend", MACHINES, "how they find each other",
           rendezvous.backend, metavar="BACKEND", fields=("rendezvous.backend",),
           note="holdfast or c10d: the endpoint's machine coordinates; static: with fixed ranks;"
                " etcd, etcd-v2, file: any machine may be lost; or a registered name"),
    Option("rdzv-conf", MACHINES, "settings of the backend",
           texts.pairs, metavar="KEY=VALUE,...", fields=("rendezvous.options",)),
    Option("rdzv-id", MACHINES, "the job's name, the same on all nodes",
           values.run_id, metavar="NAME", fields=("run_id",),
           note="without one: a new name for one node, the endpoint for several;"
                " etcd, etcd-v2 and file need one, unless --nnodes 1"),
    Option("local-addr", MACHINES, "this node's address, as others see it",
           host, metavar="ADDRESS", fields=("local_address",)),
    Option("node-rank", MACHINES, "this node's rank; a hint unless static",
           texts.whole_number(0), metavar="N", fields=("node_rank",)),
    Option("role", MACHINES, "the role of the workers here",
           texts.text, metavar="NAME", fields=("role",)),
    Option("topology-key", MACHINES, "order ranks by this key, e.g. rack3/node12",
           values.plain, metavar="KEY", fields=("topology_key",), ours=True),
    Option("join-timeout", MACHINES, "give up if the nodes have not met",
           texts.positive_seconds, metavar="S", fields=("timeouts.join_s",), ours=True),
    Option("last-call", MACHINES, "wait for more once MIN nodes are there",
           texts.seconds, metavar="S", fields=("timeouts.last_call_s",), ours=True),
    Option("check", MACHINES, "is this node fit? or --check='your command'",
           values.check, fields=("check",), ours=True),
    Option("check-timeout", MACHINES, "how long that command may take",
           texts.positive_seconds, metavar="S", fields=("timeouts.check_s",), ours=True),
    Option("no-detect", MACHINES, "do not ask Slurm, mpirun, ... for settings",
           texts.flag, ours=True),

    Option("module", PROGRAM, "run a module, as python -m does",
           texts.flag, short="m"),
    Option("no-python", PROGRAM, "run a command that is not Python",
           texts.flag),
    Option("run-path", PROGRAM, "run a file through runpy.run_path",
           texts.flag),
    Option("virtual-local-rank", PROGRAM, "LOCAL_RANK 0 and one GPU for each worker",
           texts.flag, fields=("virtual_local_rank",)),
    Option("numa-binding", PROGRAM, "node, socket, exclusive or core-complex",
           texts.one_of("node", "socket", "exclusive", "core-complex"),
           metavar="HOW", fields=("numa_binding",)),
    Option("keep-engine-variables", PROGRAM, "workers see the scheduler's ranks too",
           texts.flag, ours=True),

    Option("log-dir", OUTPUT, "where logs and the journal go",
           values.optional_text, metavar="DIR", fields=("output.log_dir",), shown="temporary"),
    Option("outcome-file", OUTPUT, "where to write how the job ended",
           values.optional_text, metavar="FILE", fields=("output.outcome_file",), ours=True),
    Option("redirects", OUTPUT, "to files instead of the console",
           values.streams, metavar="WHICH", short="r",
           fields=("output.redirects_default", "output.redirects")),
    Option("tee", OUTPUT, "to files and to the console",
           values.streams, metavar="WHICH", short="t",
           fields=("output.tee_default", "output.tee")),
    Option("log-line-prefix-template", OUTPUT, "what begins each line of --tee",
           values.optional_text, metavar="TEXT", fields=("output.prefix_template",),
           shown="[${role_name}${local_rank}]:",
           also_from=("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",),
           note="may use ${role_name}, ${local_rank}, ${rank}, ${hostname} and ${pid}"),
    Option("local-ranks-filter", OUTPUT, "the console shows only these",
           values.local_ranks, metavar="RANKS", fields=("output.local_ranks_filter",)),
    Option("duplicate-stdout-filters", OUTPUT, "also log lines that contain one of these",
           values.filters, metavar="WORDS", fields=("output.stdout_filters",)),
    Option("duplicate-stderr-filters", OUTPUT, "the same for stderr; ,, means a comma",
           values.filters, metavar="WORDS", fields=("output.stderr_filters",)),

    Option("quiet", OUTPUT, "of its own lines only failures and the report",
           texts.flag, fields=("output.quiet",), ours=True),
    Option("verbose", OUTPUT, "a line for everything that happens",
           texts.flag, fields=("output.verbose",), ours=True),
    Option("json", OUTPUT, "one object for each of these, on stderr",
           texts.flag, fields=("output.json",), ours=True),
    Option("timestamps", OUTPUT, "the time before each line of its own",
           texts.flag, fields=("output.timestamps",), ours=True),

    Option("max-restarts", FAILURE, "restarts allowed for the whole job",
           texts.whole_number(0), metavar="N", fields=("restarts.max_restarts",)),
    Option("shutdown-timeout", FAILURE, "grace between signal and SIGKILL",
           texts.seconds, metavar="S", fields=("timeouts.shutdown_s",),
           also_from=("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",)),
    Option("signals-to-handle", FAILURE, "passed on to the workers",
           values.signals, metavar="NAMES", fields=("signals",),
           also_from=("TORCHELASTIC_SIGNALS_TO_HANDLE",)),
    Option("restart-window", FAILURE, "count only failures of the last S seconds",
           texts.positive_seconds, metavar="S", fields=("restarts.window_s",), ours=True),
    Option("restart-backoff", FAILURE, "delay before restart 2; then it doubles",
           texts.seconds, metavar="S", fields=("restarts.backoff_first_s",), ours=True),
    Option("restart-backoff-max", FAILURE, "the longest such delay",
           texts.seconds, metavar="S", fields=("restarts.backoff_max_s",), ours=True),
    Option("same-cause-limit", FAILURE, "same cause N times: give up; 0: never",
           texts.whole_number(0), metavar="N", fields=("restarts.same_cause_limit",), ours=True),
    Option("quarantine-after", FAILURE, "N failures in a row keep a host out",
           texts.whole_number(0), metavar="N", fields=("quarantine.after",), ours=True),
    Option("quarantine-time", FAILURE, "that long at first; it doubles",
           texts.positive_seconds, metavar="S", fields=("quarantine.first_s",), ours=True),
    Option("progress-after", FAILURE, "a round this long counts as progress",
           texts.positive_seconds, metavar="S", fields=("restarts.progress_after_s",), ours=True),
    Option("non-retryable-exit-codes", FAILURE, "give up at once on these exit codes",
           values.exit_codes, metavar="CODES", fields=("restarts.non_retryable_exit_codes",),
           ours=True),
    Option("unkillable-timeout", FAILURE, "wait for a process stuck in the kernel",
           texts.seconds, metavar="S", fields=("timeouts.unkillable_s",), ours=True),

    Option("hang", HANGS, "on a stall: off, warn or restart",
           texts.one_of("off", "warn", "restart"), metavar="HOW", fields=("oversight.hang",),
           ours=True),
    Option("hang-after", HANGS, "wait at least this long before that",
           texts.positive_seconds, metavar="S", fields=("oversight.hang_after_s",), ours=True),
    Option("start-timeout", HANGS, "end a worker that gave no sign by then",
           texts.positive_seconds, metavar="S", fields=("oversight.start_s",), ours=True),
    Option("first-step-timeout", HANGS, "end a worker that has made no step by then",
           texts.positive_seconds, metavar="S", fields=("oversight.first_step_s",), ours=True),
    Option("exit-timeout", HANGS, "end a worker that exits so much later than others",
           texts.positive_seconds, metavar="S", fields=("oversight.exit_s",), ours=True),
    Option("straggler-after", HANGS, "tell of one that is slow for this long",
           texts.positive_seconds, metavar="S", fields=("oversight.straggler_after_s",), ours=True),
    Option("run-timeout", HANGS, "end the job if it runs longer",
           texts.positive_seconds, metavar="S", fields=("oversight.run_s",), ours=True),
    Option("file-timer", HANGS, "serve PyTorch's file timer",
           texts.flag, fields=("oversight.file_timer",), ours=True,
           also_from=("TORCHELASTIC_ENABLE_FILE_TIMER",)),
    Option("stuck-timeout", HANGS, "fail one stuck in the kernel; 0: only tell",
           texts.seconds, metavar="S", fields=("oversight.stuck_s",), ours=True,
           also_from=("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",)),
    Option("allow-chaos", HANGS, "let `holdfast chaos` inject faults into this job",
           texts.flag, fields=("allow_chaos",), ours=True),
    Option("no-stacks", HANGS, "workers cannot be asked for their stacks",
           values.inverted_flag, fields=("oversight.stacks",), ours=True),

    Option("lease", LOSS, "a node cut off this long stops itself",
           texts.positive_seconds, metavar="S", fields=("leases.lease_s",), ours=True),
    Option("heartbeat", LOSS, "how often a node says it is there",
           texts.positive_seconds, metavar="S", fields=("leases.heartbeat_s",), ours=True),
    Option("scale-up-delay", LOSS, "newcomers wait for more newcomers",
           texts.seconds, metavar="S", fields=("timeouts.scale_up_delay_s",), ours=True),
    Option("min-round-time", LOSS, "no newcomer ends a round sooner",
           texts.seconds, metavar="S", fields=("timeouts.min_round_s",), ours=True),
    Option("drain-timeout", LOSS, "a leaving node awaits a replacement",
           texts.seconds, metavar="S", fields=("timeouts.drain_s",), ours=True),
    Option("drain-signals", LOSS, "ask a node to leave",
           values.drain_signals, metavar="NAMES", fields=("drain_signals",), ours=True,
           shown="TERM,USR1,USR2"),
    Option("drain-worker-signal", LOSS, "tells all workers to save",
           values.worker_signal, metavar="NAME", fields=("drain_worker_signal",), ours=True),
    Option("save-timeout", LOSS, "workers that ask have this long to save",
           texts.seconds, metavar="S", fields=("timeouts.save_s",), ours=True),
    Option("notice", LOSS, "a node asked to leave is killed after S",
           texts.positive_seconds, metavar="S", fields=("timeouts.notice_s",), ours=True),
    Option("snapshot-dir", LOSS, "local folder for what must outlive a kill",
           values.optional_text, metavar="DIR", fields=("snapshot_dir",), ours=True),

    Option("token-file", SECURITY, "holds the job's secret; or HOLDFAST_TOKEN",
           values.optional_text, metavar="FILE", fields=("security.token_file",), ours=True),
    Option("tls-cert", SECURITY, "use TLS, with this certificate (PEM)",
           values.optional_text, metavar="FILE", fields=("security.tls_certificate",), ours=True),
    Option("tls-key", SECURITY, "the certificate's private key",
           values.optional_text, metavar="FILE", fields=("security.tls_key",), ours=True),
    Option("tls-ca", SECURITY, "who signed the certificates of all nodes",
           values.optional_text, metavar="FILE", fields=("security.tls_authority",), ours=True),

    Option("dashboard", WATCHING, "show the job in a browser, at this port",
           texts.whole_number(0, PORT_MOST), metavar="[PORT]", fields=("dashboard.port",),
           shown=str(DASHBOARD_PORT), alone=str(DASHBOARD_PORT), ours=True),
    Option("dashboard-host", WATCHING, "serve that at this address",
           values.numeric_address, metavar="ADDRESS", fields=("dashboard.host",), ours=True),

    Option("health-port", HEALTH, "serve /livez, /readyz, /metrics; 0: any port",
           texts.whole_number(0, PORT_MOST), metavar="PORT", fields=("health.port",), ours=True,
           also_from=("TORCHELASTIC_HEALTH_CHECK_PORT",)),
    Option("health-host", HEALTH, "listen at this address only",
           values.numeric_address, metavar="ADDRESS", fields=("health.host",), ours=True,
           shown="all"),
    Option("otel", HEALTH, "send traces to OpenTelemetry (holdfast[otel])",
           texts.flag, fields=("otel",), ours=True),

    Option("no-warm", WARM, "start every worker cold",
           values.inverted_flag, fields=("warm.enabled",), ours=True),
    Option("preload", WARM, "import these too, once for all workers",
           values.modules, metavar="MODULES", fields=("warm.preload",), ours=True),
    Option("worker-store", WARM, "let rank 0 host PyTorch's TCPStore",
           texts.flag, fields=("worker_store",), ours=True),
    Option("preload-timeout", WARM, "start cold if that takes longer",
           texts.seconds, metavar="S", fields=("timeouts.preload_s",), ours=True),

    Option("master-addr", TORCHRUN, "rank 0's address",
           host, metavar="HOST", fields=("master_address",),
           shown=STATIC_MASTER.address),
    Option("master-port", TORCHRUN, "rank 0's port",
           texts.whole_number(0, PORT_MOST), metavar="PORT", fields=("master_port",),
           shown=str(STATIC_MASTER.port)),
    Option("monitor-interval", TORCHRUN, "accepted; nothing here polls",
           texts.positive_seconds, metavar="S", fields=("monitor_interval_s",)),
    Option("start-method", TORCHRUN, "functions: spawn, fork, forkserver",
           texts.one_of("spawn", "fork", "forkserver"), metavar="HOW", fields=("start_method",)),
    Option("event-log-handler", TORCHRUN, "null, console or a registered name",
           _event_handler, metavar="NAME", fields=("event_log_handler",)),
    Option("logs-specs", TORCHRUN, "a registered torchrun.logs_specs name",
           _logs_specs, metavar="NAME", fields=("logs_specs",)),
    Option("print-completion", TORCHRUN, "for bash, zsh or tcsh; runs nothing",
           texts.one_of("bash", "zsh", "tcsh"), metavar="SHELL"),
)
# fmt: on

BY_NAME = {option.name: option for option in OPTIONS}
BY_SHORT = {option.short: option for option in OPTIONS if option.short}
