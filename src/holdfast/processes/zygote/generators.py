"""Generators of random numbers that modules make for themselves when they are imported ahead.

One that was made without a seed is another one in each worker and in each round. Forked, all would
draw the same numbers; so each worker seeds it anew, as it would have itself. One that was given a
seed draws the same numbers in all workers anyhow, and is left alone.

Rules
1. Whether there was a seed shows only when it is made. So the modules that make generators are
   watched from the moment at which they are loaded: no import can come before that.
2. Whether what they do is seen is tried out at once. Where it is not, that is said, and no
   worker may come of what is imported then.
3. Those of `random` are known wherever they are kept, those of NumPy (`Generator`) where a module
   has a name for them.

Standard library only: for the zygote.
"""

from __future__ import annotations

import sys
import weakref

from holdfast.processes.zygote import fork_fixups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

NUMPY = "numpy.random.bit_generator"
UNSEEN = "seeds generators of random numbers where that cannot be seen"
VERSION = "Python " + ".".join(map(str, sys.version_info[:3]))


class Generators:
    """Watches until `end` what was `watched` when it was loaded; `renew` is for a worker."""

    def __init__(self) -> None:
        self.watched: dict[str, Callable[[ModuleType], str]] = {
            "random": self._watch_random,
            NUMPY: self._watch_numpy,
        }
        """By name: what to do with a module as soon as it is loaded; returns why it is in vain."""
        self._undo: list[Callable[[], None]] = []
        self._of_random: weakref.WeakSet[Any] = weakref.WeakSet()
        self._drawn: set[int] = set()
        """What NumPy took for a seed where it was given none."""
        self._of_numpy: list[Any] = []

    def end(self) -> None:
        """Watch no longer. Idempotent."""
        while self._undo:
            self._undo.pop()()

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

    def _watch_random(self, module: Any) -> str:
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
        is_seen = kind() in made
        return "" if is_seen else f"{VERSION} {UNSEEN}"

    def _watch_numpy(self, module: Any) -> str:
        plain, seen = getattr(module, "randbits", None), []

        def randbits(bits: int) -> int:
            value: int = plain(bits)  # type: ignore[misc]  # else it is not called
            seen.append(True)
            modules = fork_fixups.modules_being_imported(sys._getframe())
            if modules and not modules[0].startswith("numpy."):
                self._drawn.add(value)
            return value

        if plain is not None:
            module.randbits = randbits
            self._undo.append(lambda: setattr(module, "randbits", plain))
        getattr(module, "SeedSequence", str)()
        return "" if seen else f"it {UNSEEN}"


def _seed_of(generator: Any) -> Any:
    seed = getattr(generator.bit_generator.seed_seq, "entropy", None)
    return seed if isinstance(seed, int) else None
