"""What the zygote does: import what it is told to, then fork workers, as `zygote.py` has it.

Standard library only: for the zygote.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from itertools import accumulate
from signal import SIGKILL

from holdfast.processes.stdlib_only import linux, wire
from holdfast.processes.stdlib_only import private_messages as messages
from holdfast.processes.zygote import (
    environment_watch,
    import_reports,
    preloading,
    reasons,
    run_as_main,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def fork_workers(
    request: messages.Fork, descriptors: list[int], spawner: wire.PrivateConnection
) -> run_as_main.ForkedWorker | None:
    """Fork every worker of the request; returns in each child what it is, None in the zygote.

    A process in the middle forks them and ends, which makes the spawner their parent. Each
    waits for one byte, written once the spawner has been told: no worker ends, or runs,
    unheard of; and if the zygote dies half-way, none of them ever runs.
    """
    ends = list(accumulate(worker.descriptors for worker in request.workers))
    pid_reader, pid_writer = os.pipe()
    go_reader, go_writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        spawner.close()
        os.close(pid_reader)
        for end, worker in zip(ends, request.workers, strict=True):
            pid = os.fork()
            if pid == 0:
                os.close(pid_writer)
                os.close(go_writer)
                own = descriptors[end - worker.descriptors : end]
                kept = await_start(worker, request.common.spawner, own, go_reader)
                for descriptor in descriptors:
                    os.close(descriptor)
                env = {**request.common.shared_env, **worker.env}
                return run_as_main.ForkedWorker(
                    common=request.common, worker=worker, env=env, kept=kept
                )
            os.write(pid_writer, f"{pid}\n".encode())
        os._exit(0)
    os.close(pid_writer)
    os.close(go_reader)
    linux.await_end(middle)
    with os.fdopen(pid_reader, "rb") as file:
        pids = [int(line) for line in file]
    for worker, pid in zip(request.workers, pids, strict=False):
        spawner.queue(messages.Forked(name=worker.name, pid=pid))
    spawner.flush_blocking()
    with contextlib.suppress(BrokenPipeError):  # All of them were stopped before they began.
        os.write(go_writer, b"." * len(pids))
    os.close(go_writer)
    for descriptor in descriptors:
        os.close(descriptor)
    if len(pids) < len(request.workers):
        os._exit(1)
    return None


def await_start(
    worker: messages.WarmWorker, spawner: int, own: list[int], go_reader: int
) -> list[int]:
    """In the new worker: wait for the word, then take on its standard streams.

    Returns copies of the descriptors that it is to keep.
    """
    if not os.read(go_reader, 1):
        os._exit(125)
    os.close(go_reader)
    split = len(own) - len(worker.keep)
    kept = linux.moved_above(own[split:], worker.keep)
    linux.become_worker(spawner, own[:split], worker.cpus, fresh=False)
    return kept


def put_in_place(forked: run_as_main.ForkedWorker, printed: run_as_main.KeptOutput) -> None:
    """In the new worker, which has closed what is not its own: keep what it was given, where.

    A preloaded module may have something open at such a number, and would lose it. A fresh
    interpreter has not: the worker starts over in one then.
    """
    numbers = forked.worker.keep
    printed.make_way(numbers)
    taken = [number for number in numbers if linux.is_open(number)]
    for descriptor, number in zip(forked.kept, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if taken:
        run_as_main.start_over(forked)


def serve(spawner: wire.PrivateConnection) -> run_as_main.PreparedWorker | None:
    """Do as asked until the spawner hangs up; returns what it is in each worker."""
    linux.set_parent_death_signal(SIGKILL)
    printed, watch = run_as_main.KeptOutput(), import_reports.Watch()
    request = next_request(spawner)
    if request is None:
        return None
    assert isinstance(request, messages.Preload), "a zygote first imports ahead"
    zygote = Zygote(request, printed, watch)
    spawner.queue(zygote.prepare())
    spawner.flush_blocking()
    forked = next_request(spawner)
    if forked is None:
        return None
    assert isinstance(forked, run_as_main.ForkedWorker), "a zygote imports ahead only once"
    put_in_place(forked, printed)
    return zygote.prepared(forked)


def next_request(
    spawner: wire.PrivateConnection,
) -> messages.Preload | run_as_main.ForkedWorker | None:
    """The next thing to be done here: a request to preload, or in a worker to be that one.

    Workers are forked meanwhile. None when the spawner has hung up.
    """
    while True:
        try:
            requests = spawner.receive()
        except (EOFError, OSError):
            return None
        while requests:
            request, descriptors = requests.pop(0)
            if isinstance(request, messages.Preload):
                return request
            assert isinstance(request, messages.Fork), type(request).__name__
            forked = fork_workers(request, descriptors, spawner)
            if forked is not None:
                # What has come for workers that are forked after it is not its own.
                for descriptor in [each for _, later in requests for each in later]:
                    os.close(descriptor)
                return forked


class Zygote:
    """One that does as this request says, and knows then what its workers need."""

    def __init__(
        self,
        request: messages.Preload,
        printed: run_as_main.KeptOutput,
        watch: import_reports.Watch,
    ) -> None:
        os.environ.clear()
        os.environ.update(request.env)
        self.request, self.printed, self.watch = request, printed, watch
        self.environment = dict(os.environ)
        self.preloading = preloading.Preloading(request, printed)
        self.folder_is_on_path = False
        self.fresh_path: list[str] | None = None
        """The module path of a fresh interpreter, where another one is used to import."""
        self.copies: list[tuple[dict[Any, Any], Any, str]] = []
        self.pids: list[tuple[dict[str, Any], str]] = []

    def prepare(self) -> messages.OfZygote:
        """Import, and get ready to fork; returns the answer."""
        started = time.monotonic()
        answer = self.preload()
        loaded = dict(sys.modules)
        self.copies = self.preloading.watch.copies()
        self.pids = cached_pids(loaded)
        self.watch.uses = self.preloading.uses
        gc.collect()
        gc.freeze()
        answer.took_s = time.monotonic() - started
        return answer

    def preload(self) -> messages.OfZygote:
        request = self.request
        if reason := preloading.why_only_cold(self.preloading.own_tree):
            return messages.Unsuitable(reason=reason)
        if request.sys_path is not None:
            self.fresh_path = list(sys.path)
            sys.path[:] = request.sys_path
        folder = request.program_folder
        if folder is not None and not sys.flags.safe_path:
            # Where a worker has it: what is imported may put folders of its own before it.
            sys.path.insert(0, folder)
            self.folder_is_on_path = True
        self.watch.guard(self.preloading.ask)
        answer = self.preloading.run()
        self.watch.guard(None)
        added = self.preloading.added_to_path
        expected = request.sys_path if request.sys_path is not None else sys.path
        if [one for one in sys.path if one not in added] != [
            one for one in expected if one not in added
        ]:  # Each worker is going to be sent that path.
            return messages.Unsuitable(reason=reasons.CHANGES_PATH)
        return answer

    def prepared(self, forked: run_as_main.ForkedWorker) -> run_as_main.PreparedWorker:
        """Add what the zygote knows and a worker needs."""
        changes = run_as_main.changes(self.environment, dict(os.environ))
        for name, value in self.preloading.set.items():
            if os.environ.get(name) == value:
                changes.pop(name, None)
        return run_as_main.PreparedWorker(
            **vars(forked),
            preload_changes=changes,
            set_ahead=self.preloading.set,
            added_to_path=self.preloading.added_to_path,
            printed=self.printed,
            folder_is_on_path=self.folder_is_on_path,
            fresh_path=self.fresh_path,
            apply_fixups=self.apply_fixups,
            watch=self.watch,
            avoided=list(self.request.avoid),
            files=self.request.files,
        )

    def apply_fixups(self) -> None:
        """In a worker, whose environment is its own by now."""
        loaded = dict(sys.modules)
        run_as_main.renew_memories(loaded)
        environment_watch.fill_in(self.copies)
        for names, name in self.pids:
            names[name] = os.getpid()
        self.preloading.fixups.apply(loaded)


def cached_pids(loaded: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Where modules keep the number of this process, under a name that says so."""
    own = os.getpid()
    return [
        (vars(module), name)
        for module in loaded.values()
        if type(module) is type(sys)
        for name, value in list(vars(module).items())
        if type(value) is int and value == own and "pid" in name.lower()
    ]
