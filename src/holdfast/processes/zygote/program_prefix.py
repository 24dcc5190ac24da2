"""The beginning of a program: what it imports, and what it sets before that.

A program is read, never run, statement by statement, up to the first one whose effect is not known
by its form: there the reading ends. What workers import behind that is learned from them, for every
restart and every later launch (`import_reports.py`); the beginning is for the first start only.

Rules
1. An import of an installed module is a step, and so are a constant that is put into `os.environ`
   and a folder that is put at either end of `sys.path`.
2. A module of the program's own is read where it is imported first, and is never a step.
3. Definitions and expressions are passed over if they call nothing but what is known to change
   nothing (`CALLS`), and give that nothing of the program's own. The body of a function is not run.
   That annotations, operators, attributes, the making of a class and decorators of installed
   packages have no effect on imports is assumed.
4. A condition that is not known must make no difference: a step that depends on it, or on what may
   raise where that is caught, ends the reading.
5. `try: import a` is followed into its handler if `a` is not there, and past it if it is.
6. Behind what an import may notice (a print, a filter, a seed) imports are no steps, but `late`:
   they are done ahead only where that makes no difference. What is set there ends the reading.
"""

from __future__ import annotations

import ast
import builtins
import operator
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from msgspec import Struct

from holdfast.processes.environment import PER_WORKER
from holdfast.processes.zygote.module_path import ModulePath, Owner, inherited_path, prefixes

SOURCE_LIMIT = 512 * 1024
"""Bytes of a program, or a module of its own, that are still read."""
OWN_TREE_LIMIT = 128 * 1024
"""Bytes of the program's own modules that are read: the job waits for it."""
OWN_FILES_LIMIT = 256
LONGEST = 4096
"""Of a constant that is computed here."""
NEVER_STEPS = ("__future__", "holdfast", *sys.builtin_module_names)
"""What needs no loading, or is ours and there anyhow."""
NOT_SET_AHEAD = frozenset({*PER_WORKER, "HOME"})
"""Variables of a single worker, and what the home folder is worked out by."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError"})
CATCHES_IMPORT_ERRORS = IMPORT_ERRORS | {"Exception", "BaseException"}

# What may be passed over. Names are full names: `Path` counts only if it is `pathlib.Path`.

MODULES = (
    "collections", "dataclasses", "datetime", "enum", "fractions", "itertools", "math", "typing",
    "typing_extensions",
)  # fmt: skip
"""All that these have makes one value out of others, or asks for the time."""
CALLS = frozenset({
    *(f"builtins.{name}" for name in (
        "abs", "all", "any", "bool", "bytes", "dict", "enumerate", "float", "frozenset", "getattr",
        "hasattr", "int", "len", "list", "max", "min", "object", "property", "range", "repr",
        "reversed", "round", "set", "slice", "sorted", "staticmethod", "str", "sum", "tuple", "zip",
    )),
    *(f"os.{name}" for name in (
        "cpu_count", "environ.copy", "environ.get", "environ.items", "environ.keys", "fspath",
        "getcwd", "getenv", "getpid", "sched_getaffinity", "uname",
    )),
    *(f"os.path.{name}" for name in (
        "abspath", "basename", "dirname", "exists", "expanduser", "expandvars", "isdir", "isfile",
        "join", "normpath", "realpath", "relpath", "split", "splitext",
    )),
    *(f"time.{name}" for name in ("monotonic", "perf_counter", "strftime", "time", "time_ns")),
    *(f"threading.{name}" for name in ("Condition", "Event", "Lock", "RLock", "local")),
    "argparse.ArgumentParser", "contextvars.ContextVar", "decimal.Decimal", "functools.partial",
    "importlib.util.find_spec", "logging.getLogger", "numpy.dtype", "numpy.finfo",
    "packaging.version.parse", "pathlib.Path", "pathlib.Path.cwd", "pathlib.Path.home",
    "platform.machine", "platform.python_version", "platform.system", "pydantic.Field",
    "re.compile", "socket.gethostname", "torch.device", "torch.finfo", "types.SimpleNamespace",
    "uuid.uuid4",
})  # fmt: skip
"""Calls that change nothing but what they return, show nothing and wait for nothing: they are made
in the worker, behind imports that they come before in the program."""
KEEP = frozenset({
    "collections.defaultdict", "collections.namedtuple", "dataclasses.field", "pydantic.Field",
    "typing.NamedTuple", "typing.NewType", "typing.TypeVar", "typing_extensions.TypeVar",
})  # fmt: skip
"""Calls whose arguments are only kept, so that they may be the program's own."""
METHODS = frozenset({
    "absolute", "add_argument", "add_argument_group", "add_mutually_exclusive_group", "add_parser",
    "add_subparsers", "as_posix", "copy", "encode", "endswith", "exists", "expanduser", "findall",
    "format", "fullmatch", "get", "getChild", "is_dir", "is_file", "isoformat", "items", "join",
    "joinpath", "keys", "lower", "lstrip", "match", "read_text", "relative_to", "removeprefix",
    "removesuffix", "replace", "resolve", "rstrip", "search", "split", "splitlines", "startswith",
    "strftime", "strip", "sub", "timestamp", "title", "upper", "values", "with_name", "with_suffix",
})  # fmt: skip
"""Of what the calls above make."""
SAYS = frozenset({"critical", "debug", "error", "exception", "info", "warn", "warning"})
"""Methods of a logger."""
NOTICED = frozenset({
    "builtins.print", "faulthandler.enable", "logging.basicConfig", "logging.captureWarnings",
    "logging.disable", "matplotlib.use", "multiprocessing.set_start_method", "numpy.random.seed",
    "os.makedirs", "os.mkdir", "random.seed", "signal.signal", "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all", "torch.manual_seed", "torch.multiprocessing.set_sharing_strategy",
    "torch.multiprocessing.set_start_method", "torch.set_float32_matmul_precision",
    "torch.set_num_threads", "torch.use_deterministic_algorithms", "warnings.filterwarnings",
    "warnings.simplefilter", "warnings.warn", *(f"logging.{name}" for name in SAYS),
})  # fmt: skip
"""Calls that an import may notice, but that set neither a variable nor the module path."""
FILTERS = ("warnings.filterwarnings", "warnings.simplefilter")
"""Only those that ignore warnings: another one may show them, or raise."""

# Constants made of constants: only what is the same here and in a worker.

CONSTANTS: dict[str, object] = {
    "typing.TYPE_CHECKING": False,
    "typing_extensions.TYPE_CHECKING": False,
    "sys.version_info": tuple(sys.version_info),
    "sys.platform": sys.platform,
    "os.name": os.name,
    "os.sep": os.sep,
    "os.pathsep": os.pathsep,
}


def _path(*parts: str) -> object:
    from pathlib import Path  # Costs milliseconds, and not every program uses it.

    return Path(*parts)


FUNCTIONS: dict[str, Callable[..., object]] = {
    "builtins.str": str,
    "os.getcwd": os.getcwd,
    **{
        f"os.path.{name}": getattr(os.path, name)
        for name in (
            "abspath", "basename", "dirname", "expanduser", "join", "normpath", "realpath",
        )
    },
    "pathlib.Path": _path,
    "pathlib.Path.cwd": lambda: _path(os.getcwd()),
}  # fmt: skip
COMPUTED_METHODS = frozenset({
    "absolute", "as_posix", "endswith", "expanduser", "joinpath", "lower", "resolve",
    "startswith", "strip", "upper",
})  # fmt: skip
COMPUTED_ATTRIBUTES = frozenset({"name", "parent", "parents", "stem", "suffix"})
OPERATORS: dict[type, Callable[[Any, Any], object]] = {
    ast.Add: operator.add,
    ast.Div: operator.truediv,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class NotConstant(Exception):
    """An expression is not made of constants alone."""


NO_VALUE = (
    ArithmeticError, AttributeError, LookupError, NotConstant, OSError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
"""What the program would raise, it will raise itself."""


class EndOfReading(Exception):
    """From here on, it is not known what the program does."""


class Absent(Exception):
    """An import that fails."""


class OwnFile(NamedTuple):
    """One of the program's own files, and the package from which its relative imports go."""

    package: str
    text: bytes
    path: str = ""
    stamp: tuple[int, ...] = ()
    """When it was changed, and how long it is."""


class Known(Struct):
    """A constant."""

    value: Any


class Thing(Struct):
    """An installed module, or what is reached through one, by its full name: `os.environ`."""

    name: str


class Other(Struct):
    """What is not known. Of the program's own are functions and classes, and what holds them."""

    is_own: bool


Value = Known | Thing | Other
PLAIN, OWN = Other(False), Other(True)


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
        """With `*` where any name may have been bound."""
        self._own: dict[str, dict[str, Value]] = {}
        """The names of the program's own modules."""
        self._package = ""
        self._is_certain = True
        """Whether what is being read now is sure to be run."""
        self._is_later = False
        self._bytes_left, self._files_left = OWN_TREE_LIMIT, OWN_FILES_LIMIT
        self._loaded: set[str] = set()

    def has(self, module: str) -> bool:
        """Whether a module is loaded by what was found so far."""
        return module in self._loaded

    def read(self, path: str, name: str, package: str) -> None:
        """Read one file, for its names. Raises `EndOfReading` or `Absent` where that ends."""
        outer = self._names, self._package
        self._package = package
        named = {"__name__": name, "__file__": path, "__package__": package}
        self._names = {one: Known(value) for one, value in named.items()}
        self._own[name] = self._names
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(self._text(path, package), path)
            self._statements(tree.body)
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
            case ast.AugAssign(ast.Name() as target, _, value):
                self._require_harmless(value)
                self._bind(target, OWN if self._is_own(statement) else PLAIN)
            case ast.Delete([ast.Subscript(owner, name)]) if self._is_environment(owner):
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
                if not self._is_certain:  # It may have the value that it had before.
                    value = OWN if OWN in (value, self._names.get(name)) else PLAIN
                self._names[name] = value
            case ast.Tuple(parts) | ast.List(parts):
                for part in parts:
                    self._bind(part, OWN if value == OWN else PLAIN)
            case ast.Starred(inner):
                self._bind(inner, value)
            case ast.Subscript(owner, name) if self._is_environment(owner):
                self._set_variable(self._value(name), value)
            case _:
                raise EndOfReading("an item or an attribute is set")

    def _defaults(self, arguments: ast.arguments) -> None:
        for default in filter(None, [*arguments.defaults, *arguments.kw_defaults]):
            self._require_harmless(default)

    def _decorators(self, nodes: list[ast.expr]) -> None:
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr in ("setter", "getter", "deleter"):
                continue
            called = node.func if isinstance(node, ast.Call) else node
            if not self._full_name(called):
                raise EndOfReading("a decorator that is not known")
            for argument in _arguments(node) if isinstance(node, ast.Call) else []:
                self._require_harmless(argument)
                self._require_not_own(argument)

    def _class(self, node: ast.ClassDef) -> None:
        self._decorators(node.decorator_list)
        for part in [*node.bases, *(each.value for each in node.keywords)]:
            self._require_harmless(part)
        outer = dict(self._names)
        self._statements(node.body)
        self._names.clear()
        self._names.update(outer, **{node.name: OWN})

    # What depends.

    @contextmanager
    def _only_if(self, is_certain: bool = False) -> Iterator[None]:
        """While reading what may not be run, unless that is certain."""
        outer = self._is_certain
        self._is_certain = outer and is_certain
        yield
        self._is_certain = outer

    def _if(self, statement: ast.If) -> None:
        test = self._value(statement.test)
        if isinstance(test, Known):
            self._statements(statement.body if test.value else statement.orelse)
            return
        for branch in (statement.body, statement.orelse):
            if not (branch and isinstance(branch[-1], ast.Raise)):  # Else nothing follows it.
                with self._only_if():
                    self._statements(branch)

    def _try(self, node: ast.Try) -> None:
        """`try: import a`, and what to do without it; anything else must make no difference."""
        caught = [_caught(handler) for handler in node.handlers]
        is_certain = all(map(_only_imports, node.body)) or IMPORT_ERRORS.issuperset(*caught)
        before = dict(self._names)
        try:
            with self._only_if(is_certain):
                self._statements(node.body)
        except Absent:
            self._statements(_handler_of_import_errors(node.handlers, caught))
        else:
            self._statements(node.orelse)
            for handler in [] if is_certain else node.handlers:
                with self._only_if():
                    self._statements(handler.body)
            for name, value in self._names.items():
                if node.handlers and isinstance(value, Known) and before.get(name) is not value:
                    self._names[name] = PLAIN  # A handler may have given it another value.
        self._statements(node.finalbody)

    # Expressions.

    def _value(self, node: ast.expr) -> Value:
        """What an expression gives. Raises `EndOfReading` if it may do anything else."""
        self._require_harmless(node)
        try:
            value = self._constant(node)
            if not isinstance(value, str | bytes) or len(value) <= LONGEST:
                return Known(value)
        except NO_VALUE:
            pass
        name = self._full_name(node)
        if name:
            return Thing(name)
        return OWN if self._is_own(node) else PLAIN

    def _full_name(self, node: ast.expr) -> str:
        """The full name of what is reached through an installed module; of anything else none."""
        match node:
            case ast.Name(name):
                value = self._named(name)
                return value.name if isinstance(value, Thing) else ""
            case ast.Attribute(owner, name):
                above = self._full_name(owner)
                return f"{above}.{name}" if above and above not in CONSTANTS else ""
        return ""

    def _named(self, name: str) -> Value:
        value = self._names.get(name, self._names.get("*"))
        if value is None:
            return Thing(f"builtins.{name}") if hasattr(builtins, name) else PLAIN
        return value

    def _is_own(self, node: ast.AST) -> bool:
        """Whether something of the program's own may be in it."""
        names = (part.id for part in ast.walk(node) if isinstance(part, ast.Name))
        functions = any(isinstance(part, ast.Lambda) for part in ast.walk(node))
        return functions or any(self._named(name) == OWN for name in names)

    def _is_environment(self, node: ast.expr) -> bool:
        return self._full_name(node) == "os.environ"

    def _constant(self, node: ast.expr) -> Any:
        """What constants make together. Raises one of `NO_VALUE` for anything else."""
        name = self._full_name(node)
        if name in CONSTANTS:
            return CONSTANTS[name]
        match node:
            case ast.Constant():
                return node.value
            case ast.Name(name):
                named = self._named(name)
                if isinstance(named, Known):
                    return named.value
            case ast.Attribute(owner, name) if name in COMPUTED_ATTRIBUTES:
                return getattr(self._constant(owner), name)
            case ast.Call(called, arguments, []) if self._full_name(called) in FUNCTIONS:
                function = FUNCTIONS[self._full_name(called)]
                return function(*map(self._constant, arguments))
            case ast.Call(ast.Attribute(owner, name), arguments, []) if name in COMPUTED_METHODS:
                method = getattr(self._constant(owner), name)
                return method(*map(self._constant, arguments))
            case ast.Compare(left, [ast.NotIn()], [path]) if self._full_name(path) == "sys.path":
                if self.places.program_folder is not None:
                    return self._constant(left) not in self.places.entries
            case ast.BinOp(left, kind, right) | ast.Compare(left, [kind], [right]):
                if type(kind) in OPERATORS:
                    return OPERATORS[type(kind)](self._constant(left), self._constant(right))
            case ast.BoolOp(kind, operands):
                values = list(map(self._constant, operands))
                decides = isinstance(kind, ast.Or)
                return next((one for one in values if bool(one) is decides), values[-1])
            case ast.UnaryOp(ast.Not(), operand):
                return not self._constant(operand)
            case ast.IfExp(test, then, otherwise):
                return self._constant(then if self._constant(test) else otherwise)
            case ast.Subscript(owner, key):
                return self._constant(owner)[self._constant(key)]
            case ast.JoinedStr(parts):
                return "".join(map(self._constant, parts))
            case ast.FormattedValue(part, -1, None):
                return str(self._constant(part))
            case ast.Tuple(parts) if all(isinstance(part, ast.Constant) for part in parts):
                return tuple(map(self._constant, parts))
        raise NotConstant

    def _require_harmless(self, node: ast.AST) -> None:
        for part in _run_parts(node):
            if isinstance(part, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
                raise EndOfReading(f"an expression that is not read: {type(part).__name__}")
            if isinstance(part, ast.Call):
                self._require_known(part)

    def _require_known(self, call: ast.Call) -> None:
        """A call must be known to change nothing, or to be no more than what imports notice."""
        name = self._full_name(call.func)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if not name and (not method or self._is_own(call.func)):
            raise EndOfReading("something of the program's own is called")
        says = name in NOTICED or (not name and method in SAYS)
        if name in FILTERS and not (call.args and self._value(call.args[0]) == Known("ignore")):
            raise EndOfReading("a warning may be shown, or raise")
        if says:
            self._is_later = True
            self.sets_logging = self.sets_logging or name.startswith("logging") or not name
            return
        known = name in CALLS or name.partition(".")[0] in MODULES if name else method in METHODS
        if not known:
            raise EndOfReading(f"{name or method} is called")
        for argument in [] if name in KEEP else _arguments(call):
            self._require_not_own(argument)

    def _require_not_own(self, argument: ast.expr) -> None:
        if self._is_own(argument):
            raise EndOfReading("something of the program's own may be called")

    # What the program sets.

    def _effect(self, node: ast.expr) -> Value:
        """An expression that is a statement, or is given a name: a call may be a step."""
        match node:
            case ast.Call(ast.Attribute(owner, name), args, []):
                where = self._full_name(owner)
            case _:
                return self._value(node)
        match where, name, args:
            case "os.environ", "setdefault", [variable, value]:
                self._set_variable(self._value(variable), self._value(value), "?")
            case "os.environ", "pop", [variable] | [variable, ast.Constant()]:
                self._set_variable(self._value(variable), None)
            case "sys.path", "insert", [ast.Constant(0), folder]:
                self._add_folder(self._value(folder), is_first=True)
            case "sys.path", "append", [folder]:
                self._add_folder(self._value(folder), is_first=False)
            case "importlib", "import_module", [ast.Constant(str(module))]:
                return self.load(module)
            case _:
                return self._value(node)
        return PLAIN

    def _set_variable(self, name: Value, value: Value | None, unless: str = "") -> None:
        """Remove it, without a value."""
        key = name.value if isinstance(name, Known) else None
        if not isinstance(key, str) or not VARIABLE.fullmatch(key) or key in NOT_SET_AHEAD:
            raise EndOfReading("not a variable that is the same for all workers")
        self._require_step()
        if value is None:
            self.found.append(f"environ -{key}")
        elif isinstance(value, Known) and _fits(value.value):
            self.found.append(f"environ {key}{unless}={value.value}")
        else:
            raise EndOfReading("a variable is set to what cannot be told")

    def _add_folder(self, folder: Value, *, is_first: bool) -> None:
        self._require_step()
        given = folder.value if isinstance(folder, Known) else None
        if not isinstance(given, str) or not _fits(given) or given.endswith(".zip"):
            raise EndOfReading("the folder cannot be told")
        path = os.path.join(os.getcwd(), given.removeprefix("./")).rstrip("/") or "/"
        (self.places.insert if is_first else self.places.append)(path)
        self.found.append(f"path {0 if is_first else -1} {path}")

    def _require_step(self) -> None:
        self._require_certainty()
        if self._is_later:
            raise EndOfReading("it is behind what a later import may notice")

    def _require_certainty(self) -> None:
        if not self._is_certain:
            raise EndOfReading("it may be done, or not")

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
            new = [name for name in dict.fromkeys(names) if not self.has(f"{module}.{name}")]
            if new and self._is_step(module):
                taking = f"from {module} import {', '.join(new)}"
                self._add(module, taking, taking)
                self._loaded.update(f"{module}.{name}" for name in new)
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
        if not _needs_no_step(module) and self._owner(module) != "installed":
            self._follow_own(module)
            return OWN
        if not self.has(module) and self._is_step(module):
            self._add(module, f"import {module}", module)
        return Thing(module)

    def _add(self, module: str, step: str, late: str) -> None:
        if not self._is_later:
            self.found.append(step)
        elif module.partition(".")[0] not in sys.stdlib_module_names:
            self.late.append(late)
        self._loaded.update(prefixes(module))

    def _is_step(self, module: str) -> bool:
        """Modules of the standard library do not notice each other: these may be uncertain."""
        if _needs_no_step(module):
            return False
        if module.partition(".")[0] not in sys.stdlib_module_names:
            self._require_certainty()
        return self._is_certain

    def _owner(self, module: str) -> Owner:
        if not all(map(str.isidentifier, module.split("."))):
            raise EndOfReading("no name of a module")
        if self.places.is_unclear(module):
            raise EndOfReading("the program hides what may be loaded already")
        return self.places.owner(module)

    def _follow_own(self, module: str) -> None:
        """Follow the packages above a module, then itself, up to what is missing."""
        for name in prefixes(module):
            owner = self.places.owner(name)
            if owner == "absent":
                self._require_certainty()  # It fails for sure only where it is sure to be tried.
                raise Absent(name)
            if owner == "own":
                self._read_own(name)
            else:
                self.load(name)

    def _read_own(self, module: str) -> None:
        if module in self._own:
            return
        self._require_certainty()
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
        known = self._own.get(module, {}).get(name)
        inner = f"{module}.{name}"
        if known is not None or self.places.owner(inner) == "absent":
            return known or OWN
        return self.load(inner)


def packages_above(source_path: str, program_folder: str | None) -> list[str]:
    """The packages that `python -m` imports before it runs a module that lies there."""
    if program_folder is None:
        return []
    folder = os.path.dirname(os.path.realpath(source_path))
    roots = {os.path.realpath(entry) for entry in (program_folder, *inherited_path())}
    inside = [root for root in roots if folder == root or folder.startswith(f"{root}{os.sep}")]
    if not inside or folder == os.path.realpath(program_folder):
        return []
    root = max(inside, key=len)
    if os.path.exists(os.path.join(root, "__init__.py")):
        raise EndOfReading("it cannot be told from where the module is imported")
    names = os.path.relpath(folder, root).split(os.sep)
    return prefixes(".".join(names)) if all(map(str.isidentifier, names)) else []


def _run_parts(node: ast.AST) -> Iterator[ast.AST]:
    """All parts of an expression that are run with it: not the bodies of functions."""
    pending = [node]
    while pending:
        part = pending.pop()
        yield part
        pending += ast.iter_child_nodes(part.args if isinstance(part, ast.Lambda) else part)


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _caught(handler: ast.ExceptHandler) -> frozenset[str]:
    """The exceptions that a handler is for, as they are written."""
    if handler.type is None:
        return frozenset({"BaseException"})
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return frozenset(map(ast.unparse, named))


def _handler_of_import_errors(
    handlers: list[ast.ExceptHandler], caught: list[frozenset[str]]
) -> list[ast.stmt]:
    for handler, names in zip(handlers, caught, strict=True):
        if names & CATCHES_IMPORT_ERRORS:
            return handler.body
        if not all(hasattr(builtins, name) for name in names):
            break
    raise EndOfReading("it cannot be told that the exception is caught")


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
