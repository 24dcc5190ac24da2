"""What of Python is used here that its makers do not promise to keep.

Nothing else in Holdfast takes a private name of the interpreter or of its standard library, nor a
part of `multiprocessing` that has no page in the manual. Each has one function, which says what it
is for and declares the names with `uses`, as one would write them in a program:
`runpy._run_module_as_main`. What an object gets when it is made is written after a call:
`os._Environ()._data`.

Where a name is gone and there is another way, the function here takes it (`SPEED`); else `why_not`
says so beforehand: workers start cold, and functions are refused with a sentence.

Standard library only, and imported where it is used: this file is loaded by path, in the spawner
before anything else, and in the zygote.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess
    from typing import Any, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])

WARM_START = "a warm start"
SPAWN = "the start method 'spawn'"
FORK = "the start method 'fork'"
SPEED = "the fastest way"
"""There is another, which is taken where the name is gone."""


class Name:
    """A private name: where it is, and what needs it."""

    __slots__ = ("attribute", "module", "users")

    def __init__(self, module: str, attribute: str) -> None:
        self.module = module
        self.attribute = attribute
        self.users: set[str] = set()

    def is_there(self) -> bool:
        """Whether the module has it; the module must be loaded."""
        maker, is_made, attribute = self.attribute.rpartition("().")
        found: Any = sys.modules[self.module]
        for part in (maker or attribute).split("."):
            # Of a class its own: what it inherits is there for all that are of its kind.
            if not hasattr(found, part) or (isinstance(found, type) and part not in vars(found)):
                return False
            found = getattr(found, part)
        # What is made is judged by the code that makes it: to make one may start a process.
        return not is_made or attribute in found.__init__.__code__.co_names


NAMES: dict[str, Name] = {}
"""All of them, as one would write them."""


def uses(user: str, module: str, *attributes: str) -> Callable[[Function], Function]:
    """Declare the private names that a function takes from a module, and for what."""
    for attribute in attributes:
        name = NAMES.setdefault(f"{module}.{attribute}", Name(module, attribute))
        name.users.add(user)
    return lambda function: function


# Which of them this interpreter has.


def missing(user: str = "", *, only_loaded: bool = False) -> list[str]:
    """Those that this interpreter does not have, of what this user needs (anybody, if empty).

    With `only_loaded`, nothing is imported to find out: what is not loaded is not needed yet.
    """
    found = []
    for name, entry in NAMES.items():
        if user and user not in entry.users:
            continue
        if not only_loaded:
            try:
                __import__(entry.module)
            except ImportError:
                found.append(name)
                continue
        if entry.module in sys.modules and not entry.is_there():
            found.append(name)
    return found


def why_not(user: str, *, only_loaded: bool = True) -> str:
    """Why this cannot be had; usually empty. What is loaded later may still lack something."""
    names = missing(user, only_loaded=only_loaded)
    version = ".".join(map(str, sys.version_info[:3]))
    return f"Python {version} has no {' and no '.join(names)}, which {user} needs" if names else ""


# For the spawner, and the zygote that it starts.


@uses(SPEED, "_signal", "valid_signals", "pthread_sigmask", "getsignal", "signal")
def plain_signals() -> Any:
    """The module below `signal`, which has signals as plain numbers.

    In `signal` each is made an enumeration's member on the way, and for all of them that is a
    millisecond between the fork of a worker and its start.
    """
    try:
        import _signal as signals  # type: ignore[import-not-found]  # nobody describes its types
    except ImportError:
        import signal as signals
    return signals


@uses(SPEED, "_socket", "socketpair")
def socket_pair() -> Any:
    """Two sockets, without the milliseconds of Python that `socket` is around them."""
    try:
        from _socket import socketpair
    except ImportError:
        from socket import socketpair
    return socketpair()


# For a warm start.


@uses(WARM_START, "runpy", "_run_module_as_main")
def module_runner(runpy: Any) -> Callable[[str], object]:
    """What `python -m` itself calls. Call it where you are: a frame between would be seen."""
    runner: Callable[[str], object] = runpy._run_module_as_main
    return runner


@uses(WARM_START, "ctypes", "pythonapi.PyObject_GC_UnTrack", "pythonapi.PyObject_GC_Track")
def refill(names: dict[str, Any], values: dict[str, Any]) -> None:
    """Replace all that is in a dictionary, and take it out of the collector's frozen generation.

    What it holds would never be collected else.
    """
    import ctypes
    import gc

    names.clear()
    ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(names))
    names.update(values)
    if not gc.is_tracked(names):
        ctypes.pythonapi.PyObject_GC_Track(ctypes.py_object(names))


@uses(WARM_START, "os", "_Environ.__getitem__", "_Environ.__setitem__", "_Environ.__delitem__")
@uses(WARM_START, "os", "_Environ.__iter__")
def class_of_environment() -> Any:
    """The class of `os.environ`, whose methods can be replaced to see what is asked for."""
    import os

    return type(os.environ)


@uses(WARM_START, "os", "_Environ()._data")
def variables() -> dict[bytes, bytes]:
    """What is in `os.environ`, looked at by nobody but us."""
    import os

    return os.environ._data  # type: ignore[attr-defined,no-any-return]


# For functions as processes, which are made as `multiprocessing` makes them.


@uses(SPAWN, "multiprocessing.spawn", "spawn_main", "get_command_line")
def spawn_command(tracker: int | None, pipe: int) -> list[str]:
    """The command of a process that reads from `pipe` what it is to do."""
    from multiprocessing import spawn

    return spawn.get_command_line(tracker_fd=tracker, pipe_handle=pipe)


@uses(SPAWN, "multiprocessing.spawn", "get_preparation_data")
def preparation_data(name: str) -> dict[str, Any]:
    """What such a process reads first: paths, the key, and how to import the main module."""
    from multiprocessing import spawn

    return spawn.get_preparation_data(name)


@uses(SPAWN, "multiprocessing.context", "set_spawning_popen")
def set_packing(packing: Any) -> None:
    """The source from which pickling takes, in this thread, the descriptors of a new process."""
    from multiprocessing import context

    context.set_spawning_popen(packing)


@uses(SPAWN, "multiprocessing.reduction", "ForkingPickler")
def pickler(file: Any) -> Any:
    """A pickler that knows queues, locks, connections, and what others have registered there."""
    from multiprocessing import reduction

    return reduction.ForkingPickler(file)


@uses(SPEED, "multiprocessing.resource_tracker", "_resource_tracker._fd")
def tracker_descriptor() -> int | None:
    """The pipe to the tracker of shared memory; None where nothing has needed one yet.

    The public way to it starts a tracker, whether or not there is anything to keep track of.
    """
    from multiprocessing import resource_tracker

    try:
        descriptor: int | None = vars(resource_tracker)["_resource_tracker"]._fd
    except (KeyError, AttributeError):
        return resource_tracker.getfd()
    return descriptor


@uses(SPAWN, "multiprocessing.process", "BaseProcess()._target", "BaseProcess()._args")
@uses(FORK, "multiprocessing.process", "BaseProcess()._args")
def give(made: BaseProcess, *arguments: Any, target: Callable[..., Any] | None = None) -> None:
    """Other arguments for a process that was made, and another function too if there is one."""
    vars(made)["_args"] = arguments
    if target is not None:
        vars(made)["_target"] = target


@uses(FORK, "multiprocessing.process", "BaseProcess()._args")
def given(made: BaseProcess) -> tuple[Any, ...]:
    """The arguments of a process that was made."""
    arguments: tuple[Any, ...] = vars(made)["_args"]
    return arguments


@uses(FORK, "multiprocessing.process", "BaseProcess._bootstrap")
def carry_out(made: BaseProcess, parent_sentinel: int) -> int:
    """Be that process, in a fork; returns its exit code."""
    code: int = made._bootstrap(parent_sentinel=parent_sentinel)  # type: ignore[attr-defined]
    return code


@uses(FORK, "concurrent.futures.thread", "_threads_queues")
def forget_pools() -> None:
    """In a fork: the threads of pools were not copied, and this may be one of them.

    None of them can be waited for at the end, as their module would.
    """
    module = sys.modules.get("concurrent.futures.thread")
    if module is not None:
        vars(module)["_threads_queues"].clear()
