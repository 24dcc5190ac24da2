"""The tables of metrics in the docs are those of the code."""

from __future__ import annotations

from tools.docs import metrics_tables as tables


def test_the_page_is_up_to_date() -> None:
    assert tables.BEGIN in tables.PAGE.read_text()
    assert tables.PAGE.read_text() == tables.page(), (
        "run: python tools/docs/metrics_tables.py --write"
    )
