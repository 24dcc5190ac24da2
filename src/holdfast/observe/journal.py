"""The journal: everything that happened to a job, and why, in JSON lines.

The first line describes the job. Every further line is one step of one of the two state
machines of the core: the event that went in, and the effects that came out. Feeding the
events to fresh machines gives the same effects again (`replay`), so a journal is both the
story of a job and a proof of how it was decided.

Schema (one object a line):

    {"schema": 1, "job": run id, "node", "host", "started": ISO time, "config": {…}}
    {"seq", "at": seconds on the node's own clock, "machine": "agent" | "coordinator",
     "event": {"type", …}, "effects": [{"type", …}, …]}

The fields of events and effects are those of the types in `core.agent_io`,
`core.messages` and `core.coordinator`; one that has its default may be missing. The
program's arguments are left out: they may hold a secret.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.core import agent, coordinator
from holdfast.core.agent_io import (
    AgentEffect,
    AgentEvent,
    AllGone,
    StepReported,
    Told,
    WorkerExited,
    WorkerStarted,
)
from holdfast.core.agent_state import AgentState
from holdfast.core.config import JobConfig
from holdfast.core.coordinator import CoordinatorEffect, CoordinatorEvent
from holdfast.core.errors import UsageError

SCHEMA = 1


class Header(msgspec.Struct, frozen=True):
    """The first line: which job this is."""

    schema: int
    job: str
    node: str
    host: str
    started: str
    config: JobConfig


class _Schema(msgspec.Struct, frozen=True):
    """As much of the first line as every schema has."""

    schema: int


class AgentStep(msgspec.Struct, frozen=True, tag="agent", tag_field="machine"):
    """One step of the agent."""

    seq: int
    at: float
    event: AgentEvent
    effects: list[AgentEffect]


class CoordinatorStep(msgspec.Struct, frozen=True, tag="coordinator", tag_field="machine"):
    """One step of the coordinator."""

    seq: int
    at: float
    event: CoordinatorEvent
    effects: list[CoordinatorEffect]


Step = AgentStep | CoordinatorStep


class Journal:
    """An open journal; with no path it writes nothing.

    A job must not end because its journal cannot be written: writing stops then, `problem`
    says why, and what was written up to there can be read.
    """

    def __init__(
        self, path: Path | None, header: Header, echo: Callable[[bytes], None] | None = None
    ) -> None:
        """`echo` gets every line too, for whoever wants to watch."""
        self.path = path
        self._echo = echo
        self.problem = ""
        self.steps: list[Step] = []
        """What `recoveries` reads. The rest is not kept: a job may take weeks."""
        self._written = 0
        self._stepping_round = 0
        self._encoder = msgspec.json.Encoder()
        self._file = -1
        if path is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o600)
        self._write(msgspec.structs.replace(header, config=_without_secrets(header.config)))

    def agent(self, at: float, event: AgentEvent, effects: list[AgentEffect]) -> None:
        step = AgentStep(self._written + 1, at, event, effects)
        self._add(step)
        if self._tells_of_recovery(event):
            self.steps.append(step)

    def coordinator(
        self, at: float, event: CoordinatorEvent, effects: list[CoordinatorEffect]
    ) -> None:
        self._add(CoordinatorStep(self._written + 1, at, event, effects))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _add(self, step: Step) -> None:
        self._written += 1
        self._write(step)

    def _tells_of_recovery(self, event: AgentEvent) -> bool:
        if isinstance(event, StepReported):
            first = event.round > self._stepping_round
            self._stepping_round = max(event.round, self._stepping_round)
            return first
        return isinstance(event, WorkerStarted | WorkerExited | AllGone | Told)

    def _write(self, line: object) -> None:
        if self._file < 0 and self._echo is None:
            return
        text = self._encoded(line) + b"\n"
        if self._echo is not None:
            self._echo(text)
        if self._file >= 0:
            self._save(text)

    def _save(self, text: bytes) -> None:
        try:
            complete = os.write(self._file, text) == len(text)
            self.problem = "" if complete else "the disk is full"
        except OSError as error:
            self.problem = error.strerror or str(error)
        if self.problem:
            self.close()

    def _encoded(self, line: object) -> bytes:
        try:
            return self._encoder.encode(line)
        except UnicodeEncodeError:
            # A path or a message of the user's with bytes in it that are no text.
            import json

            plain = msgspec.to_builtins(line)
            return json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace")


def _without_secrets(config: JobConfig) -> JobConfig:
    program = msgspec.structs.replace(config.program, arguments=())
    return msgspec.structs.replace(config, program=program)


def read(path: Path) -> tuple[Header, list[Step]]:
    """Read a journal; a last line that was cut off by a crash is left out.

    Raises `UsageError` for a file that is none, or one of another schema.
    """
    lines = path.read_bytes().split(b"\n")
    try:
        schema = msgspec.json.decode(lines[0], type=_Schema).schema
    except msgspec.DecodeError:
        raise UsageError(f"{path} is not a journal", "it begins with another line") from None
    if schema != SCHEMA:
        hint = "read it with the version of Holdfast that wrote it"
        raise UsageError(f"{path} has schema {schema}, not {SCHEMA}", hint)
    header = msgspec.json.decode(lines[0], type=Header)
    decoder = msgspec.json.Decoder(Step)
    return header, [decoder.decode(line) for line in lines[1:-1] if line]


class Divergence(msgspec.Struct, frozen=True):
    """A step that the core would decide differently today."""

    seq: int
    machine: Literal["agent", "coordinator"]
    recorded: str
    replayed: str


def replay(header: Header, steps: list[Step]) -> Iterator[Divergence]:
    """Feed the recorded events to fresh machines; yield every difference."""
    agent_state = AgentState(header.config, header.node, header.host)
    coordinator_state = coordinator.CoordinatorState(header.config)
    for step in steps:
        decided: list[AgentEffect] | list[CoordinatorEffect]
        if isinstance(step, AgentStep):
            decided = agent.step(agent_state, step.event, step.at)
            machine: Literal["agent", "coordinator"] = "agent"
        else:
            decided = coordinator.step(coordinator_state, step.event, step.at)
            machine = "coordinator"
        if decided != step.effects:
            yield Divergence(step.seq, machine, repr(step.effects), repr(decided))
