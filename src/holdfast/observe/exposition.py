"""Prometheus' text format, version 0.0.4: the answer of `/metrics`.

Written by hand: it is a page of code, and its client library takes longer to import than an agent
takes to start. A real server reads it in the tests.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["counter", "gauge", "histogram"]


class Metric(Struct, frozen=True):
    """One metric: its name, help, kind and labels."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


class Histogram:
    """How often a value was at most each of its bounds, and the sum of all."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


Value = float | Histogram
Samples = dict[str, dict[tuple[str, ...], Value]]
"""By the name of a metric, and by the values of its labels, in their order."""


def exposition(metrics: Sequence[Metric], samples: Samples, everywhere: Mapping[str, str]) -> str:
    """The page. `everywhere` are labels of every sample. Metrics without a sample are left out."""
    unknown = samples.keys() - {metric.name for metric in metrics}
    assert not unknown, f"{unknown} is in no table"
    return "".join(
        f"{line}\n"
        for metric in metrics
        if samples.get(metric.name)
        for line in _family(metric, samples[metric.name], everywhere)
    )


def _family(
    metric: Metric, values: Mapping[tuple[str, ...], Value], everywhere: Mapping[str, str]
) -> Iterator[str]:
    yield f"# HELP {metric.name} {_escaped(metric.help, quotes=False)}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for told_apart, value in values.items():
        labels = {**everywhere, **dict(zip(metric.labels, told_apart, strict=True))}
        if isinstance(value, Histogram):
            yield from _histogram(metric.name, labels, value)
        else:
            yield f"{metric.name}{_labels(labels)} {_number(value)}"


def _histogram(name: str, labels: Mapping[str, str], histogram: Histogram) -> Iterator[str]:
    below = 0
    for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
        below += count
        yield f"{name}_bucket{_labels({**labels, 'le': _number(bound)})} {below}"
    yield f"{name}_sum{_labels(labels)} {_number(histogram.sum)}"
    yield f"{name}_count{_labels(labels)} {below}"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: str, *, quotes: bool = True) -> str:
    plain = text.replace("\\", r"\\").replace("\n", r"\n")
    return plain.replace('"', r"\"") if quotes else plain


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)
