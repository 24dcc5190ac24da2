"""The zygote: a process with the heavy imports done, from which workers are forked.

Rules
1. Disposable. It is started with the workers' environment as far as that does not depend
   on the rank, it never runs the user's own code, and when a module turns out to be unfit
   for preloading it says so and is replaced by one that leaves that module out.
2. A module is unfit if importing it here is not what it is in a worker: if it raises, asks
   for what only a worker has (its rank, its arguments), needs a module that the program has
   a file for, or warns about the line that imports it; or if it leaves behind what workers
   would share or lose: a thread, a child, an open file or device.
3. Single-threaded when it forks. Workers are forked twice, so that the spawner becomes
   their parent, and start to run only after the spawner has been told of them.
4. What importing printed, it prints once in every worker, as it would have without us.

It is started as a script (`python -u zygote.py FD`) with the very interpreter and
flags that a cold worker would get, so that what it forks into cannot be told apart from
one. The child's part of the story is in `run_as_main.py`.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
from importlib.machinery import PathFinder

FOLDER = os.path.dirname(os.path.abspath(__file__))

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from holdfast.workers import linux, run_as_main, wire
else:
    if not sys.flags.safe_path:
        del sys.path[0]  # The folder of this file, with symbolic links resolved.
    sys.path.insert(0, FOLDER)
    import linux
    import run_as_main
    import wire

    del sys.path[0]

HARMLESS_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "pts/", "shm/", "ptmx")
Environment: Any = type(os.environ)


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
        Environment.__iter__ = self._names_of_worker
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

    def _names_of_worker(self, this: Any) -> Iterator[Any]:
        yield from self._plain["__iter__"](this)
        yield from (this.decodekey(os.fsencode(name)) for name in self._names)

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
        if self.folder is not None and self._has(name, path):
            self.refused = f"it imports {name}, of which the program has its own"
            raise ModuleNotFoundError(f"{name} is the program's own", name=name)

    def hides(self, name: str) -> bool:
        """Whether the program has a top-level module of that name."""
        spec = PathFinder.find_spec(name, [self.folder]) if self.folder is not None else None
        return spec is not None and spec.origin is not None

    def _has(self, name: str, path: Any) -> bool:
        if path is None:
            return self.hides(name)
        # The program's part of a package that is spread over several folders.
        assert self.folder is not None
        return os.path.join(self.folder, *name.split(".")[:-1]) in path


def import_as_program(module: str) -> None:
    """Import it from code that is `__main__`, as the program does: warnings depend on it."""
    exec(compile(f"import {module}", __file__, "exec"), {"__name__": "__main__"})


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
    loaded = {name.partition(".")[0] for name in sys.modules}.difference(run_as_main.OWN_MODULES)
    for name in sorted(loaded):
        if own_tree.hides(name):
            return f"{name} beside the program hides the installed module of that name"
    return ""


def fork_workers(
    request: dict[str, Any], descriptors: list[int], spawner: wire.Connection
) -> dict[str, Any] | None:
    """Fork every worker of the request; returns its order in each child, None in the zygote.

    A process in the middle forks them and ends, which makes the spawner their parent. Each
    waits for one byte, written once the spawner has been told: no worker ends, or runs,
    unheard of; and if the zygote dies half-way, none of them ever runs.
    """
    orders = request["workers"]
    pid_reader, pid_writer = os.pipe()
    go_reader, go_writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        spawner.socket.close()
        os.close(pid_reader)
        for index, order in enumerate(orders):
            pid = os.fork()
            if pid == 0:
                os.close(pid_writer)
                os.close(go_writer)
                order.update(request["common"])
                return await_start(order, descriptors, 3 * index, go_reader)
            os.write(pid_writer, f"{pid}\n".encode())
        os._exit(0)
    os.close(pid_writer)
    os.close(go_reader)
    os.waitpid(middle, 0)
    with os.fdopen(pid_reader, "rb") as file:
        pids = [int(line) for line in file]
    for order, pid in zip(orders, pids, strict=False):
        spawner.queue({"say": "forked", "id": order["id"], "pid": pid})
    spawner.flush_blocking()
    os.write(go_writer, b"." * len(pids))
    os.close(go_writer)
    for descriptor in descriptors:
        os.close(descriptor)
    if len(pids) < len(orders):
        os._exit(1)
    return None


def await_start(
    order: dict[str, Any], descriptors: list[int], first: int, go_reader: int
) -> dict[str, Any]:
    """In the new worker: wait for the word, then take the descriptors that are its own."""
    if not os.read(go_reader, 1):
        os._exit(125)
    os.close(go_reader)
    linux.become_worker(
        order["spawner"], descriptors[first : first + 3], order.get("cpus"), fresh=False
    )
    for descriptor in descriptors:
        os.close(descriptor)
    return order


class Zygote:
    """Serves the spawner's requests, and comes out of `serve` in every worker."""

    def __init__(self, spawner: wire.Connection) -> None:
        self.spawner = spawner
        self.printed = run_as_main.KeptOutput()
        self.environment: dict[str, str] = {}
        self.folder_is_on_path = False

    def serve(self) -> dict[str, Any] | None:
        """Do as asked until the spawner hangs up; returns an order in each worker."""
        while True:
            try:
                requests = self.spawner.receive()
            except (EOFError, OSError):
                return None
            for request, descriptors in requests:
                if request["do"] == "preload":
                    self.preload(request)
                    continue
                order = fork_workers(request, descriptors, self.spawner)
                if order is not None:
                    return self.complete(order)

    def complete(self, order: dict[str, Any]) -> dict[str, Any]:
        """Add what the zygote knows and a worker needs."""
        return {
            **order,
            "preload_changes": run_as_main.changes(self.environment, dict(os.environ)),
            "printed": self.printed,
            "folder_is_on_path": self.folder_is_on_path,
        }

    def preload(self, request: dict[str, Any]) -> None:
        """Take on the environment, import, and say how it went."""
        os.environ.clear()
        os.environ.update(request["env"])
        self.environment = dict(os.environ)
        started = time.monotonic()
        own_tree = OwnTree(request["program_folder"])
        reason = why_only_cold(own_tree)
        answer: dict[str, Any] = {"event": "unsuitable", "reason": reason}
        if not reason:
            answer = self.import_all(request["modules"], request["per_worker_names"], own_tree)
        gc.collect()
        gc.freeze()
        self.spawner.queue({"say": "zygote", "took_s": time.monotonic() - started, **answer})
        self.spawner.flush_blocking()

    def import_all(
        self, modules: list[str], per_worker_names: list[str], own_tree: OwnTree
    ) -> dict[str, Any]:
        """Import the modules one by one, up to the first that must be left out."""
        if own_tree.folder is not None and not sys.flags.safe_path:
            # Where a worker has it: what is imported may put folders of its own before it.
            sys.path.insert(0, own_tree.folder)
            self.folder_is_on_path = True
        sys.meta_path.insert(sys.meta_path.index(PathFinder), own_tree)
        for module in modules:
            reason = self.try_import(module, Watch(per_worker_names), own_tree)
            if reason:
                return {"event": "rejected", "module": module, "reason": reason}
        sys.meta_path.remove(own_tree)
        sys.path_importer_cache.pop(own_tree.folder or "", None)
        return {"event": "ready", "modules": modules}

    def try_import(self, module: str, watch: Watch, own_tree: OwnTree) -> str:
        """Import one; returns why it must be left out, empty if it need not."""
        known, sizes = linux.open_descriptors(), self.printed.measure()
        problem = ""
        with watch:
            try:
                import_as_program(module)
            except BaseException as error:  # noqa: BLE001 - foreign code may raise anything
                problem = f"importing it raised {type(error).__name__}: {error}"
        if os.fsencode(__file__) in self.printed.errors_since(sizes):
            problem = problem or "it warns about the line that imports it"
        # What is printed from here on is our own doing.
        self.printed.cut(self.printed.measure())
        reason = own_tree.refused or watch.noticed or problem
        if not reason and linux.has_children():
            reason = "it leaves a child process behind when imported"
        return reason or threads_left() or descriptors_left(known)


if __name__ == "__main__":
    _order = Zygote(wire.Connection(socket.socket(fileno=int(sys.argv[1])))).serve()
    if _order is not None:
        run_as_main.run(_order)
