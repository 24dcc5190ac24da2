"""A node without a supervisor: the engine of `holdfast run`, with a board in place of processes.

Where the core would start workers, the shared state shows the node's seat; where it would stop
them, it says that the round is over.

Rules
1. One thread alone touches engine and sockets: the one that calls `live`. Others hand it
   calls (`ThreadCalls`), and read the shared state.
2. A node is a candidate for a round only while its caller waits for one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.core.node import NodeState, Phase, alive
from holdfast.core.node_io import (
    AllGone,
    ClosingAsked,
    CoordinatorLost,
    EndpointReserved,
    EndSpawner,
    KillEverything,
    LeaseRanOut,
    NodeEffect,
    NodeEvent,
    NodeStarted,
    Released,
    ReserveEndpoint,
    SetDeadlines,
    SignalWorkers,
    SpawnerEnded,
    StartWorkers,
    Told,
    WorkerExited,
)
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.errors import HoldfastError
from holdfast.core.protocol.messages import CloseJob, StandBy, ToNode
from holdfast.core.protocol.model import Endpoint, ErrorDetail, ExitStatus, Outcome
from holdfast.engine.engine import Engine
from holdfast.engine.network import Means, add_network
from holdfast.engine.ports import Ports
from holdfast.engine.secrets import Secrets
from holdfast.processes.host.reserved_ports import ReservedPort
from holdfast.processes.stdlib_only import linux
from holdfast.registers.register import Register
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import Cancellable, EventLoop
from holdfast.runtime.thread_calls import ThreadCalls
from holdfast.transport.tether_end import reset_tether

if TYPE_CHECKING:
    from holdfast.core.coordinator import Beginning, Coordinator
    from holdfast.core.election import ElectionEffect, ElectionEvent, ElectionState

log = logging.getLogger(__name__)

TROUBLE = (CoordinatorLost, LeaseRanOut)
"""Events that are logged as warnings: the caller may have to wait long."""


class Seat(Struct, frozen=True):
    """This node's seat in a round."""

    instance: int
    """Of the job: another one may have a round of the same number."""
    round: int
    rank: int
    size: int
    master: Endpoint
    """Held on the node of rank 0, for its workers."""
    store: Endpoint
    """The address of the round's key-value store."""


class SharedState:
    """State that other threads read; `changed` is held while it is changed."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.seat: Seat | None = None
        self.is_wanted = False
        """The round is over: another meeting is due once the workers are gone."""
        self.is_in_touch = False
        """There is a connection to the coordinator."""
        self.outcome: Outcome | None = None
        """The outcome of the node's part in the job; None while it lasts."""
        self.was_told = False
        """The coordinator has said that the job is over."""
        self.stood_by = False
        """It has said that the node takes over when a seat is free."""
        self.problem = ""
        """Why the node is at its end, other than by an outcome."""
        self.said = ""
        """The last sentence of the node or of its coordinator."""

    def wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until that is so; whether it is."""
        with self.changed:
            return self.changed.wait_for(holds, timeout_s)

    def show(self, **news: object) -> None:
        """Change these at once."""
        with self.changed:
            for name, value in news.items():
                setattr(self, name, value)
            self.changed.notify_all()


class MemberNode:
    """One node of one job."""

    def __init__(
        self, config: JobConfig, secrets: Secrets, register: Register | None, shared: SharedState
    ) -> None:
        host = clean(socket.gethostname())
        self.config, self.shared = config, shared
        self.node = f"{host}-{os.urandom(4).hex()}"
        self._secrets, self._register = secrets, register
        self._host_name = host
        self._lease: Cancellable | None = None
        self._port: ReservedPort | None = None
        self._tether: int | None = None
        self._owes_endpoint = self._is_waiting = self._may_go = False
        self._go_by = 0.0
        self._level = logging.INFO
        self._engine: Engine | None = None
        self._loop = EventLoop(linux.boot_timer())
        self.calls = ThreadCalls(self._loop)
        self._disk = Disk(self._loop, self._say)

    def live(self) -> None:
        """Be a node of the job until it is let go."""
        problem = ""
        try:
            self._engine = self._make_engine()
            self.post(NodeStarted(cold="others start the workers", foreign=True))
            self._loop.run_until(self._is_over)
        except (HoldfastError, OSError) as error:
            problem = str(error)
            log.warning("holdfast: %s", error)
        except Exception as error:
            problem = f"this node's part in the job ended with {type(error).__name__}: {error}"
            log.exception("holdfast: this node's part in the job ended with an error")
        finally:
            self._end(problem or ("" if self.shared.outcome else "the node has left"))

    def _end(self, problem: str) -> None:
        """Tell the caller first: if its workers still run, others are about to replace them."""
        breaks_off = not self._may_go and self.shared.outcome is None
        self.shared.show(problem=problem, is_wanted=self.shared.is_wanted or breaks_off)
        if breaks_off and self._tether is not None:
            reset_tether(self._tether)  # Its end would say that no worker is left here.
            self._tether = None
        try:
            self._close()
        except Exception:
            log.exception("holdfast: the end of this node's part in the job went wrong")

    def _make_engine(self) -> Engine:
        ports = Ports(
            clock=self._loop,
            processes=self,
            journal=self,
            say=self._say,
            finished=self._finish,
        )
        means = Means(self._loop, self._disk, self._secrets, self._register)
        add_network(ports, self.config, self.node, means)
        return Engine(self.config, self.node, self._host_name, ports)

    @property
    def state(self) -> NodeState:
        assert self._engine is not None, "it has not begun to live"
        return self._engine.state

    def _is_over(self) -> bool:
        if not self._may_go or self._engine is None:
            return False
        # A single node has nobody to whom it could owe the outcome.
        is_needed = self.config.max_nodes > 1 and self._engine.is_needed
        return not is_needed or time.monotonic() >= self._go_by

    def let_go(self, deadline: float) -> None:
        self._may_go, self._go_by = True, deadline
        if self._engine is not None:
            self._engine.leave()
        self._loop.call_later(max(deadline - time.monotonic(), 0.0), lambda: None)

    def _close(self) -> None:
        """All of it, whatever goes wrong with a part: others see by it that this node is gone."""
        with contextlib.ExitStack() as closing:
            closing.callback(self._loop.close)
            closing.callback(self.calls.close)
            closing.callback(self._disk.close)
            closing.callback(lambda: self._loop.run_until(self._disk.all_done()))
            if self._tether is not None:
                closing.callback(os.close, self._tether)
            if self._port is not None:
                closing.callback(self._port.release)
            if self._engine is not None:
                closing.callback(self._engine.close)
            if self._lease is not None:
                closing.callback(self._lease.cancel)

    def post(self, event: NodeEvent) -> None:
        """Take an event, after those that came before it."""
        if self._engine is not None:
            self._engine.post(event)

    # Who is told of every step.

    def agent(self, at: float, event: NodeEvent, effects: list[NodeEffect]) -> None:
        if isinstance(event, Told):
            self._note(event.message)
        self._level = logging.WARNING if isinstance(event, TROUBLE) else logging.INFO
        if self.shared.is_in_touch != self.state.link.connected:
            self.shared.show(is_in_touch=self.state.link.connected)

    def began(self, at: float, beginning: Beginning) -> None:
        pass

    def taken(self, at: float, liveness: Coordinator) -> None:
        liveness.taken.clear()

    def election(
        self,
        at: float,
        before: ElectionState,
        event: ElectionEvent,
        effects: list[ElectionEffect],
    ) -> None:
        pass

    def _note(self, message: ToNode) -> None:
        if isinstance(message, CloseJob):
            self.shared.show(was_told=True)
        elif isinstance(message, StandBy):
            self.shared.show(stood_by=True)

    def do(self, effect: NodeEffect) -> None:
        """Carry it out, as far as there is anything to do where somebody else runs the workers."""
        match effect:
            case ReserveEndpoint():
                self._owes_endpoint = True
                self._reserve_if_waiting()
            case StartWorkers():
                self._sit_down(effect)
            case SignalWorkers() if effect.stops:
                self._stop()
            case KillEverything():
                self.post(AllGone(effect.round))
            case EndSpawner():
                self.post(SpawnerEnded())
            case SetDeadlines():
                self._hold_lease(effect.stop_at)
            case _:
                pass  # A zygote and a spawner, which are not here.

    def _say(self, text: str) -> None:
        said = clean(text)  # Much of it comes from other machines.
        log.log(self._level, "holdfast: %s", said)
        self.shared.said = said

    # What stands in for a supervisor.

    def release(self) -> None:
        """The caller has no further use for the node."""
        self.post(Released())

    def want_seat(self) -> None:
        """The caller waits: none of its workers is left."""
        self._is_waiting = True
        if self.state.phase is Phase.RUNNING:
            self._end_workers(ExitStatus(), "its agent asks for the next round")
        else:
            self._end_workers(ExitStatus(signal=signal.SIGTERM))
        self._reserve_if_waiting()

    def _end_workers(self, status: ExitStatus, message: str = "", for_good: bool = False) -> None:
        error = ErrorDetail(message=message, non_retryable=for_good)
        assignment = self.state.assignment
        if assignment is None:
            return
        for local_rank in alive(self.state):
            self.post(WorkerExited(assignment.round, local_rank, os.getpid(), status, error))

    def end_well(self) -> None:
        """The caller's workers have succeeded; it wants no further round."""
        is_over = self.state.phase is not Phase.RUNNING
        self._end_workers(ExitStatus(code=0))
        self.ask_for_closing(f"{self.state.host} has finished")
        if is_over:  # The round has just been ended: this node is not back for another.
            self.release()

    def end_badly(self, reason: str) -> None:
        """Have the job end; outside of a round, without one."""
        self._is_waiting = True  # The node must be back before the round is judged.
        is_running = self.state.phase is Phase.RUNNING
        if is_running:
            self._end_workers(ExitStatus(), reason, for_good=True)
        # In a round, too: a coordinator that takes over before it is judged has not heard of it.
        wish = "no further round is wanted" if is_running else reason
        self.ask_for_closing(f"{self.state.host}: {wish}")
        if not is_running:
            self.want_seat()

    def ask_for_closing(self, reason: str) -> None:
        """Have no further round form."""
        self.post(ClosingAsked(Outcome("failed", reason, 1)))

    def _reserve_if_waiting(self) -> None:
        if not (self._owes_endpoint and self._is_waiting):
            return
        self._owes_endpoint = False
        if self._port is not None:
            self._port.release()
            self._port = None
        port = self.config.master_port
        if not port:
            self._port = ReservedPort()
            port = self._port.number
        # Without an address the contact puts in the one that peers can use.
        self.post(EndpointReserved(Endpoint(self.config.master_address or "", port)))

    def _sit_down(self, effect: StartWorkers) -> None:
        self._is_waiting = False
        given = effect.assignment
        store = self._engine.link.store_address if self._engine is not None else None
        round = self.state.round
        assert store is not None, "a round was announced by nobody"
        assert round is not None, "workers start in no round"
        seat = Seat(
            round.instance,
            given.round,
            given.group_rank,
            given.group_size,
            given.master,
            store,
        )
        self.shared.show(seat=seat, is_wanted=False)

    def _stop(self) -> None:
        """The round is over. At the end of the job the caller's workers are its own affair."""
        if self.state.phase is Phase.CLOSING:
            self._end_workers(ExitStatus(signal=signal.SIGTERM))
        else:
            self.shared.show(is_wanted=True)

    def _hold_lease(self, stop_at: float) -> None:
        if self._lease is not None:
            self._lease.cancel()
        after_s = max(stop_at - self._loop.now(), 0.0)
        self._lease = self._loop.call_later(after_s, self._lose_lease)

    def _lose_lease(self) -> None:
        was_running = self.state.phase is Phase.RUNNING
        self.post(LeaseRanOut())
        if was_running and self.state.phase is Phase.STOPPING:
            self.shared.show(is_wanted=True)

    def _finish(self, outcome: Outcome) -> None:
        # After a success there is nothing to meet for; the last workers may end in peace.
        self.shared.show(outcome=outcome, is_wanted=outcome.verdict != "succeeded")

    def hold_tether(self, tether: int) -> None:
        if self._tether is not None:
            os.close(self._tether)
        self._tether = tether

    def share_tethers(self, tethers: list[int]) -> None:
        """There is no other process to hold them."""
        for tether in tethers:
            os.close(tether)
