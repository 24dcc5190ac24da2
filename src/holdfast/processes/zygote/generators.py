"""Generators of random numbers that modules make for themselves when they are imported ahead.

One that was made without a seed is another one in each worker and in each round. Forked, all would
draw the same numbers; so each worker seeds it anew, as it would have itself. One that was given a
seed draws the same numbers in all workers anyhow, and is left alone.

Rules
1. Whether there was a seed shows only when it is made. So the modules that make generators are
   watched from the moment at which they are loaded: no import can come before that.
2. Those of `random` are known wherever they are kept, those of NumPy (`Generator`) where a module
   has a name for them.

Standard library only: loaded by path, in the zygote.
"""

from __future__ import annotations

import sys
import weakref
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from holdfast.processes.zygote import put_right
else:
    import put_right

NUMPY = "numpy.random.bit_generator"


class Generators:
    """A finder that watches from `begin` to `end`; `find` in the zygote, `renew` in a worker."""

    def __init__(self) -> None:
        self._watched = {"random": self._watch_random, NUMPY: self._watch_numpy}
        self._undo: list[Callable[[], None]] = []
        self._of_random: weakref.WeakSet[Any] = weakref.WeakSet()
        self._drawn: set[int] = set()
        """What NumPy took for a seed where it was given none."""
        self._of_numpy: list[Any] = []

    def begin(self) -> None:
        for name, watch in self._watched.items():
            if name in sys.modules:
                watch(sys.modules[name])
        sys.meta_path.insert(sys.meta_path.index(PathFinder), self)

    def end(self) -> None:
        """Watch no longer. Idempotent."""
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
        while self._undo:
            self._undo.pop()()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._watched:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _AndThen(spec.loader, self._watched[name])  # type: ignore[assignment]
        return spec

    def find(self, loaded: dict[str, Any]) -> None:
        """Look for those of NumPy that were given no seed."""
        kind = getattr(loaded.get("numpy.random"), "Generator", None)
        if self._drawn and kind is not None:
            self._of_numpy = [
                value
                for module in loaded.values()
                if type(module) is type(sys)
                for value in list(vars(module).values())
                if type(value) is kind and _seed_of(value) in self._drawn
            ]

    def renew(self) -> None:
        """In a worker: seed them anew."""
        for generator in list(self._of_random):
            generator.seed()
        for generator in self._of_numpy:
            bits = generator.bit_generator
            bits.state = type(bits)().state

    def _watch_random(self, module: Any) -> None:
        kind, made = module.Random, self._of_random
        plain_seed, plain_setstate = kind.seed, kind.setstate

        def seed(generator: Any, a: Any = None, version: int = 2) -> None:
            plain_seed(generator, a, version)
            (made.add if a is None else made.discard)(generator)

        def setstate(generator: Any, state: Any) -> None:
            plain_setstate(generator, state)
            made.discard(generator)

        def undo() -> None:
            kind.seed, kind.setstate = plain_seed, plain_setstate

        kind.seed, kind.setstate = seed, setstate
        self._undo.append(undo)

    def _watch_numpy(self, module: Any) -> None:
        plain = getattr(module, "randbits", None)
        if plain is None:
            return  # Another version, which has it elsewhere.

        def randbits(bits: int) -> int:
            value: int = plain(bits)
            modules = put_right.modules_being_imported(sys._getframe())
            if modules and not modules[0].startswith("numpy."):
                self._drawn.add(value)
            return value

        module.randbits = randbits
        self._undo.append(lambda: setattr(module, "randbits", plain))


class _AndThen:
    """Loads a module as its loader does, and does one more thing."""

    def __init__(self, loader: Any, then: Callable[[Any], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then(module)


def _seed_of(generator: Any) -> Any:
    seed = getattr(generator.bit_generator.seed_seq, "entropy", None)
    return seed if isinstance(seed, int) else None
