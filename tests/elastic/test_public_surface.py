"""Every public name of `holdfast.elastic`, with its signature; and every one of PyTorch's.

`public_surface.txt` is what is promised. Where this fails after a change that is meant, write it
anew and let the difference be reviewed: `python tests/elastic/test_public_surface.py --write`.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import surface  # type: ignore[import-not-found]
else:
    from .. import torch_versions
    from . import surface
    from .surface_differences import DIFFERENT, LEFT_OUT, WITHOUT_COUNTERPART

HERE = Path(__file__).parent
PROMISED = HERE / "public_surface.txt"
PACKAGES = ("torch.distributed.elastic", "torch.distributed.launcher")
PUBLIC = (
    "agent",
    "agent.server",
    "agent.server.api",
    "agent.server.health_check_server",
    "agent.server.local_elastic_agent",
    "control_plane",
    "events",
    "events.api",
    "events.handlers",
    "launcher",
    "launcher.api",
    "metrics",
    "metrics.api",
    "multiprocessing",
    "multiprocessing.api",
    "multiprocessing.errors",
    "multiprocessing.errors.error_handler",
    "multiprocessing.errors.handlers",
    "multiprocessing.redirects",
    "multiprocessing.tail_log",
    "rendezvous",
    "rendezvous.api",
    "rendezvous.c10d_rendezvous_backend",
    "rendezvous.dynamic_rendezvous",
    "rendezvous.etcd_rendezvous",
    "rendezvous.etcd_rendezvous_backend",
    "rendezvous.etcd_server",
    "rendezvous.etcd_store",
    "rendezvous.holdfast_rendezvous",
    "rendezvous.registry",
    "rendezvous.static_tcp_rendezvous",
    "rendezvous.store",
    "rendezvous.torchrun",
    "rendezvous.utils",
    "timer",
    "timer.api",
    "timer.debug_info_logging",
    "timer.file_based_local_timer",
    "timer.local_timer",
    "utils",
    "utils.api",
    "utils.data",
    "utils.data.cycling_iterator",
    "utils.data.elastic_distributed_sampler",
    "utils.distributed",
    "utils.log_level",
    "utils.logging",
    "utils.process_state",
    "utils.store",
)
"""What others may hold on to. Other modules are how it is done; what is public of them has its
address in one of these."""
MADE_OF_TORCH = {"utils.data.elastic_distributed_sampler"}


def modules() -> list[str]:
    return [name for name in surface.modules_of(surface.OURS) if surface.short(name)]


# --- what is promised ---------------------------------------------------------------------


def written() -> str:
    return "\n".join(surface.described([f"{surface.OURS}.{name}" for name in PUBLIC])) + "\n"


@pytest.mark.torch
def test_the_public_surface_is_what_is_promised() -> None:
    assert written() == PROMISED.read_text(encoding="utf-8")


def test_a_seam_that_is_listed_is_promised() -> None:
    words = set(PROMISED.read_text(encoding="utf-8").replace("(", " ").replace(":", " ").split())
    for names in surface.SEAMS.values():
        for name in names:
            assert {name, f"self.{name}"} & words, f"nothing of the name {name} was found"


# --- typed, and without PyTorch -----------------------------------------------------------


def test_the_package_says_that_it_is_typed() -> None:
    assert files("holdfast").joinpath("py.typed").is_file()


IMPORTS_EVERYTHING = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "torch"))
"""


def test_no_module_loads_pytorch() -> None:
    names = [name for name in modules() if surface.short(name) not in MADE_OF_TORCH]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTS_EVERYTHING, *names],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=True,
    )
    assert ended.stdout.split() == []


# --- beside PyTorch's ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs() -> Iterator[dict[str, Any]]:
    """The modules of PyTorch's elastic API, by their names below it."""
    names = [name for package in PACKAGES for name in surface.modules_of(package)]
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("urllib3") is None:
            # One of them needs it for the class of an error, though PyTorch does not bring it.
            for name in ("urllib3", "urllib3.exceptions"):
                patch.setitem(sys.modules, name, types.ModuleType(name))
        found = {surface.short(name): importlib.import_module(name) for name in names}
        yield {name: module for name, module in found.items() if name}
        patch.delitem(sys.modules, "torch.distributed.elastic.rendezvous.etcd_rendezvous_backend")


def counterpart(name: str) -> Any:
    return importlib.import_module(f"{surface.OURS}.{name}")


@pytest.mark.torch
def test_every_module_has_a_counterpart_or_is_left_out_on_purpose(theirs: dict[str, Any]) -> None:
    ours = {surface.short(name) for name in modules()}
    assert theirs.keys() - ours == WITHOUT_COUNTERPART.keys()


@pytest.mark.torch
def test_every_public_name_is_there_or_is_left_out_on_purpose(theirs: dict[str, Any]) -> None:
    missing = {
        f"{name}:{path}"
        for name, module in theirs.items()
        if name not in WITHOUT_COUNTERPART
        for path, one, other in beside_each_other(name, module, counterpart(name))
        if other is MISSING
    }
    assert missing == LEFT_OUT.keys() - torch_versions.to_come(torch_versions.NAMES)


@pytest.mark.torch
def test_every_signature_is_the_same_or_differs_on_purpose(theirs: dict[str, Any]) -> None:
    different = {
        f"{name}:{path}"
        for name, module in theirs.items()
        if name not in WITHOUT_COUNTERPART
        for path, one, other in beside_each_other(name, module, counterpart(name))
        if other is not MISSING and not fits(one, other)
    }
    assert different == DIFFERENT.keys()


MISSING = object()


def beside_each_other(name: str, module: Any, own: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each public thing of a module, and ours of the same name."""
    promised = surface.public_names(own)
    for public in surface.public_names(module):
        one = getattr(module, public)
        other = getattr(own, public) if public in promised else MISSING
        yield public, one, other
        if inspect.isclass(one) and other is not MISSING:
            yield from members(public, one, other, f"{name}:{public}")


def members(public: str, one: type, other: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    for member in surface.members_of(one, where):
        if not is_field(one, member):
            static = inspect.getattr_static(one, member)
            yield f"{public}.{member}", static, inspect.getattr_static(other, member, MISSING)
    own = {*surface.attributes_of(other, where, of_others=True), *dir(other)}
    for attribute in surface.attributes_of(one, where):
        yield f"{public}.{attribute}", None, None if attribute in own else MISSING


def is_field(kind: type, name: str) -> bool:
    return name in getattr(kind, "__dataclass_fields__", ())


def fits(one: Any, other: Any) -> bool:
    """Whether what can be done with `one` can be done with `other`."""
    if inspect.isclass(one):
        return inspect.isclass(other) and class_fits(one, other)
    one, other = (getattr(each, "__func__", each) for each in (one, other))
    if inspect.isroutine(one):
        return inspect.isroutine(other) and signature_fits(one, other)
    if isinstance(one, str | int | float | None):
        return bool(one == other)
    return True


def class_fits(one: type, other: Any) -> bool:
    if issubclass(one, enum.Enum):
        values = [{m.name: m.value for m in each} for each in (one, other)]
        return values[0] == values[1]
    none: frozenset[str] = frozenset()
    abstract = [getattr(each, "__abstractmethods__", none) for each in (one, other)]
    if {name for name in abstract[1] if not name.startswith("_")} - abstract[0]:
        return False  # a subclass would have to have more
    is_error = issubclass(one, BaseException) and one.__init__ is BaseException.__init__
    return is_error or signature_fits(one, other)


def signature_fits(one: Any, other: Any) -> bool:
    """The same parameters in the same order; ours may have further ones that need not be given,
    and a default where there was none."""
    try:
        theirs, own = parameters(one), parameters(other)
    except ValueError:
        return True  # of one that is written in C nothing can be said
    further = own[len(theirs) :]
    return (
        all(is_optional(parameter) for parameter in further)
        and all(parameter_fits(*pair) for pair in zip(theirs, own, strict=False))
        and len(own) >= len(theirs)
    )


def parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def is_optional(parameter: inspect.Parameter) -> bool:
    variable = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is not parameter.empty or parameter.kind in variable


def parameter_fits(one: inspect.Parameter, other: inspect.Parameter) -> bool:
    if (one.name, one.kind) != (other.name, other.kind):
        return False
    return one.default is one.empty or default_of(one) == default_of(other)


def default_of(parameter: inspect.Parameter) -> Any:
    """Of a dataclass's field the signature shows that there is a default, and not which."""
    default = parameter.default
    if repr(default) == "<factory>" or default in ("", [], {}):
        return "something empty"
    return default.value if isinstance(default, enum.Enum) else default


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    PROMISED.write_text(written(), encoding="utf-8")
