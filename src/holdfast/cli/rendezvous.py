"""The rendezvous of a job's nodes, derived from its options.

Rules
- `--standalone` is one node on a free port; contradicting options are ignored with a note.
- A backend that is named is used. Otherwise: one node is embedded; a master means static;
  an endpoint means embedded; a rank alone means static; several nodes with none of these
  have no endpoint, and that is an error.
- An endpoint is a host and port, for etcd a list of them, for files a path. A
  registered backend interprets its endpoint and settings by itself.
- Static nodes have the ranks and the master that they are given. Rank 0 carries the
  coordinator at the master's address, on a port beside the master's: that one is the workers'.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.cli import sentences, values
from holdfast.core.policy import rendezvous_settings, texts
from holdfast.core.policy.config import (
    BACKENDS,
    DEFAULT_PORT,
    STATIC_BACKEND,
    STATIC_MASTER,
    JobConfig,
    Rendezvous,
    port_beside,
)
from holdfast.core.policy.rendezvous_settings import COMMAND_LINE
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Endpoint

REGISTERS, HANDLERS = "holdfast.registers", "torchrun.handlers"


def complete(config: JobConfig, named: str | None) -> tuple[JobConfig, tuple[str, ...]]:
    """Return the configuration with the rendezvous decided, and notes for the user.

    `named` is the backend that the user asked for, if any: whether one was named cannot be
    read off the configuration, where there always is one. Raises `UsageError` where the
    nodes could not meet.
    """
    if config.rendezvous.standalone:
        return _standalone(config, named)
    backend = named or _default_backend(config)
    if backend in BACKENDS:
        rendezvous_settings.check(config.rendezvous.options, COMMAND_LINE)
    endpoint = _endpoint(backend, config)
    rendezvous = replace(config.rendezvous, backend=backend, endpoint=endpoint)
    settled = replace(config, rendezvous=rendezvous)
    return _static(settled) if backend == STATIC_BACKEND else (settled, ())


def backend(name: str) -> str:
    """A parser: one of ours, or one that this process or an installed package registered."""
    if name in BACKENDS:
        return name
    from holdfast.engine.network import registered_backends

    known = (*BACKENDS, *registered_backends())
    try:
        return known_or_registered(texts.text(name), "backend", known, [REGISTERS])
    except UsageError:
        _refuse_a_handler(name)
        raise


def _refuse_a_handler(name: str) -> None:
    """Explain it if a name is one that only PyTorch's way of running agents can use."""
    from importlib.metadata import entry_points

    if entry_points(group=HANDLERS, name=name):
        raise UsageError(
            f"{name} is a rendezvous handler for torchrun and holdfast.elastic",
            f"a backend of `holdfast run` is a register, an entry point of group {REGISTERS}",
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
    hint = f"known: {texts.listed(names)}" if names else "no installed package registers any"
    near = values.closest(name, names)
    raise UsageError(f"there is no {what} {name!r}", f"{near} {hint}" if near else hint)


def _standalone(config: JobConfig, named: str | None) -> tuple[JobConfig, tuple[str, ...]]:
    if config.min_nodes > 1:
        raise UsageError(
            f"--standalone runs on one node, but --nnodes asks for {config.min_nodes}",
            "leave one of them out",
        )
    notes = []
    if config.max_nodes > 1:
        notes.append(sentences.standalone_is_one_node(config.max_nodes))
    unused = {"--rdzv-backend": named, "--rdzv-endpoint": config.rendezvous.endpoint}
    notes += [sentences.standalone_ignores(name, text) for name, text in unused.items() if text]
    rendezvous_settings.check(config.rendezvous.options, COMMAND_LINE)
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
        f"{config.max_nodes} nodes need an endpoint",
        f"give all the same --rdzv-endpoint HOST:{DEFAULT_PORT}, where HOST is one of them",
    )


def _endpoint(backend: str, config: JobConfig) -> str:
    said = config.rendezvous.endpoint
    on_disk = rendezvous_settings.is_on_disk(backend, config.rendezvous.options)
    if on_disk and not said:
        raise UsageError(
            "a rendezvous on a shared disk needs a path", "for instance --rdzv-endpoint /shared/job"
        )
    if on_disk or backend not in BACKENDS:
        return said
    if not said and (config.max_nodes == 1 or backend == "static"):
        return ""
    try:
        places = rendezvous_settings.endpoints(backend, said or "localhost")
    except UsageError as error:
        raise UsageError(f"--rdzv-endpoint: {error.message}", error.hint) from None
    if config.max_nodes > 1 and any(place.port == 0 for place in places):
        raise UsageError(
            "--rdzv-endpoint: port 0 picks a port that the other nodes cannot know",
            f"choose one, such as {DEFAULT_PORT}",
        )
    return ",".join(str(place) for place in places)


def _static(config: JobConfig) -> tuple[JobConfig, tuple[str, ...]]:
    nodes, rank = config.max_nodes, config.node_rank or 0
    if config.min_nodes != nodes:
        raise UsageError(
            f"a static job has a fixed number of nodes, not {config.min_nodes}:{nodes}",
            f"write --nnodes {nodes}, or --rdzv-endpoint HOST:PORT alone for an elastic job",
        )
    if rank >= nodes:
        raise UsageError(
            f"--node-rank {rank} is too high for {nodes} nodes",
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
    note = sentences.static_endpoints(agents=str(meeting), workers=str(master))
    return replace(settled, rendezvous=rendezvous, is_host=rank == 0), (note,)


def _static_master(config: JobConfig) -> Endpoint | None:
    """The workers' master; None if a single node may choose for itself."""
    if config.rendezvous.endpoint:
        return Endpoint.parse(config.rendezvous.endpoint, DEFAULT_PORT)
    if config.max_nodes == 1:
        return None
    port = STATIC_MASTER.port if config.master_port is None else config.master_port
    if port == 0:
        raise UsageError(
            "--master-port 0 picks a port that the other nodes cannot know",
            f"choose one, such as {STATIC_MASTER.port}",
        )
    return Endpoint(config.master_address or STATIC_MASTER.address, port)


def _coordinator_port(config: JobConfig, master: Endpoint) -> int:
    said = rendezvous_settings.read(config.rendezvous.options, "coordinator_port", COMMAND_LINE)
    port: int = said or port_beside(master.port)
    if port == master.port:
        raise UsageError(
            f"{COMMAND_LINE} coordinator_port: {port} is the master's port, which the workers use",
            "choose another one",
        )
    return port
