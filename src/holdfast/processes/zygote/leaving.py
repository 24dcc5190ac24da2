"""What a worker does at its very end, when its program is over; and who may leave early.

An interpreter that ends takes all of its modules apart. In a worker that came from a zygote this
writes to every page that the two share, so that each is copied first: with PyTorch more than 100 MB
and most of half a second, for which the next round has to wait.

Nor would it take all of them apart: what was preloaded is frozen, and what holds on to itself in
there would never be collected. A library that counts what it has made (nanobind) would tell of a
leak. Where one is loaded, nothing is frozen any more when a worker ends that does not leave early;
with PyTorch the collection that follows takes half a second.

Rules
1. Files that are still open are flushed in every worker. When the interpreter ends, a file is
   flushed as it is collected; one that somebody preloaded holds might not be.
2. Only a worker that was told to stop leaves early: its agent is asked. Any other ends as the
   interpreter has it, and so does one that gets no answer.
3. Only once the program is over: its threads were waited for, and all that was registered with
   `atexit` has been called. The interpreter then lets no other thread run and collects garbage,
   which is where this is called from; who has turned the collector off does not leave early.
4. What the program made is let go in the order of the interpreter: its modules, what is in cycles,
   then the names of modules that somebody still has. So finalizers run. What was preloaded stays as
   it is.
5. The exit status is the interpreter's. Where only that knows it, nobody leaves early.

Standard library only: for the zygote.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import weakref
from socket import AF_UNIX, MSG_NOSIGNAL, SOCK_SEQPACKET, socket

from holdfast.processes.stdlib_only import linux, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

ANSWER_S = 0.2


class Leaving:
    """Made once, in the zygote; in a worker it knows how the program ended."""

    def __init__(self) -> None:
        self.status: int | None = None
        """What the program ended with, as far as that is known."""
        self._worker = 0
        self._channel = ""
        self._preloaded: frozenset[str] = frozenset()
        self._left: list[weakref.ref[ModuleType]] | None = None
        """Modules that were dropped, once they are."""

    def be_worker(self, channel: str, preloaded: frozenset[str]) -> None:
        """In a worker that can ask its agent: all but these modules are the program's."""
        self._worker, self._channel, self._preloaded = os.getpid(), channel, preloaded

    def await_end(self) -> None:
        """The program has come to its end; what it left to be done then may still run."""
        gc.callbacks.append(self._on_collection)

    def ended_by(self, error: SystemExit) -> None:
        """Note the status that the interpreter makes of it."""
        code = error.code
        self.status = 0 if code is None else code & 0xFF if isinstance(code, int) else 1

    def _on_collection(self, phase: str, _: object) -> None:
        """Called before and after each collection."""
        if not sys.is_finalizing() or os.getpid() != self._worker:
            return
        if phase == "start":
            flush_files()
            if self.status is not None and streams_are_fine() and self._was_told_to_stop():
                self._left = drop_modules(self._preloaded)
            elif is_counted():
                gc.unfreeze()  # As the interpreter has it: what is preloaded is taken apart, too.
        elif self._left is not None and self.status is not None:
            clear(self._left)
            flush_files()
            linux.flush_c_streams()
            os._exit(self.status)

    def _was_told_to_stop(self) -> bool:
        name = self._channel
        try:
            with socket(AF_UNIX, SOCK_SEQPACKET) as agent:
                agent.settimeout(ANSWER_S)
                agent.connect("\0" + name[1:] if name.startswith("@") else name)
                agent.send(b'{"%s": true}' % wire.WAS_TOLD_TO_STOP.encode(), MSG_NOSIGNAL)
                return agent.recv(len(wire.YES)) == wire.YES
        except OSError:
            return False  # It is gone, or behind.


def streams_are_fine() -> bool:
    """Whether all that was printed is out. If not, the interpreter has a status for it."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except Exception:  # noqa: BLE001 - a stream may be the program's own
        return False
    return True


def is_counted() -> bool:
    """Whether a compiled module is loaded whose library counts what it has made (nanobind)."""
    for module in list(sys.modules.values()):
        names = vars(module) if _is_module(module) else {}
        is_compiled = str(names.get("__file__")).endswith(".so")
        if is_compiled and any(type(one).__module__ == "nanobind" for one in names.values()):
            return True
    return False


def drop_modules(preloaded: frozenset[str]) -> list[weakref.ref[ModuleType]]:
    """Drop all but these, for the collection that follows; returns what may be left of them."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        if hasattr(sys, name):
            setattr(sys, name, None)  # It has the program's frames.
    own = [name for name in sys.modules if name == "__main__" or name not in preloaded]
    return [weakref.ref(module) for module in map(sys.modules.pop, own) if _is_module(module)]


def clear(left: list[weakref.ref[ModuleType]]) -> None:
    """Let go of what is in modules that somebody still has."""
    for reference in reversed(left):
        if (module := reference()) is not None:
            _clear(module)


def _is_module(value: object) -> bool:
    return isinstance(value, type(sys))


def _clear(module: ModuleType) -> None:
    """Its names are None, those that are its own affair first, as the interpreter has it."""
    names = vars(module)
    for is_turn in (_is_private, lambda name: name != "__builtins__"):
        for name in list(names):
            if is_turn(str(name)):
                names[name] = None


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def flush_files() -> None:
    """Write out what is in the buffers of files that the program has opened."""
    is_file: dict[type, bool] = {}  # There may be millions of objects, but few types.
    for one in gc.get_objects():
        kind = type(one)
        if kind not in is_file:
            is_file[kind] = issubclass(kind, io.IOBase)
        if is_file[kind]:
            with contextlib.suppress(Exception):
                one.flush()
