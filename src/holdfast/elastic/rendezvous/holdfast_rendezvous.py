"""Handlers over Holdfast's own coordinator and registers, by the names that `holdfast run` knows.

- `holdfast`, and `c10d` without a `store_type`: the host of the endpoint carries the coordinator.
- `etcd` (v3), `etcd-v2`, `file`, and `c10d` with a `store_type`: any node can carry it, and it is
  found through the register at the endpoint.

Settings are those of `dynamic_rendezvous.create_handler`, and besides `timeout` (another name for
`join_timeout`), `is_host`, `token_file`, our own `lease`, `heartbeat`, `suspect`, `scale_up_delay`
and `min_round_time` in seconds, and whatever the register reads. For `holdfast` any other is an
error; elsewhere it may be meant for somebody else, and is left alone. The job's token is in
`HOLDFAST_TOKEN` or in the file; the register's user and password are in `HOLDFAST_REGISTER_USER`
and `HOLDFAST_REGISTER_PASSWORD`, or in `user` and in the file that `password_file` names.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from holdfast.agent.contact import Secrets
from holdfast.core import timing
from holdfast.core.config import DEFAULT_PORT, ETCD_PORT, Leases, Rendezvous
from holdfast.core.model import Endpoint
from holdfast.elastic.rendezvous.api import RendezvousParameters
from holdfast.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from holdfast.elastic.rendezvous.settings import job_config, settings_from
from holdfast.elastic.rendezvous.utils import parse_rendezvous_endpoint

__all__ = ["create_handler"]

LEASES = {"lease": "lease_s", "heartbeat": "heartbeat_s", "suspect": "suspect_s"}
TIMEOUTS = {"scale_up_delay": "scale_up_delay_s", "min_round_time": "min_round_s"}
KNOWN = {
    *("join_timeout", "timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout"),
    *("read_timeout", "keep_alive_interval", "keep_alive_max_attempt", "is_host", "token_file"),
    *LEASES,
    *TIMEOUTS,
}


def create_handler(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """A handler for one of our own backends; ValueError for settings that make no sense."""
    if "timeout" in params.config:
        params.config.setdefault("join_timeout", params.config["timeout"])
    _check_names(params)
    settings = settings_from(params)
    options = {key: str(value) for key, value in params.config.items() if value is not None}
    rendezvous = Rendezvous(params.backend, _endpoint(params), options)
    config = job_config(settings, params.local_addr)
    leases, timeouts = _seconds(params, LEASES), _seconds(params, TIMEOUTS)
    config = replace(
        config,
        rendezvous=rendezvous,
        is_host=params.get_as_bool("is_host"),
        leases=timing.derive(Leases(), leases) if leases else config.leases,
        timeouts=replace(config.timeouts, **timeouts),
    )
    return DynamicRendezvousHandler.from_config(
        settings, params.backend, config, secrets_of(params)
    )


def secrets_of(params: RendezvousParameters) -> Secrets:
    """The secrets of the job, from the environment and from the files that are named."""
    token = os.environ.get("HOLDFAST_TOKEN", "").strip().encode()
    token = token or _from_file(params, "token")
    user = os.environ.get("HOLDFAST_REGISTER_USER", "") or str(params.get("user", ""))
    password = os.environ.get("HOLDFAST_REGISTER_PASSWORD", "")
    password = password or os.fsdecode(_from_file(params, "password"))
    if password and not user:
        raise ValueError("the register has a password, but no user: user= names it")
    return Secrets(token or None, user, password)


def _from_file(params: RendezvousParameters, what: str) -> bytes:
    """What the file holds that a setting names; nothing where none does."""
    path = params.get(f"{what}_file")
    if not path:
        return b""
    found = Path(path).read_bytes().strip()
    if not found:
        raise ValueError(f"the {what}'s file {path} is empty")
    return found


def _check_names(params: RendezvousParameters) -> None:
    unknown = sorted(set(params.config) - KNOWN)
    if params.backend == "holdfast" and unknown:
        known = ", ".join(sorted(KNOWN))
        raise ValueError(f"there is no setting {unknown[0]!r}; the known ones are {known}")


def _seconds(params: RendezvousParameters, fields: dict[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, field in fields.items():
        if params.get(key) is not None:
            try:
                found[field] = float(params.get(key))
            except ValueError:
                raise ValueError(f"the setting {key} is no number of seconds") from None
    return found


def _endpoint(params: RendezvousParameters) -> str:
    if params.backend == "file" or params.get("store_type") == "file":
        return params.endpoint
    port = ETCD_PORT if params.backend.startswith("etcd") else DEFAULT_PORT
    places = params.endpoint.split(",") if params.backend.startswith("etcd") else [params.endpoint]
    return ",".join(str(Endpoint(*parse_rendezvous_endpoint(place, port))) for place in places)
