"""What workers put right that imports ahead of them have kept: a rank, or random numbers.

Some packages keep one value of their rank when they are imported, set by one statement (`KEPT`).
That statement is run again in each worker, if the module's source has that very statement at its
top level; a version that looks different is left to the workers. First all that was kept is
forgotten, then the statements run in the order in which they ran at first: where several packages
share what they keep, the first one wins, as it does when each worker imports them.

A generator of random numbers that was made without a seed is seeded anew in each worker; one that
was given a seed is left alone. Which it was shows only when it is made, so the modules that make
generators are watched from the moment at which they are loaded. Whether that is seen is tried out
at once. Those of `random` are known wherever they are kept, those of NumPy (`Generator`) where a
module has a name for them.

Standard library only: for the zygote.
"""

from __future__ import annotations

import sys
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType
    from typing import Any

KEPT: dict[str, tuple[str, str]] = {
    # module: (the statement that asks for the rank, how to forget what it kept)
    "lightning.fabric.utilities.rank_zero": (
        "rank_zero_only.rank = getattr(rank_zero_only, 'rank', _get_rank() or 0)",
        "del rank_zero_only.rank",
    ),
    "lightning_fabric.utilities.rank_zero": (
        "rank_zero_only.rank = getattr(rank_zero_only, 'rank', _get_rank() or 0)",
        "del rank_zero_only.rank",
    ),
    "torchmetrics.utilities.prints": (
        (
            "rank_zero_only.rank = "
            "getattr(rank_zero_only, 'rank', int(os.environ.get('LOCAL_RANK', 0)))"
        ),
        "del rank_zero_only.rank",
    ),
}


class ForkFixups:
    """What has to be run again in each worker, collected while modules are imported."""

    def __init__(self) -> None:
        self.modules: list[str] = []
        """In the order in which they asked."""

    def covers(self, frame: FrameType | None) -> bool:
        """Whether what is asked in this frame, or in one that it called, can be put right."""
        while frame is not None and frame.f_code.co_name != "<module>":
            frame = frame.f_back
        if frame is None:
            return False
        module = frame.f_globals.get("__name__", "")
        if module not in KEPT or not _is_at(frame, KEPT[module][0]):
            return False
        if module not in self.modules:
            self.modules.append(module)
        return True

    def apply(self, loaded: dict[str, Any]) -> None:
        """In a worker, whose environment is its own by now."""
        for module in self.modules:
            try:
                exec(KEPT[module][1], vars(loaded[module]))
            except (AttributeError, NameError):
                pass  # Another row has forgotten it already.
        for module in self.modules:
            exec(KEPT[module][0], vars(loaded[module]))


def _is_at(frame: FrameType, statement: str) -> bool:
    """Whether the frame, of a module, is at a top-level statement with this text."""
    import ast  # Seldom needed, and it takes a while.

    try:
        with open(frame.f_code.co_filename, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return False
    line = frame.f_lineno
    for one in tree.body:
        if one.lineno <= line <= (one.end_lineno or one.lineno):
            return ast.unparse(one) == statement
    return False


def modules_being_imported(frame: FrameType | None) -> list[str]:
    """The modules whose code runs in this frame and in those that called it, innermost first."""
    found = []
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            name = frame.f_globals.get("__name__")
            if isinstance(name, str) and name != "__main__" and name in sys.modules:
                found.append(name)
        frame = frame.f_back
    return found


NUMPY = "numpy.random.bit_generator"
UNSEEN = "seeds generators of random numbers where that cannot be seen"


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
        return "" if kind() in made else f"it {UNSEEN}"

    def _watch_numpy(self, module: Any) -> str:
        plain, seen = getattr(module, "randbits", None), []

        def randbits(bits: int) -> int:
            value: int = plain(bits)  # type: ignore[misc]  # else it is not called
            seen.append(True)
            modules = modules_being_imported(sys._getframe())
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
