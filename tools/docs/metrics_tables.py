"""The tables of metrics in docs/guides/health-and-metrics.md, made from `observe/metrics.py`.

`python tools/docs/metrics_tables.py` prints the page as it should be; with `--write` it is written.
"""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.observe.exposition import Metric
from holdfast.observe.metrics import COORDINATOR_METRICS, NODE_METRICS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "health-and-metrics.md"
BEGIN = "<!-- made from observe/metrics.py: begin -->\n"
END = "<!-- made from observe/metrics.py: end -->\n"


def page() -> str:
    """The page, with the tables as the code has them."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + "\n".join(_lines()) + "\n" + END + rest.partition(END)[2]


def _lines() -> list[str]:
    return [
        "",
        "Of every node:",
        "",
        *_table(NODE_METRICS),
        "",
        "Of the node that is the coordinator, and of no other:",
        "",
        *_table(COORDINATOR_METRICS),
        "",
    ]


def _table(metrics: tuple[Metric, ...]) -> list[str]:
    rows = [
        f"| `{metric.name}` | {metric.kind} "
        f"| {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
        for metric in metrics
    ]
    return ["| metric | kind | told apart by | what it says |", "|---|---|---|---|", *rows]


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
