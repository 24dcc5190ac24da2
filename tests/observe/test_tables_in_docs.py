"""The tables of metrics in the docs are those of the code."""

from __future__ import annotations

from ..scripts_of_pages import script


def test_the_page_is_up_to_date() -> None:
    tables = script("metrics_tables")
    assert tables.BEGIN in tables.PAGE.read_text()
    assert tables.PAGE.read_text() == tables.page(), "run: python docs/metrics_tables.py --write"
