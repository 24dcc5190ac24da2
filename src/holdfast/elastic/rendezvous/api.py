"""The interfaces and errors of a rendezvous, for its authors and its users.

RendezvousError                  the nodes did not meet
├── RendezvousClosedError        the job is over, and nobody meets any more
├── RendezvousTimeoutError       not in time
├── RendezvousConnectionError    what carries the rendezvous cannot be reached
├── RendezvousStateError         what it holds makes no sense
└── RendezvousGracefulExitError  this node is not needed, and may go: no failure
"""

from __future__ import annotations

import socket
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "rendezvous_handler_registry",
]

HANDLER_GROUP = "torchrun.handlers"
"""Entry points of packages: functions that return a maker of handlers."""
_YES = frozenset({"1", "true", "t", "yes", "y"})
_NO = frozenset({"0", "false", "f", "no", "n"})


class RendezvousError(Exception):
    """The nodes did not meet."""


class RendezvousClosedError(RendezvousError):
    """The rendezvous is closed: the job is over."""


class RendezvousTimeoutError(RendezvousError):
    """The nodes did not meet in time."""


class RendezvousConnectionError(RendezvousError):
    """The backend of the rendezvous cannot be reached."""


class RendezvousStateError(RendezvousError):
    """The state of the rendezvous is damaged."""


class RendezvousGracefulExitError(RendezvousError):
    """This node has no place in the rendezvous and may go; nothing failed."""


@dataclass
class RendezvousStoreInfo:
    """The address of the workers' own store."""

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"
    master_addr: str
    master_port: int

    @staticmethod
    def build(
        rank: int, store: Any, local_addr: str | None = None, server_port: int | None = None
    ) -> RendezvousStoreInfo:
        """Agree on a place through `store`: rank 0 says where, the others wait until it has.

        Rank 0 names `local_addr`, or else its own host, and `server_port`, or else a free port.
        A port that was found here is held for the workers as long as the result is.
        """
        held = None
        if rank == 0:
            if not server_port:
                held = _held_port()
                server_port = held.number
            store.set(RendezvousStoreInfo.MASTER_ADDR_KEY, (local_addr or _own_name()).encode())
            store.set(RendezvousStoreInfo.MASTER_PORT_KEY, str(server_port).encode())
        address = store.get(RendezvousStoreInfo.MASTER_ADDR_KEY).decode()
        port = int(store.get(RendezvousStoreInfo.MASTER_PORT_KEY).decode())
        info = RendezvousStoreInfo(address, port)
        if held is not None:
            weakref.finalize(info, held.release)
        return info


def _held_port() -> Any:
    from holdfast.processes.host.reserved_ports import ReservedPort

    return ReservedPort()


def _own_name() -> str:
    """The full name of this machine; its address, where the name means nothing even here."""
    name = socket.getfqdn()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        from holdfast.transport.addresses import usable_addresses

        return next(iter(usable_addresses()), name)
    return name


@dataclass(eq=False, slots=True)
class RendezvousInfo:
    """The result of a rendezvous: this node's rank among how many, and a store they share."""

    store: Any
    """The store of the agents: ours, PyTorch's, or the handler's own."""
    rank: int
    world_size: int
    """The number of nodes that have met."""
    bootstrap_store_info: RendezvousStoreInfo | None
    """The address of the workers' own store."""
    round: int | None = field(default=None, init=False)
    """The number of the round, from a handler that has one; workers get it."""


class RendezvousHandler(ABC):
    """Lets the nodes of a job meet, again and again."""

    @abstractmethod
    def get_backend(self) -> str:
        """The name under which this kind of handler is registered."""

    @property
    def use_agent_store(self) -> bool:
        """Whether workers may use the very store of the agents, at the place that is told."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until the nodes have met and this one is among them.

        Raises one of the errors of this module when that does not come about.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Whether somebody has closed it. That spreads in time; do not synchronise by it."""

    @abstractmethod
    def set_closed(self) -> None:
        """Close it: the job is over, and no nodes meet any more."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """The number of nodes that came too late for the present group and wait for the next."""

    @abstractmethod
    def get_run_id(self) -> str:
        """The id that tells this job from others."""

    @abstractmethod
    def shutdown(self) -> bool:
        """Let go of all that is held for the rendezvous; whether that went well."""


class RendezvousParameters:
    """The parameters of a handler. Settings of its own are further keywords."""

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not backend:
            raise ValueError("the backend of a rendezvous needs a name")
        if min_nodes < 1:
            raise ValueError(f"a rendezvous needs one node at least, and min_nodes is {min_nodes}")
        if max_nodes < min_nodes:
            raise ValueError(f"max_nodes ({max_nodes}) is below min_nodes ({min_nodes})")
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.config = kwargs
        self.local_addr = local_addr

    def get(self, key: str, default: Any = None) -> Any:
        """The setting as it was given."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """The setting as a truth value; ValueError if it is none."""
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        word = str(value).lower() if isinstance(value, int | str) else ""
        if word in _YES:
            return True
        if word in _NO:
            return False
        raise ValueError(f"the setting {key} is neither true nor false: {value!r}")

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """The setting as a whole number; ValueError if it is none."""
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"the setting {key} is not a whole number: {value!r}") from None


RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]


class RendezvousHandlerRegistry:
    """Makers of handlers, by the name of the backend.

    For a name that nobody registered, installed packages are asked: see `HANDLER_GROUP`. A package
    is loaded when its handler is asked for, and not before. One that cannot be loaded is no concern
    of those who ask for another.
    """

    def __init__(self) -> None:
        self._registry: dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Register a maker; ValueError for an empty name, or one that another maker has."""
        if not backend:
            raise ValueError("the backend of a rendezvous needs a name")
        present = self._registry.get(backend)
        if present is not None and present != creator:
            raise ValueError(f"the backend {backend!r} is registered already, with {present}")
        self._registry[backend] = creator

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Make a handler.

        ValueError if nobody registered the backend, or its package cannot be loaded; RuntimeError
        if its handler says that it is of another backend.
        """
        handler = self._creator(params.backend)(params)
        named = handler.get_backend()
        if named != params.backend:
            raise RuntimeError(f"asked for the backend {params.backend!r} and got {named!r}")
        return handler

    def _creator(self, backend: str) -> RendezvousHandlerCreator:
        creator = self._registry.get(backend) or _installed_creator(backend)
        if creator is None:
            known = ", ".join(sorted(self._registry)) or "none"
            raise ValueError(f"no backend is registered as {backend!r}; registered: {known}")
        return self._registry.setdefault(backend, creator)


def _installed_creator(backend: str) -> RendezvousHandlerCreator | None:
    """The maker of handlers that an installed package offers under this name, if any."""
    from importlib.metadata import entry_points

    for offer in entry_points(group=HANDLER_GROUP, name=backend):
        try:
            creator: RendezvousHandlerCreator = offer.load()()
        except Exception as error:
            raise ValueError(
                f"the backend {backend!r} of {offer.value} cannot be loaded: {error}"
            ) from error
        return creator
    return None


rendezvous_handler_registry = RendezvousHandlerRegistry()
"""The one for the process."""
