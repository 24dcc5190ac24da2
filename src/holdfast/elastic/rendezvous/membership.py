"""This node's place in a job whose workers somebody else runs.

A caller of `meet` gets the node's seat in a round; `is_wanted` says that the round is over,
until `meet` is called again, which says that none of the old workers is left. The node itself
lives on a thread of its own (`member_node`).

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
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial

from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.errors import HoldfastError
from holdfast.core.protocol.model import Outcome
from holdfast.core.rounds import patience_s
from holdfast.elastic.rendezvous.member_node import MemberNode, Seat, SharedState
from holdfast.engine.secrets import Secrets
from holdfast.registers.register import Register

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
        """It was there while the others worked, in case that it was needed."""


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

    def wait_until_wanted(self, timeout_s: float) -> bool:
        """Wait for `is_wanted`; whether it is."""
        return self.wait_for(lambda: self.is_wanted, timeout_s)

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
