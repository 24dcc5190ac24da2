"""The source of a dashboard's answers: a running job, and one request on its way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from holdfast.core.protocol.messages import CloseRequest
from holdfast.core.protocol.requests import Answer, JobRequest, NotKnown, read_answer

Recipients = Literal["coordinator", "all", "some"]
LEAST_INTERVAL_S = 0.5
NODES_A_SECOND = 500
"""How many nodes are asked, by all pages of one agent together."""


def interval_s(nodes: int) -> float:
    """How long to wait before so many nodes are asked the same again."""
    return max(LEAST_INTERVAL_S, nodes / NODES_A_SECOND)


class AwaitedResponse:
    """One request on its way, and its answers: an `Asker` of `engine.requests`."""

    def __init__(self, then: Callable[[AwaitedResponse], None]) -> None:
        """`then` is called once, when no further answer comes, unless it is cancelled."""
        self.by_node: dict[str, Answer] = {}
        self.missing: tuple[str, ...] = ()
        self._refused = ""
        self._then: Callable[[AwaitedResponse], None] | None = then

    @property
    def only(self) -> Answer | None:
        """The answer to a request to the coordinator."""
        return next(iter(self.by_node.values()), None)

    @property
    def problem(self) -> str:
        """The reason why there is no answer at all, if there is none."""
        if self._refused or not self.by_node:
            return self._refused or "nobody answered"
        unknown = [one.reason for one in self.by_node.values() if isinstance(one, NotKnown)]
        return unknown[0] if len(unknown) == len(self.by_node) else ""

    def on_answer(self, number: int, node: str, answer: bytes) -> None:
        if self._then is not None:
            self.by_node[node] = read_answer(answer)

    def on_settled(self, settled: CloseRequest) -> None:
        then, self._then = self._then, None
        self._refused, self.missing = settled.refused, settled.missing
        if then is not None:
            then(self)

    def cancel(self) -> None:
        """The answers are not wanted any more."""
        self._then = None


class Source(Protocol):
    """A running job that can be asked."""

    node: str
    """The node that serves the page."""

    def ask(
        self,
        request: JobRequest,
        pending: AwaitedResponse,
        of: Recipients = "coordinator",
        nodes: Sequence[str] = (),
    ) -> None:
        """Ask; the answers go to `pending`, maybe from within."""
        ...
