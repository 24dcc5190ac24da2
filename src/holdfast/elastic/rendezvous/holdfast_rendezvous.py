"""Handlers over Holdfast's own coordinator and registers, by the names that `holdfast run` knows.

- `holdfast`, and `c10d` without a `store_type`: the host of the endpoint carries the coordinator.
- `etcd` (v3), `etcd-v2`, `file`, and `c10d` with a `store_type`: any node can carry it, and it is
  found through the register at the endpoint.

Settings are those of `dynamic_rendezvous.create_handler`, and besides `timeout` (another name for
`join_timeout`), `is_host`, `token_file`, and whatever the register reads. The job's token is in
`HOLDFAST_TOKEN` or in the file; the register's user and password are in `HOLDFAST_REGISTER_USER`
and `HOLDFAST_REGISTER_PASSWORD`.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from holdfast.agent.contact import Secrets
from holdfast.core.config import DEFAULT_PORT, ETCD_PORT, Rendezvous
from holdfast.core.model import Endpoint
from holdfast.elastic.rendezvous.api import RendezvousParameters
from holdfast.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    job_config,
    settings_from,
)
from holdfast.elastic.rendezvous.utils import parse_rendezvous_endpoint

__all__ = ["create_handler"]


def create_handler(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """A handler for one of our own backends; ValueError for settings that make no sense."""
    if "timeout" in params.config:
        params.config.setdefault("join_timeout", params.config["timeout"])
    settings = settings_from(params)
    options = {key: str(value) for key, value in params.config.items() if value is not None}
    rendezvous = Rendezvous(params.backend, _endpoint(params), options)
    config = replace(
        job_config(settings, params.local_addr),
        rendezvous=rendezvous,
        is_host=params.get_as_bool("is_host"),
    )
    return DynamicRendezvousHandler.from_config(
        settings, params.backend, config, secrets_of(params)
    )


def secrets_of(params: RendezvousParameters) -> Secrets:
    """The secrets of the job, from the environment and from the file that is named."""
    token = os.environ.get("HOLDFAST_TOKEN", "").strip().encode()
    path = params.get("token_file")
    if not token and path:
        token = Path(path).read_bytes().strip()
        if not token:
            raise ValueError(f"the token's file {path} is empty")
    user = os.environ.get("HOLDFAST_REGISTER_USER", "") or str(params.get("user", ""))
    return Secrets(token or None, user, os.environ.get("HOLDFAST_REGISTER_PASSWORD", ""))


def _endpoint(params: RendezvousParameters) -> str:
    if params.backend == "file" or params.get("store_type") == "file":
        return params.endpoint
    port = ETCD_PORT if params.backend.startswith("etcd") else DEFAULT_PORT
    places = params.endpoint.split(",") if params.backend.startswith("etcd") else [params.endpoint]
    return ",".join(str(Endpoint(*parse_rendezvous_endpoint(place, port))) for place in places)
