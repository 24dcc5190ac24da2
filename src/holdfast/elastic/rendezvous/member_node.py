"""A node without a workplace: the very core of the agent, in touch with a real coordinator.

Where the core would start workers, the board shows the node's seat; where it would stop them, the
board says that the round is over.

Rules
1. One thread alone touches core, contact and sockets: the one that calls `live`. Others hand it
   calls (`Calls`), and read the board.
2. A node is a candidate for a round only while its caller waits for one.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from typing import Protocol

from holdfast.agent.contact import Contact, NetworkContact, Owner, Secrets
from holdfast.agent.disk import Disk
from holdfast.control.calls import Calls
from holdfast.control.registers.register import Register
from holdfast.control.tether_end import reset_tether
from holdfast.core import agent
from holdfast.core.agent_io import (
    AgentEffect,
    AgentEvent,
    AgentStarted,
    AgentTimerFired,
    AllGone,
    ClosingAsked,
    CoordinatorLost,
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
from holdfast.core.bounds import clean
from holdfast.core.config import JobConfig
from holdfast.core.errors import HoldfastError
from holdfast.core.messages import CloseJob, StandBy, ToNode
from holdfast.core.model import Endpoint, ErrorDetail, ExitStatus, Outcome
from holdfast.elastic.rendezvous.board import Board, Seat
from holdfast.observe.journal import SCHEMA, Header, Journal
from holdfast.workers import linux
from holdfast.workers.event_loop import Cancellable, EventLoop, Inbox
from holdfast.workers.ports import ReservedPort

log = logging.getLogger(__name__)

NOT_OURS = (GRACE_TIMER, UNKILLABLE_TIMER)
"""Waits for workers to die of a kill: nobody kills here."""
TROUBLE = (CoordinatorLost, LeaseRanOut)
"""What is said of it is for everybody to see: the caller may have to wait long."""


class _MeetingContact(Contact, Protocol):
    """A contact whose coordinator has a store."""

    @property
    def store_place(self) -> Endpoint | None: ...


class MemberNode:
    """One node of one job."""

    def __init__(
        self, config: JobConfig, secrets: Secrets, register: Register | None, board: Board
    ) -> None:
        host = clean(socket.gethostname())
        self.config, self.board = config, board
        self.node = f"{host}-{os.urandom(4).hex()}"
        self._secrets, self._register = secrets, register
        self.state = AgentState(config, self.node, host)
        self._inbox: Inbox[AgentEvent] = Inbox(self._take)
        self._timers: dict[str, Cancellable] = {}
        self._lease: Cancellable | None = None
        self._port: ReservedPort | None = None
        self._tether: int | None = None
        self._owes_endpoint = self._is_waiting = self._may_go = False
        self._go_by = 0.0
        self._level = logging.INFO
        self._contact: _MeetingContact | None = None
        self._loop = EventLoop()
        self.calls = Calls(self._loop)
        self._disk = Disk(self._loop, self._say)
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        header = Header(SCHEMA, config.run_id, self.node, host, started, config)
        self._journal = Journal(None, header)

    def live(self) -> None:
        """Be a node of the job until it is let go."""
        problem = ""
        try:
            self._contact = self._make_contact()
            self.post(AgentStarted(cold="others start the workers"))
            self._loop.run_until(self._is_over)
        except (HoldfastError, OSError) as error:
            problem = str(error)
            log.warning("holdfast: %s", error)
        except Exception as error:
            problem = f"this node's part in the job broke off: {type(error).__name__}: {error}"
            log.exception("holdfast: this node's part in the job broke off")
        finally:
            self._end(problem or ("" if self.board.outcome else "the node has left"))

    def _end(self, problem: str) -> None:
        """Tell the caller first: if its workers still run, others are about to replace them."""
        breaks_off = not self._may_go and self.board.outcome is None
        self.board.show(problem=problem, is_wanted=self.board.is_wanted or breaks_off)
        if breaks_off and self._tether is not None:
            reset_tether(self._tether)  # Its end would say that no worker is left here.
            self._tether = None
        self._close()

    def _make_contact(self) -> _MeetingContact:
        owner = Owner(
            config=self.config,
            loop=self._loop,
            node=self.node,
            post=self.post,
            say=self._say,
            journal=self._journal,
            disk=self._disk,
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

    def let_go(self, deadline: float) -> None:
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
        self._loop.run_until(self._disk.all_done())
        self._disk.close()
        self.calls.close()
        self._loop.close()

    def post(self, event: AgentEvent) -> None:
        """Take an event, after those that came before it."""
        self._inbox.put(event)

    def _take(self, event: AgentEvent) -> None:
        now = linux.now()
        if isinstance(event, Told):
            self._note(event.message)
        effects = agent.step(self.state, event, now)
        self._journal.agent(now, event, effects)
        self._level = logging.WARNING if isinstance(event, TROUBLE) else logging.INFO
        for effect in effects:
            self._carry_out(effect)
        if self.board.is_in_touch != self.state.connected:
            self.board.show(is_in_touch=self.state.connected)

    def _note(self, message: ToNode) -> None:
        if isinstance(message, CloseJob):
            self.board.show(was_told=True)
        elif isinstance(message, StandBy):
            self.board.show(stood_by=True)

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
                self._say(effect.text)
            case Finish():
                self._finish(effect.outcome)
            case _:
                pass  # A zygote and a spawner, which are not here.

    def _say(self, text: str) -> None:
        said = clean(text)  # Much of it comes from other machines.
        log.log(self._level, "holdfast: %s", said)
        self.board.said = said

    # What stands in for a workplace.

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
        # In a round, too: whoever takes over before it is judged has not heard of the failure.
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
        given, contact = effect.assignment, self._contact
        store = contact.store_place if contact is not None else None
        assert store is not None, "a round was announced by nobody"
        seat = Seat(
            self.state.instance,
            given.round,
            given.group_rank,
            given.group_size,
            given.master,
            store,
        )
        self.board.show(seat=seat, is_wanted=False)

    def _stop(self) -> None:
        """The round is over. At the end of the job the caller's workers are its own affair."""
        if self.state.phase is Phase.CLOSING:
            self._end_workers(ExitStatus(signal=signal.SIGTERM))
        else:
            self.board.show(is_wanted=True)

    def _hold_lease(self, stop_at: float) -> None:
        if self._lease is not None:
            self._lease.cancel()
        after_s = max(stop_at - linux.now(), 0.0)
        self._lease = self._loop.call_later(after_s, self._lose_lease)

    def _lose_lease(self) -> None:
        was_running = self.state.phase is Phase.RUNNING
        self.post(LeaseRanOut())
        if was_running and self.state.phase is Phase.STOPPING:
            self.board.show(is_wanted=True)

    def _wake(self, effect: WakeAgent) -> None:
        if effect.name in NOT_OURS:
            return
        if effect.name in self._timers:
            self._timers[effect.name].cancel()
        fired = AgentTimerFired(effect.name)
        self._timers[effect.name] = self._loop.call_later(effect.after_s, self.post, fired)

    def _finish(self, outcome: Outcome) -> None:
        # After a success there is nothing to meet for; the last workers may end in peace.
        self.board.show(outcome=outcome, is_wanted=outcome.verdict != "succeeded")

    def _hold_tether(self, descriptor: int) -> None:
        if self._tether is not None:
            os.close(self._tether)
        self._tether = descriptor


def _close_all(descriptors: list[int]) -> None:
    """There is no other process to hold them."""
    for descriptor in descriptors:
        os.close(descriptor)
