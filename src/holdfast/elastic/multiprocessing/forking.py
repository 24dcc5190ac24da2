"""A spawner that is a copy of this process, and so can fork workers that are copies too.

The start method `fork` promises that workers have all that the caller had in memory. A process
cannot be given another parent, so it is the spawner that is forked from the caller, and the
workers from the spawner: whole trees can be killed, and nothing outlives the caller, as with
any other. It has the caller's memory and descriptors for its workers' sake and uses none of it.

What holds for every `fork` of a process with threads holds here: what they had locked stays
locked in the copies.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import weakref
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import TYPE_CHECKING, Any

from holdfast.workers.spawner_process import SpawnerProcess, start_spawner

if TYPE_CHECKING:
    from holdfast.workers.spawner import Spawner

_starting = threading.Lock()
"""Else a spawner could inherit another's socket, and hold it open after that one's end."""
_ours: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def new_spawner() -> SpawnerProcess:
    """A spawner that starts fresh processes."""
    with _starting:
        process = start_spawner(zygote=False)
    _ours.add(process.socket)
    return process


def reply_pair() -> tuple[socket.socket, socket.socket]:
    """A socket to a worker: our end, which no fork of this process keeps, and its end."""
    ours, theirs = socket.socketpair()
    _ours.add(ours)
    return ours, theirs


def fork_spawner(calls: dict[str, BaseProcess]) -> SpawnerProcess:
    """A spawner that can fork these calls, by name: `{"do": "call", "id", "cpus", "own_streams"}`.

    Descriptors of that request: stdin, stdout, stderr, and the socket for the reply.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # Else each copy would write it again.
    with _starting:
        ours, theirs = socket.socketpair()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pid = -1
        try:
            pid = os.fork()
            if pid == 0:
                _become_spawner(ours, theirs, calls)
        finally:
            if pid != 0:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                theirs.close()
    _ours.add(ours)
    return SpawnerProcess(pid, ours)


def _let_go() -> None:
    """In a fork of this process: those at the other end must see the end of this one."""
    for ours in list(_ours):
        ours.close()


os.register_at_fork(after_in_child=_let_go)


def _become_spawner(
    ours: socket.socket, theirs: socket.socket, calls: dict[str, BaseProcess]
) -> None:
    """In the copy: be the spawner. Never returns."""
    try:
        ours.close()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)  # The caller's own handlers are not for us.
        spawner = _import_spawner()
        spawner.main(theirs.detach(), None, _spawner_of_calls(spawner, calls))
    except BaseException:  # noqa: BLE001 - nothing may return into the caller's frames
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _import_spawner() -> Any:
    """The spawner's module, which finds its neighbours by plain names, as a script does."""
    from holdfast.workers import linux, wire, zygote_process

    neighbours: dict[str, ModuleType] = {
        "linux": linux,
        "wire": wire,
        "zygote_process": zygote_process,
    }
    hidden = {name: sys.modules.pop(name) for name in neighbours if name in sys.modules}
    sys.modules.update(neighbours)
    try:
        from holdfast.workers import spawner
    finally:
        for name in neighbours:
            del sys.modules[name]
        sys.modules.update(hidden)
    return spawner


def _spawner_of_calls(module: Any, calls: dict[str, BaseProcess]) -> type[Spawner]:
    with open("/proc/self/comm", encoding="utf-8", errors="replace") as file:
        title = file.read().strip()

    class SpawnerOfCalls(module.Spawner):  # type: ignore[misc]
        """A spawner that can also fork itself to carry out a call."""

        def do_call(self, request: dict[str, Any], descriptors: list[int]) -> None:
            parent = os.getpid()
            try:
                pid = module.fork_shielded()
            except OSError as error:
                self.say({"say": "failed", "id": request["id"], "error": str(error)})
            else:
                if pid == 0:
                    self.become_call(request, descriptors, parent)
                self.workers[pid] = request["id"]
                self.say({"say": "started", "id": request["id"], "pid": pid})
            module.close_all(descriptors)

        def become_call(self, request: dict[str, Any], descriptors: list[int], parent: int) -> None:
            code = 125
            try:
                self.let_go()
                module.linux.set_title(title)
                *standard_streams, reply = descriptors
                module.linux.become_worker(parent, standard_streams, request["cpus"])
                module.close_all(standard_streams)
                _renew_streams(request["own_streams"])
                code = _run(calls[request["id"]], reply)
            except BaseException:  # noqa: BLE001 - as above
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(code)

        def let_go(self) -> None:
            """Of all that only the spawner itself may hold."""
            signal.set_wakeup_fd(-1)
            held = [key.fileobj for key in self.selector.get_map().values()]
            self.selector.close()
            for entry in [*held, self.on_signal_fd]:
                entry.close()

    return SpawnerOfCalls


def _renew_streams(numbers: list[int]) -> None:
    """Have what Python prints go to these streams, where the caller had something else there."""
    for number in numbers:
        name = ("stdin", "stdout", "stderr")[number]
        try:
            is_that = getattr(sys, name).fileno() == number
        except (AttributeError, OSError, ValueError):
            is_that = False
        if not is_that:
            setattr(sys, name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115


def _run(made: BaseProcess, reply: int) -> int:
    """Be that process, as `multiprocessing` would make it; returns the exit code."""
    # As the interpreter has them at its start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    pool = sys.modules.get("concurrent.futures.thread")
    if pool is not None:
        # Its threads were not copied, and this may be one of them: none can be waited for.
        vars(pool)["_threads_queues"].clear()
    vars(made)["_args"] = (vars(made)["_args"][0], reply)
    code: int = getattr(made, "_bootstrap")(parent_sentinel=reply)  # noqa: B009
    return code
