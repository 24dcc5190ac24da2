"""Whether a module may be imported ahead of the workers that want it.

Rule: importing it here must be what it is in a worker (rule 2 of `zygote.py`). Whatever says
otherwise, or might, comes back as a reason in words, and the module is left to the workers.

Standard library only: loaded by path, in the zygote.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from holdfast.workers import linux, private_names, run_as_main
else:
    import linux
    import private_names
    import run_as_main

FOLDER = os.path.dirname(os.path.abspath(__file__))
HARMLESS_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "pts/", "shm/", "ptmx")
Environment: Any = private_names.class_of_environment()


def looking(name: str) -> Any:
    """A method of lists that says first that it was called."""
    plain = getattr(list, name)

    def look_first(self: Arguments, *operands: Any) -> Any:
        self.look()
        return plain(self, *operands)

    return look_first


class Arguments(list):  # type: ignore[type-arg]
    """`sys.argv` while a module is imported: tells when it is looked at."""

    look: Callable[[], None]
    __getitem__ = looking("__getitem__")
    __iter__ = looking("__iter__")
    __len__ = looking("__len__")
    __contains__ = looking("__contains__")
    __add__ = looking("__add__")


class Watch:
    """Notices when what is imported asks for what only a worker has.

    Going through the environment shows the names of a worker's variables, as it would in
    a worker; to ask for the value of one is what counts.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.noticed = ""
        self._names = frozenset(names)
        self._plain = {
            name: vars(Environment)[name]
            for name in ("__getitem__", "__setitem__", "__delitem__", "__iter__")
        }

    def __enter__(self) -> Watch:
        for name, verb in (("getitem", "reads"), ("setitem", "sets"), ("delitem", "removes")):
            setattr(Environment, f"__{name}__", self._noting(self._plain[f"__{name}__"], verb))
        Environment.__iter__ = self._showing_names(self._plain["__iter__"])
        self._argv = sys.argv
        sys.argv = watched = Arguments(sys.argv)
        watched.look = lambda: self._note("reads", "the command line")
        return self

    def __exit__(self, *_: object) -> None:
        for name, method in self._plain.items():
            setattr(Environment, name, method)
        if isinstance(sys.argv, Arguments):
            sys.argv = self._argv

    def _noting(self, method: Any, verb: str) -> Any:
        def noting(this: Any, key: Any, *value: Any) -> Any:
            if isinstance(key, str | bytes) and os.fsdecode(key) in self._names:
                self._note(verb, os.fsdecode(key))
            return method(this, key, *value)

        return noting

    def _showing_names(self, method: Any) -> Any:
        def names_of_worker(this: Any) -> Iterator[Any]:
            yield from method(this)
            yield from (this.decodekey(os.fsencode(name)) for name in self._names)

        return names_of_worker

    def _note(self, verb: str, what: str) -> None:
        self.noticed = self.noticed or f"it {verb} {what} when imported"


class OwnTree:
    """A finder, placed before the usual one, that refuses what the program has a file for.

    In a worker, the program's own module would be found; but it is the user's code, may
    read its rank when imported, and must not be run here.
    """

    def __init__(self, folder: str | None) -> None:
        self.folder = folder
        self.refused = ""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if self.hides(name, path):
            self.refused = f"it imports {name}, of which the program has its own"
            raise ModuleNotFoundError(f"{name} is the program's own", name=name)

    def hides(self, name: str, path: Any = None) -> bool:
        """Whether the program has that module, at its top level or in its part of a package."""
        if self.folder is None:
            return False
        folder = os.path.join(self.folder, *name.split(".")[:-1])
        if path is not None and folder not in path:
            return False
        spec = PathFinder.find_spec(name, [folder])
        return spec is not None and spec.origin is not None


def try_import(
    module: str, watch: Watch, own_tree: OwnTree, printed: run_as_main.KeptOutput
) -> str:
    """Import a module; returns why it must be left out, empty if it need not."""
    known, before, folder = linux.open_descriptors(), printed.measure(), os.getcwd()
    problem = ""
    with watch:
        try:
            import_as_program(module)
        except BaseException as error:  # noqa: BLE001 - foreign code may raise anything
            problem = f"importing it raised {type(error).__name__}: {error}"
    if not problem and os.fsencode(FOLDER) in printed.errors_since(before):
        problem = "it warns about the line that imports it"
    if os.getcwd() != folder:
        problem = "it changes the working directory when imported"
    after = printed.measure()
    reason = own_tree.refused or watch.noticed or problem or children_left()
    reason = reason or threads_left() or descriptors_left(known)
    printed.cut(after)  # What has been printed since is our own doing.
    return reason


def import_as_program(module: str) -> None:
    """Import it from code that is `__main__`, as the program does: warnings depend on it."""
    exec(compile(f"import {module}", __file__, "exec"), {"__name__": "__main__"})


def children_left() -> str:
    return "it leaves a child process behind when imported" if linux.has_children() else ""


def threads_left() -> str:
    """Say so if there are threads that a fork would lose.

    A library that ends its threads before a fork and starts them again later (as OpenBLAS
    does) is fine, and shows itself: after a fork its threads are gone from the parent too.
    """
    if linux.thread_count() == 1:
        return ""
    probe = os.fork()
    if probe == 0:
        os._exit(0)
    os.waitpid(probe, 0)
    return "it leaves a thread running when imported" if linux.thread_count() > 1 else ""


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
    loaded = {name.partition(".")[0] for name in sys.modules}.difference(run_as_main.OWN_MODULES)
    for name in sorted(loaded):
        if own_tree.hides(name):
            return f"{name} beside the program hides the installed module of that name"
    return ""
