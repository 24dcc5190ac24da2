"""A function as a process: how it gets there, and how its value comes back.

`spawn` ships the call to a fresh interpreter by the means of `multiprocessing` itself, so that
whatever can be an argument of `multiprocessing.Process` can be one here: queues, locks, shared
memory, functions of the main module. What it cannot pickle goes by value, with cloudpickle.
`forkserver` does the same: a server that forks is what our zygote is.
`fork` has the call in memory already. The process is made by our spawner in both cases.

A worker has one socket to the process that started it. Its value goes through it, pickled; then it
stays until the other end closes, which happens when all have returned: what one of them serves
to others (a store, say) is there as long as anybody can use it.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import socket
import struct
from collections import ChainMap
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar

from msgspec import Struct

from holdfast.core.protocol.errors import UnsupportedPlatform
from holdfast.elastic.multiprocessing.errors import record
from holdfast.processes.own_environment import SECRETS
from holdfast.processes.stdlib_only import private_names
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


class Shipment(Struct, frozen=True):
    """A call on its way to a fresh interpreter."""

    command: list[str]
    descriptors: tuple[int, ...]
    """Descriptors for the process. They belong to the call, and must be open until it has them."""
    numbers: tuple[int, ...]
    """Their numbers there."""
    cargo: bytes
    """The first bytes on its socket."""


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


def ship(name: str, call: FunctionCall, reply: socket.socket, method: str = "spawn") -> Shipment:
    """Pack a call for `multiprocessing.spawn.spawn_main`, which takes one of `forkserver` as well.

    The process then has that start method itself.

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
        return Shipment(
            command=private_names.spawn_command(tracker, read_from.fileno()),
            descriptors=tuple(packing.descriptors.values()),
            numbers=tuple(packing.descriptors),
            cargo=cargo,
        )


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
