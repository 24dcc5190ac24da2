"""A rendezvous whose nodes come and go, over Holdfast's coordinator.

Rules
- The coordinator forms the rounds; a handler only asks and is told. Nothing polls: that a round
  is over is known here as soon as the coordinator has said it.
- Any `RendezvousBackend` can carry it. What is kept there is one document of a few kilobytes
  that says who carries the coordinator; the nodes speak to that one directly.
- `num_nodes_waiting` is 1 from the moment that the present round is over, for whatever reason
  (a newcomer, a loss, a failure elsewhere, a lease that runs out), until `next_rendezvous`.
- `next_rendezvous` says that none of this node's workers is left. Called in the middle of a round
  it ends the round for everybody.
- Each round has keys of its own, in the store that was given, or else at the coordinator.
- A closed rendezvous forms no further round; the present one goes on to its end.
- `shutdown` says that this node is done. A node that was in a round closes the rendezvous with it,
  since it will not be back for another. While an exception is on its way out, or after
  `workers_failed`, the node has failed for good, and the job ends for all at once.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from holdfast.core.policy import timing
from holdfast.core.policy.config import (
    JobConfig,
    Leases,
    Program,
    Rendezvous,
    RestartPolicy,
    Timeouts,
)
from holdfast.core.policy.rendezvous_settings import read
from holdfast.elastic.events import NodeState, construct_and_record_rdzv_event
from holdfast.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)
from holdfast.elastic.rendezvous.membership import Membership, NotMet, Seat
from holdfast.elastic.rendezvous.store import CoordinatorStore, PrefixStore
from holdfast.elastic.rendezvous.utils import told_as_value_errors
from holdfast.engine.secrets import Secrets, security_of
from holdfast.registers.register import Register

__all__ = [
    "DynamicRendezvousHandler",
    "RendezvousBackend",
    "RendezvousSettings",
    "RendezvousTimeout",
    "Token",
    "create_handler",
]


KEEP_ALIVE_S, KEEP_ALIVE_ATTEMPTS = 5, 3
"""PyTorch's defaults. Where they are left as they are, our own leases count."""
READ_TIMEOUT_S = 60.0
"""PyTorch's too, of its backends that ask a server."""
RESTARTS_MAX = 1_000_000
"""No limit: the agents count restarts."""


class RendezvousTimeout:
    """The time-outs of the parts of a rendezvous; all positive."""

    __slots__ = ("close", "heartbeat", "join", "last_call")

    def __init__(
        self,
        join: timedelta | None = None,
        last_call: timedelta | None = None,
        close: timedelta | None = None,
        heartbeat: timedelta | None = None,
    ) -> None:
        self.join = _positive("join", join, Timeouts().join_s)
        """Within which the nodes have to meet."""
        self.last_call = _positive("last_call", last_call, Timeouts().last_call_s)
        """The wait of the first round for more nodes once there are enough."""
        self.close = _positive("close", close, Timeouts().close_s)
        """Within which closing has to be through."""
        self.heartbeat = _positive("heartbeat", heartbeat, 5.0)
        """Within which a heartbeat has to be through."""


def _positive(name: str, given: timedelta | None, default_s: float) -> timedelta:
    span = timedelta(seconds=default_s) if given is None else given
    if span <= timedelta(0):
        raise ValueError(f"the {name} timeout is {span}, and has to be above zero")
    return span


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


GOODBYE_S = 1.0
"""The time in which a node that leaves says so."""
Token = Any
"""Names a version of what a backend holds."""


class RendezvousBackend(ABC):
    """Holds one document for all nodes."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the backend."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """The document and its token; None where there is none.

        Raises `RendezvousConnectionError`, or `RendezvousStateError` if it is damaged.
        """

    @abstractmethod
    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        """Set it if the token is still right, or without one if nothing is there.

        What is there then, its token, and whether it was set. Raises as `get_state`.
        """


class DynamicRendezvousHandler(RendezvousHandler):
    """One node's part in a rendezvous. Make it with `from_backend`.

    Or directly, over a coordinator or a register that the configuration names.
    """

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: Any,
        backend: RendezvousBackend,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: int = KEEP_ALIVE_S,
        keep_alive_max_attempt: int = KEEP_ALIVE_ATTEMPTS,
        cas_backoff_max_seconds: float = 0.0,
    ) -> DynamicRendezvousHandler:
        """A handler over any backend. Without a store, the keys are kept by the coordinator.

        `cas_backoff_max_seconds` is checked and has no effect: one node writes for all.
        """
        settings = RendezvousSettings(
            run_id,
            min_nodes,
            max_nodes,
            timeout or RendezvousTimeout(),
            timedelta(seconds=keep_alive_interval),
            keep_alive_max_attempt,
            cas_backoff_max_seconds,
        )
        return cls._over(backend, store, settings, local_addr)

    @classmethod
    def _over(
        cls,
        backend: RendezvousBackend,
        store: Any,
        settings: RendezvousSettings,
        local_addr: str | None,
    ) -> DynamicRendezvousHandler:
        config = replace(
            job_config(settings, local_addr), rendezvous=Rendezvous(f"given: {backend.name}")
        )
        return cls(settings, backend.name, config, store=store, register=OneAtATime(backend))

    def __init__(
        self,
        settings: RendezvousSettings,
        backend_name: str,
        config: JobConfig,
        *,
        store: Any = None,
        register: Register | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        if not settings.run_id:
            raise ValueError("a rendezvous needs a run id")
        if settings.min_nodes < 1:
            raise ValueError(f"a rendezvous needs a node, and min_nodes is {settings.min_nodes}")
        if settings.max_nodes < settings.min_nodes:
            least, most = settings.min_nodes, settings.max_nodes
            raise ValueError(f"max_nodes ({most}) is below min_nodes ({least})")
        backoff_s = settings.cas_backoff_max_seconds
        if not math.isfinite(backoff_s) or backoff_s < 0:
            raise ValueError(f"cas_backoff_max_seconds is {backoff_s}, and has to be 0 or above")
        self._settings, self._backend_name = settings, backend_name
        self._config, self._secrets = config.validate(), secrets or Secrets()
        self._store, self._register = store, register
        self._membership: Membership | None = None
        self._is_closed = self._has_failed = False
        self._handled_before = id(None)
        """The exception that the caller was handling already when it asked to meet."""
        self._lock = threading.Lock()

    @property
    def settings(self) -> RendezvousSettings:
        """The settings of the rendezvous."""
        return self._settings

    def get_backend(self) -> str:
        return self._backend_name

    @property
    def use_agent_store(self) -> bool:
        """Never: rank 0 of the workers serves their store, at a port that is held for it."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        self._handled_before = id(sys.exc_info()[1])  # Not the thing itself, with all its frames.
        try:
            seat = self._meet()
        except RendezvousError as error:
            self._record(f"{type(error).__name__}: {error}", NodeState.FAILED)
            raise
        self._record(
            f"round {seat.round}: node {seat.rank + 1} of {seat.size}", NodeState.RUNNING, seat.rank
        )
        place = RendezvousStoreInfo(seat.master.address, seat.master.port)
        info = RendezvousInfo(self._store_of(seat), seat.rank, seat.size, place)
        info.round = seat.round
        return info

    def is_closed(self) -> bool:
        """Whether the job is over, as far as this node has been told."""
        membership = self._membership
        return self._is_closed or (membership is not None and membership.is_closed)

    def set_closed(self) -> None:
        """Let no further round form, here or elsewhere."""
        if self._is_closed:
            return
        membership = self._joined()
        self._is_closed = True
        membership.want_closed("the rendezvous was closed", self._close_s)

    def num_nodes_waiting(self) -> int:
        """1 when the round is over and `next_rendezvous` is due, else 0."""
        membership = self._membership
        return int(membership is not None and membership.is_wanted)

    def call_on_change(self, callback: Callable[[], None]) -> None:
        """Have this called, in another thread, when `num_nodes_waiting` may have changed."""
        if self._membership is not None:
            self._membership.on_change = callback

    def get_run_id(self) -> str:
        return self._settings.run_id

    def workers_succeeded(self) -> None:
        """All of this node's workers have ended well. For agents that can tell."""
        if self._membership is not None:
            self._membership.note_success()

    def workers_failed(self, reason: str) -> None:
        """This node's workers have failed, and nobody restarts them. For agents that can tell."""
        if self._membership is not None:
            self._has_failed = True
            self._membership.fail(reason)

    def leave(self) -> None:
        """This node goes, and closes nothing: the others go on. For agents that can tell."""
        if self._membership is not None:
            self._membership.leave(GOODBYE_S)

    def shutdown(self) -> bool:
        """This node is done, or has failed if an exception is on its way out.

        False where that could not be told to the coordinator in time.
        """
        with self._lock:
            self._is_closed = True
            membership = self._membership
        if membership is None:
            return True
        failure = sys.exc_info()[1]
        if id(failure) == self._handled_before:
            failure = None
        if not membership.is_seated or self._has_failed:
            pass  # There is nothing to be told.
        elif failure is None:
            membership.note_success()
        else:
            membership.fail(_what_ended_it(failure))
        return membership.leave(self._close_s)

    # How that is done.

    def _meet(self) -> Seat:
        if self.is_closed():
            if self._membership is not None:
                self._membership.stand_up()
            raise RendezvousClosedError(self._closed())
        join_s = self._settings.timeout.join.total_seconds()
        try:
            return self._joined().meet(join_s)
        except TimeoutError as error:
            raise RendezvousTimeoutError(str(error)) from None
        except NotMet as error:
            if self._is_closed:  # By another thread, meanwhile.
                raise RendezvousClosedError(self._closed()) from None
            raise self._in_pytorchs_words(error) from None

    def _in_pytorchs_words(self, error: NotMet) -> RendezvousError:
        if error.outcome is None or not error.told:
            return RendezvousConnectionError(str(error))
        match error.outcome.verdict:
            case "not_formed":
                return RendezvousTimeoutError(str(error))
            case "succeeded" if error.stood_by:  # Others did the work meanwhile.
                return RendezvousGracefulExitError(str(error))
            case "succeeded":  # A node that comes now wants work done that nobody does.
                advice = "another run id, or this one in a minute, begins anew"
                return RendezvousClosedError(f"{self._closed()}: {error}; {advice}")
        return RendezvousClosedError(str(error))

    def _closed(self) -> str:
        return f"the rendezvous {self.get_run_id()} is closed"

    def _joined(self) -> Membership:
        """The membership; a new one where the last has ended without the job's end."""
        with self._lock:
            if self._is_closed:  # Since it was looked at.
                raise RendezvousClosedError(self._closed())
            last = self._membership
            if last is None or (last.has_ended and not last.is_closed):
                fresh = Membership(self._config, self._secrets, self._register)
                self._membership = fresh
                weakref.finalize(self, fresh.leave, GOODBYE_S)
                return fresh
            return last

    @property
    def _close_s(self) -> float:
        return self._settings.timeout.close.total_seconds()

    def _store_of(self, seat: Seat) -> Any:
        prefix = f"torch.rendezvous.{self.get_run_id()}.{seat.instance}.{seat.round}"
        if self._store is None:
            security = security_of(self._config, self._secrets.token)
            return CoordinatorStore(seat.store, self._config.run_id, security, seat.round)
        if type(self._store).__module__.startswith("torch."):
            # PyTorch's own, which is loaded: its workers and collectives take no other.
            return sys.modules["torch.distributed"].PrefixStore(prefix, self._store)
        return PrefixStore(prefix, self._store)

    def _record(self, message: str, state: NodeState, rank: int | None = None) -> None:
        construct_and_record_rdzv_event(
            name=f"{type(self).__name__}.next_rendezvous",
            run_id=self.get_run_id(),
            message=message,
            node_state=state,
            hostname=self._config.local_address or "",
            pid=os.getpid(),
            rank=rank,
        )


def _what_ended_it(failure: BaseException) -> str:
    """In a line, for the others. PyTorch's `ChildFailedError` knows the first of the workers."""
    if not hasattr(failure, "get_first_failure"):
        return f"its agent ended with {type(failure).__name__}"
    rank, first = failure.get_first_failure()
    return f"rank {rank} failed with exit code {first.exitcode}"


class OneAtATime:
    """A backend as a register: one call at a time, whichever thread it comes from."""

    def __init__(self, backend: RendezvousBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()

    def get_state(self) -> tuple[bytes, Token] | None:
        with self._lock:
            return self._backend.get_state()

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        with self._lock:
            return self._backend.set_state(state, token)


def create_handler(
    store: Any, backend: RendezvousBackend, params: RendezvousParameters
) -> DynamicRendezvousHandler:
    """A handler over this backend, with the settings that the parameters name.

    Those are `join_timeout`, `last_call_timeout`, `close_timeout`, `heartbeat_timeout`,
    `keep_alive_interval`, `keep_alive_max_attempt` and `cas_backoff_max_seconds`, in seconds or
    numbers.
    """
    try:
        settings = settings_from(params)
        return DynamicRendezvousHandler._over(backend, store, settings, params.local_addr)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        construct_and_record_rdzv_event(params.run_id, said, NodeState.FAILED)
        raise
