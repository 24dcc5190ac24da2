"""Run one pickled function as a worker: `python function.py FOLDER`.

The folder is private to the job and holds `call.pickle`, written by the process that
called `holdfast.launch`: the module path of that process, and the function with its
arguments. What the function returns is written beside it, as `result_<rank>.pickle`.
"""

from __future__ import annotations

import os
import pickle
import sys
from types import TracebackType
from typing import Any

CALL = "call.pickle"


def result_file(folder: str, rank: int) -> str:
    return os.path.join(folder, f"result_{rank}.pickle")


def run(folder: str) -> None:
    """Load, call, and leave the result; an exception leaves as the function raised it."""
    with open(os.path.join(folder, CALL), "rb") as file:
        payload = pickle.load(file)
    sys.path[:] = payload["sys_path"]
    function, arguments = pickle.loads(payload["call"])
    try:
        value = function(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever the user's function raises
        leave(error)
    path = result_file(folder, int(os.environ["RANK"]))
    with open(path + ".part", "wb") as file:
        file.write(pickled(value))
    os.replace(path + ".part", path)


def pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        # A closure, or a class made on the spot.
        import cloudpickle

        by_value: bytes = cloudpickle.dumps(value)
        return by_value


def leave(error: Exception) -> None:
    """End as a script does that raised this, without our own frames in the traceback."""
    from holdfast.worker import error_file

    trace: TracebackType | None = error.__traceback__
    error.__traceback__ = trace.tb_next if trace is not None else None
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        error_file.write(path, error, only_if_absent=True)
    sys.excepthook(type(error), error, error.__traceback__)
    sys.exit(1)


if __name__ == "__main__":
    run(sys.argv[1])
