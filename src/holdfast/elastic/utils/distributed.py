"""Ports, and PyTorch's own store."""

from __future__ import annotations

import os
from datetime import timedelta
from importlib import import_module
from typing import Any

from holdfast.elastic.utils.api import get_socket_with_port
from holdfast.elastic.utils.logging import get_logger
from holdfast.elastic.utils.store import barrier

__all__ = ["create_c10d_store", "get_free_port", "get_socket_with_port"]

ANY_PORT = -1
EVERYBODY_CONNECTED = "_tcp_store/num_members"

logger = get_logger(__name__)


def get_free_port() -> int:
    """A port that was free at every address just now. Nobody holds it: another may take it."""
    with get_socket_with_port() as sock:
        port: int = sock.getsockname()[1]
        return port


def create_c10d_store(
    is_server: bool,
    server_addr: str,
    server_port: int = ANY_PORT,
    world_size: int = 1,
    timeout: float = 600,
    wait_for_workers: bool = True,
    retries: int = 3,
    use_libuv: bool | None = None,
) -> Any:
    """A `torch.distributed.TCPStore`, connected; with `wait_for_workers`, to everybody.

    Without a port the server has the kernel choose one (`store.port`), so nothing is tried
    again and `retries` has no meaning. `use_libuv` has none either: the variable `USE_LIBUV`
    decides, as everywhere in PyTorch. Raises what the store raises (`DistNetworkError`,
    `DistStoreError`), and `ValueError` where others would not know the port.
    """
    if use_libuv is not None:
        logger.warning("use_libuv is ignored; set the variable USE_LIBUV to 0 or 1 instead")
    if server_port == ANY_PORT and (world_size > 1 or not is_server):
        raise ValueError(
            f"a server_port is needed by clients to connect to ({world_size=}, {is_server=})"
        )
    store = import_module("torch.distributed").TCPStore(
        host_name=server_addr,
        port=0 if server_port == ANY_PORT else server_port,
        world_size=world_size,
        is_master=is_server,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=wait_for_workers,
        use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
    )
    if wait_for_workers:
        barrier(store, world_size, EVERYBODY_CONNECTED, barrier_timeout=timeout)
    return store
