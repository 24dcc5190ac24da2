"""What several nodes and their coordinator do, in the words of a transcript."""

from __future__ import annotations

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
from holdfast.core.coordinator_state import CoordinatorState
from holdfast.core.desk import Taken
from holdfast.core.document import Ledger
from holdfast.core.leases import NodeGone, NodeHeardAgain, NodeSuspected
from holdfast.core.messages import CloseJob, RunRound, StopRound
from holdfast.core.model import Outcome

from .wording import failures


def workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def host_of(node: str) -> str:
    """`b` for `b-1`, its first life; later lives are told apart."""
    name, _, life = node.rpartition("-")
    return name if life == "1" else node


def beginning(host: str, state: CoordinatorState) -> str:
    if state.round_number or state.outcome is not None:
        size = len(state.round.members) if state.round is not None else 0
        known = ledger(Ledger(state.round_number, size, state.charges, state.outcome))
        return f"begins on {host}, under tenure {state.tenure}, and knows: {known}"
    return f"begins on {host}, under tenure {state.tenure}"


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


def step_in_words(taken: Taken) -> list[str]:
    """One step of the coordinator: what it heard of silence, decided, wrote and said."""
    lines = [_verdict(taken.event), *map(_effect, taken.effects), *_announcements(taken.effects)]
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
            return f"hears of a higher tenure, {effect.tenure}"
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
    return [f"tells {', '.join(names)}: {text}" for text, names in told.items()]


def _told(tell: Tell) -> str:
    match tell.message:
        case RunRound():
            part = tell.message.assignment
            return f"run round {part.round}"
        case StopRound():
            return f"stop round {tell.message.round}"
        case CloseJob():
            return f"the job is over: {tell.message.outcome.verdict}"
        case _:
            return ""
