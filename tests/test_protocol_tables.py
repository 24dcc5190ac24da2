"""docs/protocol.md shows the tables of the code as they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parent.parent / "docs" / "protocol_tables.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("protocol_tables", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_tables_of_the_code() -> None:
    tables = load()
    page = tables.PAGE.read_text()
    assert tables.BEGIN in page
    wanted = tables.page_with(tables.render(), page)
    assert page == wanted, "run: python docs/protocol_tables.py --write"
