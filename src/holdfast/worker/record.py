"""`record`: a decorator that leaves the error of a worker where its agent finds it.

Rules
1. An exception goes on to the caller, unchanged; only the error file is added.
2. `SystemExit(0)` is success and becomes a plain return. Any other exit, and an
   interrupt from the keyboard, is somebody's decision and not an error to explain.
3. An exception that stands for a failed child (it has `get_first_failure()`, as PyTorch's
   `ChildFailedError` does) passes on what that child left, with the child's exit code: the
   cause goes up through any number of launchers as it was first written.
4. Without `TORCHELASTIC_ERROR_FILE`, nothing is written and nothing is said.

Use it once, on the outermost function. A cold or warm worker of Holdfast leaves its error
without it too; it is for programs that are launched by others as well.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


def record(function: Callable[P, R]) -> Callable[P, R | None]:
    """Wrap a worker's outermost function so that its error is written down."""
    return recorded(function, show_stacks_on_crash, _leave)


def recorded(
    function: Callable[P, R],
    prepare: Callable[[], None],
    leave: Callable[[Exception], None],
    succeeded: Callable[[], None] = lambda: None,
) -> Callable[P, R | None]:
    """Wrap a function: `prepare` runs before it, `leave` writes down what it raises.

    `succeeded` runs once it has returned; what that raises is no error of the function.
    """

    @functools.wraps(function)
    def recording(*args: P.args, **kwargs: P.kwargs) -> R | None:
        prepare()
        try:
            result = function(*args, **kwargs)
        except SystemExit as request:
            if request.code == 0:
                return None
            raise
        except Exception as error:
            leave(error)
            raise
        succeeded()
        return result

    return recording


def show_stacks_on_crash() -> None:
    """Have the interpreter print its stacks on a segmentation fault and alike.

    Where the user chose another place for them, that choice stands.
    """
    import faulthandler

    if not faulthandler.is_enabled():
        show_stacks_on_stderr()


def show_stacks_on_stderr() -> None:
    """The same on stderr, whatever was chosen before; where stderr is no file, nothing changes."""
    import faulthandler

    try:
        faulthandler.enable(all_threads=True)
    except (AttributeError, OSError, RuntimeError, ValueError):
        pass  # stderr is closed or no real file, as in a notebook


def _leave(error: Exception) -> None:
    from holdfast.worker import error_file

    path = error_file.path_from_environment(os.environ)
    if path is not None:
        error_file.save(path, document_for(error))


def document_for(error: BaseException) -> dict[str, Any]:
    """Content of the error file: that of a failed child if it left one, else the error itself."""
    from holdfast.worker import error_file

    child = first_failure(error)
    if child is None:
        return error_file.describe(error)
    document = left_by(child) or error_file.describe(error)
    return _with_exit_code(document, getattr(child, "exitcode", 0))


def left_by(child: Any) -> dict[str, Any] | None:
    """The error file of a failed child; None when it has nothing of use."""
    from holdfast.worker import error_file

    document = error_file.read(getattr(child, "error_file", ""))
    return document if document is not None and "message" in document else None


def first_failure(error: BaseException) -> Any:
    """The failed child that an exception stands for, or None."""
    get_first_failure = getattr(error, "get_first_failure", None)
    if not callable(get_first_failure):
        return None
    found = get_first_failure()
    return found[1] if isinstance(found, tuple) else found


def _with_exit_code(document: dict[str, Any], code: int) -> dict[str, Any]:
    if code and isinstance(document["message"], dict):
        document["message"]["errorCode"] = code
    return document
