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
import warnings
import weakref
from functools import partial
from multiprocessing.process import BaseProcess

from holdfast.processes.spawner import spawner
from holdfast.processes.spawner_process import SpawnerProcess, run_spawner
from holdfast.processes.stdlib_only import linux, private_names
from holdfast.processes.stdlib_only.private_messages import ForkCall, Message

_starting = threading.Lock()
"""Else a spawner could inherit another's socket, and hold it open after that one's end."""
_not_for_forks: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_own_fork: list[tuple[int, socket.socket]] = []
"""The thread that forks a spawner, and the one socket that the spawner is to have."""


def new_spawner() -> SpawnerProcess:
    """A spawner that starts fresh processes."""
    with _starting:
        ours, theirs = socket.socketpair()
        try:
            with theirs, theirs.dup() as there:
                _not_for_forks.update((ours, theirs, there))
                pid = run_spawner(theirs, there.fileno(), "guarded")
        except BaseException:
            ours.close()
            raise
    return SpawnerProcess(pid, ours)


def reply_pair() -> tuple[socket.socket, socket.socket]:
    """A socket to a worker: our end, and its end."""
    ours, theirs = socket.socketpair()
    _not_for_forks.update((ours, theirs))
    return ours, theirs


def fork_spawner(calls: dict[str, BaseProcess]) -> SpawnerProcess:
    """A spawner that can fork these calls, by name, when it is asked to `ForkCall`."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # Else each copy would write it again.
    with _starting:
        ours, theirs = socket.socketpair()
        _not_for_forks.update((ours, theirs))
        _own_fork[:] = [(threading.get_ident(), theirs)]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pid = -1
        try:
            pid = _fork()
            if pid == 0:
                _become_spawner(theirs, calls)
        finally:
            if pid != 0:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                _own_fork.clear()
                theirs.close()
                if pid < 0:
                    ours.close()
    return SpawnerProcess(pid, ours)


def _fork() -> int:
    """As `os.fork`, without its warning of threads, for which the copy is made.

    Where warnings are errors, Python 3.15 raises it once there is a copy, whose number is lost.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()  # The copy leaves the block, too, and has the filters of the caller.


def _let_go() -> None:
    """In a fork of this process, the user's own or ours.

    Those at the other end must see the end of this process, and this process theirs.
    """
    global _starting  # noqa: PLW0603 - a lock of its own: the thread that had that one is not here
    _starting = threading.Lock()
    kept = [theirs for thread, theirs in _own_fork if thread == threading.get_ident()]
    for one in list(_not_for_forks):
        if one not in kept:
            one.close()
    _own_fork.clear()


os.register_at_fork(after_in_child=_let_go)


def _become_spawner(theirs: socket.socket, calls: dict[str, BaseProcess]) -> None:
    """In the copy: be the spawner. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)  # The caller's own handlers are not for us.
        spawner.main(theirs.detach(), None, _spawner_of_calls(calls), guarded=True)
    except BaseException:  # noqa: BLE001 - nothing may return into the caller's frames
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _spawner_of_calls(calls: dict[str, BaseProcess]) -> type[spawner.Spawner]:
    with open("/proc/self/comm", encoding="utf-8", errors="replace") as file:
        title = file.read().strip()

    class SpawnerOfCalls(spawner.Spawner):
        """A spawner that can also fork itself to carry out a call."""

        def do(self, request: Message, descriptors: list[int]) -> None:
            if isinstance(request, ForkCall):
                become = partial(self.become_call, request, descriptors)
                self.fork_worker(request.name, become, descriptors)
            else:
                super().do(request, descriptors)

        def become_call(self, request: ForkCall, descriptors: list[int], parent: int) -> None:
            code = 125
            try:
                self.let_go()
                linux.set_title(title)
                *standard_streams, reply = descriptors
                linux.become_worker(parent, standard_streams, request.cpus)
                spawner.close_all(standard_streams)
                _renew_streams(request.own_streams)
                code = _run(calls[request.name], reply)
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
                if isinstance(entry, int):
                    os.close(entry)
                elif isinstance(entry, socket.socket):
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
    private_names.forget_pools()
    private_names.give(made, private_names.given(made)[0], reply)
    return private_names.carry_out(made, parent_sentinel=reply)
