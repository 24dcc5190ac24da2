"""Where a dashboard's answers come from, in the words of questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from holdfast.core.protocol.questions import Answer, NotKnown, Question

Whom = Literal["coordinator", "all", "some"]


class Answers(Struct):
    """All that came of one question."""

    by_node: dict[str, Answer] = {}
    refused: str = ""
    """Why nobody was asked, or the coordinator knows no answer."""
    missing: tuple[str, ...] = ()

    @property
    def only(self) -> Answer | None:
        """The coordinator's."""
        return next(iter(self.by_node.values()), None)

    @property
    def problem(self) -> str:
        """Why there is no answer at all, if so."""
        if self.refused or not self.by_node:
            return self.refused or "nobody answered"
        unknown = [one.reason for one in self.by_node.values() if isinstance(one, NotKnown)]
        return unknown[0] if len(unknown) == len(self.by_node) else ""


class Source(Protocol):
    """A running job, as one of its agents can ask it."""

    node: str
    """Who serves the page."""
    actions: tuple[str, ...]

    def ask(
        self,
        question: Question,
        then: Callable[[Answers], None],
        of: Whom = "coordinator",
        nodes: Sequence[str] = (),
    ) -> Callable[[], None]:
        """`then` is called once, maybe from within, unless what is returned is called before."""
        ...
