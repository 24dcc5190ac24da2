"""Where outsiders with questions come in, on each agent.

Through the channel, another program of this user asks to be let in and gets a connection of its
own; over the network one comes with the job's token. What serves them (`node.visits`,
`node.answering`) is loaded beside the loop when the first one comes: a job that nobody asks has
nothing of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.observe.journal import Journal
from holdfast.observe.live_history import LiveHistory
from holdfast.processes.channel_server import Answer
from holdfast.processes.stdlib_only.wire import VISIT
from holdfast.processes.supervisor import NodeSupervisor
from holdfast.runtime.disk import Disk
from holdfast.runtime.local_peer import ROOT, LocalPeer, user_of
from holdfast.runtime.loop import Loop

if TYPE_CHECKING:
    from holdfast.node.answering import Answering
    from holdfast.node.dashboard import AgentDashboard
    from holdfast.node.engine import Engine
    from holdfast.node.visits import Visits
    from holdfast.transport.connection import FramedConnection


class FrontDoor:
    """Lets visitors in, and has what is asked of this node answered."""

    engine: Engine
    """Of the node; there is none yet when its ports are made."""
    dashboard: AgentDashboard | None = None
    """Of this agent, if it has one."""

    def __init__(
        self,
        loop: Loop,
        disk: Disk,
        supervisor: NodeSupervisor,
        journal: Journal,
        live: LiveHistory,
    ) -> None:
        self._loop, self._disk = loop, disk
        self._supervisor, self._journal, self._live = supervisor, journal, live
        self._visits: Visits | None = None
        self._answering: Answering | None = None
        self._users: dict[int, str] = {}
        """The names of those whom the channel hears."""
        supervisor.on_visit = self.knocked

    def knocked(
        self, peer: LocalPeer, message: dict[str, Any], give: Callable[[bytes | Answer], None]
    ) -> None:
        """Somebody asks on the channel: say whose job this is, and let in who means it."""
        self._when_loaded(lambda: give(self._open(peer, message)))

    def _open(self, peer: LocalPeer, message: dict[str, Any]) -> bytes | Answer:
        run_id = self.engine.config.run_id
        answer = {"run_id": run_id, "node": self.engine.node, "is_open": False}
        if message.get(VISIT) != run_id or self._visits is None:
            return msgspec.json.encode(answer)
        try:
            descriptor = self._visits.admit_here(self._name_of(peer))
        except OSError as error:
            return msgspec.json.encode({**answer, "problem": error.strerror})
        packet = msgspec.json.encode({**answer, "is_open": True})
        return Answer(packet, descriptor, is_handed_over=True)

    def _name_of(self, peer: LocalPeer) -> str:
        user = self._users.get(peer.uid, f"uid {peer.uid}")
        return f"{user} on {self.engine.state.host}"

    def admit(self, connection: FramedConnection) -> None:
        """Somebody came over the network, and proved that it may."""
        connection.pause()  # Nothing is read before somebody is there to take it.

        def go_on() -> None:
            assert self._visits is not None, "it is made when it is loaded"
            if connection.is_open:
                self._visits.admit(connection)
                connection.resume()

        self._when_loaded(go_on)

    def ended(self, connection: FramedConnection) -> None:
        if self._visits is not None:
            self._visits.ended(connection)

    def answer(self, question: bytes, reply: Callable[[bytes], None]) -> None:
        """Something is asked of this node."""

        def go_on() -> None:
            assert self._answering is not None, "it is made when it is loaded"
            self._answering.answer(question, reply)

        self._when_loaded(go_on)

    def close(self) -> None:
        if self._visits is not None:
            self._visits.close()

    def _when_loaded(self, then: Callable[[], None]) -> None:
        if self._answering is not None:
            then()
        else:
            self._disk.lane("questions").do(_load, lambda users: self._on_loaded(users, then))

    def _on_loaded(self, users: dict[int, str], then: Callable[[], None]) -> None:
        from holdfast.node.answering import Answering
        from holdfast.node.visits import Visits

        self._users = users
        self._answering = self._answering or Answering(
            self.engine,
            self._supervisor,
            self._journal,
            self._disk.lane("journal"),
            self._live,
            lambda: self.dashboard,
        )
        self._visits = self._visits or Visits(self._loop, self.engine.questions)
        then()


def _load() -> dict[int, str]:
    """For a lane, also because users may be known to a name server only."""
    import holdfast.node.answering
    import holdfast.node.visits  # noqa: F401 - both, for whoever comes after

    return {uid: user_of(uid) for uid in (os.geteuid(), ROOT)}
