"""Events: a name, a source, a time, and metadata.

They are dataclasses, since callers compare them, `replace` them and turn them into
dictionaries.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum

__all__ = ["Event", "EventMetadataValue", "EventSource", "NodeState", "RdzvEvent"]

EventMetadataValue = str | int | float | bool | None


class EventSource(str, Enum):  # noqa: UP042 - `str()` of it names the class, as callers know it
    """The source of an event."""

    AGENT = "AGENT"
    WORKER = "WORKER"


class NodeState(str, Enum):  # noqa: UP042 - as above
    """The state of a node in its rendezvous."""

    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


class _Serialized:
    """A dataclass that becomes JSON: an object of exactly its fields."""

    def __str__(self) -> str:
        return self.serialize()

    def serialize(self) -> str:
        """The event as JSON, in one line."""
        return json.dumps(asdict(self))  # type: ignore[call-overload]


@dataclass
class Event(_Serialized):
    """Something that happened in a job. `timestamp` is in milliseconds since 1970."""

    name: str
    source: EventSource
    timestamp: int = 0
    metadata: dict[str, EventMetadataValue] = field(default_factory=dict)

    @staticmethod
    def deserialize(data: str | Event) -> Event:
        """An event from its JSON; an event as it is. Raises `KeyError` for an unknown source."""
        if isinstance(data, Event):
            return data
        fields = json.loads(data)
        return Event(**{**fields, "source": EventSource[fields["source"]]})


@dataclass
class RdzvEvent(_Serialized):
    """Something that happened to a node in a rendezvous.

    `master_endpoint`, `rank` and `local_id` are given where they are known, and `error_trace`
    where it is about an error.
    """

    name: str
    run_id: str
    message: str
    hostname: str
    pid: int
    node_state: NodeState
    master_endpoint: str = ""
    rank: int | None = None
    local_id: int | None = None
    error_trace: str = ""

    @staticmethod
    def deserialize(data: str | RdzvEvent) -> RdzvEvent:
        """An event from its JSON; an event as it is. Raises `KeyError` for an unknown state."""
        if isinstance(data, RdzvEvent):
            return data
        fields = json.loads(data)
        return RdzvEvent(**{**fields, "node_state": NodeState[fields["node_state"]]})
