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

from holdfast.core.coordinator_io import CoordinatorEffect, Tell
from holdfast.core.membership import Membership
from holdfast.core.protocol.messages import (
    NAMED_MOST,
    CloseRequest,
    ForwardRequest,
    PassResponse,
    RequestAnswered,
    RequestMade,
)

Effects = list[CoordinatorEffect]

PATIENCE_S = 40.0
"""More than any node takes to answer: one that was told to wait for news does so for 25 s."""
REQUESTS_MOST = 256
REQUESTS_OF_ONE_MOST = 64


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
    """The node that answers a request to the coordinator."""
    last_number: int = 0
    open: dict[int, PendingRequest] = field(default_factory=dict)
    """By the number under which nodes were asked; the oldest first."""

    def next_check(self) -> float | None:
        """When the first of them has waited long enough: all wait equally long."""
        return next((one.until for one in self.open.values()), None)

    def heard(
        self,
        nodes: Membership,
        node: str,
        message: RequestMade | RequestAnswered,
        connected: set[str],
        now: float,
    ) -> Effects:
        """A node passes a request on to us, or answers one."""
        if isinstance(message, RequestAnswered):
            return self.answered(nodes, node, message)
        effects = self.asked(nodes, node, message, now)
        for put in [one for one in effects if isinstance(one, Tell)]:
            # Its connection has ended, and it does not count as gone yet: nobody gets that request.
            if put.node not in connected and put.node not in (node, self.own_node):
                effects += self.gone(nodes, put.node)
        return effects

    def asked(self, nodes: Membership, node: str, message: RequestMade, now: float) -> Effects:
        """A node passes a request on to us."""
        if node not in nodes.members:
            return _refuse(node, message, "this node has not joined the job yet")
        own = sum(one.asker == node for one in self.open.values())
        if own >= REQUESTS_OF_ONE_MOST or len(self.open) >= REQUESTS_MOST:
            return _refuse(node, message, "too many requests; try again in a moment")
        targets, unknown = self._targets(nodes, message)
        if unknown:
            return _refuse(node, message, f"no node is called {unknown}")
        if not targets:
            return _refuse(node, message, "no node named")
        self.last_number += 1
        until = now + PATIENCE_S
        self.open[self.last_number] = PendingRequest(node, message.number, set(targets), until)
        put = ForwardRequest(self.last_number, message.request)
        return [Tell(target, put) for target in targets]

    def _targets(self, nodes: Membership, message: RequestMade) -> tuple[list[str], str]:
        """Who is to be asked, and the first name that nobody has."""
        if message.of == "coordinator":
            return [self.own_node], ""
        if message.of == "all":
            return list(nodes.members), ""
        by_name = {member.name: node for node, member in nodes.members.items()}
        found = []
        for wanted in dict.fromkeys(message.nodes):
            node = wanted if wanted in nodes.members else by_name.get(wanted)
            if node is None:
                return [], wanted
            found.append(node)
        return found, ""

    def answered(self, nodes: Membership, node: str, message: RequestAnswered) -> Effects:
        """A node answers a request that was put to it."""
        request = self.open.get(message.number)
        if request is None or node not in request.awaited:
            return []
        request.awaited.discard(node)
        passed = PassResponse(request.number, nodes.name_of(node), message.answer)
        return [Tell(request.asker, passed), *self._settle_if_done(message.number)]

    def gone(self, nodes: Membership, node: str) -> Effects:
        """A node's connection ended: it answers nothing more, and cannot be told anything."""
        effects: Effects = []
        for number, request in list(self.open.items()):
            if request.asker == node:
                del self.open[number]
            elif node in request.awaited:
                request.awaited.discard(node)
                request.missing.append(nodes.name_of(node))
                effects += self._settle_if_done(number)
        return effects

    def expire(self, nodes: Membership, now: float) -> Effects:
        """Settle what has waited long enough."""
        effects: Effects = []
        for number, request in list(self.open.items()):
            if request.until <= now:
                request.missing += [nodes.name_of(node) for node in request.awaited]
                effects += self._settle(number)
        return effects

    def _settle_if_done(self, number: int) -> Effects:
        return [] if self.open[number].awaited else self._settle(number)

    def _settle(self, number: int) -> Effects:
        request = self.open.pop(number)
        missing = tuple(sorted(request.missing)[:NAMED_MOST])
        count = len(request.missing)
        return [Tell(request.asker, CloseRequest(request.number, "", missing, count))]


def _refuse(node: str, message: RequestMade, reason: str) -> Effects:
    return [Tell(node, CloseRequest(message.number, reason))]
