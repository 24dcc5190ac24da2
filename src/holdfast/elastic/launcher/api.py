"""One agent from one configuration.

`launch_agent` runs a `LocalElasticAgent` in the calling thread: it returns what the workers of
this node returned, by global rank, and raises `ChildFailedError` for those that failed. The
rendezvous is closed at the end, unless a signal ended the agent: the others then go on.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core.policy.config import DEFAULT_SIGNALS, STATIC_BACKEND, Timeouts
from holdfast.elastic import events, metrics
from holdfast.elastic.agent.server.api import RunResult, WorkerSpec, tell
from holdfast.elastic.agent.server.health_check_server import HealthCheckServer
from holdfast.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from holdfast.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, SignalException
from holdfast.elastic.multiprocessing.errors import ChildFailedError
from holdfast.elastic.rendezvous import RendezvousParameters
from holdfast.elastic.rendezvous import registry as rdzv_registry
from holdfast.elastic.rendezvous.utils import static_master
from holdfast.elastic.utils.logging import get_logger

__all__ = ["LaunchConfig", "elastic_launch", "launch_agent"]

RENDEZVOUS_TIMEOUT_S = 900
NO_TIMEOUT = -1

Entrypoint = Callable[..., Any] | str | None

logger = get_logger(__name__)


@dataclass
class LaunchConfig:
    """All that an agent is launched with.

    `rdzv_timeout` is the old way to say `rdzv_configs["timeout"]`. A `shutdown_timeout` of None
    is what `TORCH_ELASTIC_SHUTDOWN_TIMEOUT` says, else 30 seconds; ValueError for less than 0.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: LogsSpecs | None = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = NO_TIMEOUT
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = ",".join(DEFAULT_SIGNALS)
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None

    def __post_init__(self) -> None:
        if self.rdzv_timeout != NO_TIMEOUT:
            self.rdzv_configs = {**self.rdzv_configs, "timeout": self.rdzv_timeout}
        else:
            self.rdzv_configs = {"timeout": RENDEZVOUS_TIMEOUT_S, **self.rdzv_configs}
        if self.logs_specs is None:
            self.logs_specs = DefaultLogsSpecs()
        if self.shutdown_timeout is None:
            said = os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", Timeouts().shutdown_s)
            self.shutdown_timeout = int(said)
        elif self.shutdown_timeout < 0:
            raise ValueError(f"shutdown_timeout is {self.shutdown_timeout}: it must be 0 or more")


class elastic_launch:  # noqa: N801 - the name that callers know
    """A function or command, to be called with arguments and run on all workers of this node.

        values = elastic_launch(LaunchConfig(1, 1, 4, rdzv_backend="c10d", ...), train)(settings)

    Returns what the workers returned, by global rank.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Entrypoint,
        health_check_server: HealthCheckServer | None = None,
    ) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args), self._health_check_server)


def launch_agent(
    config: LaunchConfig,
    entrypoint: Entrypoint,
    args: list[Any],
    health_check_server: HealthCheckServer | None = None,
) -> dict[int, Any]:
    """Run an agent to its end; what its workers returned, by global rank.

    `ChildFailedError` if workers failed for good, `SignalException` if a signal came; what the
    rendezvous raises goes on. A configuration without a run id gets one.
    """
    if not config.run_id:
        config.run_id = str(uuid.uuid4().int)
        logger.warning("no run_id was given; this run is %s", config.run_id)
    name = _get_entrypoint_name(entrypoint, args)
    shown = replace(config, rdzv_configs=dict.fromkeys(config.rdzv_configs, "…"))
    logger.info("launching %s with %s", name, shown)  # A backend may be told its password there.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle
    spec = _spec(config, entrypoint, args)
    return _run(_agent(spec, config, health_check_server), spec, config, name)


def _run(
    agent: LocalElasticAgent, spec: WorkerSpec, config: LaunchConfig, name: str
) -> dict[int, Any]:
    closes_rendezvous = True
    try:
        metrics.initialize_metrics(metrics.MetricsConfig(config.metrics_cfg))
        result = agent.run()
        events.record(agent.get_event_succeeded(), config.event_log_handler)
        return _values(result, name)
    except ChildFailedError:
        raise
    except Exception as error:
        closes_rendezvous = not isinstance(error, SignalException)
        events.record(agent.get_event_failed(), config.event_log_handler)
        raise
    finally:
        if closes_rendezvous:
            spec.rdzv_handler.shutdown()
        else:  # This process may live on, and its workers do not.
            tell(spec.rdzv_handler, "leave")


def _values(result: RunResult, name: str) -> dict[int, Any]:
    if not result.is_failed():
        return result.return_values
    if not result.failures:
        raise RuntimeError(f"{name} failed, and no worker of this node says why")
    raise ChildFailedError(name=name, failures=result.failures)


def _spec(config: LaunchConfig, entrypoint: Entrypoint, args: Sequence[Any]) -> WorkerSpec:
    parameters = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )
    master_addr, master_port = _get_addr_and_port(parameters)
    return WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        rdzv_handler=rdzv_registry.get_rendezvous_handler(parameters),
        entrypoint=entrypoint,
        args=tuple(args),
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        master_addr=master_addr,
        master_port=master_port,
        local_addr=config.local_addr,
        event_log_handler=config.event_log_handler,
        numa_options=config.numa_options,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        virtual_local_rank=config.virtual_local_rank,
    )


def _agent(
    spec: WorkerSpec, config: LaunchConfig, health_check_server: HealthCheckServer | None
) -> LocalElasticAgent:
    assert config.logs_specs is not None, "a LaunchConfig has made them"
    assert config.shutdown_timeout is not None, "a LaunchConfig has set it"
    return LocalElasticAgent(
        spec,
        config.logs_specs,
        start_method=config.start_method,
        log_line_prefix_template=config.log_line_prefix_template,
        shutdown_timeout=config.shutdown_timeout,
        health_check_server=health_check_server,
    )


def _get_entrypoint_name(entrypoint: Entrypoint, args: Sequence[Any]) -> str:
    """A function's name; of a command that is our Python the script, else the command."""
    if entrypoint is None:
        return ""
    if not isinstance(entrypoint, str):
        name: str = getattr(entrypoint, "__name__", type(entrypoint).__name__)
        return name
    if entrypoint == sys.executable:
        return next((str(arg) for arg in args if not str(arg).startswith("-")), "")
    return entrypoint


def _get_addr_and_port(rdzv_parameters: RendezvousParameters) -> tuple[str | None, int | None]:
    """The master that a static endpoint names; ValueError if it names none or no port."""
    if rdzv_parameters.backend != STATIC_BACKEND:
        return None, None
    return static_master(rdzv_parameters.endpoint)
