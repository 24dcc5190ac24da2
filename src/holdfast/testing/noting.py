"""What checkers have to know of a coordinator: what it says too late, and what it decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core import desk as desks
from holdfast.core.leadership_state import may_speak
from holdfast.core.leases import NodeGone
from holdfast.core.messages import HeartbeatAnswered
from holdfast.core.model import Tenure
from holdfast.testing.facts import FirstWord, NodeDeclaredGone, RoundEnding, Spoke

if TYPE_CHECKING:
    from holdfast.testing.leading import Leading

TOLERANCE_S = 0.001


class Notes:
    """One coordinator's, from when it begins to lead."""

    def __init__(self, leading: Leading, desk: desks.Desk) -> None:
        self._leading = leading
        self._desk = desk
        self._cluster = leading.cluster
        self._ending: tuple[int, object] = (0, None)
        self._has_spoken = False

    def speaks(self, tenure: Tenure) -> None:
        if not self._has_spoken:
            self._has_spoken = True
            now, node = self._cluster.timeline.now, self._leading.process.node
            self._cluster.note(FirstWord(now, self._leading.host, node, tenure))

    def said(self, message: Any, secure_from: float, now: float) -> None:
        """Beyond the tenure nothing is said; only leases are renewed, while all are heard."""
        terms = self._leading.machine.config.leases
        beyond_s = now - secure_from - terms.tenure_s
        if beyond_s <= TOLERANCE_S:
            return
        text = ""
        if not isinstance(message, HeartbeatAnswered):
            text = f"said {type(message).__name__} {beyond_s:.2f} s after its tenure"
        elif beyond_s > terms.hold_s + TOLERANCE_S:
            text = f"renewed a lease {beyond_s:.2f} s after its tenure"
        elif self._silent_member(now):
            text = f"renewed a lease on hold without {self._silent_member(now)}"
        if text:
            self._cluster.note(Spoke(self._cluster.timeline.now, self._leading.host, text))

    def _silent_member(self, now: float) -> str:
        current, book = self._desk.state.round, self._desk.book
        for name in current.members if current is not None else ():
            watch = book.watches.get(name)
            silent = watch is None or now - watch.heard_at > book.terms.suspect_s + TOLERANCE_S
            if silent and current is not None and name not in current.succeeded:
                return name or "a node that has not reported"
        return ""

    def decided(self) -> None:
        """Look at the steps that were taken, and empty the list."""
        leading, desk, now = self._leading, self._desk, self._cluster.timeline.now
        for taken in desk.taken:
            if isinstance(taken.event, NodeGone):
                in_tenure = leading.embedded or may_speak(leading.state, leading.now())
                self._cluster.note(NodeDeclaredGone(now, taken.event.node, leading.host, in_tenure))
                text = f"coordinator: {taken.event.node} is gone: {taken.event.reason}"
                self._cluster.tell_story(leading.machine, text)
        desk.taken.clear()
        current = desk.state.round
        ending = (current.number, current.ending) if current is not None else (0, None)
        if ending != self._ending:
            self._ending = ending
            if current is not None and current.ending is not None and current.announced:
                self._ended()

    def _ended(self) -> None:
        current, since = self._desk.state.round, self._desk.state.newcomer_since
        assert current is not None
        assert current.ending is not None
        now, config = self._leading.now(), self._desk.state.config
        self._cluster.note(
            RoundEnding(
                self._cluster.timeline.now,
                current.number,
                current.ending,
                self._leading.host,
                now - current.started_at,
                None if since is None else now - since,
                len({*current.members, *self._desk.state.ready}) >= config.max_nodes,
            )
        )
        text = f"coordinator: round {current.number} ends ({current.ending}): {current.stop_reason}"
        self._cluster.tell_story(self._leading.machine, text)
