"""The result of processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.elastic.multiprocessing.errors import ProcessFailure

__all__ = ["RunProcsResult"]


@dataclass
class RunProcsResult:
    """The result of the processes, by local rank.

    `return_values` is empty where one failed. `stdouts` and `stderrs` are paths, empty where
    the stream was not kept.
    """

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        return len(self.failures) > 0
