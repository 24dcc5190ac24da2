"""A function as a process: how it gets there, and how its value comes back.

`spawn` ships the call to a fresh interpreter by the means of `multiprocessing` itself, so that
whatever can be an argument of `multiprocessing.Process` can be one here: queues, locks, shared
memory, functions of the main module. What it cannot pickle goes by value, with cloudpickle.
`forkserver` does the same: a server that forks is what our zygote is.

`fork` promises that workers have all that the caller had in memory. A process cannot be given
another parent, so it is the spawner that is forked from the caller, and the workers from the
spawner: whole trees can be killed, and nothing outlives the caller, as with any other. It has the
caller's memory and descriptors for its workers' sake and uses none of it. What holds for every
`fork` of a process with threads holds here: what they had locked stays locked in the copies.

A worker has one socket to the process that started it. Its value goes through it, pickled; then it
stays until the other end closes, which happens when all have returned: what one of them serves
to others (a store, say) is there as long as anybody can use it.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import warnings
import weakref
from collections import ChainMap
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar

from msgspec import Struct

from holdfast.core.protocol.errors import UnsupportedPlatform
from holdfast.elastic.multiprocessing.errors import record
from holdfast.processes.own_environment import SECRETS
from holdfast.processes.spawner import spawner
from holdfast.processes.spawner_process import SpawnerProcess, run_spawner
from holdfast.processes.stdlib_only import linux, private_names
from holdfast.processes.stdlib_only.private_messages import ForkCall, Message
from holdfast.processes.zygote import function as functions

SIZE = struct.Struct("!Q")
_CANNOT_PICKLE = (pickle.PicklingError, AttributeError, TypeError)


class FunctionCall(Struct, frozen=True):
    """A worker's call."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    environment: dict[str, str]


# In the worker.


def carry_out(call: FunctionCall, reply: int) -> None:
    """Call the function, send what it returns, and stay until everybody has returned."""
    for name in SECRETS:
        os.environ.pop(name, None)  # A copy of the caller has them.
    os.environ.update(call.environment)
    with socket.socket(fileno=reply) as peer:
        try:
            value = record(_pickled_result)(call)
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises
            functions.leave(error)
        else:
            _send(peer, functions.pickled(None) if value is None else value)


def _pickled_result(call: FunctionCall) -> bytes:
    return functions.pickled(call.function(*call.arguments))


def _send(peer: socket.socket, value: bytes) -> None:
    try:
        peer.sendall(SIZE.pack(len(value)))
        peer.sendall(value)
        peer.recv(1)
    except ConnectionError:
        pass  # Nobody wants it any more: we are about to be killed.


def carry_out_pickled(pickled: bytes, reply: int) -> None:
    """The same for a call that went by value."""
    carry_out(FunctionCall(*pickle.loads(pickled)), reply)


# On the way to it.


class _Descriptor:
    """A descriptor in a pickle: the process has it under the same number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def detach(self) -> int:
        return self.number


class _Packing:
    """The interface that `multiprocessing` expects while it pickles for a new process."""

    DupFd = _Descriptor

    def __init__(self) -> None:
        self.descriptors: dict[int, int] = {}
        """By the number under which the process has them."""

    def duplicate_for_child(self, number: int) -> int:
        self.descriptors[number] = number
        return number


def demand(method: str) -> None:
    """Raise where this Python lacks what a start method stands on."""
    if method == "fork":
        lacking = private_names.why_not(private_names.FORK)
    else:
        lacking = private_names.why_not(private_names.SPAWN, only_loaded=False)
    if lacking:
        raise UnsupportedPlatform(f"{lacking}; commands can be started all the same")


def process_object(method: str, name: str, call: FunctionCall, reply: int) -> BaseProcess:
    """The process as `multiprocessing` knows it; it is never started by that."""
    made: BaseProcess = get_context(method).Process(  # type: ignore[attr-defined]
        target=carry_out, args=(call, reply), name=name
    )
    made.daemon = False
    return made


def ship(
    name: str, call: FunctionCall, reply: socket.socket, method: str = "spawn"
) -> tuple[list[str], dict[int, int], bytes]:
    """Pack a call for `multiprocessing.spawn.spawn_main`, which takes one of `forkserver` as well.

    Returns the command; descriptors for the process by their numbers there, which belong to the
    call and must be open until the process has them; and the first bytes on its socket. The process
    then has that start method itself.

    `reply` is the worker's end of its socket, under two numbers there: `spawn_main` closes the
    one it has read from. It stays the caller's to close. Raises what pickling raises.
    """
    packing = _Packing()
    with reply.dup() as read_from:
        packing.descriptors = dict.fromkeys((reply.fileno(), read_from.fileno()), reply.fileno())
        tracker = private_names.tracker_descriptor()
        if tracker is not None:  # Only then can there be anything that it keeps track of.
            packing.duplicate_for_child(tracker)
        made = process_object(method, name, call, reply.fileno())
        cargo = _packed(made, call, reply.fileno(), packing)
        command = private_names.spawn_command(tracker, read_from.fileno())
        return command, packing.descriptors, cargo


def _packed(made: BaseProcess, call: FunctionCall, reply: int, packing: _Packing) -> bytes:
    private_names.set_packing(packing)
    try:
        if _can_import_main():
            with contextlib.suppress(*_CANNOT_PICKLE):
                return _dumped(made)
        private_names.give(made, _by_value(call), reply, target=carry_out_pickled)
        return _dumped(made)
    finally:
        private_names.set_packing(None)


def _can_import_main() -> bool:
    """False in a notebook or a terminal: what is defined there has to go by value."""
    prepared = private_names.preparation_data("")
    return "init_main_from_name" in prepared or "init_main_from_path" in prepared


def _dumped(made: BaseProcess) -> bytes:
    file = io.BytesIO()
    private_names.pickler(file).dump(private_names.preparation_data(made.name))
    private_names.pickler(file).dump(made)
    return file.getvalue()


def _by_value(call: FunctionCall) -> bytes:
    """Pickle functions and classes themselves, and all else as `multiprocessing` does."""
    import cloudpickle

    known = private_names.pickler(io.BytesIO()).dispatch_table

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar = ChainMap(known, cloudpickle.Pickler.dispatch_table)

    file = io.BytesIO()
    Pickler(file).dump((call.function, call.arguments, call.environment))
    return file.getvalue()


_starting = threading.Lock()
"""Held while a spawner starts: it could inherit another's socket, and keep it open."""
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
            """Close all that only the spawner itself may hold."""
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
