"""The endpoint for admin clients, on each agent.

A program of this user asks for a session through the channel, and gets a connection of its own;
over the network the job's token is needed. The modules that serve sessions (`admin.sessions`,
`admin.handlers`) are loaded beside the loop for the first one, so a job without requests does not
pay for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.observe.history import LiveHistory
from holdfast.observe.journal import Journal
from holdfast.processes.channel_server import Answer
from holdfast.processes.stdlib_only.wire import ADMIN_SESSION
from holdfast.processes.supervisor import NodeSupervisor
from holdfast.runtime.disk import Disk
from holdfast.runtime.local_peer import ROOT, LocalPeer, user_of
from holdfast.runtime.loop import Loop

if TYPE_CHECKING:
    from holdfast.admin.dashboard import AgentDashboard
    from holdfast.admin.handlers import RequestHandlers
    from holdfast.admin.sessions import AdminSessions
    from holdfast.engine.engine import Engine
    from holdfast.transport.connection import FramedConnection


class AdminServer:
    """Opens admin sessions, and answers requests to this node."""

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
        self._sessions: AdminSessions | None = None
        self._handlers: RequestHandlers | None = None
        self._user_names: dict[int, str] = {}
        """The names of the users that the channel admits, by uid."""
        supervisor.on_admin_request = self.on_local_client

    def on_local_client(
        self, peer: LocalPeer, message: dict[str, Any], give: Callable[[bytes | Answer], None]
    ) -> None:
        """Answer a client of the channel with this job, and admit it if it asked for this job."""
        self._when_loaded(lambda: give(self._open(peer, message)))

    def _open(self, peer: LocalPeer, message: dict[str, Any]) -> bytes | Answer:
        run_id, round_here = self.engine.config.run_id, self.engine.state.assignment
        answer = {"run_id": run_id, "node": self.engine.node, "is_open": False}
        if round_here is not None:
            answer |= {"nodes": round_here.group_size, "ranks": round_here.world_size}
        if message.get(ADMIN_SESSION) != run_id or self._sessions is None:
            return msgspec.json.encode(answer)
        try:
            descriptor = self._sessions.admit_here(self._name_of(peer))
        except OSError as error:
            return msgspec.json.encode({**answer, "problem": error.strerror})
        packet = msgspec.json.encode({**answer, "is_open": True})
        return Answer(packet, descriptor, is_handed_over=True)

    def _name_of(self, peer: LocalPeer) -> str:
        user = self._user_names.get(peer.uid, f"uid {peer.uid}")
        return f"{user} on {self.engine.state.host}"

    def admit(self, connection: FramedConnection) -> None:
        """Take an authenticated client from the network."""
        connection.pause()  # Until the modules that read from it are loaded.

        def go_on() -> None:
            assert self._sessions is not None, "it is made when it is loaded"
            if connection.is_open:
                self._sessions.admit(connection)
                connection.resume()

        self._when_loaded(go_on)

    def ended(self, connection: FramedConnection) -> None:
        if self._sessions is not None:
            self._sessions.ended(connection)

    def answer(self, request: bytes, reply: Callable[[bytes], None]) -> None:
        """Answer a request to this node."""

        def go_on() -> None:
            assert self._handlers is not None, "it is made when it is loaded"
            self._handlers.answer(request, reply)

        self._when_loaded(go_on)

    def close(self) -> None:
        if self._sessions is not None:
            self._sessions.close()

    def _when_loaded(self, then: Callable[[], None]) -> None:
        if self._handlers is not None:
            then()
        else:
            self._disk.lane("requests").do(_load, lambda users: self._on_loaded(users, then))

    def _on_loaded(self, users: dict[int, str], then: Callable[[], None]) -> None:
        from holdfast.admin.handlers import RequestHandlers
        from holdfast.admin.sessions import AdminSessions

        self._user_names = users
        self._handlers = self._handlers or RequestHandlers(
            self.engine,
            self._supervisor,
            self._journal,
            self._disk.lane("journal"),
            self._live,
            lambda: self.dashboard,
        )
        self._sessions = self._sessions or AdminSessions(self._loop, self.engine.requests)
        then()


def _load() -> dict[int, str]:
    """For a lane, also because users may be known to a name server only."""
    import holdfast.admin.handlers
    import holdfast.admin.sessions  # noqa: F401 - both, for `_on_loaded`

    return {uid: user_of(uid) for uid in (os.geteuid(), ROOT)}
