"""Nodes with fixed ranks and a fixed master.

Rules
- Node 0 carries the coordinator at the master's address, on a port beside the master's: that one
  is the workers'. `coordinator_port` names another.
- Every round has all the nodes, each at its own rank. When one is lost, or starts again, the
  others are told by `num_nodes_waiting`, and meet again when it is back.
- A job of one node needs no coordinator elsewhere, and has one all the same, on a free port.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from math import ceil

from msgspec.structs import replace

from holdfast.core.policy.config import STATIC_BACKEND, Rendezvous, port_beside
from holdfast.core.policy.rendezvous_settings import apply, read
from holdfast.core.protocol.model import Endpoint
from holdfast.elastic.rendezvous.api import RendezvousHandler, RendezvousParameters
from holdfast.elastic.rendezvous.dynamic_rendezvous import (
    KEEP_ALIVE_ATTEMPTS,
    KEEP_ALIVE_S,
    DynamicRendezvousHandler,
    RendezvousSettings,
    RendezvousTimeout,
    given_in,
    job_config,
    settings_from,
)
from holdfast.elastic.rendezvous.utils import static_master, told_as_value_errors
from holdfast.engine.secrets import Secrets, read_secrets

__all__ = ["StaticTCPRendezvous", "create_rdzv_handler"]


class StaticTCPRendezvous(DynamicRendezvousHandler):
    """One node of a job with fixed ranks."""

    def __init__(
        self,
        master_addr: str,
        master_port: int,
        rank: int,
        world_size: int,
        run_id: str,
        timeout: int,
        coordinator_port: int | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(
                f"node rank {rank}: in a job of {world_size} nodes it must be 0 to {world_size - 1}"
            )
        self.master_addr, self.master_port = master_addr, master_port
        self.rank, self.world_size, self.run_id = rank, world_size, run_id
        self.timeout = timedelta(seconds=timeout)
        settings = RendezvousSettings(
            run_id,
            world_size,
            world_size,
            RendezvousTimeout(join=self.timeout),
            timedelta(seconds=KEEP_ALIVE_S),
            KEEP_ALIVE_ATTEMPTS,
        )
        port = coordinator_port or port_beside(master_port)
        meeting = Endpoint(master_addr, port) if world_size > 1 else Endpoint("127.0.0.1", 0)
        config = replace(
            job_config(settings),
            rendezvous=Rendezvous(STATIC_BACKEND, str(meeting)),
            node_rank=rank,
            master_address=master_addr,
            master_port=master_port,
            is_host=rank == 0,
        )
        super().__init__(settings, STATIC_BACKEND, config, secrets=secrets)

    def _hear(self, given: Mapping[str, str]) -> None:
        """Let further settings count. Who carries the coordinator is not one of them."""
        is_host = self._config.is_host
        self._config = replace(apply(self._config, given), is_host=is_host).validate()


def create_rdzv_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A handler from the endpoint and the settings, of which `rank` has to be there."""
    given = given_in(params)
    with told_as_value_errors():
        rank = read(given, "rank")
        if rank is None:
            raise ValueError("static nodes need a rank: --node-rank, or rank among the parameters")
        handler = StaticTCPRendezvous(
            *static_master(params.endpoint),
            rank,
            params.max_nodes,
            params.run_id,
            ceil(settings_from(params).timeout.join.total_seconds()),
            read(given, "coordinator_port"),
            read_secrets(given.get("token_file"), given, os.environ),
        )
        handler._hear(given)
        return handler
