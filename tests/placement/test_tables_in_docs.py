"""docs/engines.md says what the code does."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from holdfast.placement.engines import ENGINES

SCRIPT = Path(__file__).parents[2] / "docs" / "engine_tables.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("engine_tables", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_lists_the_variables_that_workers_do_not_get() -> None:
    tables = load()
    assert tables.PAGE.read_text() == tables.page(), "run: python docs/engine_tables.py --write"


def test_the_page_names_the_signs_of_every_engine() -> None:
    text = load().PAGE.read_text()
    assert [sign for sign, _ in ENGINES if f"`{sign}`" not in text] == []
