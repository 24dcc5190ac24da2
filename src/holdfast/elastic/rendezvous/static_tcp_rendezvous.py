"""Nodes with fixed ranks and a fixed master.

Rules
- Node 0 carries the coordinator at the master's address, on a port beside the master's: that one
  is the workers'. `coordinator_port` names another.
- Every round has all the nodes, each at its own rank. When one is lost, or starts again, the
  others are told by `num_nodes_waiting`, and meet again when it is back.
- A job of one node needs no coordinator elsewhere, and has one all the same, on a free port.
"""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from holdfast.agent.contact import Secrets
from holdfast.core.config import STATIC_BACKEND, Rendezvous
from holdfast.core.model import Endpoint
from holdfast.elastic.rendezvous.api import RendezvousHandler, RendezvousParameters
from holdfast.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from holdfast.elastic.rendezvous.settings import (
    KEEP_ALIVE_ATTEMPTS,
    KEEP_ALIVE_S,
    RendezvousSettings,
    RendezvousTimeout,
    job_config,
)
from holdfast.elastic.rendezvous.utils import parse_rendezvous_endpoint

__all__ = ["StaticTCPRendezvous", "create_rdzv_handler"]

DEFAULT_TIMEOUT_S = 600
BESIDE_THE_MASTER = 100
UNPRIVILEGED = 1024


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
            raise ValueError(f"the rank {rank} is none of a job of {world_size} nodes")
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
        port = coordinator_port or _beside(master_port)
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


def create_rdzv_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A handler from the parameters `rank`, `timeout` and `coordinator_port`, and the endpoint."""
    from holdfast.elastic.rendezvous.holdfast_rendezvous import secrets_of

    rank = params.get_as_int("rank")
    if rank is None:
        raise ValueError("static nodes need a rank: --node-rank, or rank among the parameters")
    if not params.endpoint.strip():
        raise ValueError("static nodes need a master: --master-addr and --master-port")
    address, port = parse_rendezvous_endpoint(params.endpoint, -1)
    if port == -1:
        raise ValueError(f"the master {params.endpoint!r} has no port: --master-port")
    timeout = params.get_as_int("timeout", DEFAULT_TIMEOUT_S)
    return StaticTCPRendezvous(
        address,
        port,
        rank,
        params.max_nodes,
        params.run_id,
        DEFAULT_TIMEOUT_S if timeout is None else timeout,
        params.get_as_int("coordinator_port"),
        secrets_of(params),
    )


def _beside(port: int) -> int:
    """As `holdfast run` has it, so that both can be nodes of one job."""
    below = port - BESIDE_THE_MASTER
    return below if below >= UNPRIVILEGED else port + BESIDE_THE_MASTER
