"""What the parts of an engine know of the node that they belong to."""

from __future__ import annotations

from typing import Protocol

from holdfast.core.node.io import AgentEvent
from holdfast.core.policy.config import JobConfig
from holdfast.node.ports import JournalPort, Ports
from holdfast.runtime.loop import Clock


class Host(Protocol):
    """The engine, as far as its parts need it."""

    @property
    def config(self) -> JobConfig: ...
    @property
    def node(self) -> str: ...
    @property
    def ports(self) -> Ports: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def journal(self) -> JournalPort: ...
    def post(self, event: AgentEvent) -> None: ...
    def say(self, text: str) -> None: ...
