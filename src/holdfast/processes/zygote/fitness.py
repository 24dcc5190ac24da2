"""Whether a module may be imported ahead of the workers that want it.

Rule: importing it here must be what it is in a worker (rule 2 of `zygote.py`). Whatever says
otherwise, or might, comes back as a reason in words, and the module is left to the workers.

Standard library only: for the zygote.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.machinery import PathFinder

from holdfast.processes.stdlib_only import linux, private_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))
HARMLESS_THREADS = frozenset({
    # It gives memory back to the kernel. jemalloc knows of forks; in a process that has lost it,
    # that is done by the thread that frees memory.
    "jemalloc_bg_thd",
})  # fmt: skip
HARMLESS_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "pts/", "ptmx")


class OwnTree:
    """A finder, placed before the usual one, that notices what the program has a file for.

    In a worker, the program's own module would be found; but it is the user's code, may
    read its rank when imported, and must not be run here. `ask` returns in a worker only, where it
    is found as usual, or not at all, or the module is refused.
    """

    def __init__(
        self, folders: list[str], ask: Callable[[str], None], not_own: tuple[str, ...] = ()
    ) -> None:
        self.folders = folders
        self._ask = ask
        self._not_own = not_own
        """Packages that may lie in such a folder and are none of the program's."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if self.hides(name, path):
            self._ask(f"it imports {name}, of which the program has its own")
            if self.folders:
                raise ModuleNotFoundError(f"{name} is the program's own", name=name)

    def hides(self, name: str, path: Any = None) -> bool:
        """Whether the program has that module, at its top level or in its part of a package."""
        if name.partition(".")[0] in self._not_own:
            return False
        return any(self._has(folder, name, path) for folder in self.folders)

    def _has(self, folder: str, name: str, path: Any) -> bool:
        folder = os.path.join(folder, *name.split(".")[:-1])
        if path is not None and folder not in path:
            return False
        spec = PathFinder.find_spec(name, [folder])
        return spec is not None and spec.origin is not None


class Footing:
    """How this process stood before an import: what the import may have left is seen by it."""

    def __init__(self) -> None:
        self.descriptors = linux.open_descriptors()
        self.folder = os.getcwd()
        self.shared_memory = linux.shared_mappings()

    def reason(self) -> str:
        """What was left behind that workers would share or lose; empty if nothing."""
        if os.getcwd() != self.folder:
            return "it changes the working directory when imported"
        return (
            children_left()
            or timers_left()
            or threads_left()
            or descriptors_left(self.descriptors)
            or memory_left(self.shared_memory)
        )


def children_left() -> str:
    return "it leaves a child process behind when imported" if linux.has_children() else ""


def timers_left() -> str:
    """A fork would lose them."""
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        if signal.getitimer(timer) != (0.0, 0.0):
            return "it sets a timer when imported"
    return ""


def memory_left(known: set[str]) -> str:
    """Say so if there is new memory that workers would share: a lock or a value, for instance.

    One of them that dies while it holds such a lock would hang all others, for ever.
    """
    if linux.shared_mappings() - known:
        return "it makes memory or a lock that processes share when imported"
    return ""


def threads_left() -> str:
    """Say so if there are threads that a fork would lose.

    A library that ends its threads before a fork and starts them again later (as OpenBLAS
    does) is fine, and shows itself: after a fork its threads are gone from the parent too.
    """
    if linux.thread_count(HARMLESS_THREADS) == 1:
        return ""
    probe = os.fork()
    if probe == 0:
        os._exit(0)
    linux.await_end(probe)
    left = linux.thread_count(HARMLESS_THREADS) > 1
    return "it leaves a thread running when imported" if left else ""


def descriptors_left(known: dict[int, str]) -> str:
    """Say so if something was left open: workers would share it, offset and all."""
    for descriptor, path in linux.open_descriptors().items():
        device = path.removeprefix("/dev/")
        if descriptor not in known and not (device != path and device.startswith(HARMLESS_DEVICES)):
            return f"it opens {path} when imported"
    return ""


def why_only_cold(own_tree: OwnTree) -> str:
    """Why no worker of this program can come from a zygote at all; usually empty."""
    if sys.flags.verbose or os.environ.get("PYTHONPROFILEIMPORTTIME"):
        return "the environment asks to see every import"
    if lacking := private_names.why_not(private_names.WARM_START):
        return lacking
    if threads_left():
        return "the interpreter itself starts a thread (sitecustomize?)"
    for name in sorted({name.partition(".")[0] for name in sys.modules}):
        if own_tree.hides(name):
            return f"{name} beside the program hides the installed module of that name"
    return ""
