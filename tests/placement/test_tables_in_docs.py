"""docs/guides/schedulers.md says what the code does."""

from __future__ import annotations

from tools.docs import scheduler_tables as tables

from holdfast.placement.schedulers import SCHEDULERS


def test_the_page_lists_the_variables_that_workers_do_not_get() -> None:
    assert tables.PAGE.read_text() == tables.page(), (
        "run: python tools/docs/scheduler_tables.py --write"
    )


def test_the_page_names_the_signs_of_every_scheduler() -> None:
    text = tables.PAGE.read_text()
    assert [sign for sign, _, _ in SCHEDULERS if f"`{sign}`" not in text] == []
