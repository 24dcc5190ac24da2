"""How the nodes of a job really meet: at an endpoint's host, or through a register.

Puts into a node's ports what that takes: sockets, and a claim and a record, or a register that is
asked in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from holdfast.core.policy.config import JobConfig
from holdfast.node.network import RealNetwork
from holdfast.node.ports import Ports
from holdfast.node.secrets import Secrets, security_of
from holdfast.registers.register import Register, RegisterSettings
from holdfast.runtime import descriptors
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import Loop
from holdfast.transport.server import AdminService

CALL_SHARE, ENDPOINT_SHARE = 0.85, 0.27
"""How much of a term one call of the register may take, and one endpoint of it."""


class Means(Struct):
    """What a node meets others with."""

    loop: Loop
    disk: Disk
    secrets: Secrets
    register: Register | None = None
    """Used in place of the one that the configuration names."""


def add_network(
    ports: Ports, config: JobConfig, node: str, means: Means, admin: AdminService | None = None
) -> None:
    """Fill in the ports that lead to other nodes, and that let outsiders in, to `admin`."""
    # What the coordinator needs when a node or a worker is lost: the loop must not import it then.
    import holdfast.core.features.quarantine
    import holdfast.core.policy.kinds  # noqa: F401 - for the core, which imports both when needed

    security = security_of(config, means.secrets.token)
    network = RealNetwork(means.loop, config, node, security, means.disk)
    network.admin = admin
    ports.network = network
    if means.register is None and config.rendezvous.is_embedded:
        from holdfast.node.endpoint_claim import EndpointClaim
        from holdfast.node.record_file import RecordFile

        ports.claim = EndpointClaim(means.loop, config, node, security, ports.say)
        if config.max_nodes > 1:  # Else its coordinator dies with it.
            ports.record = RecordFile(config, means.disk, ports.say)
        return
    from holdfast.registers.opening import open_register
    from holdfast.registers.register_thread import RegisterThread

    descriptors.expect_nodes(config.max_nodes)  # Every node may have to lead.
    make: Callable[[], Register] = partial(open_register, settings_of(config, means.secrets))
    if means.register is not None:
        given = means.register
        make = lambda: given  # noqa: E731
    ports.register = RegisterThread(means.loop, make, config.leases.term_s)


def settings_of(config: JobConfig, secrets: Secrets) -> RegisterSettings:
    """How the job's register is reached, and how long that may take."""
    from holdfast.registers.register import Credentials

    leases, rendezvous = config.leases, config.rendezvous
    return RegisterSettings(
        backend=rendezvous.backend,
        endpoint=rendezvous.endpoint,
        run_id=config.run_id,
        options=rendezvous.options,
        credentials=Credentials(secrets.user, secrets.password),
        call_timeout_s=CALL_SHARE * leases.term_s,
        endpoint_timeout_s=ENDPOINT_SHARE * leases.term_s,
        holder_ttl_s=leases.takeover_s,
        keep_s=config.timeouts.join_s + leases.hold_s,
    )


def registered_backends() -> tuple[str, ...]:
    """The backends that this process registered by name: for the command line."""
    from holdfast.registers.opening import registered

    return registered()
