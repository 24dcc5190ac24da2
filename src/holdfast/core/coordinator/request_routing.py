"""Requests about the job: who is asked, and when all have answered.

An outsider (`holdfast status`, a dashboard) asks an agent, the agent asks the coordinator, and the
coordinator puts the request to the nodes that it is meant for. It knows who they are, and nothing
of what is asked: requests and answers are packed.

    outsider ─▶ agent ─RequestMade─▶ coordinator ─ForwardRequest─▶ nodes
             ◀─      ◀─PassResponse──               ◀─RequestAnswered─
                     ◀─CloseRequest, once

Rules
1. Each request is settled exactly once: when all who were asked have answered or are gone, or when
   its time is over. Whoever did not answer is named.
2. Answers are passed on as they come. One that nobody waits for any more is dropped.
3. It decides nothing about the job: no request is journalled, written down or renews a lease.
4. What askers cost is bounded: so many requests at a time for all of them, and for each.
5. A request dies with its coordinator; the agent that asked tells so, for it knows first.
"""

from __future__ import annotations

from msgspec import Struct, field

from holdfast.core.coordinator.io import CoordinatorEffect, Tell
from holdfast.core.coordinator.state import CoordinatorState, name_of
from holdfast.core.protocol.messages import (
    NAMED_MOST,
    CloseRequest,
    ForwardRequest,
    PassResponse,
    RequestAnswered,
    RequestMade,
)

PATIENCE_S = 40.0
"""More than any node takes to answer: one that was told to wait for news does so for 25 s."""
QUESTIONS_MOST = 256
QUESTIONS_OF_ONE_MOST = 64


class PendingRequest(Struct):
    """A request that was put to nodes, and is not settled yet."""

    asker: str
    number: int
    """The asker's own."""
    awaited: set[str]
    until: float
    missing: list[str] = field(default_factory=list)
    """What those are called who cannot answer any more."""


class RequestRouter(Struct):
    """All requests that are on their way."""

    own_node: str = ""
    """Whom a request means that is the coordinator's to answer."""
    last_number: int = 0
    open: dict[int, PendingRequest] = field(default_factory=dict)
    """By the number under which nodes were asked; the oldest first."""

    def next_check(self) -> float | None:
        """When the first of them has waited long enough: all wait equally long."""
        return next((one.until for one in self.open.values()), None)


def asked(
    desk: RequestRouter, state: CoordinatorState, node: str, message: RequestMade, now: float
) -> list[CoordinatorEffect]:
    """A node passes a request on to us."""
    if node not in state.members:
        return _refuse(node, message, "this node has not joined the job yet")
    own = sum(one.asker == node for one in desk.open.values())
    if own >= QUESTIONS_OF_ONE_MOST or len(desk.open) >= QUESTIONS_MOST:
        return _refuse(node, message, "too many requests are being asked; ask again in a moment")
    targets, unknown = _targets(desk, state, message)
    if unknown or not targets:
        return _refuse(node, message, f"no node is called {unknown}" if unknown else "ask of whom?")
    desk.last_number += 1
    awaited = set(targets)
    desk.open[desk.last_number] = PendingRequest(node, message.number, awaited, now + PATIENCE_S)
    put = ForwardRequest(desk.last_number, message.request)
    return [Tell(target, put) for target in targets]


def _refuse(node: str, message: RequestMade, reason: str) -> list[CoordinatorEffect]:
    return [Tell(node, CloseRequest(message.number, reason))]


def _targets(
    desk: RequestRouter, state: CoordinatorState, message: RequestMade
) -> tuple[list[str], str]:
    """Who is to be asked, and the first name that nobody has."""
    if message.of == "coordinator":
        return [desk.own_node], ""
    if message.of == "all":
        return list(state.members), ""
    by_name = {member.name: node for node, member in state.members.items()}
    found = []
    for wanted in dict.fromkeys(message.nodes):
        node = wanted if wanted in state.members else by_name.get(wanted)
        if node is None:
            return [], wanted
        found.append(node)
    return found, ""


def answered(
    desk: RequestRouter, state: CoordinatorState, node: str, message: RequestAnswered
) -> list[CoordinatorEffect]:
    """A node answers a request that was put to it."""
    request = desk.open.get(message.number)
    if request is None or node not in request.awaited:
        return []
    request.awaited.discard(node)
    passed = PassResponse(request.number, name_of(state, node), message.answer)
    told: list[CoordinatorEffect] = [Tell(request.asker, passed)]
    return told + _settle_if_done(desk, message.number)


def gone(desk: RequestRouter, state: CoordinatorState, node: str) -> list[CoordinatorEffect]:
    """A node's connection ended: it answers nothing more, and cannot be told anything."""
    effects: list[CoordinatorEffect] = []
    for number, request in list(desk.open.items()):
        if request.asker == node:
            del desk.open[number]
        elif node in request.awaited:
            request.awaited.discard(node)
            request.missing.append(name_of(state, node))
            effects += _settle_if_done(desk, number)
    return effects


def expire(desk: RequestRouter, state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """Settle what has waited long enough."""
    effects: list[CoordinatorEffect] = []
    for number, request in list(desk.open.items()):
        if request.until <= now:
            request.missing += [name_of(state, node) for node in request.awaited]
            effects.append(_settle(desk, number))
    return effects


def _settle_if_done(desk: RequestRouter, number: int) -> list[CoordinatorEffect]:
    return [] if desk.open[number].awaited else [_settle(desk, number)]


def _settle(desk: RequestRouter, number: int) -> CoordinatorEffect:
    request = desk.open.pop(number)
    missing = tuple(sorted(request.missing)[:NAMED_MOST])
    count = len(request.missing)
    return Tell(request.asker, CloseRequest(request.number, "", missing, count))
