"""What workers put right that imports ahead of them have kept: a rank.

Some packages keep one value of their rank when they are imported, set by one statement (`KEPT`).
That statement is run again in each worker, if the module's source has that very statement at its
top level; a version that looks different is left to the workers. First all that was kept is
forgotten, then the statements run in the order in which they ran at first: where several packages
share what they keep, the first one wins, as it does when each worker imports them.

Standard library only: for the zygote.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
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
