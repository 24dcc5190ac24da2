"""The error file: what a failing worker leaves for its agent, as one small JSON file.

Rules
1. The shape is the one that users of PyTorch know, and tools read:
   `{"message": {"message": "<Type>: <text>", "extraInfo": {"py_callstack": "…",
   "timestamp": "<seconds>"}}}`. What we add lies under `extraInfo`.
2. The file appears whole or not at all: it is written beside its place and renamed.
3. Its writer is already failing, so nothing here makes matters worse: a file that
   cannot be written costs one line on stderr.
4. Its reader reads foreign input: anything but a plain file of a sane size that holds a
   JSON object counts as nothing, and reading neither raises nor waits.

This module is also loaded by its path into interpreters as old as Python 3.8, in which
Holdfast is not installed (see `hook/sitecustomize.py`). It therefore imports nothing of
ours, and of the standard library nothing before it is needed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

VARIABLE = "TORCHELASTIC_ERROR_FILE"
TEXT_LIMIT = 256 * 1024
READ_LIMIT = 16 * 1024 * 1024


def path_from_environment(environ: Mapping[str, str]) -> str | None:
    """The path of this process's error file, or None when none was asked for."""
    return environ.get(VARIABLE) or None


def write(path: str, exception: BaseException, *, only_if_absent: bool = False) -> None:
    """Leave `exception` at `path`. Never raises because the file cannot be written.

    With `only_if_absent`, what is already there stays: its writer knew more.
    """
    if only_if_absent and is_present(path):
        return
    save(path, describe(exception))


def is_present(path: str) -> bool:
    """Whether there is an error file at `path`. An empty file counts as absent."""
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def describe(exception: BaseException) -> dict[str, Any]:
    """The contents of the error file for an exception that is being raised now."""
    import time

    now_ns = time.time_ns()
    extra: dict[str, Any] = {
        "py_callstack": cut(_traceback(exception)),
        "timestamp": str(now_ns // 1_000_000_000),
        "timestamp_ns": str(now_ns),
    }
    if getattr(exception, "non_retryable", False) is True:
        extra["non_retryable"] = True
    message = f"{type(exception).__name__}: {_text(exception)}"
    return {"message": {"message": cut(message), "extraInfo": extra}}


def save(path: str, document: dict[str, Any]) -> None:
    """Put a document in place; where that fails, say so in one line on stderr."""
    try:
        replace(path, document)
    except OSError as error:
        _complain(f"holdfast: cannot write the error file {path}: {error.strerror or error}")


def replace(path: str, document: dict[str, Any]) -> None:
    """Put a document in place, whole or not at all. Raises `OSError`."""
    import json

    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    unfinished = f"{path}.{os.getpid()}.tmp"
    try:
        # Only ASCII is written, so that no reader's locale matters.
        with open(unfinished, "w", encoding="ascii") as file:
            json.dump(document, file)
        os.replace(unfinished, path)
    except BaseException:
        _remove(unfinished)
        raise


def read(path: str) -> dict[str, Any] | None:
    """The JSON object that was left at `path`, or None where nothing of use is (rule 4)."""
    import json

    try:
        document = json.loads(_contents(path))
    except (OSError, TypeError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def cut(text: str) -> str:
    """The text itself or, where it is huge, both its ends and a note of what is missing."""
    missing = len(text) - TEXT_LIMIT
    if missing <= 0:
        return text
    half = TEXT_LIMIT // 2
    return f"{text[:half]}\n[... {missing} characters left out ...]\n{text[-half:]}"


def _contents(path: str) -> bytes:
    """The content of a plain file. Raises `OSError` for anything else, and never waits."""
    import stat

    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > READ_LIMIT:
            raise OSError(f"{path} is not an error file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(READ_LIMIT)
    finally:
        os.close(descriptor)


def _traceback(exception: BaseException) -> str:
    import traceback

    lines = traceback.format_exception(type(exception), exception, exception.__traceback__)
    return "".join(lines)


def _text(exception: BaseException) -> str:
    try:
        return str(exception)
    except Exception as error:  # noqa: BLE001 - user code, which may raise anything
        return f"<its text cannot be had: {type(error).__name__}>"


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it was never made, or cannot be: there is nothing more to do


def _complain(line: str) -> None:
    if sys.stderr is None:
        return
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass  # stderr is closed as well
