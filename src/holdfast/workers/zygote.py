"""The zygote: a process with the heavy imports done, from which workers are forked.

Rules
1. Disposable. It is started with the workers' environment as far as that does not depend
   on the rank, it never runs the user's own code, and when a module turns out to be unfit
   for preloading it says so and is replaced by one that leaves that module out.
2. A module is unfit if it raises, leaves a thread behind that would not survive a fork,
   opens a device, or reads a variable that is different for each worker.
3. Single-threaded when it forks. Workers are forked twice, so that the spawner becomes
   their parent, and start to run only after the spawner has been told of them.
4. What importing printed, it prints once in every worker, as it would have without us.

It is started as a script (`python -u zygote.py FD`) with the very interpreter and
flags that a cold worker would get, so that what it forks into cannot be told apart from
one. The child's part of the story is in `run_as_main.py`.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import time
from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _FOLDER)

import linux
import run_as_main
import wire

sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]

HARMLESS_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "pts/", "shm/", "ptmx")


class Unfit(Exception):
    """A module that must not be preloaded, and why."""

    def __init__(self, module: str, reason: str) -> None:
        super().__init__(module, reason)
        self.module = module
        self.reason = reason


class EnvironmentWatch:
    """Notices reads of variables that only a worker has."""

    def __init__(self, names: list[str]) -> None:
        self.names = frozenset(names)
        self.read: list[str] = []

    def __enter__(self) -> EnvironmentWatch:
        environ = type(os.environ)
        self._getitem, self._contains = environ.__getitem__, environ.__contains__
        environ.__getitem__ = lambda this, key: self._getitem(this, self._note(key))
        environ.__contains__ = lambda this, key: self._contains(this, self._note(key))
        return self

    def __exit__(self, *_: object) -> None:
        environ = type(os.environ)
        environ.__getitem__, environ.__contains__ = self._getitem, self._contains

    def _note(self, key: str) -> str:
        if key in self.names:
            self.read.append(key)
        return key


def preload(modules: list[str], per_worker_names: list[str]) -> None:
    """Import the modules one by one; raise `Unfit` for the first that must be left out."""
    for module in modules:
        known = linux.open_descriptors()
        with EnvironmentWatch(per_worker_names) as watch:
            try:
                importlib.import_module(module)
            except BaseException as error:
                raise Unfit(
                    module, f"importing it raised {type(error).__name__}: {error}"
                ) from error
        if watch.read:
            raise Unfit(module, f"it reads {watch.read[0]} when imported")
        check_threads(module)
        check_devices(module, known)


def check_threads(module: str) -> None:
    """Refuse threads that a fork would lose.

    A library that ends its threads before a fork and starts them again later (as OpenBLAS
    does) is fine, and shows itself: after a fork its threads are gone from the parent too.
    """
    if linux.thread_count() == 1:
        return
    probe = os.fork()
    if probe == 0:
        os._exit(0)
    os.waitpid(probe, 0)
    if linux.thread_count() > 1:
        raise Unfit(module, "it leaves a thread running when imported")


def check_devices(module: str, known: dict[int, str]) -> None:
    for descriptor, path in linux.open_descriptors().items():
        if descriptor in known or not path.startswith("/dev/"):
            continue
        if not path.removeprefix("/dev/").startswith(HARMLESS_DEVICES):
            raise Unfit(module, f"it opens {path} when imported")


def check_shadows(folder: str | None) -> str:
    """A module beside the script wins over an installed one; but not if ours is loaded."""
    if folder is None:
        return ""
    try:
        beside = set(os.listdir(folder))
    except OSError:
        return ""
    for name in {name.partition(".")[0] for name in sys.modules}:
        is_package = name in beside and os.path.exists(f"{folder}/{name}/__init__.py")
        if f"{name}.py" in beside or is_package:
            loaded_from = getattr(sys.modules.get(name), "__file__", None)
            if loaded_from is not None and not loaded_from.startswith(folder + os.sep):
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
    with os.fdopen(pid_reader) as file:
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
        self.printed = run_as_main.divert_output()
        self.environment: dict[str, str] = {}

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
                    changed = run_as_main.changes(self.environment, dict(os.environ))
                    return {**order, "preload_changes": changed, "printed": self.printed}

    def preload(self, request: dict[str, Any]) -> None:
        """Take on the environment, import, and say how it went."""
        os.environ.clear()
        os.environ.update(request["env"])
        self.environment = dict(os.environ)
        started = time.monotonic()
        answer: dict[str, Any] = {"event": "ready", "modules": request["modules"]}
        try:
            preload(request["modules"], request["per_worker_names"])
            shadowed = check_shadows(request["program_folder"])
            if shadowed:
                answer = {"event": "unsuitable", "reason": shadowed}
        except Unfit as unfit:
            answer = {"event": "rejected", "module": unfit.module, "reason": unfit.reason}
        gc.collect()
        gc.freeze()
        self.spawner.queue({"say": "zygote", "took_s": time.monotonic() - started, **answer})
        self.spawner.flush_blocking()


if __name__ == "__main__":
    _order = Zygote(wire.Connection(socket.socket(fileno=int(sys.argv[1])))).serve()
    if _order is not None:
        run_as_main.become(_order)
        run_as_main.run(_order)
