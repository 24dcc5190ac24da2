"""How another program of the same user asks an agent where its workers are.

It goes over the channel on which workers speak (`processes.channel_server`), whose name says which
process listens; the kernel says who asks, and only this user and root are heard.

A question is one packet, `{"stacks": "RUN"}` with the job that is meant, or an empty text for any.
The answer is one packet too: whose job it is and, if it is the one that was meant, where its
workers are in words, and the file that has it in full.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.core.protocol.bounds import cut
from holdfast.processes.bare.wire import STACKS
from holdfast.processes.lookout.stacks import StackSnapshot
from holdfast.worker.channel import PACKET_LIMIT, address_of

WORDS_MOST = 32 * 1024
PATIENCE_S = 10.0
"""How long an agent may take to answer: its workers have one second of these."""
_LISTENER = re.compile(r" (@holdfast-(\d+)-[0-9a-f]{16})$")
Take = Callable[[str, Callable[[StackSnapshot | None], None]], None]


class StacksHere(Struct):
    """What one agent answers."""

    run_id: str
    is_meant: bool
    """Whether it is the job that was asked for; if not, nothing was done."""
    words: str = ""
    file: str = ""


def asked_for_stacks(
    message: dict[str, Any], run_id: str, take: Take, answer: Callable[[bytes], None]
) -> None:
    """In the agent: answer, as soon as that is known."""
    if message[STACKS] not in ("", run_id):
        answer(msgspec.json.encode(StacksHere(run_id, is_meant=False)))
        return

    def tell(snapshot: StackSnapshot | None) -> None:
        found = StackSnapshot(()) if snapshot is None else snapshot
        told = StacksHere(run_id, True, cut(found.in_words(), WORDS_MOST), found.file)
        answer(msgspec.json.encode(told))

    take("somebody asked (holdfast stacks)", tell)


# In the program that asks.


def listening_agents() -> dict[int, str]:
    """The channels of agents on this machine, by the agent's pid, whosoever they are."""
    with open("/proc/net/unix", encoding="ascii", errors="replace") as file:
        found = (_LISTENER.search(line.rstrip("\n")) for line in file)
        return {int(one[2]): one[1] for one in found if one is not None}


def ask(channel: str, run_id: str) -> StacksHere | None:
    """None where it is somebody else's agent, has ended, or does not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(PATIENCE_S)
        try:
            asking.connect(address_of(channel))
            asking.send(msgspec.json.encode({STACKS: run_id}))
            packet = asking.recv(PACKET_LIMIT)
            return msgspec.json.decode(packet, type=StacksHere) if packet else None
        except (OSError, msgspec.DecodeError):
            return None
