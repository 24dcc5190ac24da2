"""Who is in the job, read from the journals that its nodes write into the job's folder.

Rules
1. A round is told once all of its members have noted that they run it, or once a later one is.
2. Only what nodes noted is believed: a node that died notes nothing more, and is in no later round.
3. The outcome is the one that the coordinator told; the last word of a node that left is not.
4. A line that is not whole, or that another release wrote, is passed over: this is only a view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.core.protocol.model import Outcome
from holdfast.placement.slurm_queue import named

RUN_ROUND, STAND_BY, CLOSE_JOB = "RunRound", "StandBy", "CloseJob"


class _Assignment(msgspec.Struct, frozen=True):
    round: int
    group_rank: int
    group_size: int


class _Message(msgspec.Struct, frozen=True):
    type: str
    assignment: _Assignment | None = None
    outcome: Any = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    message: Any = None


class _Noted(msgspec.Struct, frozen=True):
    """As much of a journal's line as is asked for here."""

    machine: str = ""
    host: str = ""
    event: _Event | None = None


class Roll:
    """What is known of a job's nodes; lines are put in as they are read, in any order of nodes."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self._hosts: dict[str, str] = {}
        """By journal."""
        self._rounds: dict[int, dict[int, str]] = {}
        """Hosts by their place in the round."""
        self._sizes: dict[int, int] = {}
        self._told = 0
        self._decoder = msgspec.json.Decoder(_Noted)

    def read(self, journal: str, lines: Iterable[bytes]) -> Iterator[str]:
        """Take in lines of one journal; returns what is to be said of them."""
        for line in lines:
            try:
                noted = self._decoder.decode(line)
                if noted.host:
                    self._hosts[journal] = noted.host
                if noted.machine == "agent" and noted.event and noted.event.type == "Told":
                    message = msgspec.convert(noted.event.message, _Message)
                    yield from self._hear(self._hosts.get(journal, "?"), message)
            except msgspec.DecodeError:
                continue

    def _hear(self, host: str, message: _Message) -> Iterator[str]:
        if message.type == STAND_BY:
            yield f"{host} stands by"
        elif message.type == CLOSE_JOB:
            self.outcome = msgspec.convert(message.outcome, Outcome)
        elif message.type == RUN_ROUND and message.assignment:
            at = message.assignment
            self._rounds.setdefault(at.round, {})[at.group_rank] = host
            self._sizes[at.round] = at.group_size
            yield from self._whole_rounds()

    def _whole_rounds(self) -> Iterator[str]:
        for number in sorted(self._rounds):
            members, size = self._rounds[number], self._sizes[number]
            if number > self._told and len(members) == size:
                self._told = number
                hosts = named([members[place] for place in sorted(members)])
                yield f"round {number}: {size} node{'' if size == 1 else 's'}: {hosts}"
