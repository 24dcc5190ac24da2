"""The light hook: a cold Python worker leaves its traceback without being asked to, and says where
it is when the agent asks.

The agent puts this directory in front of the worker's PYTHONPATH, and the interpreter
imports `sitecustomize` from it before it runs the script.

Rules
1. The script and its children see nothing of it: PYTHONPATH, `sys.path` and
   `sys.modules["sitecustomize"]` are what they would have been. The user's own
   `sitecustomize` runs, and where there is none, there is none.
2. What goes to stderr is byte for byte what it would have been.
3. Nothing here can break the start of the interpreter. Whatever fails is given up silently.
4. It costs next to nothing: everything that takes time is loaded only after a failure.
5. Any Python from 3.8 on may be running it, with or without Holdfast installed.

How it works: `sys.excepthook` is wrapped, and the wrapper writes the error file before the
previous hook prints. Where the script has put in a hook of its own since, the exception
that the interpreter remembers as the last one it printed is written at exit. Only the main
thread of the process that was started counts: an exception in another thread or in a
forked child does not end the worker.
"""

# Rules 4 and 5 are why annotations are quoted: `from __future__` imports a file, and the
# oldest Python that may run this does not know the newer forms.

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

DIRECTORY = os.path.dirname(os.path.abspath(__file__))


class Witness:
    """Writes down the exception that ends this process."""

    def __init__(self, error_path: str) -> None:
        import _thread  # both are built into the interpreter: no file is read
        import atexit

        self.error_path = error_path
        self.current_thread = _thread.get_ident
        self.main = (os.getpid(), _thread.get_ident())
        self.previous = sys.excepthook
        self.seen = 0
        self.has_written = False
        hook = self.excepthook  # taken once: each taking makes another object
        if sys.excepthook is sys.__excepthook__:
            # Libraries compare the two to learn whether someone put in a hook (rule 1).
            sys.__excepthook__ = hook
        sys.excepthook = hook
        atexit.register(self.at_exit)

    def excepthook(
        self,
        kind: "type[BaseException]",
        value: BaseException,
        trace: "TracebackType | None",
    ) -> None:
        self.leave(value)
        self.previous(kind, value, trace)

    def at_exit(self) -> None:
        value = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if isinstance(value, BaseException) and id(value) != self.seen:
            self.leave(value)

    def leave(self, value: BaseException) -> None:
        """Write the error file, unless code that knew more has written it before."""
        if isinstance(value, KeyboardInterrupt):
            # It is no error, and what describing it imports would make the interpreter
            # forget that it has to end by the signal.
            return
        if (os.getpid(), self.current_thread()) != self.main:
            return
        self.seen = id(value)  # not the exception itself: it would keep its frames alive
        try:
            code = load_error_file()
            if self.has_written or not code["is_present"](self.error_path):
                code["replace"](self.error_path, code["describe"](value))
                self.has_written = True
        except Exception:  # noqa: BLE001 - rule 3
            pass


def load_error_file() -> "dict[str, Any]":
    return load(os.path.join(os.path.dirname(DIRECTORY), "error_file.py"))


def load(source: str) -> "dict[str, Any]":
    """The names of a file of ours, loaded by its path: the package may not be importable."""
    name = "holdfast_" + os.path.basename(source)[:-3]
    names: dict[str, Any] = {"__name__": name, "__file__": source}
    with open(source, encoding="utf-8") as file:
        exec(compile(file.read(), source, "exec"), names)
    return names


def undo() -> bool:
    """Remove every trace of the hook; say whether the agent asked for its work."""
    sys.path[:] = [entry for entry in sys.path if entry != DIRECTORY]
    sys.path_importer_cache.pop(DIRECTORY, None)
    if os.environ.pop("HOLDFAST_HOOK", "") != "1":
        return False
    original = os.environ.pop("HOLDFAST_HOOK_PYTHONPATH", None)
    if original is not None:
        os.environ["PYTHONPATH"] = original
    else:
        os.environ.pop("PYTHONPATH", None)
    return True


def witness() -> None:
    """Start watching, if there is a place to write to."""
    error_path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if error_path:
        Witness(error_path)


def show_stacks() -> None:
    """Have the agent see where this process is, if it wants to."""
    if "HOLDFAST_STACKS" not in os.environ:
        return
    package = os.path.dirname(os.path.dirname(DIRECTORY))
    source = os.path.join(package, "processes", "stdlib_only", "stack_handler.py")
    load(source)["take_variable"]()


def watch_optimizers() -> None:
    """Have steps of PyTorch's optimizers seen as signs of life, if the agent wants to know."""
    if "HOLDFAST_OPTIMIZER_STEPS" in os.environ:
        load(os.path.join(os.path.dirname(DIRECTORY), "optimizer_steps.py"))["take_variable"]()


def attempt(action: "Callable[[], Any]") -> "Any":
    """The action's result, or None when it failed (rule 3)."""
    try:
        return action()
    except Exception:  # noqa: BLE001 - rule 3
        return None


if __name__ == "sitecustomize":
    is_wanted = attempt(undo)
    try:
        if DIRECTORY not in sys.path:
            # The user's module takes this one's place. That there is none is told to the
            # interpreter in the way it expects: by the error that the import raises.
            del sys.modules["sitecustomize"]
            __import__("sitecustomize")
    finally:
        # Last, so that a hook which the user's module put in is the one that is wrapped.
        if is_wanted:
            attempt(witness)
            attempt(show_stacks)
            attempt(watch_optimizers)
