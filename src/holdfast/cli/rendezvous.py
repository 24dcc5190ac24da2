"""Where the nodes of a job meet, worked out from the options that say so.

Rules
- `--standalone` is one node on a free port; what says otherwise is set aside with a note.
- A backend that is named is used. Otherwise: one node is embedded; a master means static;
  an endpoint means embedded; a rank alone means static; several nodes with none of these
  have no place to meet, and that is an error.
- An endpoint is a host and port, for etcd a list of them, for files a path. What a
  registered backend makes of its endpoint and settings is its own business.
- Static nodes have the ranks and the master that they are given. Rank 0 carries the
  coordinator at the master's address, on a port beside the master's: that one is the workers'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from msgspec.structs import replace

from holdfast.cli import values
from holdfast.core.config import (
    DEFAULT_PORT,
    EMBEDDED_BACKENDS,
    ETCD_PORT,
    STATIC_BACKEND,
    STATIC_MASTER,
    JobConfig,
    Rendezvous,
)
from holdfast.core.errors import UsageError
from holdfast.core.model import Endpoint

ETCD = ("etcd", "etcd-v2")
BACKENDS = (*EMBEDDED_BACKENDS, *ETCD, STATIC_BACKEND, "file")
REGISTERS, HANDLERS = "holdfast.registers", "torchrun.handlers"

BESIDE_THE_MASTER = 100
"""How far below the master's port a static job's coordinator listens: 29400 for 29500."""
UNPRIVILEGED = 1024

_positive_number = values.whole_number(1)
SETTINGS: Mapping[str, values.Parser] = {
    "join_timeout": values.positive_seconds,
    "last_call_timeout": values.positive_seconds,
    "close_timeout": values.positive_seconds,
    "heartbeat_timeout": values.positive_seconds,
    "keep_alive_interval": values.positive_seconds,
    "keep_alive_max_attempt": _positive_number,
    "timeout": values.positive_seconds,
    "read_timeout": values.positive_seconds,
    "is_host": values.flag,
    "store_type": values.one_of("tcp", "file"),
    "rank": values.whole_number(0),
    "protocol": values.one_of("http", "https"),
    "etcd_prefix": values.text,
    "cert": values.text,
    "key": values.text,
    "cacert": values.text,
    "ssl_cert": values.text,
    "ssl_cert_key": values.text,
    "ca_cert": values.text,
    "lease": values.positive_seconds,
    "heartbeat": values.positive_seconds,
    "suspect": values.positive_seconds,
    "scale_up_delay": values.seconds,
    "min_round_time": values.seconds,
    "token_file": values.text,
    "coordinator_port": values.whole_number(1, values.PORT_MAX),
    "user": values.text,
    "password_file": values.text,
}
"""The keys of `--rdzv-conf`: what torch's own backends read, and below that our own."""

FIELDS: Mapping[str, str] = {
    "join_timeout": "timeouts.join_s",
    "timeout": "timeouts.join_s",
    "last_call_timeout": "timeouts.last_call_s",
    "close_timeout": "timeouts.close_s",
    "lease": "leases.lease_s",
    "heartbeat": "leases.heartbeat_s",
    "suspect": "leases.suspect_s",
    "scale_up_delay": "timeouts.scale_up_delay_s",
    "min_round_time": "timeouts.min_round_s",
    "token_file": "security.token_file",
    "is_host": "is_host",
}
"""Where settings go, as paths into `JobConfig`; of two for one field the upper one wins."""


def settle(config: JobConfig, named: str | None) -> tuple[JobConfig, tuple[str, ...]]:
    """Return the configuration with the meeting place decided, and notes for the user.

    `named` is the backend that the user asked for, if any: whether one was named cannot be
    read off the configuration, where there always is one. Raises `UsageError` where the
    nodes could not meet.
    """
    if config.rendezvous.standalone:
        return _standalone(config, named)
    backend = named or _default_backend(config)
    if backend in BACKENDS:
        check_settings(config.rendezvous.options)
    endpoint = _endpoint(backend, config)
    rendezvous = replace(config.rendezvous, backend=backend, endpoint=endpoint)
    settled = replace(config, rendezvous=rendezvous)
    return _static(settled) if backend == STATIC_BACKEND else (settled, ())


def backend(name: str) -> str:
    """A parser: one of ours, or one that this process or an installed package registered."""
    if name in BACKENDS:
        return name
    from holdfast.agent.register_contact import registered_backends

    known = (*BACKENDS, *registered_backends())
    try:
        return known_or_registered(values.text(name), "backend", known, [REGISTERS])
    except UsageError:
        _refuse_a_handler(name)
        raise


def _refuse_a_handler(name: str) -> None:
    """Say so where a name is one that only PyTorch's way of running agents can use."""
    from importlib.metadata import entry_points

    if entry_points(group=HANDLERS, name=name):
        raise UsageError(
            f"{name} is a rendezvous handler for torchrun and holdfast.elastic",
            f"here the agents meet by themselves; a backend is a register, of group {REGISTERS}",
        )


def known_or_registered(name: str, what: str, known: Iterable[str], groups: Iterable[str]) -> str:
    """Return `name` if it is known or is an entry point of one of these groups.

    The installed packages are searched only for names that are not our own: the search
    costs tens of milliseconds.
    """
    if name in known:
        return name
    from importlib.metadata import entry_points

    found = sorted({entry.name for group in groups for entry in entry_points(group=group)})
    if name in found:
        return name
    names = [*known, *found]
    hint = f"known: {values.listed(names)}" if names else "no installed package registers any"
    near = values.closest(name, names)
    raise UsageError(f"there is no {what} {name!r}", f"{near} {hint}" if near else hint)


def check_settings(settings: Mapping[str, str]) -> None:
    """Refuse a key or a value of `--rdzv-conf` that means nothing to our backends."""
    for key in settings:
        if key not in SETTINGS:
            known = f"the known ones are {values.listed(sorted(SETTINGS))}"
            raise UsageError(f"--rdzv-conf has no setting {key!r}", known)
        read_setting(settings, key)


def read_setting(settings: Mapping[str, str], key: str) -> object:
    """The parsed value of a known key of `--rdzv-conf`."""
    try:
        return SETTINGS[key](settings[key])
    except UsageError as error:
        raise UsageError(f"--rdzv-conf {key}: {error.message}", error.hint) from None


def fields_of(settings: Mapping[str, str]) -> dict[str, object]:
    """What the settings ask of the configuration, by field."""
    fields: dict[str, object] = {}
    for key, field in FIELDS.items():
        if key in settings:
            fields.setdefault(field, read_setting(settings, key))
    return fields


def hear_keep_alive(fields: dict[str, object], settings: Mapping[str, str]) -> None:
    """Let torch's words for heartbeat and silence count, as far as nothing of ours is said.

    They are wishes: torch lets them be anything, so none of them may make a job fail that
    torchrun would run. A lease that was given decides alone; a silence below two heartbeats
    is raised to that.
    """
    if "leases.lease_s" in fields:
        return
    if "keep_alive_interval" in settings:
        interval = cast(float, read_setting(settings, "keep_alive_interval"))
        fields.setdefault("leases.heartbeat_s", interval)
    if "heartbeat_timeout" in settings:
        silence = cast(float, read_setting(settings, "heartbeat_timeout"))
        heartbeat = cast(float, fields.get("leases.heartbeat_s", 0.0))
        fields.setdefault("leases.suspect_s", max(silence, 2 * heartbeat))


def _standalone(config: JobConfig, named: str | None) -> tuple[JobConfig, tuple[str, ...]]:
    if config.min_nodes > 1:
        raise UsageError(
            f"--standalone runs on one node, but --nnodes asks for {config.min_nodes}",
            "leave one of them out",
        )
    notes = []
    if config.max_nodes > 1:
        notes.append(f"--standalone runs on one node and waits for no other of {config.max_nodes}")
    unused = {"--rdzv-backend": named, "--rdzv-endpoint": config.rendezvous.endpoint}
    notes += [f"--standalone makes {name} {said} unused" for name, said in unused.items() if said]
    check_settings(config.rendezvous.options)
    rendezvous = replace(config.rendezvous, backend=Rendezvous().backend, endpoint="localhost:0")
    return replace(config, max_nodes=1, rendezvous=rendezvous), tuple(notes)


def _default_backend(config: JobConfig) -> str:
    embedded = Rendezvous().backend
    if config.max_nodes == 1:
        return embedded
    if config.master_address is not None or config.master_port is not None:
        return "static"
    if config.rendezvous.endpoint:
        return embedded
    if config.node_rank is not None:
        return "static"
    raise UsageError(
        f"{config.max_nodes} nodes need a place to meet",
        f"give each the same --rdzv-endpoint HOST:{DEFAULT_PORT}, where HOST is one of them",
    )


def _endpoint(backend: str, config: JobConfig) -> str:
    said = config.rendezvous.endpoint
    store = config.rendezvous.options.get("store_type")
    on_disk = backend == "file" or (backend == "c10d" and store == "file")
    if on_disk and not said:
        raise UsageError(
            "a meeting on a shared disk needs a path", "for instance --rdzv-endpoint /shared/job"
        )
    if on_disk or backend not in BACKENDS:
        return said
    if not said and (config.max_nodes == 1 or backend == "static"):
        return ""
    places = _places(said or "localhost", backend)
    if config.max_nodes > 1 and any(place.port == 0 for place in places):
        raise UsageError(
            "--rdzv-endpoint: port 0 picks a port that the other nodes cannot know",
            f"name one, such as {DEFAULT_PORT}",
        )
    return ",".join(str(place) for place in places)


def _places(said: str, backend: str) -> list[Endpoint]:
    try:
        if backend in ETCD:
            return [values.endpoint(place, ETCD_PORT) for place in said.split(",")]
        return [values.endpoint(said, DEFAULT_PORT)]
    except UsageError as error:
        raise UsageError(f"--rdzv-endpoint: {error.message}", error.hint) from None


def _static(config: JobConfig) -> tuple[JobConfig, tuple[str, ...]]:
    nodes, rank = config.max_nodes, config.node_rank or 0
    if config.min_nodes != nodes:
        raise UsageError(
            f"static nodes are of a fixed number, but --nnodes says {config.min_nodes}:{nodes}",
            f"write --nnodes {nodes}, or --rdzv-endpoint HOST:PORT alone for an elastic job",
        )
    if rank >= nodes:
        raise UsageError(
            f"--node-rank {rank} does not exist among {nodes} static nodes",
            f"ranks go from 0 to {nodes - 1}",
        )
    master = _static_master(config)
    if master is None:
        return config, ()
    settled = replace(
        config, node_rank=rank, master_address=master.address, master_port=master.port
    )
    if nodes == 1:
        return settled, ()
    meeting = replace(master, port=_coordinator_port(config, master))
    rendezvous = replace(config.rendezvous, endpoint=str(meeting))
    note = f"static: the nodes meet on {meeting}, where rank 0 listens; workers on {master}"
    return replace(settled, rendezvous=rendezvous, is_host=rank == 0), (note,)


def _static_master(config: JobConfig) -> Endpoint | None:
    """Where the workers meet; None if a single node may choose for itself."""
    if config.rendezvous.endpoint:
        return values.endpoint(config.rendezvous.endpoint, DEFAULT_PORT)
    if config.max_nodes == 1:
        return None
    port = STATIC_MASTER.port if config.master_port is None else config.master_port
    if port == 0:
        raise UsageError(
            "--master-port 0 picks a port that the other nodes cannot know",
            f"name one, such as {STATIC_MASTER.port}",
        )
    return Endpoint(config.master_address or STATIC_MASTER.address, port)


def _coordinator_port(config: JobConfig, master: Endpoint) -> int:
    """Beside the master's, so that jobs with masters of their own on one host do not clash."""
    settings = config.rendezvous.options
    if "coordinator_port" not in settings:
        below = master.port - BESIDE_THE_MASTER
        return below if below >= UNPRIVILEGED else master.port + BESIDE_THE_MASTER
    port = cast(int, read_setting(settings, "coordinator_port"))
    if port == master.port:
        raise UsageError(
            f"--rdzv-conf coordinator_port: {port} is the master's port, which is the workers'",
            "name another one",
        )
    return port
