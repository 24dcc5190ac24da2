"""From the name of a backend to a register: ours, one registered by name, or an entry point.

An entry point of the group `holdfast.registers`, or what `register_backend` is given, is anything
that takes `RegisterSettings` and returns a `Register`, usually its class. It is called once per
agent, and again when a call has hung; it should not connect before its first call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

from msgspec.structs import replace

from holdfast.core.policy.rendezvous_settings import is_on_disk
from holdfast.core.protocol.errors import UsageError
from holdfast.registers.register import Register, RegisterSettings

GROUP = "holdfast.registers"

Factory = Callable[[RegisterSettings], Register]

_registered: dict[str, Factory] = {}


def register_backend(name: str, factory: Factory) -> None:
    """Make `--rdzv-backend NAME` mean this factory, in this process."""
    if not name:
        raise UsageError("a backend needs a name", "register_backend('redis', RedisRegister)")
    if name in _registered and _registered[name] is not factory:
        raise UsageError(f"there is a backend {name!r} already", "choose another name")
    _registered[name] = factory


def registered() -> tuple[str, ...]:
    """The names that `register_backend` was given in this process."""
    return tuple(_registered)


def open_register(settings: RegisterSettings) -> Register:
    """A register for these settings. Raises `UsageError` for a backend that there is not."""
    return _factory(settings)(settings)


def _factory(settings: RegisterSettings) -> Factory:
    if settings.backend in _registered:
        return _registered[settings.backend]
    match settings.backend:
        case "etcd":
            from holdfast.registers.etcd import EtcdRegister

            return EtcdRegister
        case "etcd-v2":
            from holdfast.registers.etcd_v2 import EtcdV2Register

            return EtcdV2Register
        case "file":
            from holdfast.registers.shared_file import SharedFileRegister

            return SharedFileRegister
        case "c10d" if is_on_disk("c10d", settings.options):
            return _beside_the_file
        case "c10d":
            from holdfast.registers.torch_store import TorchStoreRegister

            return TorchStoreRegister
    return _installed(settings.backend)


def _beside_the_file(settings: RegisterSettings) -> Register:
    """What `store_type=file` means: the document in the folder of the file that was named."""
    from holdfast.registers.shared_file import SharedFileRegister

    folder, name = os.path.split(os.path.abspath(settings.endpoint))
    return SharedFileRegister(
        replace(settings, endpoint=folder, run_id=f"{name}/{settings.run_id}")
    )


@cache  # It is asked for anew with each watch, on the loop, and the search takes long.
def _installed(name: str) -> Factory:
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP, name=name):
        factory: Factory = entry.load()
        return factory
    raise UsageError(
        f"there is no backend {name!r}",
        f"a package offers one by an entry point of that name in the group {GROUP}",
    )
