"""Prometheus' text format, read back by its own tool where that is there."""

from __future__ import annotations

import math
import shutil
import subprocess

import pytest

from holdfast.observe.exposition import Histogram, Metric, Samples, exposition

METRICS = (
    Metric("x_total", "counter", "How many.", ("kind",)),
    Metric("y", "gauge", 'A \\ and\na "quote".'),
    Metric("z_seconds", "histogram", "How long."),
    Metric("unused", "gauge", "Nobody knows."),
)


def page() -> str:
    lasted = Histogram((0.5, 1.0))
    for seconds in (0.25, 0.5, 0.75, 2.5):
        lasted.observe(seconds)
    samples: Samples = {
        "x_total": {("a",): 3, ('b"\n\\',): 2.5},
        "y": {(): math.inf},
        "z_seconds": {(): lasted},
    }
    return exposition(METRICS, samples, {"node": "n1"})


def test_the_page_is_as_prometheus_wants_it() -> None:
    assert page() == (
        "# HELP x_total How many.\n"
        "# TYPE x_total counter\n"
        'x_total{node="n1",kind="a"} 3\n'
        'x_total{node="n1",kind="b\\"\\n\\\\"} 2.5\n'
        '# HELP y A \\\\ and\\na "quote".\n'
        "# TYPE y gauge\n"
        'y{node="n1"} +Inf\n'
        "# HELP z_seconds How long.\n"
        "# TYPE z_seconds histogram\n"
        'z_seconds_bucket{node="n1",le="0.5"} 2\n'
        'z_seconds_bucket{node="n1",le="1"} 3\n'
        'z_seconds_bucket{node="n1",le="+Inf"} 4\n'
        'z_seconds_sum{node="n1"} 4\n'
        'z_seconds_count{node="n1"} 4\n'
    )


def test_a_sample_that_is_in_no_table_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="unheard"):
        exposition(METRICS, {"unheard": {(): 1}}, {})


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool (Debian: prometheus)")
def test_prometheus_own_tool_can_read_it() -> None:
    subprocess.run(["promtool", "check", "metrics"], input=page().encode(), check=True)
