"""The time-outs of a rendezvous, and the job configuration that they make."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from holdfast.core.policy import timing
from holdfast.core.policy.config import JobConfig, Leases, Program, RestartPolicy, Timeouts
from holdfast.core.policy.rendezvous_settings import read
from holdfast.elastic.rendezvous.api import RendezvousParameters
from holdfast.elastic.rendezvous.utils import told_as_value_errors

KEEP_ALIVE_S, KEEP_ALIVE_ATTEMPTS = 5, 3
"""PyTorch's defaults. Where they are left as they are, our own leases count."""
READ_TIMEOUT_S = 60.0
"""PyTorch's too, of its backends that ask a server."""
RESTARTS_MAX = 1_000_000
"""No limit: the agents count restarts."""


class RendezvousTimeout:
    """The time-outs of the parts of a rendezvous; all positive."""

    _DEFAULTS: ClassVar[dict[str, timedelta]] = {
        "join": timedelta(seconds=Timeouts().join_s),
        "last_call": timedelta(seconds=Timeouts().last_call_s),
        "close": timedelta(seconds=Timeouts().close_s),
        "heartbeat": timedelta(seconds=5),
    }

    def __init__(
        self,
        join: timedelta | None = None,
        last_call: timedelta | None = None,
        close: timedelta | None = None,
        heartbeat: timedelta | None = None,
    ) -> None:
        self._join = self._checked("join", join)
        self._last_call = self._checked("last_call", last_call)
        self._close = self._checked("close", close)
        self._heartbeat = self._checked("heartbeat", heartbeat)

    def _checked(self, name: str, given: timedelta | None) -> timedelta:
        span = self._DEFAULTS[name] if given is None else given
        if span <= timedelta(0):
            raise ValueError(f"the {name} timeout is {span}, and has to be above zero")
        return span

    @property
    def join(self) -> timedelta:
        """Within which the nodes have to meet."""
        return self._join

    @property
    def last_call(self) -> timedelta:
        """The wait of the first round for more nodes once there are enough."""
        return self._last_call

    @property
    def close(self) -> timedelta:
        """Within which closing has to be through."""
        return self._close

    @property
    def heartbeat(self) -> timedelta:
        """Within which a heartbeat has to be through."""
        return self._heartbeat


@dataclass(repr=False, eq=False, frozen=True)
class RendezvousSettings:
    """The settings of a rendezvous."""

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int
    cas_backoff_max_seconds: float = 0.0


def job_config(settings: RendezvousSettings, local_addr: str | None = None) -> JobConfig:
    """The job configuration for these settings. Restarts are the agents' to count."""
    span = settings.timeout
    interval_s = settings.keep_alive_interval.total_seconds()
    chosen = {} if interval_s == KEEP_ALIVE_S else {"heartbeat_s": interval_s}
    return JobConfig(
        run_id=settings.run_id,
        program=Program("function", "the caller's own workers"),
        min_nodes=settings.min_nodes,
        max_nodes=settings.max_nodes,
        local_address=local_addr,
        timeouts=Timeouts(
            join_s=span.join.total_seconds(),
            last_call_s=span.last_call.total_seconds(),
            close_s=span.close.total_seconds(),
        ),
        leases=timing.derive(Leases(), chosen),
        restarts=RestartPolicy(
            max_restarts=RESTARTS_MAX,
            backoff_first_s=0.0,
            same_cause_limit=0,
            fruitless_rounds_limit=0,
        ),
    )


def given_in(params: RendezvousParameters) -> dict[str, str]:
    """The settings of parameters as texts, as a command line has them; nothing is none."""
    return {key: str(said) for key, said in params.config.items() if said not in (None, "")}


def settings_from(params: RendezvousParameters) -> RendezvousSettings:
    """The settings that parameters name; ValueError for one that cannot be."""
    given = given_in(params)

    def span(key: str) -> timedelta | None:
        seconds = read(given, key)
        return None if seconds is None else timedelta(seconds=seconds)

    with told_as_value_errors():
        return RendezvousSettings(
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            RendezvousTimeout(
                span("join_timeout") or span("timeout"),
                span("last_call_timeout"),
                span("close_timeout"),
                span("heartbeat_timeout"),
            ),
            span("keep_alive_interval") or timedelta(seconds=KEEP_ALIVE_S),
            read(given, "keep_alive_max_attempt") or KEEP_ALIVE_ATTEMPTS,
            read(given, "cas_backoff_max_seconds") or 0.0,
        )
