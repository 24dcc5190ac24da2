"""Who is in the job, read from the journals that its nodes write into the job's folder.

Rules
1. A round is told once all of its members have noted that they run it, or once a later one is.
2. Only what nodes noted is believed: a node that died notes nothing more, and is in no later round.
3. The outcome is the one that the coordinator told; the last word of a node that left is not.
4. A line that is not whole, or that another release wrote, is passed over: this is only a view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.core.node_io import Told
from holdfast.core.protocol.messages import CloseJob, RunRound, StandBy, ToNode
from holdfast.core.protocol.model import Outcome
from holdfast.observe.journal import NodeStep, Step
from holdfast.placement.slurm_queue import named


class _FirstLineOfNode(msgspec.Struct):
    """As much of a journal's first line as is asked for here."""

    host: str = "?"


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
        self._steps: msgspec.json.Decoder[Step] = msgspec.json.Decoder(Step)

    def read(self, journal: str, lines: Iterable[bytes]) -> Iterator[str]:
        """Take in lines of one journal; returns what is to be said of them."""
        for line in lines:
            try:
                if journal not in self._hosts:
                    self._hosts[journal] = msgspec.json.decode(line, type=_FirstLineOfNode).host
                    continue
                step = self._steps.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            match step:
                case NodeStep(event=Told(message=message)):
                    yield from self._hear(self._hosts[journal], message)

    def _hear(self, host: str, message: ToNode) -> Iterator[str]:
        match message:
            case StandBy():
                yield f"{host} stands by"
            case CloseJob(outcome=outcome):
                self.outcome = outcome
            case RunRound(assignment=at):
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
