"""The names of this package, where PyTorch's users import them from."""

from __future__ import annotations

from holdfast.elastic.multiprocessing.context import (
    MultiprocessContext,
    PContext,
    RunProcsResult,
    SubprocessContext,
)
from holdfast.elastic.multiprocessing.errors import ProcessFailure
from holdfast.elastic.multiprocessing.logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs
from holdfast.elastic.multiprocessing.signals import SignalException
from holdfast.elastic.multiprocessing.std import Std, to_map

__all__ = [
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "to_map",
]
