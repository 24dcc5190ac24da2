"""This node's place in a job whose workers somebody else runs.

`Membership` is an agent without a workplace: the very core of the agent, in touch with a real
coordinator, on a thread of its own. Where the core would start workers, whoever waits in `meet`
gets the node's seat; where it would stop them, `is_wanted` says that the round is over, until
`meet` is called again, which says that none of the old workers is left.

Rules
1. Nothing is known of the caller's workers but what it says: `meet` means that all are gone,
   `note_success` that all ended well, `fail` that they failed for good.
2. A node is a candidate for a round only while somebody waits in `meet`.
3. `meet` during a round that nobody has ended counts as a failure of this node's workers: the
   round ends for everybody. How many restarts that may cost is the callers' to count.
4. The caller's workers are not ours to kill. When the lease is about to end, `is_wanted` is true
   at once, and it is for the caller to stop them; that no two rounds run at once holds as far as
   it does so in time. A lease that cannot be regained within `join_s` ends the membership.
   Once one node has finished, or wants the job closed, the round goes on, and none follows it.
5. A tether is held by this process, and by what it forks. Its end proves that the process is
   gone, not that workers are which were started in another way.
6. The loop's thread alone touches core, contact and sockets; others hand it calls (`_Calls`).
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from holdfast.agent.contact import Contact, NetworkContact, Owner, Secrets
from holdfast.control.registers.register import Register
from holdfast.core import agent
from holdfast.core.agent_io import (
    AgentEffect,
    AgentEvent,
    AgentStarted,
    AgentTimerFired,
    AllGone,
    ClosingAsked,
    CoordinatorReached,
    Dial,
    EndpointReserved,
    EndSpawner,
    Finish,
    HangUp,
    HoldLease,
    KillEverything,
    LeaseRanOut,
    Released,
    Report,
    ReserveEndpoint,
    Say,
    SignalWorkers,
    SpawnerEnded,
    StartWorkers,
    Told,
    WakeAgent,
    WorkerExited,
)
from holdfast.core.agent_state import GRACE_TIMER, UNKILLABLE_TIMER, AgentState, Phase, alive
from holdfast.core.config import JobConfig
from holdfast.core.errors import HoldfastError
from holdfast.core.messages import CloseJob
from holdfast.core.model import Endpoint, ErrorDetail, ExitStatus, Outcome
from holdfast.observe.journal import SCHEMA, Header, Journal
from holdfast.workers import linux
from holdfast.workers.event_loop import Cancellable, EventLoop
from holdfast.workers.ports import ReservedPort

log = logging.getLogger(__name__)

NOT_OURS = (GRACE_TIMER, UNKILLABLE_TIMER)
"""Waits for workers to die of a kill: nobody kills here."""
WITHOUT_CONTACT_S = 5.0
"""How long an end waits for a coordinator that is out of reach."""


class Seat(Struct, frozen=True):
    """Where this node sits in a round."""

    instance: int
    """Of the job: another one may have a round of the same number."""
    round: int
    rank: int
    size: int
    master: Endpoint
    """Held on the node of rank 0, for its workers."""
    store: Endpoint
    """Where the coordinator keeps the round's keys."""


class NotMet(HoldfastError):
    """There is no seat, and why. `outcome` is how the job ended, if it did."""

    def __init__(self, message: str, outcome: Outcome | None = None, told: bool = False) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.told = told
        """The coordinator said so; otherwise this node gave up by itself."""


class _MeetingContact(Contact, Protocol):
    """A contact whose coordinator has a store."""

    @property
    def store_place(self) -> Endpoint | None: ...


class Membership:
    """One node of one job. All public calls are for any thread."""

    def __init__(
        self, config: JobConfig, secrets: Secrets | None = None, register: Register | None = None
    ) -> None:
        """`register` carries the job in place of what the configuration names."""
        host = socket.gethostname()
        self.config = config
        self.node = f"{host}-{os.urandom(4).hex()}"
        self._secrets, self._register = secrets or Secrets(), register
        self._state = AgentState(config, self.node, host)
        self._inbox: deque[AgentEvent] = deque()
        self._busy = False
        self._timers: dict[str, Cancellable] = {}
        self._lease: Cancellable | None = None
        self._port: ReservedPort | None = None
        self._tether: int | None = None
        self._owes_endpoint = self._is_waiting = False
        self._changed = threading.Condition()
        self._seat: Seat | None = None
        self._is_wanted = self._was_told = self._may_go = self._has_failed = False
        self._go_by = 0.0
        self._outcome: Outcome | None = None
        self._problem = ""
        self._contact: _MeetingContact | None = None
        self._loop = EventLoop()
        self._calls = _Calls(self._loop)
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        header = Header(SCHEMA, config.run_id, self.node, host, started, config)
        self._journal = Journal(None, header)
        self._thread = threading.Thread(target=self._live, name="holdfast membership", daemon=True)
        self._thread.start()

    # For any thread.

    @property
    def is_wanted(self) -> bool:
        """Whether the round is over, and `meet` should be called once the workers are gone."""
        return self._is_wanted

    def wait_until_wanted(self, timeout_s: float) -> bool:
        """Wait for `is_wanted`; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_wanted, timeout_s)

    @property
    def outcome(self) -> Outcome | None:
        """How the membership ended; None while it lasts."""
        return self._outcome

    @property
    def is_closed(self) -> bool:
        """Whether the coordinator has said that the job is over, other than for want of nodes."""
        ended = self._outcome is not None and self._was_told
        return ended and self._outcome is not None and self._outcome.verdict != "not_formed"

    def meet(self, timeout_s: float) -> Seat:
        """Wait for a seat in the next round; no worker of an older one is left.

        Raises `NotMet` when the job or the membership is over, TimeoutError when it takes longer
        than that; then the node leaves.
        """
        self.stand_up()
        with self._changed:
            is_done = self._changed.wait_for(self._has_ended_or_seat, timeout_s)
        if (seat := self._taken_seat()) is not None:
            return seat
        if not is_done:
            self.leave(WITHOUT_CONTACT_S)
            raise TimeoutError(f"no seat within {timeout_s:g} s")
        reason = self._problem or (self._outcome.reason if self._outcome else "the node has left")
        raise NotMet(reason, self._outcome, self._was_told)

    @property
    def is_seated(self) -> bool:
        """Whether `meet` gave a seat that has not been given up since."""
        return self._seat is not None

    def stand_up(self) -> None:
        """No worker of this node's round is left."""
        with self._changed:
            self._seat, self._is_wanted = None, False
        self._calls.put(self._want_seat)

    def note_success(self) -> None:
        """All workers of this node ended well; it wants no further round."""
        self._calls.put(self._end_well)

    def want_closed(self, reason: str, timeout_s: float) -> None:
        """Let no further round form; returns once a coordinator is there to be told."""
        self._calls.put(self._ask_for_closing, reason)
        with self._changed:
            self._changed.wait_for(self._is_in_touch, timeout_s)

    def fail(self, reason: str) -> None:
        """The workers failed for good: the job ends for everybody."""
        self._has_failed = True
        self._calls.put(self._end_badly, reason)

    def leave(self, timeout_s: float) -> bool:
        """Take no further part; whether all that was to be said could be said.

        Where this node carries the coordinator, it stays until the others are done; in any case
        not longer than `timeout_s`.
        """
        if not self._has_failed:  # Else the end of the job lets it go.
            self._calls.put(self.post, Released())
        return self._go(timeout_s)

    def _go(self, timeout_s: float) -> bool:
        """Wait for the end; whoever does not get there in time is cut off."""
        if threading.current_thread() is self._thread:
            timeout_s = 0.0
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._changed.wait_for(self._is_at_its_end, min(timeout_s, WITHOUT_CONTACT_S))
            if self._state.connected:
                self._changed.wait_for(self._is_at_its_end, deadline - time.monotonic())
            has_ended = self._outcome is not None
        self._calls.put(self._let_go, deadline)
        if threading.current_thread() is not self._thread:  # Garbage is collected on any thread.
            self._thread.join(max(deadline - time.monotonic(), 0.0) + 1.0)
        return has_ended

    def _is_in_touch(self) -> bool:
        return self._state.connected or self._is_at_its_end()

    def _taken_seat(self) -> Seat | None:
        return self._seat

    def _has_ended_or_seat(self) -> bool:
        return self._seat is not None or self._is_at_its_end()

    def _is_at_its_end(self) -> bool:
        return self._outcome is not None or bool(self._problem) or not self._thread.is_alive()

    # On the loop's thread: the life of the node.

    def _live(self) -> None:
        try:
            self._contact = self._make_contact()
            self.post(AgentStarted(cold="others start the workers"))
            self._loop.run_until(self._is_over)
        except (HoldfastError, OSError) as error:
            self._problem = str(error)
            log.warning("holdfast: %s", error)
        finally:
            self._close()
            with self._changed:
                self._problem = self._problem or ("" if self._outcome else "the node has left")
                self._changed.notify_all()

    def _make_contact(self) -> _MeetingContact:
        owner = Owner(
            config=self.config,
            loop=self._loop,
            node=self.node,
            post=self.post,
            say=_say,
            journal=self._journal,
            on_tether=self._hold_tether,
            share_tethers=_close_all,
        )
        if self._register is None and self.config.rendezvous.is_embedded:
            return NetworkContact(owner, self._secrets.token)
        from holdfast.agent.register_contact import RegisterContact

        return RegisterContact(owner, self._secrets, self._register)

    def _is_over(self) -> bool:
        if not self._may_go or self._contact is None:
            return False
        # A single node has nobody to whom it could owe the outcome.
        is_needed = self.config.max_nodes > 1 and self._contact.is_needed
        return not is_needed or time.monotonic() >= self._go_by

    def _let_go(self, deadline: float) -> None:
        self._may_go, self._go_by = True, deadline
        if self._contact is not None:
            self._contact.leave()
        self._loop.call_later(max(deadline - time.monotonic(), 0.0), lambda: None)

    def _close(self) -> None:
        for timer in (*self._timers.values(), self._lease):
            if timer is not None:
                timer.cancel()
        if self._contact is not None:
            self._contact.close()
        if self._port is not None:
            self._port.release()
        if self._tether is not None:
            os.close(self._tether)
        self._journal.close()
        self._calls.close()
        self._loop.close()

    def post(self, event: AgentEvent) -> None:
        """Put an event in the inbox, and work through it unless that is under way."""
        self._inbox.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._inbox:
                self._take(self._inbox.popleft())
        finally:
            self._busy = False

    def _take(self, event: AgentEvent) -> None:
        now = linux.now()
        if isinstance(event, Told) and isinstance(event.message, CloseJob):
            self._was_told = True
        effects = agent.step(self._state, event, now)
        self._journal.agent(now, event, effects)
        for effect in effects:
            self._carry_out(effect)
        if isinstance(event, CoordinatorReached):
            with self._changed:
                self._changed.notify_all()

    def _carry_out(self, effect: AgentEffect) -> None:
        contact = self._contact
        assert contact is not None, "an agent stepped before it had a contact"
        match effect:
            case ReserveEndpoint():
                self._owes_endpoint = True
                self._reserve_if_waiting()
            case StartWorkers():
                self._sit_down(effect)
            case SignalWorkers():
                self._stop()
            case KillEverything():
                self.post(AllGone())
            case EndSpawner():
                self.post(SpawnerEnded())
            case WakeAgent():
                self._wake(effect)
            case Dial():
                contact.dial()
            case HangUp():
                contact.hang_up()
            case HoldLease():
                self._hold_lease(effect.stop_at)
            case Report():
                contact.send(effect.message)
            case Say():
                _say(effect.text)
            case Finish():
                self._finish(effect.outcome)
            case _:
                pass  # A zygote and a spawner, which are not here.

    # What stands in for a workplace.

    def _want_seat(self) -> None:
        """The caller waits: none of its workers is left."""
        self._is_waiting = True
        if self._state.phase is Phase.RUNNING:
            self._end_workers(ExitStatus(code=1), "its agent asks for the next round")
        else:
            self._end_workers(ExitStatus(signal=signal.SIGTERM))
        self._reserve_if_waiting()

    def _end_workers(self, status: ExitStatus, message: str = "", for_good: bool = False) -> None:
        error = ErrorDetail(message=message, non_retryable=for_good)
        assignment = self._state.assignment
        if assignment is None:
            return
        for local_rank in alive(self._state):
            self.post(WorkerExited(assignment.round, local_rank, os.getpid(), status, error))

    def _end_well(self) -> None:
        if self._state.phase is Phase.RUNNING:
            self._end_workers(ExitStatus(code=0))
        self._ask_for_closing(f"{self._state.host} has finished")

    def _end_badly(self, reason: str) -> None:
        """Have the job end; outside of a round, without one."""
        self._is_waiting = True  # The node must be back before the round is judged.
        if self._state.phase is Phase.RUNNING:
            self._end_workers(ExitStatus(code=1), reason, for_good=True)
        else:
            self._ask_for_closing(f"{self._state.host}: {reason}")
            self._want_seat()

    def _ask_for_closing(self, reason: str) -> None:
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
        given, contact = effect.assignment, self._contact
        store = contact.store_place if contact is not None else None
        assert store is not None, "a round was announced by nobody"
        seat = Seat(
            self._state.instance,
            given.round,
            given.group_rank,
            given.group_size,
            given.master,
            store,
        )
        with self._changed:
            self._seat, self._is_wanted = seat, False
            self._changed.notify_all()

    def _stop(self) -> None:
        """The round is over. At the end of the job the caller's workers are its own affair."""
        if self._state.phase is Phase.CLOSING:
            self._end_workers(ExitStatus(signal=signal.SIGTERM))
        else:
            self._want()

    def _want(self) -> None:
        with self._changed:
            self._is_wanted = True
            self._changed.notify_all()

    def _hold_lease(self, stop_at: float) -> None:
        if self._lease is not None:
            self._lease.cancel()
        after_s = max(stop_at - linux.now(), 0.0)
        self._lease = self._loop.call_later(after_s, self._lose_lease)

    def _lose_lease(self) -> None:
        was_running = self._state.phase is Phase.RUNNING
        self.post(LeaseRanOut())
        if was_running and self._state.phase is Phase.STOPPING:
            self._want()

    def _wake(self, effect: WakeAgent) -> None:
        if effect.name in NOT_OURS:
            return
        if effect.name in self._timers:
            self._timers[effect.name].cancel()
        fired = AgentTimerFired(effect.name)
        self._timers[effect.name] = self._loop.call_later(effect.after_s, self.post, fired)

    def _finish(self, outcome: Outcome) -> None:
        with self._changed:
            self._outcome = outcome
            # After a success there is nothing to meet for; the last workers may end in peace.
            self._is_wanted = outcome.verdict != "succeeded"
            self._changed.notify_all()

    def _hold_tether(self, descriptor: int) -> None:
        if self._tether is not None:
            os.close(self._tether)
        self._tether = descriptor


class _Calls:
    """Calls from other threads, on their way to the loop."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._is_open = True
        loop.add_reader(self._bell, self._take)

    def put(self, call: Callable[..., None], *args: object) -> None:
        """From any thread; nothing happens after the end."""
        with self._lock:
            if self._is_open:
                self._calls.append((call, args))
                os.eventfd_write(self._bell, 1)

    def _take(self) -> None:
        os.eventfd_read(self._bell)
        while self._calls:
            call, args = self._calls.popleft()
            call(*args)

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            self._loop.remove_reader(self._bell)
            os.close(self._bell)


def _say(text: str) -> None:
    log.info("holdfast: %s", text)


def _close_all(descriptors: list[int]) -> None:
    """There is no other process to hold them."""
    for descriptor in descriptors:
        os.close(descriptor)
