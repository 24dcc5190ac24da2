"""What the statements of a module do, one after the other, until that cannot be told.

Rules
1. What is certain is followed: the branch of an `if` whose condition can be worked out, each
   turn of a loop over constants, the handler of an import that fails.
2. What is not certain must make no difference: no variable, folder, own module or installed
   package may depend on it. Names that do are not known from there on.
3. A statement that does anything else ends the reading, and nothing after it counts.
4. The making of a class or function is read too: decorators, default values, annotations
   (unless they are postponed), bases, and the class's body. A function's body is not run.
   That installed bases and metaclasses see a new class is assumed to be harmless.
"""

from __future__ import annotations

import ast
import os
import sys
import warnings

from msgspec import Struct

from holdfast.processes.zygote.reading import side_effect_free
from holdfast.processes.zygote.reading.expressions import Expressions
from holdfast.processes.zygote.reading.imports import Imports
from holdfast.processes.zygote.reading.places import ModulePath
from holdfast.processes.zygote.reading.steps import Certainty, Steps
from holdfast.processes.zygote.reading.values import (
    BUILT_IN,
    DECORATOR,
    Absent,
    Known,
    Own,
    OwnClass,
    OwnModule,
    Plain,
    Scope,
    Thing,
    Unforeseeable,
    Value,
    is_foreign,
)
from holdfast.processes.zygote.reading.variables import OwnFile

SOURCE_LIMIT = 512 * 1024
"""Bytes of a program that is still read."""

TURNS_LIMIT = 64

IMPORT_ERRORS = frozenset({"builtins.ImportError", "builtins.ModuleNotFoundError"})
ALL_ERRORS = frozenset({"builtins.Exception", "builtins.BaseException"})


class FileBeingRead(Struct):
    """Which file is being read: what its relative imports and annotations depend on."""

    package: str
    annotations_are_postponed: bool = sys.version_info >= (3, 14)


class Reader:
    """Reads files of the program into scopes; what it finds is in `steps`."""

    def __init__(self, program_folder: str | None) -> None:
        places = ModulePath(program_folder)
        self.steps = Steps(places)
        self.imports = Imports(places, self.steps, self.read)
        self.files: list[OwnFile] = []
        """The program's own, as far as they were read."""
        self._places = places
        self._expressions = Expressions(self.steps, self.imports)
        self._file = FileBeingRead("")
        self._tries = 0

    def is_installed(self, module: str) -> bool:
        return self._places.top_is_installed(module) and self._places.find(module) is not None

    def find_own(self, module: str) -> OwnFile | None:
        """A module of the program, which need not have been read."""
        try:
            if self._places.top_is_installed(module) or self._places.owner(module) != "own":
                return None
            spec = self._places.find(module)
            if spec is None or not (spec.origin or "").endswith(".py"):
                return None
            with open(spec.origin or "", "rb") as file:
                return OwnFile(spec.parent or "", file.read(SOURCE_LIMIT))
        except (OSError, ValueError):
            return None

    def read(self, path: str, name: str, package: str, scope: Scope) -> None:
        """Read one file. Raises `Unforeseeable` where the reading ends."""
        try:
            if not os.path.isfile(path) or os.stat(path).st_size > SOURCE_LIMIT:
                raise Unforeseeable("not a file that is read")
            with open(path, "rb") as file, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                status = os.fstat(file.fileno())
                stamp = status.st_mtime_ns, status.st_size
                self.files.append(OwnFile(package, file.read(), os.path.abspath(path), stamp))
                tree = ast.parse(self.files[-1].text, path)
        except (OSError, SyntaxError, ValueError, MemoryError) as error:
            raise Unforeseeable from error  # The worker itself will say what is wrong with it.
        scope.names.update(__name__=Known(name), __file__=Known(path), __package__=Known(package))
        scope.names.update(__doc__=BUILT_IN, __spec__=Plain(), __loader__=Plain())
        outer, self._file = self._file, FileBeingRead(package)
        try:
            self._statements(tree.body, scope)
        finally:
            self._file = outer

    def _statements(self, statements: list[ast.stmt], scope: Scope) -> None:
        for statement in statements:
            self._statement(statement, scope)
            if self._tries and self._expressions.may_raise:
                # Somebody is prepared for an exception: what follows may be left out.
                self._doubt()

    def _doubt(self) -> None:
        if self.steps.certainty is Certainty.CERTAIN:
            self.steps.certainty = Certainty.UNCERTAIN

    def _statement(self, statement: ast.stmt, scope: Scope) -> None:
        self._expressions.burn()
        match statement:
            case ast.Import():
                self._import(statement, scope)
            case ast.ImportFrom():
                self._import_from(statement, scope)
            case ast.If():
                self._condition(statement, scope)
            case ast.Try():
                self._attempt(statement, scope)
            case ast.For():
                self._loop(statement, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(statement, scope)
            case ast.ClassDef():
                self._class(statement, scope)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self._assignment(statement, scope)
            case ast.Delete():
                self._deletion(statement, scope)
            case ast.Expr():
                self._expressions.value(statement.value, scope)
            case ast.Assert():
                self._expressions.truth(statement.test, scope)
                self._expressions.may_raise = True
            case ast.Pass():
                pass
            case ast.Global() if scope.outer is None:
                pass
            case _ if type(statement).__name__ == "TypeAlias":
                scope.bind(statement.name.id, Plain())  # type: ignore[attr-defined]
            case _:
                raise Unforeseeable(type(statement).__name__)

    # Imports.

    def _import(self, statement: ast.Import, scope: Scope) -> None:
        for alias in statement.names:
            value = self.imports.import_module(alias.name)
            if alias.asname:
                scope.bind(alias.asname, value)
                continue
            top = alias.name.partition(".")[0]
            own = isinstance(value, OwnModule)
            scope.bind(top, OwnModule(top) if own else Thing(top))

    def _import_from(self, statement: ast.ImportFrom, scope: Scope) -> None:
        module = statement.module or ""
        names = [alias.name for alias in statement.names]
        if module == "__future__" and "annotations" in names:
            self._file.annotations_are_postponed = True
        if statement.level:
            parts = self._file.package.split(".") if self._file.package else []
            if statement.level > len(parts):
                raise Unforeseeable("a relative import without a package")
            parts = parts[: len(parts) - statement.level + 1]
            module = ".".join([*parts, module] if module else parts)
        if names == ["*"]:
            self.imports.take_all(module, scope)
            return
        found = self.imports.take(module, names)
        for alias in statement.names:
            scope.bind(alias.asname or alias.name, found[alias.name])

    # What depends.

    def _condition(self, statement: ast.If, scope: Scope) -> None:
        truth = self._expressions.truth(statement.test, scope)
        if truth is not None:
            self._statements(statement.body if truth else statement.orelse, scope)
            return
        if self._is_default_of_variable(statement, scope):
            return
        before = dict(scope.names)
        with self._expressions.uncertain():
            self._statements(statement.body, scope)
        after_body = scope.names
        scope.names = before
        with self._expressions.uncertain():
            self._statements(statement.orelse, scope)
        scope.join([after_body])

    def _is_default_of_variable(self, statement: ast.If, scope: Scope) -> bool:
        """`if "X" not in os.environ: os.environ["X"] = "1"`, which is `setdefault`."""
        match statement:
            case ast.If(
                test=ast.Compare(ast.Constant(asked), [ast.NotIn()], [environ]),
                body=[ast.Assign([ast.Subscript(target, ast.Constant(set_))], value)],
                orelse=[],
            ) if asked == set_:
                where = [self._expressions.value(each, scope) for each in (environ, target)]
                if where == [Thing("os.environ")] * 2:
                    with self._expressions.uncertain():
                        given = self._expressions.value(value, scope)
                    self.steps.set_variable(Known(asked), given, if_unset=True)
                    return True
        return False

    def _loop(self, statement: ast.For, scope: Scope) -> None:
        """Each turn of a loop over constants."""
        many = self._expressions.value(statement.iter, scope)
        items = many.value if isinstance(many, Known) else None
        if not isinstance(items, tuple | list | range) or len(items) > TURNS_LIMIT:
            raise Unforeseeable("a loop over what cannot be told")
        for item in items:
            self._expressions.bind_target(statement.target, Known(item), scope)
            self._statements(statement.body, scope)
        self._statements(statement.orelse, scope)

    def _attempt(self, statement: ast.Try, scope: Scope) -> None:
        """`try: import a`, and what to do without it."""
        caught = [self._caught(handler, scope) for handler in statement.handlers]
        before = dict(scope.names)
        certainty = self.steps.certainty
        outer_may_raise, self._expressions.may_raise = self._expressions.may_raise, False
        catches_more = any(not types <= IMPORT_ERRORS for types in caught)
        self._tries += catches_more
        failed: Absent | None = None
        try:
            self._statements(statement.body, scope)
        except Absent as error:
            failed = error
        finally:
            self._tries -= catches_more
        in_doubt = self._expressions.may_raise and catches_more
        self._expressions.may_raise = self._expressions.may_raise or outer_may_raise
        if failed is None:
            self._statements(statement.orelse, scope)
        self.steps.certainty = certainty
        if failed is not None:
            self._handle(failed, statement, caught, scope)
        else:
            self._handle_in_case(statement, before, in_doubt, scope)
        self._statements(statement.finalbody, scope)

    def _caught(self, handler: ast.ExceptHandler, scope: Scope) -> frozenset[str]:
        """The full names of the exceptions that a handler is for."""
        if handler.type is None:
            return ALL_ERRORS
        nodes = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        values = [self._expressions.value(node, scope) for node in nodes]
        return frozenset(v.name if isinstance(v, Thing) else "the program's own" for v in values)

    def _handle(
        self, error: Absent, statement: ast.Try, caught: list[frozenset[str]], scope: Scope
    ) -> None:
        """Read the handler that is run when an import fails."""
        catching = {*ALL_ERRORS, "builtins.ImportError", f"builtins.{error.raises}"}
        for handler, types in zip(statement.handlers, caught, strict=True):
            if types & catching:
                self._handler(handler, scope)
                return
            if not all(name.startswith("builtins.") for name in types):
                raise Unforeseeable("it cannot be told whether an exception is caught")
        self._statements(statement.finalbody, scope)
        raise error

    def _handle_in_case(
        self, statement: ast.Try, before: dict[str, Value], in_doubt: bool, scope: Scope
    ) -> None:
        """Read handlers that should not be run, for the names that are not known then."""
        certainty = self.steps.certainty
        unlikely = Certainty.UNCERTAIN if in_doubt else Certainty.UNLIKELY
        others = []
        for handler in statement.handlers:
            if not in_doubt and self._leaves(handler.body, scope):
                continue
            trial = Scope(dict(scope.names), scope.outer, after_star=scope.after_star)
            trial.join([before])
            if certainty is Certainty.CERTAIN:
                self.steps.certainty = unlikely
            try:
                self._handler(handler, trial)
            finally:
                self.steps.certainty = certainty
            others.append(trial.names)
        scope.join(others)

    def _handler(self, handler: ast.ExceptHandler, scope: Scope) -> None:
        if handler.name:
            scope.bind(handler.name, Plain())
        self._statements(handler.body, scope)
        if handler.name:
            scope.names.pop(handler.name, None)

    def _leaves(self, statements: list[ast.stmt], scope: Scope) -> bool:
        """Whether the program ends there, whatever it says before."""
        match statements[-1]:
            case ast.Raise():
                return True
            case ast.Expr(ast.Call(function)) if isinstance(function, ast.Name | ast.Attribute):
                value = self._expressions.value(function, scope)
                return isinstance(value, Thing) and value.name in side_effect_free.LEAVES
        return False

    # Definitions.

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        kinds = [self._decorator(each, scope) for each in node.decorator_list]
        self._expressions.defaults(node.args, scope)
        if not self._file.annotations_are_postponed:
            inner = self._type_parameters(node, scope)
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            every += filter(None, [arguments.vararg, arguments.kwarg])
            for annotation in [*(each.annotation for each in every), node.returns]:
                if annotation is not None:
                    self._expressions.value(annotation, inner)
        is_property = kinds[:1] == ["property"]
        scope.bind(node.name, Plain("property") if is_property else Own())

    def _type_parameters(self, node: ast.AST, scope: Scope) -> Scope:
        parameters = getattr(node, "type_params", [])
        names: dict[str, Value] = {each.name: Plain() for each in parameters}
        return Scope(names, scope) if names else scope

    def _decorator(self, node: ast.expr, scope: Scope) -> str:
        """Make sure that a decorator is harmless; returns the kind of what it makes."""
        value: Value
        if isinstance(node, ast.Attribute):
            owner = self._expressions.value(node.value, scope)
            if owner == Plain("property") and ("property", node.attr) in side_effect_free.METHODS:
                return "property"
        value = self._expressions.value(node, scope)
        if isinstance(value, Thing) and value.name in side_effect_free.DECORATOR_NAMES:
            return "property" if value.name == "builtins.property" else ""
        if value == DECORATOR:
            return ""
        raise Unforeseeable("a decorator that is not in the tables")

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        for decorator in node.decorator_list:
            self._decorator(decorator, scope)
        inner = self._type_parameters(node, scope)
        bases = [self._expressions.value(base, inner) for base in node.bases]
        keywords = [self._expressions.value(each.value, inner) for each in node.keywords]
        body = Scope(outer=inner)
        self._statements(node.body, body)
        own = [base for base in bases if isinstance(base, OwnClass)]
        foreign = [base for base in bases if is_foreign(base)]
        if len(own) + len(foreign) < len(bases) or not all(map(is_foreign, keywords)):
            raise Unforeseeable("a class is made by something of the program")
        names = {name: each for base in reversed(own) for name, each in base.names.items()}
        is_simple = not foreign and not keywords and all(base.is_simple for base in own)
        is_enumeration = any(map(_is_enumeration, bases))
        if "__init_subclass__" in names:
            raise Unforeseeable("making a class calls a function of the program")
        names.update(body.names)
        if is_enumeration and not side_effect_free.CALLED_BY_ENUMERATIONS.isdisjoint(names):
            raise Unforeseeable("making a class calls a function of the program")
        scope.bind(node.name, OwnClass(names, is_simple, is_enumeration))

    # Names.

    def _assignment(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, scope: Scope) -> None:
        match node:
            case ast.AugAssign(target=ast.Name(name)):
                both = ast.BinOp(ast.Name(name, ast.Load()), node.op, node.value)
                scope.bind(name, self._expressions.value(both, scope))
            case ast.AugAssign():
                raise Unforeseeable("an item or an attribute is changed")
            case ast.AnnAssign():
                if node.value is not None:
                    value = self._expressions.value(node.value, scope)
                    self._assign(node.target, value, scope)
                if not self._file.annotations_are_postponed and isinstance(node.target, ast.Name):
                    self._expressions.value(node.annotation, scope)
            case ast.Assign():
                value = self._expressions.value(node.value, scope)
                for target in node.targets:
                    self._assign(target, value, scope)

    def _assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        if isinstance(target, ast.Subscript):
            if self._expressions.value(target.value, scope) == Thing("os.environ"):
                name = self._expressions.value(target.slice, scope)
                self.steps.set_variable(name, value)
                return
            raise Unforeseeable("an item is set")
        self._expressions.bind_target(target, value, scope)

    def _deletion(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            match target:
                case ast.Name() if target.id in scope.names:
                    del scope.names[target.id]
                case ast.Subscript():
                    if self._expressions.value(target.value, scope) != Thing("os.environ"):
                        raise Unforeseeable("an item is removed")
                    name = self._expressions.value(target.slice, scope)
                    self.steps.remove_variable(name)
                case _:
                    raise Unforeseeable("something is removed")


def _is_enumeration(base: Value) -> bool:
    """Whether the members of a subclass are made when the class is."""
    if isinstance(base, Thing):
        return base.name.endswith(("Enum", "Flag"))
    return isinstance(base, OwnClass) and base.is_enumeration
