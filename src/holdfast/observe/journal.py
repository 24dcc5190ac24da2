"""The journal: all events of a job and their effects, in JSON lines.

The first line describes the job. Every further line is one step of one of the three state
machines of the core: the event that went in, and the effects that came out. Feeding the
events to fresh machines gives the same effects again (`tools/journals/replay.py`), so a journal is
both the story of a job and a proof of how it was decided.

Schema (one object a line):

    {"schema": 4, "job": run id, "node", "host", "started": ISO time, "config": {…},
     "clock": {"at", "wall"}}
    {"seq", "at": seconds on the node's own clock, "machine": "agent" | "coordinator",
     "event": {"type", …}, "effects": [{"type", …}, …]}
    {"seq", "at", "machine": "coordinator began", "beginning": {"term", "ledger", …}}
    {"seq", "at", "machine": "election", "before": {…}, "event": {"type", …}, "effects": […]}
    {"seq", "at", "machine": "clock", "wall": seconds since 1970}
    {"seq", "at", "machine": "failure", "reason"}

The fields of events and effects are those of the types in `core.node_io`, `core.coordinator_io`,
`core.election`, `core.border` and `core.protocol.messages`; one that has its default may be
missing. The program's arguments are left out: they may hold a secret.

Rules
1. Every decision is written as it is taken. Frequent events that decide nothing are not:
   heartbeats that were answered tell nothing once a later one was, nor does a step that a worker
   reports once a later one is known. Of these only the last are written, before the next
   line; a replay takes the numbers of heartbeats as they come. The first step of each round on
   a node is written at once: it marks the end of a recovery.
2. A coordinator that begins with a state (several nodes, a takeover) is preceded by a line
   with that state. Without one it begins empty.
3. Of the machine that finds and replaces the coordinator through a register (the election), only
   changes are written, not each renewal. So each of its lines holds the node's state
   before that step: all that is needed to decide the step again.
4. Steps have the time of the node's own clock, which is never set. The time for people
   follows from both clocks, read at once: in the first line, and in a line of its own wherever they
   have come apart by more than `APART_S` since.
5. However quiet a job is, both clocks are written down now and then (`keep_up`), so that a journal
   that was cut short shows until when its node lived, to within a twentieth of its life.
6. Its files are bounded (`journal_file`). Where parts were left out, `read` puts a `Gap`, and a
   replay ends there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.core import node_io as happened
from holdfast.core.coordinator import Beginning, Coordinator
from holdfast.core.coordinator_io import CoordinatorEffect, CoordinatorEvent, Heard
from holdfast.core.node import Timer
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol import messages as said
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Term
from holdfast.observe.journal_file import LIMIT_BYTES, JournalFile, later_parts

SCHEMA = 4
OLD_SCHEMAS = (2, 3)
"""They are still read: some names were others (`old_journals`)."""
APART_S = 0.001
QUIET_LEAST_S = 10.0
QUIET_SHARE = 0.05
"""The longest time, or share of the node's life, without a line (rule 5)."""
NOTEWORTHY_EVENTS = ("ElectionStarted", "LeaderTetherEnded", "Depose", "Resign")
NOTEWORTHY_EFFECTS = ("Lead", "StepDown", "DialNodes", "CoordinatorLost", "Told", "Say")
"""Of `core.election`, by name: a job without a register does not load it."""


class ClockPair(msgspec.Struct, frozen=True):
    """One moment on the node's own clock, and for people: seconds since 1970."""

    at: float
    wall: float

    def time_of(self, at: float) -> float:
        """The time for people, to the millisecond."""
        return round(self.wall + (at - self.at), 3)


def read_clocks(own: Callable[[], float]) -> ClockPair:
    """Both clocks at once: a stall between the readings errs by half of it at most."""
    before = own()
    wall = time.time()
    return ClockPair((before + own()) / 2, wall)


class JournalHeader(msgspec.Struct, frozen=True):
    """The first line: it names the job."""

    schema: int
    job: str
    node: str
    host: str
    started: str
    config: JobConfig
    clock: ClockPair


class _Schema(msgspec.Struct, frozen=True):
    """The part of the first line that every schema has."""

    schema: int


class NodeStep(msgspec.Struct, frozen=True, tag="agent", tag_field="machine"):
    """One step of the agent."""

    seq: int
    at: float
    event: happened.NodeEvent
    effects: list[happened.NodeEffect]


class CoordinatorStep(msgspec.Struct, frozen=True, tag="coordinator", tag_field="machine"):
    """One step of the coordinator."""

    seq: int
    at: float
    event: CoordinatorEvent
    effects: list[CoordinatorEffect]


class CoordinatorBegan(msgspec.Struct, frozen=True, tag="coordinator began", tag_field="machine"):
    """This node is the coordinator from here on."""

    seq: int
    at: float
    beginning: Beginning


class ElectionStep(msgspec.Struct, frozen=True, tag="election", tag_field="machine", kw_only=True):
    """A change of the leader, or of whether the register can be reached."""

    seq: int
    at: float
    before: Any = None
    """The node's state before it (`core.election`)."""
    event: Any
    effects: list[Any]
    """As in `core.election`, which a job without a register does not load."""


class ClockRead(msgspec.Struct, frozen=True, tag="clock", tag_field="machine"):
    """The clock for people was set, or has drifted: later lines are in time by this pair."""

    seq: int
    at: float
    wall: float


class AgentFailed(msgspec.Struct, frozen=True, tag="failure", tag_field="machine"):
    """The agent ends here, with all of its workers, because of an error in Holdfast."""

    seq: int
    at: float
    reason: str


class Gap(msgspec.Struct, frozen=True, tag="gap", tag_field="machine"):
    """Steps that were left out of a long journal. Never written: a reader puts it where they were.

    `seq` is the first that is missing.
    """

    seq: int
    missing: int


WrittenStep = NodeStep | CoordinatorStep | CoordinatorBegan | ElectionStep | ClockRead | AgentFailed
Step = WrittenStep | Gap
QuietKind = Literal["heartbeat", "agent's progress", "coordinator's progress"]
Do = Callable[[Callable[[], str | None], Callable[[str], None], int], None]
"""Runs work that may wait for a disk, after all earlier work: the work, the callback for a
problem, and how many bytes are held for it."""


def at_once(work: Callable[[], str | None], then: Callable[[str], None], size: int) -> None:
    """A writer for callers that may wait for a disk."""
    problem = work()
    if problem is not None:
        then(problem)


class Journal:
    """An open journal; with no path it writes nothing.

    A job must not end because its journal cannot be written: writing stops then, `problem`
    says why, and the earlier lines can be read.
    """

    def __init__(
        self,
        path: Path | None,
        header: JournalHeader,
        echo: Callable[[bytes], None] | None = None,
        do: Do = at_once,
        limit_bytes: int = LIMIT_BYTES,
        clocks: Callable[[], ClockPair] | None = None,
    ) -> None:
        """`echo` gets every line too, for live output; `do` writes it down.

        `clocks` reads both clocks, if steps are to be put in time.
        """
        self.path, self.header = path, header
        self.listeners: list[Callable[[Step], object]] = []
        """The listener for every step as it is taken, written or not; its number may be 0 then."""
        self._clocks = clocks
        self._clock = header.clock
        self._echo = echo
        self._do = do
        self.problem = ""
        self._written = 0
        self._written_at = self._clock.at
        self._stepping_round = 0
        self._furthest = (0, 0)
        """The round and the step last reported to the coordinator."""
        self._quiet: list[tuple[QuietKind, int, NodeStep | CoordinatorStep]] = []
        """Lines that are written unless a later one makes them needless: kind, number, line."""
        self._term: Term | None = None
        self._encoder = msgspec.json.Encoder()
        self._file = JournalFile(path, limit_bytes) if path is not None else None
        self._write(msgspec.structs.replace(header, config=_without_secrets(header.config)))

    def agent(
        self, at: float, event: happened.NodeEvent, effects: list[happened.NodeEffect]
    ) -> None:
        step = NodeStep(0, at, event, effects)
        self._tell(step)
        match event:
            case happened.StepReported(round=number) if number <= self._stepping_round:
                if effects:
                    self._keep(step, "agent's progress", needless_before=1)
            case happened.Told(message=said.HeartbeatAnswered(number=number), term=term) if (
                self._is_term_known(term) and _only(effects, happened.SetDeadlines)
            ):
                self._keep(step, "heartbeat", number, needless_before=number)
            case happened.NodeTimerFired(name=Timer.HEARTBEAT) if sent_number(step) and _only(
                effects, happened.Report | happened.WakeNode
            ):
                self._keep(step, "heartbeat", sent_number(step) or 0)
            case _:
                if isinstance(event, happened.StepReported):
                    self._stepping_round = event.round
                self._add(step)

    def coordinator(
        self, at: float, event: CoordinatorEvent, effects: list[CoordinatorEffect]
    ) -> None:
        step = CoordinatorStep(0, at, event, effects)
        self._tell(step)
        match event:
            case Heard(message=said.WorkersProgressed() as message) if not effects:
                reached = (message.round, message.step)
                if reached > self._furthest:
                    self._furthest = reached
                    self._keep(step, "coordinator's progress", needless_before=1)
            case _:
                self._add(step)

    def began(self, at: float, beginning: Beginning) -> None:
        """This node is the coordinator from now on."""
        step = CoordinatorBegan(0, at, beginning)
        self._tell(step)
        self._add(step)

    def election(self, at: float, before: Any, event: Any, effects: list[Any]) -> None:
        """A step of the election; written if it changed something."""
        if _is_noteworthy(before, event, effects):
            step = ElectionStep(seq=0, at=at, before=before, event=event, effects=effects)
            self._tell(step)
            self._add(step)

    def agent_failed(self, at: float, reason: str) -> None:
        """The end: no line follows."""
        step = AgentFailed(0, at, reason)
        self._add(step)
        self.close()
        self._tell(step)

    def taken(self, at: float, liveness: Coordinator) -> None:
        """All steps that this coordinator has taken since the last call."""
        for one in liveness.taken:
            self.coordinator(at, one.event, one.effects)
        liveness.taken.clear()

    def keep_up(self, at: float) -> float:
        """Write both clocks down, if the last line is old; return when that may be due again."""
        assert self._clocks is not None, "there is no clock to be written down"
        due = self._written_at + max(QUIET_LEAST_S, QUIET_SHARE * (at - self.header.clock.at))
        if at < due:
            return due
        self._write_quiet()
        self._note_clocks(at, self._clocks())
        return self.keep_up(at)

    def close(self) -> None:
        self._write_quiet()
        file, self._file = self._file, None
        if file is not None:
            self._do(file.close, self._on_problem, 0)

    def _add(self, step: WrittenStep) -> None:
        """Write a step, numbered, after the heartbeats that it rests on."""
        self._write_quiet()
        self._look_at_clocks(step.at)
        self._written, self._written_at = self._written + 1, step.at
        self._write(msgspec.structs.replace(step, seq=self._written))

    def _tell(self, step: Step) -> None:
        for listener in self.listeners:
            listener(step)

    def _look_at_clocks(self, at: float) -> None:
        """Write down both clocks where they have come apart since that was last done (rule 4).

        They are put at the time of the step that is about to be written, which is a little earlier:
        times never go back from one line to the next.
        """
        if self._clocks is None:
            return
        now, last = self._clocks(), self._clock
        if abs(last.time_of(now.at) - now.wall) <= APART_S:
            return
        self._note_clocks(at, now)

    def _note_clocks(self, at: float, now: ClockPair) -> None:
        self._clock = ClockPair(at, now.time_of(at))
        self._tell(ClockRead(0, at, self._clock.wall))
        self._written, self._written_at = self._written + 1, at
        self._write(ClockRead(self._written, at, self._clock.wall))

    def _is_term_known(self, term: Term) -> bool:
        """Whether the last answer to a heartbeat had it too."""
        known, self._term = self._term, term
        return known == term

    def _keep(
        self,
        step: NodeStep | CoordinatorStep,
        kind: QuietKind,
        number: int = 0,
        *,
        needless_before: int = 0,
    ) -> None:
        """Keep a line for later; it makes those of its kind with a lower number needless."""
        self._quiet = [one for one in self._quiet if one[0] != kind or one[1] >= needless_before]
        self._quiet.append((kind, number, step))

    def _write_quiet(self) -> None:
        for _, _, step in self._quiet:
            self._written += 1
            self._write(msgspec.structs.replace(step, seq=self._written))
        self._quiet.clear()

    def _write(self, line: object) -> None:
        if self._file is None and self._echo is None:
            return
        text = self._encoded(line) + b"\n"
        if self._echo is not None:
            self._echo(text)
        if self._file is not None:
            self._do(partial(self._file.append, text), self._on_problem, len(text))

    def _on_problem(self, problem: str) -> None:
        """Later lines are useless: a journal with holes tells no story."""
        if not self.problem:
            self.problem = problem
            self._file = None

    def _encoded(self, line: object) -> bytes:
        try:
            return self._encoder.encode(line)
        except UnicodeEncodeError:
            # The user's path or message may hold bytes that are no text.
            import json

            plain = msgspec.to_builtins(line)
            return json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace")


def _is_noteworthy(before: Any, event: object, effects: list[Any]) -> bool:
    """Whether it changed something: a quiet job would write little but renewals."""
    kinds = {type(effect).__name__ for effect in effects}
    claims = before.role.value != "leader" and "WriteRegister" in kinds
    is_news = type(event).__name__ in NOTEWORTHY_EVENTS
    return is_news or claims or not kinds.isdisjoint(NOTEWORTHY_EFFECTS)


def sent_number(step: NodeStep) -> int | None:
    """The number of the heartbeat that the agent sent, by itself or with its greeting."""
    for effect in step.effects:
        if isinstance(effect, happened.Report) and isinstance(effect.message, said.Heartbeat):
            return effect.message.number
        if isinstance(effect, happened.Report) and isinstance(effect.message, said.NodeGreeted):
            return effect.message.heartbeat or None
    return None


def _only(effects: list[happened.NodeEffect], kinds: object) -> bool:
    return all(isinstance(effect, kinds) for effect in effects)  # type: ignore[arg-type]


def _without_secrets(config: JobConfig) -> JobConfig:
    program = msgspec.structs.replace(config.program, arguments=())
    meeting = config.rendezvous
    # A foreign backend may get its password there.
    scheme, sign, rest = meeting.endpoint.rpartition("://")
    shown = f"{scheme}{sign}{rest.rpartition('@')[2]}"
    options = {key: _shown(key, value) for key, value in meeting.options.items()}
    meeting = msgspec.structs.replace(meeting, endpoint=shown, options=options)
    return msgspec.structs.replace(config, program=program, rendezvous=meeting)


def _shown(key: str, value: str) -> str:
    """A setting as it may be written down: not if its name marks a secret."""
    is_secret = any(word in key.lower() for word in ("password", "secret", "token"))
    return "…" if is_secret and not key.endswith("_file") else value


def read(path: Path) -> tuple[JournalHeader, list[Step]]:
    """Read a journal; a last line that was cut off by a crash is left out.

    Raises `UsageError` for a file that is none, is damaged, or is of another schema.
    """
    steps: list[Step] = []
    header: JournalHeader | None = None
    decoder: msgspec.json.Decoder[Step] = msgspec.json.Decoder(Step)
    for number, file in enumerate([path, *later_parts(path)], 1):
        lines = file.read_bytes().split(b"\n")
        if header is None:
            header = _header(str(path), lines[0])
        part = str(path) if number == 1 else f"part {number} of {path}"
        found = _steps(decoder, header.schema, part, lines)
        expected = steps[-1].seq + 1 if steps else 1
        if number > 1 and found and found[0].seq > expected:
            steps.append(Gap(expected, found[0].seq - expected))
        steps += found
    assert header is not None, "a journal has at least one file"
    return header, steps


def _header(name: str, line: bytes) -> JournalHeader:
    try:
        schema = msgspec.json.decode(line, type=_Schema).schema
        if schema in (*OLD_SCHEMAS, SCHEMA):
            present = _in_present_names(line, schema)
            return msgspec.json.decode(present or b"", type=JournalHeader)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise UsageError(
            f"{name} is not a journal", "name the journal.jsonl in a job's log directory"
        ) from None
    hint = "read it with the version of Holdfast that wrote it"
    raise UsageError(f"{name} has schema {schema}, not {SCHEMA}", hint)


def _in_present_names(line: bytes, schema: int) -> bytes | None:
    if schema == SCHEMA or not line:
        return line
    from holdfast.observe.old_journals import renewed

    return renewed(line)


def _steps(
    decoder: msgspec.json.Decoder[Step], schema: int, name: str, lines: list[bytes]
) -> list[Step]:
    """All but the first line, and the last one: it is empty, or was cut off."""
    found: list[Step] = []
    for number, line in enumerate(lines[1:-1], 2):
        try:
            present = _in_present_names(line, schema)
            if present:
                found.append(decoder.decode(present))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise UsageError(
                f"line {number} of {name} is damaged", "get the file from its machine again"
            ) from None
    return found
