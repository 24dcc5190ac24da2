"""What a call does, once it is known what is called and with what.

A call is a step, or in the tables of `harmless`, or it ends the reading. An argument of the
program's own ends it too, unless it is only kept: it might be called.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.processes.zygote.reading import constant_folding, side_effect_free
from holdfast.processes.zygote.reading.imports import Imports
from holdfast.processes.zygote.reading.steps import Certainty, Steps
from holdfast.processes.zygote.reading.values import (
    BUILT_IN,
    Known,
    Own,
    OwnModule,
    Plain,
    Thing,
    Unforeseeable,
    Value,
    either,
    is_built_in,
    is_foreign,
)

STEPS = frozenset({
    "builtins.__import__", "importlib.import_module", "importlib.util.find_spec",
    "os.environ.get", "os.environ.pop", "os.environ.setdefault", "os.environ.update",
    "os.getenv", "sys.path.append", "sys.path.insert",
})  # fmt: skip
"""Calls that are steps, or whose result depends on the steps before."""


class GivenArguments(Struct, frozen=True):
    """The arguments of a call."""

    arguments: list[Value]
    keywords: dict[str, Value]
    is_starred: bool = False

    def known(self) -> list[object] | None:
        """The values of all arguments, if they are constants by position."""
        known = [each.value for each in self.arguments if isinstance(each, Known)]
        all_known = len(known) == len(self.arguments)
        return known if all_known and not self.keywords and not self.is_starred else None


class CallReader:
    """Raises `Unforeseeable` for what is not known to be harmless."""

    def __init__(self, steps: Steps, imports: Imports) -> None:
        self._steps = steps
        self._imports = imports

    def function(self, name: str, given: GivenArguments) -> Value:
        """A call of something that is installed, by its full name."""
        if self._steps.certainty is Certainty.UNLIKELY and name in side_effect_free.SAYS:
            return BUILT_IN
        if name in STEPS and not given.is_starred:
            return self._step(name, given)
        if name in ("builtins.hasattr", "builtins.getattr"):
            return self._named_attribute(given)
        if name in side_effect_free.LATER and name not in side_effect_free.CALL:
            if name in side_effect_free.FILTERS and given.arguments[:1] != [Known("ignore")]:
                raise Unforeseeable("a warning may be shown, or raise")
            self._steps.go_on_later(sets_logging=name.startswith("logging."))
            return Plain()
        if name not in side_effect_free.CALL or (name == "hydra.main" and _hydra_warns(given)):
            raise Unforeseeable(f"{name} is called")
        result = _made(side_effect_free.CALL[name], given)
        known = given.known()
        if known is None or (name == "os.path.expanduser" and not self._steps.home_is_ours()):
            return result
        worked_out = constant_folding.call(name, known)
        return worked_out if isinstance(worked_out, Known) else result

    def method(self, owner: Known | Plain, name: str, given: GivenArguments) -> Value:
        """A call of a method of an object that is not the program's."""
        if is_built_in(owner) and not _is_path(owner):
            if not all(map(is_built_in, [*given.arguments, *given.keywords.values()])):
                raise Unforeseeable("a container may get, or call, something of the program")
            return self._worked_out(owner, name, given)
        worked_out = self._worked_out(owner, name, given)
        if isinstance(worked_out, Known):
            return worked_out
        kind = owner.kind if isinstance(owner, Plain) else "path"
        unlikely = self._steps.certainty is Certainty.UNLIKELY
        if unlikely and kind == "logger" and name in side_effect_free.SAYS_OF_LOGGER:
            return BUILT_IN
        if kind == "logger" and name in side_effect_free.SAYS_OF_LOGGER:
            self._steps.go_on_later()
            return Plain()
        if (kind, name) not in side_effect_free.METHODS:
            raise Unforeseeable(f"a method that is not in the tables: {name}")
        return _made(side_effect_free.METHODS[kind, name], given)

    def _worked_out(self, owner: Known | Plain, name: str, given: GivenArguments) -> Value:
        known = given.known()
        if known is None or not isinstance(owner, Known):
            return BUILT_IN
        if name == "expanduser" and not self._steps.home_is_ours():
            return BUILT_IN
        return constant_folding.method(owner.value, name, known)

    def _named_attribute(self, given: GivenArguments) -> Value:
        """`hasattr(module, "name")`, `getattr(module, "name", None)`"""
        match given:
            case GivenArguments([Thing(thing), Known(str(name)), *default], {}, False):
                if self._imports.loads_late(thing, name) or not all(map(is_foreign, default)):
                    raise Unforeseeable("asking for the name may load it")
                return Plain()
        raise Unforeseeable("an attribute of an object of the program")

    def _step(self, name: str, given: GivenArguments) -> Value:
        if name == "os.environ.update":
            return self._update_environment(given)
        if given.keywords:
            raise Unforeseeable(f"{name} with keywords")
        match name, given.arguments:
            case "builtins.__import__", [Known(str(module))]:
                own = isinstance(self._imports.import_module(module), OwnModule)
                top = module.partition(".")[0]
                return OwnModule(top) if own else Thing(top)
            case "importlib.import_module", [Known(str(module))]:
                return self._imports.import_module(module)
            case "importlib.util.find_spec", [Known(str(module))] if "." not in module:
                return Plain()
            case "os.environ.setdefault", [variable, value]:
                self._steps.set_variable(variable, value, if_unset=True)
                return BUILT_IN
            case "os.environ.pop", [variable] | [variable, Known()]:
                self._steps.remove_variable(variable)
                return BUILT_IN
            case (("os.environ.get" | "os.getenv"), [variable]) if is_built_in(variable):
                return self._variable(variable, Known(None))
            case (("os.environ.get" | "os.getenv"), [variable, default]) if is_built_in(variable):
                return self._variable(variable, default)
            case "sys.path.insert", [Known(0), folder]:
                self._steps.add_folder(folder, is_first=True)
                return Known(None)
            case "sys.path.append", [folder]:
                self._steps.add_folder(folder, is_first=False)
                return Known(None)
        raise Unforeseeable(f"{name} with arguments that cannot be told")

    def _variable(self, name: Value, default: Value) -> Value:
        if not isinstance(name, Known):
            return either(BUILT_IN, default)
        found = self._steps.variable(name.value, default)
        return found if isinstance(found, Known) else either(found, default)

    def _update_environment(self, given: GivenArguments) -> Value:
        pairs: dict[object, Value] = {}
        for argument in given.arguments:
            if not isinstance(argument, Known) or not isinstance(argument.value, dict):
                raise Unforeseeable("variables that cannot be told")
            pairs.update((name, Known(value)) for name, value in argument.value.items())
        pairs.update(given.keywords)
        for name, value in pairs.items():
            self._steps.set_variable(Known(name), value)
        return Known(None)


def _made(call: side_effect_free.Harmless, given: GivenArguments) -> Value:
    """What a harmless call gives. What it uses, and does not just keep, must be harmless too."""
    values = [*given.arguments, *given.keywords.values()]
    if call.keeps is not side_effect_free.ANY:
        used = [v for name, v in given.keywords.items() if name not in call.keeps]
        if not all(map(is_foreign, [*given.arguments, *used])):
            raise Unforeseeable("something of the program's own may be called")
    if not call.is_inert and not all(map(is_foreign, values)):
        return Own()
    if call.makes == "built-in" and not all(map(is_built_in, values)):
        return Plain()
    return Plain(call.makes)


def _is_path(value: Value) -> bool:
    return isinstance(value, Known) and constant_folding.is_path(value.value)


def _hydra_warns(given: GivenArguments) -> bool:
    """It warns on its way to old behaviour: when not told of a version, or told of an old one."""
    version = given.keywords.get("version_base")
    return not isinstance(version, Known) or version.value in ("1.0", "1.1")
