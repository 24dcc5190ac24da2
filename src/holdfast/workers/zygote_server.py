"""What the zygote does: import what it is told to, then fork workers, as `zygote.py` has it.

Standard library only: loaded by path, in the zygote.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from importlib.machinery import PathFinder
from signal import SIGKILL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.workers import fitness, linux, private_names, run_as_main, wire
else:
    import fitness
    import linux
    import private_names
    import run_as_main


def fork_workers(
    request: dict[str, Any], descriptors: list[int], spawner: wire.Connection
) -> dict[str, Any] | None:
    """Fork every worker of the request; returns its order in each child, None in the zygote.

    A process in the middle forks them and ends, which makes the spawner their parent. Each
    waits for one byte, written once the spawner has been told: no worker ends, or runs,
    unheard of; and if the zygote dies half-way, none of them ever runs.
    """
    orders = request["workers"]
    each = len(descriptors) // len(orders)
    pid_reader, pid_writer = os.pipe()
    go_reader, go_writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        spawner.close()
        os.close(pid_reader)
        for index, order in enumerate(orders):
            pid = os.fork()
            if pid == 0:
                os.close(pid_writer)
                os.close(go_writer)
                common = request["common"]
                environment = {**common["shared_env"], **order["env"]}
                whole = {**common, **order, "env": environment}
                own = descriptors[each * index : each * (index + 1)]
                return await_start(whole, descriptors, own, go_reader)
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
    with contextlib.suppress(BrokenPipeError):  # All of them were stopped before they began.
        os.write(go_writer, b"." * len(pids))
    os.close(go_writer)
    for descriptor in descriptors:
        os.close(descriptor)
    if len(pids) < len(orders):
        os._exit(1)
    return None


def await_start(
    order: dict[str, Any], descriptors: list[int], own: list[int], go_reader: int
) -> dict[str, Any]:
    """In the new worker: wait for the word, then take the descriptors that are its own."""
    if not os.read(go_reader, 1):
        os._exit(125)
    os.close(go_reader)
    linux.become_worker(order["spawner"], own, order.get("cpus"), fresh=False)
    for descriptor in descriptors:
        os.close(descriptor)
    return order


class Zygote:
    """Serves the spawner's requests, and comes out of `serve` in every worker."""

    def __init__(self, spawner: wire.Connection) -> None:
        linux.set_parent_death_signal(SIGKILL)
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
            while requests:
                request, descriptors = requests.pop(0)
                if request["do"] == "preload":
                    self.preload(request)
                    continue
                order = fork_workers(request, descriptors, self.spawner)
                if order is not None:
                    # What has come for workers that are forked after it is not its own.
                    for descriptor in [each for _, later in requests for each in later]:
                        os.close(descriptor)
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
        own_tree = fitness.OwnTree(request["program_folder"])
        reason = fitness.why_only_cold(own_tree)
        answer: dict[str, Any] = {"event": "unsuitable", "reason": reason}
        if not reason:
            answer = self.import_all(request["modules"], request["per_worker_names"], own_tree)
        gc.collect()
        gc.freeze()
        self.spawner.queue({"say": "zygote", "took_s": time.monotonic() - started, **answer})
        self.spawner.flush_blocking()

    def import_all(
        self, modules: list[str], per_worker_names: list[str], own_tree: fitness.OwnTree
    ) -> dict[str, Any]:
        """Import the modules one by one, up to the first that must be left out."""
        if own_tree.folder is not None and not sys.flags.safe_path:
            # Where a worker has it: what is imported may put folders of its own before it.
            sys.path.insert(0, own_tree.folder)
            self.folder_is_on_path = True
        sys.meta_path.insert(sys.meta_path.index(PathFinder), own_tree)
        for module in modules:
            watch = fitness.Watch(per_worker_names)
            reason = fitness.try_import(module, watch, own_tree, self.printed)
            if reason:
                return {"event": "rejected", "module": module, "reason": reason}
        sys.meta_path.remove(own_tree)
        sys.path_importer_cache.pop(own_tree.folder or "", None)
        if lacking := private_names.why_not(private_names.WARM_START):
            return {"event": "unsuitable", "reason": lacking}  # Of a module that is loaded now.
        return {"event": "ready", "modules": modules}
