"""What several nodes and their coordinator do, in the words of a transcript."""

from __future__ import annotations

from holdfast.core.coordinator import Beginning, Taken
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    CoordinatorEvent,
    Depose,
    Explain,
    Resign,
    Retire,
    Tell,
    Write,
)
from holdfast.core.membership import NodeGone, NodeHeardAgain, NodeSuspected
from holdfast.core.protocol.document import Ledger
from holdfast.core.protocol.messages import CloseJob, RunRound, SaveNow, StopRound
from holdfast.core.protocol.model import Outcome

from .wording import failures


def workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def host_of(node: str) -> str:
    """`b` for `b-1`, its first life; later lives are told apart."""
    name, _, life = node.rpartition("-")
    return name if life == "1" else node


def begins(host: str, beginning: Beginning) -> str:
    begun, known = f"begins on {host}, under term {beginning.term}", beginning.ledger
    if known is not None and (known.round or known.outcome is not None):
        return f"{begun}, and knows: {ledger(known)}"
    return begun


def ledger(known: Ledger) -> str:
    if known.outcome is not None:
        return f"the job is over, {known.outcome.verdict}"
    if not known.round:
        return "no round yet"
    charges = f", {known.charges} charged" if known.charges else ""
    done = f", {len(known.done)} done" if known.done else ""
    closing = ", the last one" if known.closing else ""
    return f"round {known.round} with {nodes(known.size)}{charges}{done}{closing}"


def ending(outcome: Outcome) -> list[str]:
    lines = [f"ends: {outcome.verdict}, exit status {outcome.exit_status}: {outcome.reason}"]
    if outcome.cause is not None:
        lines.append(f"      first observed: {failures([outcome.cause])}")
    if outcome.others:
        lines.append(f"      then: {failures(outcome.others)}")
    return lines


def step_in_words(taken: Taken, is_mute: bool = False) -> list[str]:
    """One step of the coordinator: what it heard of silence, decided, wrote and said.

    A mute one may say nothing until its term is renewed.
    """
    verb = "would tell" if is_mute else "tells"
    announced = [f"{verb} {text}" for text in _announcements(taken.effects)]
    lines = [_verdict(taken.event), *map(_effect, taken.effects), *announced]
    return [line for line in lines if line]


def _verdict(event: CoordinatorEvent) -> str:
    match event:
        case NodeSuspected():
            return f"suspects {host_of(event.node)}: {event.reason}"
        case NodeHeardAgain():
            return f"hears {host_of(event.node)} again"
        case NodeGone():
            return f"knows that {host_of(event.node)} is gone: {event.reason}"
        case _:
            return ""


def _effect(effect: CoordinatorEffect) -> str:
    match effect:
        case Explain():
            return effect.text
        case Write():
            followers = ", ".join(map(host_of, effect.successors))
            succession = f"; who would follow: {followers}" if followers else ""
            return f"writes down: {ledger(effect.ledger)}{succession}"
        case Retire():
            return "has nothing more to do: everybody knows the outcome"
        case Resign():
            return f"resigns: {effect.reason}"
        case Depose():
            return f"hears of a higher term, {effect.term}"
        case _:
            return ""


def _announcements(effects: list[CoordinatorEffect]) -> list[str]:
    """Equal words to many are one line."""
    told: dict[str, list[str]] = {}
    for effect in effects:
        if isinstance(effect, Tell):
            text = _told(effect)
            if text:
                told.setdefault(text, []).append(host_of(effect.node))
    return [f"{', '.join(names)}: {text}" for text, names in told.items()]


def _told(tell: Tell) -> str:
    match tell.message:
        case RunRound():
            part = tell.message.assignment
            return f"run round {part.round}"
        case StopRound():
            return f"stop round {tell.message.round}"
        case SaveNow(step=int(step)):
            return f"save at step {step}"
        case CloseJob():
            return f"the job is over: {tell.message.outcome.verdict}"
        case _:
            return ""
