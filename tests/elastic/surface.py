"""What a package offers, as text and as things to compare.

Rules
- A name of a module is public if it is in `__all__`. Of PyTorch's modules, which often have none
  or a short one, it is public too if it has no underscore and is bound there by a definition or
  an assignment: what was only imported is not. Loggers and type variables are for nobody else.
- Besides, there are the seams: further names that code of others holds on to. They are listed
  here, and are treated as public from there on.
- A class is described by how it is made, its bases, what it has that is public (inherited from
  the same package too), and the attributes that its `__init__` sets.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import logging
import pkgutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ForwardRef, ParamSpec, TypeVar

OURS = "holdfast.elastic"

METHODS_OF_AN_AGENT = (
    "_rendezvous",
    "_assign_worker_ranks",
    "_initialize_workers",
    "_start_workers",
    "_monitor_workers",
    "_stop_workers",
    "_restart_workers",
    "_shutdown",
    "_exit_barrier",
    "_invoke_run",
    "_record_metrics",
    "_record_worker_events",
    "_record_flakiness_metric",
    "_get_worker_state",
    "_construct_event",
)
ATTRIBUTES_OF_AN_AGENT = (
    "_worker_group",
    "_store",
    "_remaining_restarts",
    "_total_execution_time",
    "_exit_barrier_timeout",
    "_shutdown_timeout",
)
SEAMS: dict[str, tuple[str, ...]] = {
    "agent.server.api": (
        "DEFAULT_ROLE",
        "_TERMINAL_STATE_SYNC_ID",
        "_RoleInstanceInfo",
        "_get_fq_hostname",
        "prof",
        "put_metric",
        "record",
        "store_util",
    ),
    "agent.server.api:SimpleElasticAgent": (*METHODS_OF_AN_AGENT, *ATTRIBUTES_OF_AN_AGENT),
    "agent.server.local_elastic_agent": ("start_processes", "timer", "macros", "events"),
    "agent.server.local_elastic_agent:LocalElasticAgent": (
        *METHODS_OF_AN_AGENT,
        "_setup_local_watchdog",
        "_setup_healthcheck",
        "_log_watchdog_event",
        "_get_alive_time",
        "_pcontext",
        "_start_method",
        "_rdzv_handler",
        "_logs_specs",
        "_log_line_prefix_template",
        "_worker_watchdog",
        "_health_check_server",
    ),
    "events": ("_get_or_create_logger",),
    "launcher.api": (
        "LocalElasticAgent",
        "_get_addr_and_port",
        "_get_entrypoint_name",
        "events",
        "metrics",
        "rdzv_registry",
    ),
    "metrics.api": ("_metrics_map", "_default_metrics_handler"),
    "multiprocessing.api:DefaultLogsSpecs": ("_run_log_dir",),
    "multiprocessing.errors": ("GlobalRank",),
    "rendezvous.api:RendezvousHandlerRegistry": ("_registry",),
    "rendezvous.c10d_rendezvous_backend": ("DEFAULT_PORT",),
    "rendezvous.registry": ("handler_registry",),
    "rendezvous.utils": ("_parse_rendezvous_config", "_matches_machine_hostname"),
}
"""By module, or module and class, below the package: what others import, override or replace."""


def modules_of(package: str) -> Iterator[str]:
    """The package and all modules below it, by name; nothing but packages is imported."""
    root = importlib.import_module(package)
    yield package
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        yield found.name


def short(module: str) -> str:
    """The name of a module below its package; the launcher of PyTorch lies beside it."""
    for package in (OURS, "torch.distributed.elastic", "torch.distributed"):
        if module == package:
            return ""
        if module.startswith(f"{package}."):
            return module.removeprefix(f"{package}.")
    raise ValueError(module)


def public_names(module: Any) -> list[str]:
    """The public names of a module, and its seams."""
    said = getattr(module, "__all__", None)
    own = set(_defined_in(module) if said is None else said)
    if not module.__name__.startswith(OURS):
        own.update(_defined_in(module))
    return sorted(own | {*SEAMS.get(short(module.__name__), ())})


def _defined_in(module: Any) -> Iterator[str]:
    source = Path(module.__file__).read_text(encoding="utf-8")
    for statement in ast.parse(source).body:
        for name in _bound_by(statement):
            if not name.startswith("_") and not _is_no_api(module, name):
                yield name


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def _is_no_api(module: Any, name: str) -> bool:
    return isinstance(getattr(module, name, None), logging.Logger | TypeVar | ParamSpec)


def members_of(kind: type, where: str) -> list[str]:
    """The public names of a class that its package defines, and its seams."""
    package = kind.__module__.partition(".")[0]
    own = [one for one in kind.__mro__ if one.__module__.partition(".")[0] == package]
    names = {name for one in own for name in vars(one) if not name.startswith("_")}
    seams = {name for name in SEAMS.get(where, ()) if hasattr(kind, name)}
    return sorted(names | seams)


def attributes_of(kind: type, where: str, of_others: bool = False) -> list[str]:
    """What `__init__` sets on an object, here or in a class below of the same package."""
    package = kind.__module__.partition(".")[0]
    wanted = SEAMS.get(where, ())
    found: set[str] = set()
    for one in kind.__mro__:
        made = vars(one).get("__init__")
        is_own = one.__module__.partition(".")[0] == package
        if (is_own or of_others) and inspect.isfunction(made):
            found.update(_set_on_self(made))
    return sorted(name for name in found if not name.startswith("_") or name in wanted)


def _set_on_self(function: Any) -> Iterator[str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except OSError:  # it was generated, by a dataclass
        return
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


# --- as text ------------------------------------------------------------------------------


def described(names: Sequence[str]) -> Iterator[str]:
    """One line for each public thing of these modules; a class is described in one of them."""
    modules = [importlib.import_module(name) for name in names]
    homes = _homes(modules)
    for module in modules:
        yield module.__name__
        for name in public_names(module):
            value = getattr(module, name)
            if inspect.isclass(value) and value.__module__.startswith("holdfast."):
                yield from (f"    {line}" for line in _of_class(name, value, module, homes[value]))
            else:
                yield f"    {_line(name, value)}"


def _homes(modules: Sequence[Any]) -> dict[type, str]:
    """Where a class is described: where it is defined if that is public, else farthest down."""
    homes: dict[type, str] = {}
    for module in modules:
        for value in (getattr(module, name) for name in public_names(module)):
            if inspect.isclass(value) and homes.get(value) != value.__module__:
                deeper = module.__name__.count(".") >= homes.get(value, "").count(".")
                if deeper or value.__module__ == module.__name__:
                    homes[value] = module.__name__
    return homes


def _of_class(name: str, kind: type, module: Any, home: str) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in kind.__bases__ if base is not object)
    yield f"class {name}({bases})" if bases else f"class {name}"
    if module.__name__ != home:
        yield f"    as in {home}"
        return
    where = f"{short(home)}:{kind.__name__}"
    if issubclass(kind, enum.Enum):
        yield from (f"    {name} = {one.value!r}" for name, one in kind.__members__.items())
    elif not issubclass(kind, BaseException) or "__init__" in vars(kind):
        yield f"    made with {_signature(kind)}"
    later = (one.name for one in getattr(kind, "__dataclass_fields__", {}).values() if not one.init)
    yield from (f"    self.{name}" for name in (*later, *attributes_of(kind, where)))
    for member in members_of(kind, where):
        static = inspect.getattr_static(kind, member)
        if not _is_told_already(kind, member, static):
            yield f"    {_line(member, static)}"


def _is_told_already(kind: type, name: str, static: Any) -> bool:
    """Fields and members of enumerations have been named with how an object is made."""
    is_field = name in getattr(kind, "__dataclass_fields__", ())
    return (
        is_field
        or isinstance(static, kind)
        or (inspect.isdatadescriptor(static) and not (isinstance(static, property)))
    )


def _line(name: str, value: Any) -> str:
    match value:
        case property(fget=getter):
            assert getter is not None
            return f"{name}: {_annotation(inspect.signature(getter).return_annotation)}"
        case staticmethod():
            return f"@staticmethod {name}{_signature(value.__func__)}"
        case classmethod():
            return f"@classmethod {name}{_signature(value.__func__)}"
        case str() | int() | float() | None:
            return f"{name} = {value!r}"
    if inspect.isroutine(value):
        return f"{name}{_signature(value)}"
    if type(value).__module__ in ("types", "typing", "collections.abc"):
        return f"{name}: a type"  # what kind of object that is depends on the interpreter
    return f"{name}: {type(value).__name__}"


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    told = [_parameter(one) for one in signature.parameters.values()]
    kinds = [one.kind for one in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        told.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    made = f"({', '.join(told)})"
    if inspect.isclass(function):
        return made
    return f"{made} -> {_annotation(signature.return_annotation)}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    text = f"{stars.get(parameter.kind, '')}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f" = {_default(parameter.default)}"
    return text


def _annotation(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return "?"
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(default: Any) -> str:
    """Without what differs from one run to the next, such as the place of an object."""
    if isinstance(default, enum.Enum):
        return str(default.name)
    text = repr(default)
    return f"<{type(default).__name__}>" if " at 0x" in text else text
