"""The settings of a rendezvous: `--rdzv-conf` of the command line, `rdzv_configs` of the API.

Rules
- One row is one setting. All readers of settings use these rows, so that the same
  text means the same, and the same mistake gives the same message, wherever it was written.
- A row with a field goes there, a path into `JobConfig`; of two for one field the upper one wins.
  Others are read (`read`) by their users: a register, the port of a coordinator.
- An option of its own is stronger than a setting.
- `cas_backoff_max_seconds` spreads out nodes that all write to the backend. Here only the
  coordinator writes, so there is nothing to spread out: it is checked, and has no effect.
- PyTorch's settings for heartbeat and silence are requests: PyTorch accepts any value, so none of
  them may make a job fail that torchrun would run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from holdfast.core.policy import texts, timing
from holdfast.core.policy.config import (
    DEFAULT_PORT,
    ETCD_BACKENDS,
    ETCD_PORT,
    JobConfig,
    Leases,
    Timeouts,
)
from holdfast.core.protocol.bounds import PORT_MOST
from holdfast.core.protocol.endpoint import Endpoint
from holdfast.core.protocol.errors import UsageError

COMMAND_LINE, API = "--rdzv-conf", "rdzv_configs"
"""The origin of a setting: the beginning of a message about it."""


class Setting(Struct, frozen=True):
    """How one setting is read, and where it goes."""

    parse: texts.Parser
    field: str = ""


SETTINGS: Mapping[str, Setting] = {
    # What PyTorch's own backends read.
    "join_timeout": Setting(texts.positive_seconds, "timeouts.join_s"),
    "timeout": Setting(texts.positive_seconds, "timeouts.join_s"),
    "last_call_timeout": Setting(texts.positive_seconds, "timeouts.last_call_s"),
    "close_timeout": Setting(texts.positive_seconds, "timeouts.close_s"),
    "heartbeat_timeout": Setting(texts.positive_seconds),
    "keep_alive_interval": Setting(texts.positive_seconds),
    "keep_alive_max_attempt": Setting(texts.whole_number(1)),
    "cas_backoff_max_seconds": Setting(texts.seconds),
    "read_timeout": Setting(texts.positive_seconds),
    "is_host": Setting(texts.flag, "is_host"),
    "store_type": Setting(texts.one_of("tcp", "file")),
    "rank": Setting(texts.whole_number(0)),
    "protocol": Setting(texts.one_of("http", "https")),
    "etcd_prefix": Setting(texts.text),
    "cert": Setting(texts.text),
    "key": Setting(texts.text),
    "cacert": Setting(texts.text),
    "ssl_cert": Setting(texts.text),
    "ssl_cert_key": Setting(texts.text),
    "ca_cert": Setting(texts.text),
    # Our own.
    "lease": Setting(texts.positive_seconds, "leases.lease_s"),
    "heartbeat": Setting(texts.positive_seconds, "leases.heartbeat_s"),
    "suspect": Setting(texts.positive_seconds, "leases.suspect_s"),
    "scale_up_delay": Setting(texts.seconds, "timeouts.scale_up_delay_s"),
    "min_round_time": Setting(texts.seconds, "timeouts.min_round_s"),
    "token_file": Setting(texts.text, "security.token_file"),
    "coordinator_port": Setting(texts.whole_number(1, PORT_MOST)),
    "user": Setting(texts.text),
    "password_file": Setting(texts.text),
}


def check(given: Mapping[str, str], origin: str = API) -> None:
    """Refuse a name or a value that has no meaning for our backends."""
    for key in given:
        if key not in SETTINGS:
            known = f"the known ones are {texts.listed(sorted(SETTINGS))}"
            raise UsageError(f"{origin} has no setting {key!r}", known)
        read(given, key, origin)


def read(given: Mapping[str, str], key: str, origin: str = API) -> Any:
    """The value of a known setting; None where it was not given."""
    if key not in given:
        return None
    try:
        return SETTINGS[key].parse(given[key])
    except UsageError as error:
        raise UsageError(f"{origin} {key}: {error.message}", error.hint) from None


def apply(
    config: JobConfig,
    given: Mapping[str, str],
    options: Mapping[str, Any] | None = None,
    origin: str = API,
) -> JobConfig:
    """The configuration with the given settings; `options`, by field, are stronger."""
    fields: dict[str, Any] = {}
    for key, setting in SETTINGS.items():
        if setting.field and key in given:
            fields.setdefault(setting.field, read(given, key, origin))
    fields |= options or {}
    _hear_keep_alive(fields, given, origin)
    _derive_times(fields)
    return _filled(config, fields)


def _hear_keep_alive(fields: dict[str, Any], given: Mapping[str, str], origin: str) -> None:
    """A lease that was given decides alone; a silence below two heartbeats is raised to that."""
    if "leases.lease_s" in fields:
        return
    if interval := read(given, "keep_alive_interval", origin):
        fields.setdefault("leases.heartbeat_s", interval)
    if silence := read(given, "heartbeat_timeout", origin):
        least = 2 * fields.get("leases.heartbeat_s", 0.0)
        fields.setdefault("leases.suspect_s", max(silence, least))


def _derive_times(fields: dict[str, Any]) -> None:
    """Derive the times that go together from the one or two that were given."""
    section = "leases."
    chosen = {path: value for path, value in fields.items() if path.startswith(section)}
    if chosen:
        chosen = {path.removeprefix(section): value for path, value in chosen.items()}
        derived = timing.derive(Leases(), chosen)
        fields |= {section + name: value for name, value in asdict(derived).items()}
    least_s = fields.get("timeouts.min_round_s", 0.0)
    fields["timeouts.min_round_max_s"] = max(Timeouts().min_round_max_s, least_s)


def _filled(config: JobConfig, fields: Mapping[str, Any]) -> JobConfig:
    """Put the values into the configuration, by the paths of their fields."""
    sections: dict[str, dict[str, Any]] = {"": {}}
    for path, value in fields.items():
        section, _, field = path.rpartition(".")
        sections.setdefault(section, {})[field] = value
    whole = sections.pop("")
    for section, changes in sections.items():
        whole[section] = replace(getattr(config, section), **changes)
    return replace(config, **whole)


def is_on_disk(backend: str, given: Mapping[str, str]) -> bool:
    """Whether the endpoint is a path."""
    return backend == "file" or (backend == "c10d" and read(given, "store_type") == "file")


def endpoints(backend: str, endpoint: str, *, bare_ipv6: bool = False) -> list[Endpoint]:
    """The addresses in an endpoint of one of our backends, if it is no path: etcd has several."""
    if backend in ETCD_BACKENDS:
        return Endpoint.parse_list(endpoint, ETCD_PORT, bare_ipv6=bare_ipv6)
    return [Endpoint.parse(endpoint, DEFAULT_PORT, bare_ipv6=bare_ipv6)]
