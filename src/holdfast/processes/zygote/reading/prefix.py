"""The beginning of a program: what it imports, and what it sets before that.

A program is read, never run, statement by statement, up to the first one whose effect is not known
by its form: there the reading ends. What workers import behind that is learned from them, for every
restart and every later launch (`import_reports.py`); the beginning is for the first start only.

Rules
1. An import of an installed module is a step, and so are a constant that is put into `os.environ`
   and a folder that is put at either end of `sys.path`.
2. A module of the program's own is read where it is imported first, and is never a step.
3. Definitions and expressions are passed over if they call nothing but what is known to change
   nothing (`side_effect_free.py`), and give that nothing of the program's own. The body of a
   function is not run. That annotations, operators, attributes, the making of a class and
   decorators of installed packages have no effect on imports is assumed.
4. A condition that is not known must make no difference: a step that depends on it, or on what may
   raise where that is caught, ends the reading.
5. `try: import a` is followed into its handler if `a` is not there. If it is, imports of the
   handler do not count, and it may set nothing.
6. Behind what an import may notice (a print, a filter, a seed) imports are no steps, but `late`:
   they are done ahead only where that makes no difference. What is set there ends the reading.
"""

from __future__ import annotations

import ast
import builtins
import enum
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from msgspec import Struct

from holdfast.processes.environment import PER_WORKER
from holdfast.processes.zygote.reading import constant_folding as folding
from holdfast.processes.zygote.reading import side_effect_free
from holdfast.processes.zygote.reading.places import (
    SOURCE_LIMIT,
    EndOfReading,
    ModulePath,
    Owner,
    prefixes,
)
from holdfast.processes.zygote.reading.variables import OwnFile

OWN_TREE_LIMIT = 128 * 1024
"""Bytes of the program's own modules that are read: the job waits for it."""
OWN_FILES_LIMIT = 256
NEVER_STEPS = ("__future__", "holdfast", *sys.builtin_module_names)
"""What needs no loading, or is ours and there anyhow."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
IMPORT_ERRORS = frozenset({"builtins.ImportError", "builtins.ModuleNotFoundError"})
ALL_ERRORS = frozenset({"builtins.Exception", "builtins.BaseException"})
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
CONDITIONAL = (*COMPREHENSIONS, ast.BoolOp, ast.IfExp)
NOT_READ = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)


class Absent(Exception):
    """An import that fails, with the exception that it raises in a worker."""

    def __init__(self, module: str, raises: str = "ModuleNotFoundError") -> None:
        super().__init__(module)
        self.raises = raises


class Certainty(enum.Enum):
    """How sure it is that what is being read now is run."""

    CERTAIN = "it is"
    UNCERTAIN = "it cannot be told"
    UNLIKELY = "only if an import fails that should not"


class Known(Struct):
    """A constant."""

    value: object


class Thing(Struct):
    """An installed module, or what is reached through one, by its full name: `os.environ`."""

    name: str


class Other(Struct):
    """What is not known. Of the program's own are functions and classes, and what holds them."""

    is_own: bool


Value = Known | Thing | Other
PLAIN, OWN = Other(False), Other(True)
ENVIRONMENT, MODULE_PATH = Thing("os.environ"), Thing("sys.path")


class Reader:
    """Reads the beginning of one program; what it finds is in `found`, `late` and `files`."""

    def __init__(self, program_folder: str | None) -> None:
        self.found: list[str] = []
        """Steps: `import a.b`, `from a import B, C`, `environ NAME=value`, `environ NAME?=value`
        (unless it is there), `environ -NAME`, `path 0 /folder` (first), `path -1 /folder`."""
        self.late: list[str] = []
        """Modules, or `from a import b`."""
        self.sets_logging = False
        """Whether records of later imports may be shown that would not be otherwise."""
        self.files: list[OwnFile] = []
        """The program's own, as far as they were read."""
        self.places = ModulePath(program_folder)
        self._names: dict[str, Value] = {}
        self._own: dict[str, dict[str, Value]] = {}
        """The names of the program's own modules."""
        self._package = ""
        self._certainty = Certainty.CERTAIN
        self._is_later = False
        self._bytes_left, self._files_left = OWN_TREE_LIMIT, OWN_FILES_LIMIT
        self._loaded: set[str] = set()

    def has(self, module: str) -> bool:
        """Whether a module is loaded by what was found so far."""
        return module in self._loaded

    def read(self, path: str, name: str, package: str) -> dict[str, Value]:
        """Read one file, for its names. Raises `EndOfReading` or `Absent` where that ends."""
        outer = self._names, self._package
        self._names, self._package = {"__doc__": PLAIN, "__spec__": PLAIN}, package
        self._names.update(__name__=Known(name), __file__=Known(path), __package__=Known(package))
        self._own[name] = self._names
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(self._text(path, package), path)
            self._statements(tree.body)
            return self._names
        except (OSError, SyntaxError, ValueError, MemoryError) as error:
            raise EndOfReading from error  # The worker itself will say what is wrong with it.
        except Absent:
            del self._own[name]  # As a worker does: it would try again.
            raise
        finally:
            self._names, self._package = outer

    def _text(self, path: str, package: str) -> bytes:
        if not os.path.isfile(path) or os.stat(path).st_size > SOURCE_LIMIT:
            raise EndOfReading("not a file that is read")
        with open(path, "rb") as file:
            status, text = os.fstat(file.fileno()), file.read()
        stamp = status.st_mtime_ns, status.st_size
        self.files.append(OwnFile(package, text, os.path.abspath(path), stamp))
        return text

    # Statements.

    def _statements(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Import():
                self._import(statement)
            case ast.ImportFrom():
                self._import_from(statement)
            case ast.If():
                self._if(statement)
            case ast.Try():
                self._try(statement)
            case ast.ClassDef():
                self._class(statement)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._decorators(statement.decorator_list)
                self._defaults(statement.args)
                self._names[statement.name] = OWN
            case ast.Assign(targets, value):
                given = self._effect(value)
                for target in targets:
                    self._bind(target, given)
            case ast.AnnAssign(target, _, value):
                if value is not None:
                    self._bind(target, self._effect(value))
            case ast.AugAssign(ast.Name(name), kind, value):
                both = ast.BinOp(ast.Name(name, ast.Load()), kind, value)
                self._names[name] = self._value(both)
            case ast.Delete([ast.Subscript(owner, name)]) if self._value(owner) == ENVIRONMENT:
                self._set_variable(self._value(name), None)
            case ast.Delete([ast.Name(name)]) if name in self._names:
                del self._names[name]
            case ast.Expr(value) | ast.Assert(value):
                self._effect(value)
            case ast.Pass():
                pass
            case _:
                raise EndOfReading(type(statement).__name__)

    def _bind(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name(name):
                self._names[name] = value
            case ast.Tuple(parts) | ast.List(parts):
                for part in parts:
                    self._bind(part, OWN if _is_own(value) else PLAIN)
            case ast.Starred(inner):
                self._bind(inner, value)
            case ast.Subscript(owner, name) if self._value(owner) == ENVIRONMENT:
                self._set_variable(self._value(name), value)
            case _:
                raise EndOfReading("an item or an attribute is set")

    def _defaults(self, arguments: ast.arguments) -> None:
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            self._value(default)

    def _decorators(self, nodes: list[ast.expr]) -> None:
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr in ("setter", "getter", "deleter"):
                continue
            if isinstance(node, ast.Call):
                self._given(node)
            value = self._value(node.func if isinstance(node, ast.Call) else node)
            if not isinstance(value, Thing):
                raise EndOfReading("a decorator of the program's own")
            if not value.name.startswith(side_effect_free.DECORATORS):
                self._go_on_later(value.name)

    def _class(self, node: ast.ClassDef) -> None:
        self._decorators(node.decorator_list)
        for part in [*node.bases, *(each.value for each in node.keywords)]:
            self._value(part)
        outer = dict(self._names)
        self._statements(node.body)
        self._names.clear()
        self._names.update(outer, **{node.name: OWN})

    # What depends.

    @contextmanager
    def _only_if(self, how: Certainty) -> Iterator[None]:
        """While reading what may not be run. Names that are bound there are not known behind it."""
        certainty, names = self._certainty, dict(self._names)
        if certainty is Certainty.CERTAIN:
            self._certainty = how
        yield
        self._certainty = certainty
        for name in self._names.keys() | names.keys():
            either = self._names.get(name, OWN), names.get(name, OWN)
            if either[0] is not either[1]:
                self._names[name] = OWN if any(map(_is_own, either)) else PLAIN

    def _if(self, statement: ast.If) -> None:
        match statement:
            case ast.If(
                ast.Compare(ast.Constant(asked), [ast.NotIn()], [asked_of]),
                [ast.Assign([ast.Subscript(owner, ast.Constant(name))], value)],
                [],
            ) if asked == name and self._value(owner) == self._value(asked_of) == ENVIRONMENT:
                self._set_variable(Known(name), self._value(value), "?")
                return
        test = self._value(statement.test)
        if isinstance(test, Known):
            self._statements(statement.body if test.value else statement.orelse)
            return
        for branch in (statement.body, statement.orelse):
            with self._only_if(Certainty.UNCERTAIN):
                self._statements([] if self._leaves(branch) else branch)

    def _try(self, node: ast.Try) -> None:
        """`try: import a`, and what to do without it; anything else must make no difference."""
        caught = [self._caught(handler) for handler in node.handlers]
        is_certain = all(map(_only_imports, node.body)) or IMPORT_ERRORS.issuperset(*caught)
        unlikely = Certainty.UNLIKELY if is_certain else Certainty.UNCERTAIN
        before = dict(self._names)
        try:
            with nullcontext() if is_certain else self._only_if(Certainty.UNCERTAIN):
                self._statements(node.body)
        except Absent as error:
            self._statements(self._handler_of(error, node, caught))
        else:
            self._statements(node.orelse)
            for handler in node.handlers:
                if not self._leaves(handler.body):
                    self._forget_constants(before)
                    with self._only_if(unlikely):
                        self._statements(handler.body)
        self._statements(node.finalbody)

    def _forget_constants(self, before: dict[str, Value]) -> None:
        """Those that have a name only since then: they would have none after an exception."""
        for name, value in self._names.items():
            if isinstance(value, Known) and before.get(name) is not value:
                self._names[name] = PLAIN

    def _caught(self, handler: ast.ExceptHandler) -> frozenset[str]:
        """The full names of the exceptions that a handler is for."""
        self._names[handler.name or "_"] = PLAIN
        match handler.type:
            case None:
                return ALL_ERRORS
            case ast.Tuple(nodes):
                values = [self._value(node) for node in nodes]
            case node:
                values = [self._value(node)]
        return frozenset(v.name if isinstance(v, Thing) else "the program's own" for v in values)

    def _handler_of(
        self, error: Absent, node: ast.Try, caught: list[frozenset[str]]
    ) -> list[ast.stmt]:
        """The handler that is run when an import fails."""
        catching = {*ALL_ERRORS, "builtins.ImportError", f"builtins.{error.raises}"}
        for handler, types in zip(node.handlers, caught, strict=True):
            if types & catching:
                return handler.body
            if not all(name.startswith("builtins.") for name in types):
                break
        raise EndOfReading("it cannot be told that the exception is caught")

    def _leaves(self, statements: list[ast.stmt]) -> bool:
        """Whether the program ends there, whatever it says before."""
        match statements[-1:]:
            case [ast.Raise()]:
                return True
            case [ast.Expr(ast.Call(ast.Name() | ast.Attribute() as function))]:
                value = self._value(function)
                return isinstance(value, Thing) and value.name in side_effect_free.LEAVES
        return False

    # Expressions.

    def _value(self, node: ast.AST | None) -> Value:
        """What an expression gives. Raises `EndOfReading` if it may do anything else."""
        match node:
            case None:
                return PLAIN
            case ast.Constant(value):
                return _known(folding.small(value))
            case ast.Name(name):
                return self._look_up(name)
            case ast.Attribute(owner, name):
                return self._attribute(self._value(owner), name)
            case ast.Call():
                return self._call(node)
            case ast.Lambda():
                self._defaults(node.args)
                return OWN
            case ast.Compare(left, [ast.NotIn()], [path]) if self._value(path) == MODULE_PATH:
                folder = self._value(left)
                if isinstance(folder, Known) and self.places.program_folder is not None:
                    return Known(folder.value not in self.places.entries)
                return PLAIN
        if isinstance(node, NOT_READ):
            raise EndOfReading(f"an expression that is not read: {type(node).__name__}")
        certainty = self._certainty
        if isinstance(node, CONDITIONAL) and certainty is Certainty.CERTAIN:
            self._certainty = Certainty.UNCERTAIN
        parts = self._parts(node)
        self._certainty = certainty
        known = [part.value for part in parts if isinstance(part, Known)]
        if len(known) == len(parts):
            return _known(folding.fold(node, known))
        return OWN if any(map(_is_own, parts)) else PLAIN

    def _parts(self, node: ast.AST) -> list[Value]:
        for each in getattr(node, "generators", ()):
            self._value(each.iter)
            self._bind(each.target, PLAIN)
        nodes = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        conditions = [test for each in getattr(node, "generators", ()) for test in each.ifs]
        return [*map(self._value, nodes), *map(self._value, conditions)]

    def _look_up(self, name: str) -> Value:
        if name in self._names:
            return _constant(self._names[name])
        if "*" in self._names:
            return OWN
        if not hasattr(builtins, name):
            raise EndOfReading(f"{name} is not defined")
        return Thing(f"builtins.{name}")

    def _attribute(self, owner: Value, name: str) -> Value:
        match owner:
            case Thing(thing):
                if self._loads_late(thing, name):
                    self._take(thing, [name])
                return _constant(Thing(f"{thing}.{name}"))
            case Known(value):
                return _known(folding.attribute(value, name))
        return owner

    def _call(self, node: ast.Call) -> Value:
        match node.func:
            case ast.Attribute(owner, name):
                value = self._value(owner)
                if not isinstance(value, Thing):
                    return self._method(value, name, node)
                called = self._attribute(value, name)
            case _:
                called = self._value(node.func)
        if not isinstance(called, Thing):
            raise EndOfReading("the program calls something of its own")
        name, is_noticed = called.name, called.name in side_effect_free.NOTICED
        given = self._given(node, is_noticed or name in side_effect_free.KEEP)
        if is_noticed:
            if name in side_effect_free.FILTERS and given[:1] != [Known("ignore")]:
                raise EndOfReading("a warning may be shown, or raise")
            self._go_on_later(name)
        elif name in ("builtins.hasattr", "builtins.getattr", "importlib.util.find_spec"):
            self._asked(given)
        elif not side_effect_free.is_free(name):
            raise EndOfReading(f"{name} is called")
        function = folding.FUNCTIONS.get(name)
        operands = [each.value for each in given if isinstance(each, Known)]
        is_known = function is not None and len(operands) == len(given) and not node.keywords
        if not is_known or function is None or self._is_of_another_home(name):
            return PLAIN
        return _known(folding.work_out(function, *operands))

    def _method(self, owner: Known | Other, name: str, node: ast.Call) -> Value:
        given = self._given(node)
        if owner == PLAIN and name in side_effect_free.SAYS:
            self._go_on_later("logging")
            return PLAIN
        if owner == OWN or name not in side_effect_free.METHODS:
            raise EndOfReading(f"a method that is not known: {name}")
        operands = [each.value for each in given if isinstance(each, Known)]
        is_known = isinstance(owner, Known) and len(operands) == len(given) and not node.keywords
        if not is_known or self._is_of_another_home(name):
            return PLAIN
        return _known(folding.method(owner.value, name, operands))  # type: ignore[union-attr]

    def _given(self, node: ast.Call, keeps_own: bool = False) -> list[Value]:
        """The arguments by position; none is the program's own, for it might be called."""
        given = [self._value(argument) for argument in node.args]
        named = [self._value(keyword.value) for keyword in node.keywords]
        if not keeps_own and any(map(_is_own, [*given, *named])):
            raise EndOfReading("something of the program's own may be called")
        return given

    def _asked(self, given: list[Value]) -> None:
        """Whether a module, or a name of one, is there."""
        match given:
            case [Known(str(module))] if "." not in module:
                return
            case [Thing(thing), Known(str(name)), *_] if not self._loads_late(thing, name):
                return
        raise EndOfReading("asking for the name may load it")

    def _is_of_another_home(self, function: str) -> bool:
        sets_home = any(step.startswith("environ HOME") for step in self.found)
        return function.endswith("expanduser") and sets_home

    def _go_on_later(self, function: str) -> None:
        """From here on, imports are no steps: before them lies what they may notice."""
        if self._certainty is not Certainty.UNLIKELY:
            self._is_later = True
            self.sets_logging = self.sets_logging or function.startswith("logging")

    # What the program sets.

    def _effect(self, node: ast.expr) -> Value:
        """An expression that is a statement, or is given a name: a call may be a step."""
        match node:
            case ast.Call(ast.Attribute(owner, name), args, []):
                where = self._value(owner)
            case _:
                return self._value(node)
        given = [self._value(each) for each in args] if isinstance(where, Thing) else []
        match where, name, given:
            case Thing("os.environ"), "setdefault", [variable, value]:
                self._set_variable(variable, value, "?")
            case Thing("os.environ"), "pop", [variable] | [variable, Known()]:
                self._set_variable(variable, None)
            case Thing("sys.path"), "insert", [Known(0), folder]:
                self._add_folder(folder, is_first=True)
            case Thing("sys.path"), "append", [folder]:
                self._add_folder(folder, is_first=False)
            case Thing("importlib"), "import_module", [Known(str(module))]:
                return self.load(module)
            case _:
                return self._value(node)
        return PLAIN

    def _set_variable(self, name: Value, value: Value | None, unless: str = "") -> None:
        """Remove it, without a value."""
        key = name.value if isinstance(name, Known) else None
        if not isinstance(key, str) or not VARIABLE.fullmatch(key) or key in PER_WORKER:
            raise EndOfReading("not a variable that is the same for all workers")
        self._require_certainty()
        if value is None:
            self.found.append(f"environ -{key}")
        elif isinstance(value, Known) and _fits(value.value):
            self.found.append(f"environ {key}{unless}={value.value}")
        else:
            raise EndOfReading("a variable is set to what cannot be told")

    def _add_folder(self, folder: Value, *, is_first: bool) -> None:
        self._require_certainty()
        given = folder.value if isinstance(folder, Known) else None
        if not isinstance(given, str) or not _fits(given) or given.endswith(".zip"):
            raise EndOfReading("the folder cannot be told")
        path = os.path.join(os.getcwd(), given.removeprefix("./")).rstrip("/") or "/"
        (self.places.insert if is_first else self.places.append)(path)
        self.found.append(f"path {0 if is_first else -1} {path}")

    def _require_certainty(self) -> None:
        if self._is_later or self._certainty is not Certainty.CERTAIN:
            raise EndOfReading("it may not be done, or behind what a later import may notice")

    # What it imports.

    def _import(self, statement: ast.Import) -> None:
        for alias in statement.names:
            value = self.load(alias.name)
            top = alias.name.partition(".")[0]
            is_top = alias.asname is None and isinstance(value, Thing)
            self._names[alias.asname or top] = Thing(top) if is_top else value

    def _import_from(self, statement: ast.ImportFrom) -> None:
        module = self._absolute(statement)
        names = [alias.name for alias in statement.names]
        is_installed = _needs_no_step(module) or self._owner(module) == "installed"
        if is_installed:
            self._take(module, names)
        else:
            self._follow_own(module)
        if names == ["*"]:  # Any name may be another one now.
            self._names.update(dict.fromkeys([*self._names, "*"], OWN))
            return
        for alias in statement.names:
            thing = Thing(f"{module}.{alias.name}")
            value = thing if is_installed else self._of_own(module, alias.name)
            self._names[alias.asname or alias.name] = value

    def _absolute(self, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        parts = self._package.split(".") if self._package else []
        if statement.level > len(parts):
            raise EndOfReading("a relative import without a package")
        above = parts[: len(parts) - statement.level + 1]
        return ".".join([*above, statement.module] if statement.module else above)

    def load(self, module: str) -> Value:
        """Follow the import of one module, packages above it first."""
        if _needs_no_step(module):
            return Thing(module)
        if self._owner(module) == "installed":
            if not self.has(module) and self._may_import(module):
                self._add(module, f"import {module}", module)
            return Thing(module)
        self._follow_own(module)
        return OWN

    def _take(self, module: str, names: list[str]) -> None:
        """`from module import names`, of an installed module."""
        new = [name for name in dict.fromkeys(names) if f"{module}.{name}" not in self._loaded]
        is_doubtful = self._certainty is not Certainty.CERTAIN
        if _needs_no_step(module) or (is_doubtful and self._is_here(module, new)):
            return
        if new and self._may_import(module):
            taking = f"from {module} import {', '.join(new)}"
            self._add(module, taking, taking)
            self._loaded.update(f"{module}.{name}" for name in new)

    def _add(self, module: str, step: str, late: str) -> None:
        if not self._is_later:
            self.found.append(step)
        elif module.partition(".")[0] not in sys.stdlib_module_names:
            self.late.append(late)
        self._loaded.update(prefixes(module))

    def _is_here(self, module: str, names: list[str]) -> bool:
        """Whether taking the names loads nothing more."""
        find = self.places.find
        return self.has(module) and not any(
            name == "*" or find(f"{module}.{name}") or self._loads_late(module, name)
            for name in names
        )

    def _may_import(self, module: str) -> bool:
        """Whether it is a step. Modules of the standard library do not notice each other."""
        is_standard = module.partition(".")[0] in sys.stdlib_module_names
        if self._certainty is Certainty.UNCERTAIN and not is_standard:
            raise EndOfReading(f"{module} may be imported, or not")
        return self._certainty is Certainty.CERTAIN

    def _owner(self, module: str) -> Owner:
        if not all(map(str.isidentifier, module.split("."))):
            raise EndOfReading("no name of a module")
        if self.places.is_unclear(module):
            raise EndOfReading("the program hides what may be loaded already")
        if self._certainty is Certainty.CERTAIN:
            self.places.pin(module)
        return self.places.owner(module)

    def _follow_own(self, module: str) -> None:
        """Follow the packages above a module, then itself, up to what is missing."""
        if self._certainty is Certainty.UNLIKELY:
            return
        for name in prefixes(module):
            owner = self.places.owner(name)
            if owner == "absent":
                self._fail(Absent(name))
            if owner == "own":
                self._read_own(name)
            else:
                self.load(name)

    def _fail(self, error: Absent) -> None:
        """An import that fails fails for sure only where it is sure to be tried."""
        if self._certainty is not Certainty.CERTAIN:
            raise EndOfReading("an import fails, if it is tried")
        raise error

    def _read_own(self, module: str) -> None:
        if module in self._own:
            return
        if self._certainty is not Certainty.CERTAIN:
            raise EndOfReading("a module of the program's own may be imported, or not")
        spec = self.places.find(module)
        if spec is None or (spec.origin is None and spec.submodule_search_locations):
            return  # A package without code.
        if spec.origin is None or not spec.origin.endswith(".py"):
            raise EndOfReading(module)
        self._files_left -= 1
        self._bytes_left -= os.stat(spec.origin).st_size
        if self._bytes_left < 0 or self._files_left < 0:
            raise EndOfReading("the program's own tree is large")
        self.read(spec.origin, module, spec.parent or "")

    def _of_own(self, module: str, name: str) -> Value:
        """What `from module import name` gives, of a module of the program's own."""
        names = self._own.get(module, {})
        if name in names:
            return names[name]
        if "__getattr__" in names or "*" in names:
            raise EndOfReading("it cannot be told where the name comes from")
        inner = f"{module}.{name}"
        if self._certainty is Certainty.UNLIKELY:
            return OWN
        if self.places.owner(inner) == "absent":
            self._fail(Absent(inner, "ImportError"))
        return self.load(inner)

    def _loads_late(self, thing: str, name: str) -> bool:
        """Whether asking an installed module for a name may import something."""
        return not _needs_no_step(thing) and self.places.loads_late(thing, name)


def _constant(value: Value) -> Value:
    if isinstance(value, Thing) and value.name in folding.CONSTANTS:
        return Known(folding.CONSTANTS[value.name])
    return value


def _known(value: object) -> Value:
    return PLAIN if value is folding.UNKNOWN else Known(value)


def _is_own(value: Value) -> bool:
    return value == OWN


def _needs_no_step(module: str) -> bool:
    return module.partition(".")[0] in NEVER_STEPS


def _only_imports(statement: ast.stmt) -> bool:
    """Or gives a constant a name: nothing that may raise, but for what an import does."""
    match statement:
        case ast.Assign([ast.Name()], ast.Constant()) | ast.Pass():
            return True
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _fits(text: object) -> bool:
    """Whether it can be handed over as text, and mean the same."""
    if not isinstance(text, str) or "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
