"""Metrics: a value under a name, in a group, at a time.

Each group has a handler; a group that has none uses the default one, which keeps nothing until
`configure` is called without a group. A handler that raises does so into the code that put the
metric: it is the user's, and hides nothing.
"""

from __future__ import annotations

import abc
import functools
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar, overload

__all__ = [
    "ConsoleMetricHandler",
    "MetricData",
    "MetricHandler",
    "MetricStream",
    "MetricsConfig",
    "NullMetricHandler",
    "configure",
    "getStream",
    "get_elapsed_time_ms",
    "prof",
    "profile",
    "publish_metric",
    "put_metric",
]

OWN_GROUP = "torchelastic"
P = ParamSpec("P")
R = TypeVar("R")


class MetricData(NamedTuple):
    """One value, and the second since 1970 in which it was put."""

    timestamp: float
    group_name: str
    name: str
    value: Any


class MetricsConfig:
    """Parameters for `initialize_metrics`."""

    __slots__ = ["params"]

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self.params = {} if params is None else params


class MetricHandler(abc.ABC):
    """Takes metrics to where they are wanted."""

    @abc.abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Take one."""


class ConsoleMetricHandler(MetricHandler):
    """Prints each metric in a line on stdout: `[<timestamp>][<group>]: <name>=<value>`."""

    def emit(self, metric_data: MetricData) -> None:
        timestamp, group, name, value = metric_data
        print(f"[{timestamp}][{group}]: {name}={value}")


class NullMetricHandler(MetricHandler):
    """Keeps nothing."""

    def emit(self, metric_data: MetricData) -> None:
        pass


class MetricStream:
    """The metrics of one group, on their way to its handler."""

    def __init__(self, group_name: str, handler: MetricHandler) -> None:
        self.group_name = group_name
        self.handler = handler

    def add_value(self, metric_name: str, metric_value: Any) -> None:
        """Put one metric, now."""
        self.handler.emit(MetricData(time.time(), self.group_name, metric_name, metric_value))


_metrics_map: dict[str, MetricHandler] = {}
_default_metrics_handler: MetricHandler = NullMetricHandler()


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """Set the handler of a group or, without one, of every group that has none of its own."""
    global _default_metrics_handler  # noqa: PLW0603 - one setting per process, as in logging
    if group is None:
        _default_metrics_handler = handler
    else:
        _metrics_map[group] = handler


def getStream(group: str) -> MetricStream:  # noqa: N802 - the name that callers know
    """The stream of a group, with the handler that the group has now."""
    return MetricStream(group, _metrics_map.get(group, _default_metrics_handler))


def put_metric(metric_name: str, metric_value: Any, metric_group: str = OWN_GROUP) -> None:
    """Put one metric into a group."""
    getStream(metric_group).add_value(metric_name, metric_value)


@overload
def prof(fn: Callable[P, R], group: str = ...) -> Callable[P, R]: ...


@overload
def prof(fn: None = ..., group: str = ...) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def prof(fn: Callable[..., Any] | None = None, group: str = OWN_GROUP) -> Callable[..., Any]:
    """Measure every call of a function: `@prof` or `@prof(group="…")`.

    Puts `<name>.success` or `<name>.failure`, then `<name>.duration.ms`, where the name is
    `Class.method`, or `module.function` with the last part of the module's name.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        key = _get_metric_name(function)
        return _measured(function, key, lambda name, value: put_metric(name, value, group))

    return decorate if fn is None else decorate(fn)


def profile(group: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Deprecated for `prof`: the same, under the function's bare name."""
    _warn_of("profile", "prof")
    into: Any = group

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        key = function.__name__
        return _measured(function, key, lambda name, value: put_metric(name, value, into))

    return decorate


def publish_metric(metric_group: str, metric_name: str, metric_value: Any) -> None:
    """Deprecated for `put_metric`: the same, with the group first."""
    _warn_of("publish_metric", "put_metric")
    put_metric(metric_name, metric_value, metric_group)


def get_elapsed_time_ms(start_time_in_seconds: float) -> int:
    """Whole milliseconds since a `time.time()`."""
    return int((time.time() - start_time_in_seconds) * 1000)


def _measured(
    function: Callable[P, R], key: str, put: Callable[[str, int], None]
) -> Callable[P, R]:
    @functools.wraps(function)
    def measured(*args: P.args, **kwargs: P.kwargs) -> R:
        start_s = time.time()
        try:
            result = function(*args, **kwargs)
        except Exception:
            put(f"{key}.failure", 1)
            raise
        else:
            put(f"{key}.success", 1)
            return result
        finally:
            put(f"{key}.duration.ms", get_elapsed_time_ms(start_s))

    return measured


def _get_metric_name(fn: Callable[..., Any]) -> str:
    if "." in fn.__qualname__ or not fn.__module__:
        return fn.__qualname__
    return f"{fn.__module__.rpartition('.')[2]}.{fn.__qualname__}"


def _warn_of(old: str, new: str) -> None:
    warnings.warn(f"{old} is deprecated; use {new}", FutureWarning, stacklevel=3)
