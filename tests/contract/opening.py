"""How tests open registers, in their own process and in others."""

from __future__ import annotations

import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType

from holdfast.registers.opening import open_register, register_backend
from holdfast.registers.register import Register, RegisterSettings

TESTS = Path(__file__).parents[1]
EXAMPLES = TESTS.parent / "examples"
_one_at_a_time = threading.Lock()


def open_for_test(settings: RegisterSettings) -> Register:
    """As an agent opens one; the example is registered by its name before."""
    if settings.backend == "sqlite":
        with _one_at_a_time:
            register_backend("sqlite", own_register().SqliteRegister)
    return open_register(settings)


def own_register() -> ModuleType:
    """The example, which is not installed."""
    if "own_register" not in sys.modules:
        path = EXAMPLES / "own_register.py"
        spec = importlib.util.spec_from_file_location("own_register", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules["own_register"] = module
    return sys.modules["own_register"]


def python_command(module: str, *arguments: str) -> list[str]:
    """A module beside this one, run in a process of its own."""
    start = (
        "import sys, runpy; sys.path.insert(0, sys.argv.pop(1)); "
        "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=False)"
    )
    return [sys.executable, "-c", start, str(TESTS), module, *arguments]
