"""A program of another user that passes for an agent of somebody else's job.

    python false_agent.py UID JOB NAMES

It has as many names as that, each like an agent's channel, and does all that an agent does there:
says that it is of that job, lets everybody in, and answers whatever is asked.
"""

from __future__ import annotations

import os
import sys

import msgspec

from holdfast.admin.sessions import AdminSessions
from holdfast.core.protocol.messages import CloseRequest, RequestMade
from holdfast.core.protocol.requests import (
    Answer,
    DashboardAsked,
    DashboardTold,
    UnderWay,
    pack,
    read_request,
)
from holdfast.engine.requests import Asker
from holdfast.processes import channel_server
from holdfast.processes.channel_server import ChannelServer
from holdfast.runtime.local_peer import LocalPeer, peer_of
from holdfast.runtime.loop import EventLoop

LINK = "http://127.0.0.1:1/"


class Liar:
    """Answers in place of the job's coordinator."""

    def ask(self, asker: Asker, request: RequestMade) -> None:
        asked = read_request(request.request)
        answer: Answer = UnderWay()
        if isinstance(asked, DashboardAsked):
            answer = DashboardTold(LINK, "key")
        print("asked", type(asked).__name__, flush=True)
        asker.on_answer(request.number, "false", pack(answer))
        asker.on_settled(CloseRequest(request.number))

    def drop(self, asker: Asker) -> None:
        pass


def main(uid: int, job: str, names: int) -> None:
    loop = EventLoop()
    admin = AdminSessions(loop, Liar())  # type: ignore[arg-type]
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # Unlike an agent, it hears everybody: each passes for its own, with its user for a process.
    channel_server.peer_of = lambda sock: LocalPeer(peer_of(sock).uid, uid)  # type: ignore[attr-defined]

    def hear(peer: LocalPeer, message: dict[str, object]) -> bytes | channel_server.Answer:
        is_open = message["visit"] == job
        print("heard", peer.pid, flush=True)
        packet = msgspec.json.encode({"run_id": job, "node": "false", "is_open": is_open})
        if not is_open:
            return packet
        return channel_server.Answer(packet, admin.admit_here("false"), is_handed_over=True)

    servers = [ChannelServer(loop, hear) for _ in range(names)]
    print("ready", flush=True)
    loop.run_until(lambda: not servers)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
