"""docs/design/protocol.md shows the tables of the code as they are."""

from __future__ import annotations

from tools.docs import protocol_tables as tables


def test_the_page_shows_the_tables_of_the_code() -> None:
    page = tables.PAGE.read_text()
    assert tables.BEGIN in page
    wanted = tables.page_with(tables.render(), page)
    assert page == wanted, "run: python tools/docs/protocol_tables.py --write"
