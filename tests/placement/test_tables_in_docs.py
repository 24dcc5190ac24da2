"""docs/engines.md says what the code does."""

from __future__ import annotations

from holdfast.placement.engines import ENGINES

from ..scripts_of_pages import script


def test_the_page_lists_the_variables_that_workers_do_not_get() -> None:
    tables = script("engine_tables")
    assert tables.PAGE.read_text() == tables.page(), "run: python docs/engine_tables.py --write"


def test_the_page_names_the_signs_of_every_engine() -> None:
    text = script("engine_tables").PAGE.read_text()
    assert [sign for sign, _ in ENGINES if f"`{sign}`" not in text] == []
