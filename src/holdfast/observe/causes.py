"""Causes across the nodes of a job, inferred from their journals.

Every line of a journal has an id, the node and its number there (`StepId`). Its cause is the line
whose effect brought its event about, on the same node or on another one.

Rules
1. No extra field is needed for that: an event names what it answers. A timer has its name, a
   write its version or nonce, a heartbeat its number, a message its round, a message of the
   coordinator its term.
2. An event of one node by itself is matched to the last line before that asked for it; a message
   between nodes to the line that sent it, in order where the same was sent twice.
3. A line without a cause is a root: a worker that ended by itself, a signal, a node that fell
   silent or died, the start of an agent. So is a line whose cause is in no given journal, or
   is not written (a renewal, a gap of a long journal).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.core import coordinator_io as decided
from holdfast.core import node_io as happened
from holdfast.core.membership import NodeGone, NodeHeardAgain, NodeSuspected
from holdfast.core.protocol import messages as said
from holdfast.core.protocol.model import Term
from holdfast.observe.journal import (
    AgentFailed,
    ClockRead,
    CoordinatorBegan,
    CoordinatorStep,
    ElectionStep,
    Gap,
    JournalHeader,
    NodeStep,
    Step,
)

JournalRead = tuple[JournalHeader, Sequence[Step]]
"""As `journal.read` returns it."""
Key = tuple[object, ...]
"""Equal for an effect and the event that answers it."""

ANSWERED_BY: dict[type, str] = {
    happened.EndpointReserved: "ReserveEndpoint",
    happened.ZygoteReady: "StartZygote",
    happened.ModuleRejected: "StartZygote",
    happened.ModulesUnfit: "StartZygote",
    happened.ZygoteLost: "KillZygote",
    happened.WorkerStarted: "StartWorkers",
    happened.StepReported: "StartWorkers",
    happened.AllGone: "KillEverything",
    happened.ProcessesStuck: "ListStuck",
    happened.SpawnerEnded: "EndSpawner",
    happened.SpawnerLost: "KillSpawner",
    happened.CoordinatorReached: "Dial",
    decided.HandOverAsked: "Finish",
}
"""The effect, on the same node, that causes an event: where its name is enough to match."""
OF_THE_ELECTION = {
    "RegisterRead": "ReadRegister",
    "HandOverAsked": "Finish",
    "RegisterForgot": "ForgetRegister",
}
"""The same, of events of `core.election`, by name: a job without a register has none."""


class StepId(NamedTuple):
    """A line of a journal: its node and number."""

    node: str
    seq: int


def causes(journals: Iterable[JournalRead]) -> dict[StepId, StepId | None]:
    """The cause of every line of these journals; None for a root."""
    known = list(journals)
    sent = _sent(known)
    found: dict[StepId, StepId | None] = {}
    for header, steps in known:
        asked: dict[Key, StepId] = {}
        for step in steps:
            if isinstance(step, Gap):
                asked.clear()
                continue
            here = StepId(header.node, step.seq)
            found[here] = _cause(header.node, step, sent, asked)
            for key in _offered(step):
                asked[key] = here
    return found


def _cause(
    node: str, step: Step, sent: defaultdict[Key, list[StepId]], asked: dict[Key, StepId]
) -> StepId | None:
    """The line that caused this one, of those that others sent or this node wrote before."""
    if isinstance(step, NodeStep) and isinstance(step.event, happened.WorkerExited):
        return _stopped_by(asked)
    for key in _wanted(node, step):
        line = _taken(sent, key) or asked.get(key)
        if line is not None:
            return line
    return None


# Messages between nodes.


def _sent(journals: Sequence[JournalRead]) -> defaultdict[Key, list[StepId]]:
    """Messages with their targets, and the lines that sent them."""
    sent: defaultdict[Key, list[StepId]] = defaultdict(list)
    for header, steps in journals:
        term = Term(1, 1)
        for step in steps:
            here = StepId(header.node, step.seq)
            if isinstance(step, NodeStep):
                for report in step.effects:
                    if isinstance(report, happened.Report):
                        sent[_report(header.node, report.message)].append(here)
            if isinstance(step, CoordinatorBegan):
                term = step.beginning.term
            if isinstance(step, CoordinatorStep):
                raised = [one.term for one in step.effects if isinstance(one, decided.Raise)]
                term = max([term, *raised])
                for tell in step.effects:
                    if isinstance(tell, decided.Tell):
                        sent[_word(tell.node, tell.message, term)].append(here)
    return sent


def _taken(sent: defaultdict[Key, list[StepId]], key: Key) -> StepId | None:
    """The first line that sent this and was not received yet; the last one can match many times."""
    lines = sent.get(key, [])
    return lines.pop(0) if len(lines) > 1 else next(iter(lines), None)


def _report(node: str, message: said.FromNode) -> Key:
    """A key of its own fields: addresses are filled in on the way."""
    endpoint = getattr(message, "endpoint", None)
    of = [getattr(message, name, None) for name in ("round", "step", "heartbeat", "reason")]
    return ("report", node, type(message), endpoint and endpoint.port, *of)


def _word(node: str, message: said.ToNode, term: Term) -> Key:
    return ("word", node, term, msgspec.json.encode(message))


# Events of one node by itself.


def _offered(step: Step) -> Iterator[Key]:
    """The possible effects of a line."""
    if isinstance(step, CoordinatorBegan):
        yield ("coordinator timer", "look")
        return
    if isinstance(step, Gap | ClockRead | AgentFailed):
        return
    if isinstance(step, ElectionStep):
        for effect in step.effects:
            yield from _offered_by_the_election(effect)
        return
    for each in step.effects:
        yield (type(each).__name__,)
        match each:
            case happened.WakeNode(name=name):
                yield ("agent timer", name)
            case happened.SignalWorkers(stops=True) | happened.KillEverything():
                yield ("stop",)
            case happened.Report(message=said.Heartbeat(number=number)):
                yield ("answered", number)
            case happened.Report(message=said.NodeGreeted(heartbeat=number)):
                yield ("answered", number)
            case decided.WakeCoordinator(name=name):
                yield ("coordinator timer", name)
            case decided.Write(version=version):
                yield ("written", version)
    if isinstance(step, CoordinatorStep) and isinstance(step.event, NodeSuspected):
        yield ("suspected", step.event.node)
    if isinstance(step, NodeStep) and isinstance(step.event, happened.LeaseRanOut):
        yield ("stop",)


def _offered_by_the_election(effect: dict[str, Any]) -> Iterator[Key]:
    yield (effect["type"],)
    if effect["type"] == "WriteRegister":
        yield ("wrote", effect["document"]["nonce"])
    elif effect["type"] == "WakeElection":
        yield ("election timer", effect["name"])
    elif effect["type"] == "WatchRegister":
        yield ("ReadRegister",)


def _wanted(node: str, step: Step) -> Iterator[Key]:
    """The possible causes of a line, the likeliest first."""
    match step:
        case CoordinatorBegan():
            yield from (("Lead",), ("Dial",))
        case NodeStep(event=happened.NodeTimerFired(name=name)):
            yield ("agent timer", name)
        case NodeStep(event=happened.SaveAnswered(answer=answer)):
            yield ("StartWorkers" if answer == "listens" else "ShowSaving",)
        case NodeStep(event=happened.Told(message=said.HeartbeatAnswered(number=number))):
            yield ("answered", number)
        case NodeStep(event=happened.Told(message=message, term=term)):
            yield from (_word(node, message, term), ("Told",))
        case CoordinatorStep(event=decided.Heard(node=speaker, message=message)):
            yield _report(speaker, message)
        case CoordinatorStep(event=decided.Written(version=version)):
            yield ("written", version)
        case CoordinatorStep(event=decided.CoordinatorTimerFired(name=name)):
            yield ("coordinator timer", name)
        case CoordinatorStep(event=NodeGone(node=lost) | NodeHeardAgain(node=lost)):
            yield ("suspected", lost)
        case ElectionStep(event={"type": "ElectionTimerFired", "name": name}):
            yield ("election timer", name)
        case ElectionStep(event={"nonce": nonce}):
            yield ("wrote", nonce)
        case ElectionStep(event={"type": kind}):
            yield (OF_THE_ELECTION.get(kind, kind),)
        case NodeStep() | CoordinatorStep():
            yield (ANSWERED_BY.get(type(step.event), type(step.event)),)


def _stopped_by(asked: dict[Key, StepId]) -> StepId | None:
    """The reason why a worker was stopped; None if it ended by itself."""
    begun, stopped = asked.get(("StartWorkers",)), asked.get(("stop",))
    is_older = begun is not None and stopped is not None and stopped.seq < begun.seq
    return None if is_older else stopped
