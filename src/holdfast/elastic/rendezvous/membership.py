"""This node's place in a job whose workers somebody else runs.

A caller of `Membership.meet` gets the node's seat in a round; `is_wanted` says that the round is
over, until `meet` is called again, which says that none of the old workers is left.

How it works: `MemberNode` is the engine of `holdfast run` with a shared state in place of
processes. Where the core would start workers, the state shows the node's seat; where it would stop
them, the state says that the round is over.

Rules
1. Nothing is known of the caller's workers but what it says: `meet` means that all are gone,
   `note_success` that all ended well, `fail` that they failed for good.
2. `meet` during a round that nobody has ended counts as a failure of this node's workers: the
   round ends for everybody. How many restarts that may cost is the callers' to count.
3. The caller's workers are not ours to kill. When the lease is about to end, `is_wanted` is true
   at once, and it is for the caller to stop them; that no two rounds run at once holds as far as
   it does so in time. A lease that cannot be regained within `join_s` ends the membership.
4. Once one node has finished, or wants the job closed, the round goes on, and none follows it.
5. A tether is held by this process, and by what it forks. Its end proves that the process is
   gone, not that workers are which were started in another way.
6. One thread alone touches engine and sockets: the one that calls `live`. Others hand it calls
   (`ThreadCalls`), and read the shared state.
7. A node is a candidate for a round only while its caller waits for one.
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
from functools import partial
from typing import Any

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
from holdfast.core.rounds import patience_s
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
        """The coordinator has put the node on standby."""
        self.problem = ""
        """Why the node is at its end, other than by an outcome."""
        self.said = ""
        """The last sentence of the node or of its coordinator."""
        self.on_change: Callable[[], None] | None = None
        """Called in the node's thread when any of this has changed."""

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
        if self.on_change is not None:
            self.on_change()


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
        """Close everything, also after an error: others notice by it that this node is gone."""
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

    # The journal, which is told of every step.

    def agent(self, at: float, event: NodeEvent, effects: list[NodeEffect]) -> None:
        if isinstance(event, Told):
            self._note(event.message)
        self._level = logging.WARNING if isinstance(event, TROUBLE) else logging.INFO
        if self.shared.is_in_touch != self.state.link.connected:
            self.shared.show(is_in_touch=self.state.link.connected)

    def began(self, at: float, beginning: Any) -> None:
        pass

    def taken(self, at: float, liveness: Any) -> None:
        liveness.taken.clear()

    def election(self, at: float, before: Any, event: Any, effects: list[Any]) -> None:
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
        """The caller's workers have succeeded: ask for no further round."""
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


WITHOUT_CONTACT_S = 5.0
"""The wait, at the end, for a coordinator that is out of reach."""
FIRST_WORD_S = 1.0
"""Added to the wait for a seat: by then the node itself has given up, and says why."""


class NotMet(HoldfastError):
    """There is no seat, and why. `outcome` is how the job ended, if it did."""

    def __init__(self, message: str, outcome: Outcome | None, told: bool, stood_by: bool) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.told = told
        """The coordinator said so; otherwise this node gave up by itself."""
        self.stood_by = stood_by
        """The node was on standby."""


class Membership(SharedState):
    """One node of one job, and the shared state of its thread. All calls are for any thread."""

    def __init__(
        self, config: JobConfig, secrets: Secrets | None = None, register: Register | None = None
    ) -> None:
        """`register` carries the job in place of what the configuration names."""
        super().__init__()
        self._node = MemberNode(config, secrets or Secrets(), register, self)
        self._has_failed = False
        self._process = os.getpid()
        name = "holdfast membership"
        self._thread = threading.Thread(target=self._node.live, name=name, daemon=True)
        self._thread.start()

    @property
    def is_hosting(self) -> bool:
        """Whether this node is the coordinator."""
        return self._node.state.link.hosting

    @property
    def is_closed(self) -> bool:
        """Whether the coordinator has said that the job is over, other than for want of nodes."""
        outcome = self.outcome if self.was_told else None
        return outcome is not None and outcome.verdict != "not_formed"

    def meet(self, timeout_s: float) -> Seat:
        """Wait for a seat in the next round; no worker of an older one is left.

        Raises `NotMet` when the job or the membership is over, TimeoutError when it takes longer
        than that; then the node leaves.
        """
        self.stand_up()
        is_decided = partial(self.wait_for, lambda: self.seat is not None or self.has_ended)
        is_done = is_decided(timeout_s) or is_decided(FIRST_WORD_S)
        if self.seat is not None:
            return self.seat
        if not is_done:
            said = f"; the last word was: {self.said}" if self.said else ""
            self.leave(WITHOUT_CONTACT_S)
            raise TimeoutError(f"no place in a round within {timeout_s:g} s{said}")
        if not self.is_closed:  # Another one may take its place, and should not find this one.
            self._go(WITHOUT_CONTACT_S)
        ended = self.outcome.reason if self.outcome else "the node has left"
        raise NotMet(self.problem or ended, self.outcome, self.was_told, self.stood_by)

    @property
    def is_seated(self) -> bool:
        """Whether `meet` gave a seat that has not been given up since."""
        return self.seat is not None

    def stand_up(self) -> None:
        """No worker of this node's round is left."""
        self.show(seat=None, is_wanted=False)
        self._node.calls.put(self._node.want_seat)

    def note_success(self) -> None:
        """All workers of this node ended well; it wants no further round."""
        self._node.calls.put(self._node.end_well)

    def want_closed(self, reason: str, timeout_s: float) -> None:
        """Let no further round form; returns once a coordinator is there to be told."""
        self._node.calls.put(self._node.ask_for_closing, reason)
        self.wait_for(lambda: self.is_in_touch or self.has_ended, timeout_s)

    def fail(self, reason: str) -> None:
        """The workers failed for good: the job ends for everybody."""
        self._has_failed = True
        self._node.calls.put(self._node.end_badly, reason)

    def leave(self, timeout_s: float) -> bool:
        """Take no further part; whether all that was to be said could be said.

        Where this node is the coordinator, it stays until the others are done; in any case
        not longer than `timeout_s`, or, if it has failed, than others may take to stop their
        workers: without it they would not learn that the job is over.
        """
        if os.getpid() != self._process:
            return False  # A fork has no part in it; what another thread had locked stays locked.
        if self._has_failed and self.is_hosting:
            timeout_s = max(timeout_s, patience_s(self._node.config.timeouts))
        if not self._has_failed:  # Else the end of the job lets it go.
            self._node.calls.put(self._node.release)
        return self._go(timeout_s)

    def _go(self, timeout_s: float) -> bool:
        """Wait for the end; a node that does not get there in time is cut off."""
        if threading.current_thread() is self._thread:
            timeout_s = 0.0
        deadline = time.monotonic() + timeout_s
        self.wait_for(lambda: self.has_ended, min(timeout_s, WITHOUT_CONTACT_S))
        if self.is_in_touch:
            self.wait_for(lambda: self.has_ended, deadline - time.monotonic())
        is_told = self.outcome is not None
        self._node.calls.put(self._node.let_go, deadline)
        if threading.current_thread() is not self._thread:  # Garbage is collected on any thread.
            self._thread.join(max(deadline - time.monotonic(), 0.0) + 1.0)
        return is_told

    @property
    def has_ended(self) -> bool:
        """Whether the node takes no further part, for whatever reason."""
        is_over = self.outcome is not None or bool(self.problem)
        return is_over or not self._thread.is_alive()
