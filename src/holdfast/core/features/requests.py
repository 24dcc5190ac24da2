"""Requests about the job: which nodes are asked, and when all have answered.

An outsider (`holdfast status`, a dashboard) asks an agent, the agent asks the coordinator, and the
coordinator forwards the request to its target nodes. It knows which those are, and nothing of the
content: requests and answers are packed.

    outsider ─▶ agent ─RequestMade─▶ coordinator ─ForwardRequest─▶ nodes
             ◀─      ◀─PassResponse──               ◀─RequestAnswered─
                     ◀─CloseRequest, once

Rules
1. Each request is settled exactly once: when all nodes that were asked have answered or are gone,
   or when its time is over. Nodes that did not answer are named.
2. Answers are passed on as they come. An answer to a settled request is dropped.
3. A request decides nothing about the job: none is journalled, written down or renews a lease.
4. The cost is bounded: so many requests at a time in all, and for each client.
5. A request dies with its coordinator; the agent that asked reports so, for it knows first.
"""

from __future__ import annotations

from msgspec import Struct, field

from holdfast.core.coordinator_io import CoordinatorEffect, Tell
from holdfast.core.membership import Membership
from holdfast.core.policy import sentences
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
    """A request that was forwarded to nodes, and is not settled yet."""

    asker: str
    number: int
    """The client's own number for it."""
    awaited: set[str]
    until: float
    missing: list[str] = field(default_factory=list)
    """The names of nodes that can no longer answer."""


class RequestRouter(Struct):
    """All requests under way."""

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
        """A node passes a client's request on, or answers one."""
        if isinstance(message, RequestAnswered):
            return self._answered(nodes, node, message)
        if node not in nodes.members:
            return _refuse(node, message, sentences.NOT_JOINED)
        own = sum(one.asker == node for one in self.open.values())
        if own >= REQUESTS_OF_ONE_MOST or len(self.open) >= REQUESTS_MOST:
            return _refuse(node, message, sentences.TOO_MANY_REQUESTS)
        targets, unknown = self._targets(nodes, message)
        if unknown:
            return _refuse(node, message, sentences.no_such_node(unknown))
        if not targets:
            return _refuse(node, message, sentences.NO_NODE_NAMED)
        # A node whose connection has ended may not count as gone yet: it cannot be asked.
        reachable = {*connected, node, self.own_node}.intersection(targets)
        missing = [nodes.name_of(target) for target in targets if target not in reachable]
        self.last_number += 1
        pending = PendingRequest(node, message.number, reachable, now + PATIENCE_S, missing)
        self.open[self.last_number] = pending
        put = ForwardRequest(self.last_number, message.request)
        told: Effects = [Tell(target, put) for target in targets if target in reachable]
        return [*told, *self._settle_if_done(self.last_number)]

    def _targets(self, nodes: Membership, message: RequestMade) -> tuple[list[str], str]:
        """The target nodes, and the first name that no node has."""
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

    def _answered(self, nodes: Membership, node: str, message: RequestAnswered) -> Effects:
        """A node answers a forwarded request."""
        request = self.open.get(message.number)
        if request is None or node not in request.awaited:
            return []
        request.awaited.discard(node)
        passed = PassResponse(request.number, nodes.name_of(node), message.answer)
        return [Tell(request.asker, passed), *self._settle_if_done(message.number)]

    def gone(self, nodes: Membership, node: str) -> Effects:
        """A node's connection ended: it answers nothing more, and cannot be sent anything."""
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
        """Settle requests whose time is over."""
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
