"""Handlers over Holdfast's own coordinator and registers, by the names that `holdfast run` knows.

- `holdfast`, and `c10d` without a `store_type`: the host of the endpoint carries the coordinator.
- `etcd` (v3), `etcd-v2`, `file`, and `c10d` with a `store_type`: any node can carry it, and it is
  found through the register at the endpoint.

Settings are those of `--rdzv-conf` (`core.policy.rendezvous_settings`). For `holdfast` any other is
an error; elsewhere it may be meant for somebody else, and is left alone. Where secrets are found is
in `engine.secrets`.
"""

from __future__ import annotations

import os

from msgspec.structs import replace

from holdfast.core.policy import rendezvous_settings
from holdfast.core.policy.config import Rendezvous
from holdfast.core.policy.rendezvous_settings import SETTINGS
from holdfast.elastic.rendezvous.api import RendezvousParameters
from holdfast.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    given_in,
    job_config,
    settings_from,
)
from holdfast.elastic.rendezvous.utils import told_as_value_errors
from holdfast.engine.secrets import read_secrets

__all__ = ["create_handler"]


def create_handler(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """A handler for one of our own backends; ValueError for settings that make no sense."""
    return handler_of_kind(DynamicRendezvousHandler, params)


def handler_of_kind(
    kind: type[DynamicRendezvousHandler], params: RendezvousParameters
) -> DynamicRendezvousHandler:
    """The same, of a class that builds on ours."""
    backend, given = params.backend, given_in(params)
    with told_as_value_errors():
        rendezvous_settings.check(
            given
            if backend == "holdfast"
            else {key: given[key] for key in given if key in SETTINGS}
        )
        settings = settings_from(params)
        config = rendezvous_settings.apply(job_config(settings, params.local_addr), given)
        rendezvous = Rendezvous(backend, _endpoint(params, given), given)
        secrets = read_secrets(config.security.token_file, given, os.environ)
        config = replace(config, rendezvous=rendezvous)
        return kind(settings, backend, config, secrets=secrets)


def _endpoint(params: RendezvousParameters, given: dict[str, str]) -> str:
    if rendezvous_settings.is_on_disk(params.backend, given):
        return params.endpoint
    said = (params.endpoint or "").strip() or "localhost"
    return ",".join(map(str, rendezvous_settings.endpoints(params.backend, said, bare_ipv6=True)))
