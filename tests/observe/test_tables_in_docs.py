"""The tables of metrics in the docs are those of the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parents[2] / "docs" / "metrics_tables.py"


def tables_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("metrics_tables", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date() -> None:
    tables = tables_module()
    assert tables.BEGIN in tables.PAGE.read_text()
    assert tables.PAGE.read_text() == tables.page(), "run: python docs/metrics_tables.py --write"
