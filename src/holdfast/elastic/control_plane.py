"""A worker's main function with PyTorch's worker server beside it, and its errors recorded.

The server answers requests about the process (its stacks, a dump of its collectives) on the Unix
socket that `TORCH_WORKER_SERVER_SOCKET` names. It is PyTorch's own, so PyTorch has to be installed
where that variable is set; where it is not set, there is no server, and PyTorch is not needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from holdfast.elastic.multiprocessing.errors import get_error_handler

__all__ = ["TORCH_WORKER_SERVER_SOCKET", "worker_main"]

TORCH_WORKER_SERVER_SOCKET = "TORCH_WORKER_SERVER_SOCKET"


@contextmanager
def worker_main() -> Iterator[None]:
    """Around a worker's main function, as a decorator (`@worker_main()`) or as a context.

    What is raised is left in the error file, as under `record`, and goes on. Raises
    ModuleNotFoundError where a server is asked for and there is no PyTorch, and RuntimeError
    where it cannot be started.
    """
    handler = get_error_handler()
    handler.initialize()
    with ExitStack() as stack:
        try:
            if path := os.environ.get(TORCH_WORKER_SERVER_SOCKET):
                stack.callback(_worker_server(path).shutdown)
            yield
        except Exception as error:
            handler.record_exception(error)
            raise


def _worker_server(path: str) -> Any:
    try:
        return import_module("torch._C._distributed_c10d")._WorkerServer(path)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{TORCH_WORKER_SERVER_SOCKET} asks for PyTorch's worker server, and there is no "
            "PyTorch here: install it, or unset the variable"
        ) from error
