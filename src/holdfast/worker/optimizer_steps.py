"""Signs of life of a worker that reports no steps: those that PyTorch's optimizers make.

Rules
1. PyTorch is never imported for it: the program is waited for until it does so itself.
2. Such a step says that the worker moves, and no more: how far a job is, only `holdfast.progress`
   says. From the first of these on, optimizers count for nothing.
3. Whatever fails is given up silently: no training fails for it.

Standard library only, for any Python from 3.8 on: the light hook loads this file by its path.
"""

import os
import sys
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

VARIABLE = "HOLDFAST_OPTIMIZER_STEPS"
MODULE = "torch.optim.optimizer"
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page.py")


def take_variable() -> None:
    """Begin to watch, if the environment asks for it, and take that out of it."""
    if os.environ.pop(VARIABLE, "") != "1":
        return
    there = sys.modules.get(MODULE)
    if there is not None:
        register(there)
    else:
        sys.meta_path.insert(0, TorchFinder)


class TorchFinder:
    """Waits for the module of optimizers, and goes away once it is imported."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> "Any":
        if name != MODULE:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(cls)
        spec = find_spec(name)
        loader = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: "ModuleType") -> None:
                execute(module)
                register(module)

            try:
                loader.exec_module = exec_module  # type: ignore[method-assign]
            except AttributeError:
                pass
        return spec


def register(module: "ModuleType") -> None:
    """Have all optimizers tell of their steps."""
    try:
        module.register_optimizer_step_post_hook(OptimizerSteps())
    except Exception:  # noqa: BLE001 - rule 3
        pass


class OptimizerSteps:
    """Writes each step into the worker's page, as a sign without a number."""

    def __init__(self) -> None:
        self._layout: dict[str, Any] = {}
        self._page: Any = None
        self._last = 0.0

    def __call__(self, *_: object) -> None:
        """A step was made."""
        try:
            page = self._page or self._open()
            names = self._layout
            if not page.is_shared or page.words[names["HAS_STEP"]]:
                return
            now, row = monotonic(), page.words[names["PHASE"]]
            if self._last and now - self._last > page.longest_s(row):
                page.keep_longest(row, now - self._last)
            self._last = page.times[names["MOVED_AT"]] = now
        except Exception:  # noqa: BLE001 - rule 3
            pass

    def _open(self) -> "Any":
        names: dict[str, Any] = {"__name__": "holdfast_page"}
        with open(PAGE, encoding="utf-8") as file:
            exec(compile(file.read(), PAGE, "exec"), names)
        self._layout, self._page = names, names["open_page"](os.environ)
        return self._page
