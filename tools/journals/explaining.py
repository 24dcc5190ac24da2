"""The way to a line of a journal from its root, in words (`holdfast.observe.causes`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.core import coordinator_io as decided
from holdfast.core import node_io as happened
from holdfast.core.protocol import messages as said
from holdfast.core.protocol.bounds import clean
from holdfast.observe.causes import JournalRead, StepId, causes
from holdfast.observe.journal import (
    AgentFailed,
    ClockRead,
    CoordinatorBegan,
    CoordinatorStep,
    ElectionStep,
    Gap,
    NodeStep,
    Step,
)


def step_named(text: str) -> StepId:
    """`node:line`, as a user writes it. Raises ValueError for anything else."""
    node, _, seq = text.rpartition(":")
    return StepId(node, int(seq))


def the_end(journals: Iterable[JournalRead]) -> StepId | None:
    """The first line in which a node is told how the job ended; None if there is none."""
    for header, steps in journals:
        for step in steps:
            match step:
                case NodeStep(event=happened.Told(message=said.CloseJob())):
                    return StepId(header.node, step.seq)
    return None


def story(journals: Iterable[JournalRead], of: StepId) -> list[str]:
    """The causes of that line, from its root on: one sentence for each step on the way.

    Raises KeyError for a line that is in none of them.
    """
    known = list(journals)
    because = causes(known)
    lines = {StepId(h.node, step.seq): step for h, steps in known for step in steps}
    way: list[StepId] = []
    at: StepId | None = of
    while at is not None and at not in way:
        way.append(at)
        at = because[at]
    return [f"{each.node}:{each.seq}  {in_words(lines[each])}" for each in reversed(way)]


def in_words(step: Step) -> str:
    """An event and its effects, on one line."""
    return clean(_in_words(step))


def _in_words(step: Step) -> str:
    match step:
        case Gap():
            return f"{step.missing} lines were left out"
        case ClockRead():
            return "the clock for people was set, or has drifted"
        case AgentFailed():
            return f"the agent ended because of an error in Holdfast: {step.reason}"
        case CoordinatorBegan():
            return f"it is the coordinator, under term {step.beginning.term}"
        case ElectionStep():
            return f"{step.event['type']}{_details(step.event)}"
        case NodeStep(event=happened.Told(message=message, term=term)):
            what = f"told {type(message).__name__}{_details(msgspec.to_builtins(message))}"
            return f"{what}, under term {term}"
        case CoordinatorStep(event=decided.Heard(node=speaker, message=message)):
            what = f"heard {type(message).__name__}{_details(msgspec.to_builtins(message))}"
            return f"{what} from {speaker}{_explained(step)}"
    return (
        f"{type(step.event).__name__}{_details(msgspec.to_builtins(step.event))}{_explained(step)}"
    )


def _details(fields: dict[str, Any]) -> str:
    """The short fields of an event or a message."""
    if "assignment" in fields:
        fields = {"round": fields["assignment"]["round"]}
    if "status" in fields:
        fields = {**fields, **fields["status"]}
    short = {k: v for k, v in fields.items() if k not in ("type", "stderr_tail", "wall_time")}
    shown = [f"{k}={v}" for k, v in short.items() if isinstance(v, int | str) and v != ""]
    return f" ({', '.join(shown)})" if shown else ""


def _explained(step: NodeStep | CoordinatorStep) -> str:
    told = [one.text for one in step.effects if isinstance(one, decided.Explain | happened.Say)]
    return f": {'; '.join(told)}" if told else ""
