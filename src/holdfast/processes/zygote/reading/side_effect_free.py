"""Calls and decorators that may be passed over: no import that follows can notice them.

What is passed over here happens in the worker, after imports that it came before. So a call
is in these tables only if it changes nothing but what it returns, prints nothing, and waits
for nothing. These are not, and end the reading:

    print, sys.stdout.reconfigure             what a later import prints would come first
    warnings.filterwarnings, simplefilter     decides whether a later import's warnings show
    logging.basicConfig, Logger.setLevel      libraries look at it, or set it, when imported
    random.seed, torch.manual_seed            a later import may draw numbers
    torch.set_num_threads, matplotlib.use     libraries look at it when imported
    torch.cuda.is_available                   may warn about the driver
    signal.signal, faulthandler.enable        libraries look at handlers, and chain them
    atexit.register                           the order of what runs at the end
    multiprocessing.set_start_method          libraries look at it, or make locks of that kind
    os.makedirs, os.chdir                     libraries look at files
    load_dotenv                               sets variables that are not in the program

Names are full names: what the program calls `Path` counts only if it is `pathlib.Path`.
"""

from __future__ import annotations

from msgspec import Struct

ANY = frozenset({"*"})


class Harmless(Struct, frozen=True):
    """Calls of one sort, and why they are harmless."""

    why: str
    names: tuple[str, ...]
    makes: str = "built-in"
    """The kind of value that comes back."""
    keeps: frozenset[str] = frozenset()
    """Arguments that are only kept (`*` for all): they may be the program's own functions."""
    is_inert: bool = False
    """Whether what comes back never uses what was kept."""


CALLS = (
    Harmless("Makes or turns a value into another one.", (
        "builtins.abs", "builtins.all", "builtins.any", "builtins.bool", "builtins.bytes",
        "builtins.chr", "builtins.complex", "builtins.dict", "builtins.divmod",
        "builtins.enumerate", "builtins.float", "builtins.frozenset", "builtins.hex",
        "builtins.int", "builtins.len", "builtins.list", "builtins.max", "builtins.min",
        "builtins.object", "builtins.ord", "builtins.range", "builtins.repr", "builtins.reversed",
        "builtins.round", "builtins.set", "builtins.slice", "builtins.sorted", "builtins.str",
        "builtins.sum", "builtins.tuple", "builtins.zip", "collections.Counter",
        "collections.OrderedDict", "collections.deque", "decimal.Decimal", "fractions.Fraction",
        "math.ceil", "math.floor", "math.log", "math.log2", "math.prod", "math.sqrt",
        "itertools.chain", "itertools.product", "operator.attrgetter", "operator.itemgetter",
        "string.Template", "struct.Struct", "struct.calcsize", "textwrap.dedent", "uuid.uuid4",
    )),
    Harmless("Asks the process or the machine for something, and changes nothing.", (
        "os.cpu_count", "os.environ.copy", "os.environ.get", "os.environ.items",
        "os.environ.keys", "os.environ.values", "os.fspath", "os.getcwd", "os.getenv",
        "os.getpid", "os.getppid", "os.getuid", "os.sched_getaffinity", "os.uname",
        "platform.machine", "platform.node", "platform.python_version", "platform.system",
        "socket.gethostname", "sys.getrecursionlimit", "getpass.getuser",
    )),
    Harmless("Asks for the time.", (
        "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns",
        "time.process_time", "time.strftime", "time.time", "time.time_ns",
    )),
    Harmless("Asks for the time, or makes one.", (
        "datetime.date.today", "datetime.datetime", "datetime.datetime.now", "datetime.timedelta",
        "datetime.timezone",
    ), makes="date"),
    Harmless("Makes a path out of others, or looks whether it is there.", (
        "os.path.abspath", "os.path.basename", "os.path.dirname", "os.path.exists",
        "os.path.expanduser", "os.path.expandvars", "os.path.getsize", "os.path.isabs",
        "os.path.isdir", "os.path.isfile", "os.path.islink", "os.path.join", "os.path.normpath",
        "os.path.realpath", "os.path.relpath", "os.path.split", "os.path.splitext",
    )),
    Harmless("Makes a path.", (
        "pathlib.Path", "pathlib.Path.cwd", "pathlib.Path.home", "pathlib.PosixPath",
        "pathlib.PurePath", "pathlib.PurePosixPath",
    ), makes="path"),
    Harmless("Makes a logger; one that has no level and no handlers of its own.", (
        "logging.getLogger",
    ), makes="logger"),
    Harmless("Compiles a pattern.", ("re.compile",), makes="pattern"),
    Harmless("Makes a type, or describes one.", (
        "builtins.property", "collections.namedtuple", "typing.NamedTuple", "typing.NewType",
        "typing.ParamSpec", "typing.TypeVar", "typing.TypeVarTuple", "typing.TypedDict",
        "typing_extensions.NewType", "typing_extensions.ParamSpec", "typing_extensions.TypeVar",
        "typing_extensions.TypedDict", "dataclasses.field", "enum.auto", "pydantic.Field",
    ), makes="", keeps=ANY, is_inert=True),
    Harmless("Keeps its arguments for later.", (
        "builtins.classmethod", "builtins.staticmethod", "collections.defaultdict",
        "contextvars.ContextVar", "functools.partial", "types.MappingProxyType",
        "types.SimpleNamespace",
    ), makes="", keeps=ANY),
    Harmless("Makes a lock or a queue, which starts nothing.", (
        "queue.Queue", "queue.SimpleQueue", "threading.Condition", "threading.Event",
        "threading.Lock", "threading.RLock", "threading.Semaphore", "threading.local",
    ), makes=""),
    Harmless("Names a device, describes a type or a version.", (
        "packaging.version.Version", "packaging.version.parse", "torch.device", "torch.finfo",
        "torch.iinfo", "jax.numpy.finfo", "numpy.dtype", "numpy.finfo", "numpy.iinfo",
    ), makes=""),
    Harmless("Makes a parser, which reads nothing yet.", ("argparse.ArgumentParser",),
             makes="parser"),
    Harmless("Makes an empty application.", ("typer.Typer",), makes="typer"),
    Harmless("Makes a decorator that marks or wraps a function.", (
        "click.argument", "click.command", "click.group", "click.option",
        "dataclasses.dataclass", "functools.lru_cache", "hydra.main", "torch.enable_grad",
        "torch.inference_mode", "torch.no_grad", "typing.dataclass_transform",
    ), makes="decorator", keeps=frozenset({"callback", "default"}), is_inert=True),
    Harmless("Makes a decorator that copies the name of a function.", ("functools.wraps",),
             makes="decorator", keeps=ANY, is_inert=True),
)  # fmt: skip
CALL = {name: group for group in CALLS for name in group.names}

DECORATORS = (
    ("Changes how a function is reached in its class.",
     ("builtins.classmethod", "builtins.property", "builtins.staticmethod",
      "functools.cached_property", "functools.singledispatch", "functools.singledispatchmethod")),
    ("Adds methods to a class, or checks it.",
     ("dataclasses.dataclass", "enum.unique", "functools.total_ordering")),
    ("Wraps a function, or remembers what it returned.",
     ("contextlib.asynccontextmanager", "contextlib.contextmanager", "functools.cache",
      "functools.lru_cache", "torch.enable_grad", "torch.inference_mode", "torch.no_grad")),
    ("Marks a function or class for a checker, a compiler or an abstract class.",
     ("abc.abstractmethod", "typing.final", "typing.no_type_check", "typing.overload",
      "typing.override", "typing.runtime_checkable", "typing_extensions.final",
      "typing_extensions.overload", "typing_extensions.override", "torch.jit.export",
      "torch.jit.ignore", "torch.jit.unused")),
    ("Makes a function write its exception to the worker's error file.",
     ("holdfast.record", "holdfast.worker.record.record",
      "holdfast.elastic.multiprocessing.errors.record",
      "torch.distributed.elastic.multiprocessing.errors.record")),
    ("Compiles a function when it is first called.", ("jax.jit",)),
)  # fmt: skip
DECORATOR_NAMES = frozenset(name for _, names in DECORATORS for name in names)

METHODS: dict[tuple[str, str], Harmless] = {
    **{("path", name): Harmless("Makes another path.", (), makes="path") for name in (
        "absolute", "expanduser", "joinpath", "relative_to", "resolve", "with_name",
        "with_stem", "with_suffix")},
    **{("path", name): Harmless("Looks at the path or its file.", ()) for name in (
        "as_posix", "exists", "is_absolute", "is_dir", "is_file", "match", "read_bytes",
        "read_text")},
    **{("pattern", name): Harmless("Looks into a text.", (), makes="") for name in (
        "findall", "finditer", "fullmatch", "match", "search", "split", "sub")},
    **{("date", name): Harmless("Tells a date in another way.", ()) for name in (
        "date", "isoformat", "strftime", "timestamp", "total_seconds")},
    **{("logger", name): Harmless("Makes or asks a logger.", (), makes="logger") for name in (
        "getChild", "getEffectiveLevel", "isEnabledFor")},
    ("parser", "add_argument"): Harmless(
        "Adds an option; its type is called when arguments are read.", (), "",
        frozenset({"type"}), is_inert=True),
    **{("parser", name): Harmless("Adds a part to the parser.", (), makes="parser") for name in (
        "add_argument_group", "add_mutually_exclusive_group", "add_subparsers", "add_parser",
        "set_defaults")},
    **{("typer", name): Harmless("Keeps a function.", (), "decorator") for name in (
        "callback", "command")},
    **{("property", name): Harmless("Keeps a function.", (), "property", ANY, is_inert=True)
       for name in ("deleter", "getter", "setter")},
}  # fmt: skip

SAYS = frozenset({
    "builtins.print", "warnings.warn", "logging.debug", "logging.error", "logging.exception",
    "logging.info", "logging.warning",
})  # fmt: skip
SAYS_OF_LOGGER = frozenset({"debug", "error", "exception", "info", "warning", "warning_once"})
"""What only says something: passed over in what is done when an import that should work fails."""

LATER = frozenset({
    "builtins.print", "faulthandler.enable", "logging.basicConfig", "logging.captureWarnings",
    "logging.disable", "matplotlib.use", "multiprocessing.set_start_method", "numpy.random.seed",
    "os.makedirs", "os.mkdir", "random.seed", "signal.signal", "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all", "torch.manual_seed", "torch.multiprocessing.set_sharing_strategy",
    "torch.multiprocessing.set_start_method",
    "torch.set_float32_matmul_precision", "torch.set_num_threads",
    "torch.use_deterministic_algorithms", "warnings.filterwarnings",
    "warnings.simplefilter", *SAYS,
})  # fmt: skip
"""What an import behind it may notice, or show, but what sets no variable and no module path. What
is imported from there on is imported ahead where it makes no difference (`process_state.py`)."""
FILTERS = frozenset({"warnings.filterwarnings", "warnings.simplefilter"})

LEAVES = frozenset({"builtins.exit", "builtins.quit", "os._exit", "os.abort", "sys.exit"})
"""What ends the program."""

CALLED_BY_ENUMERATIONS = frozenset({
    "__eq__", "__hash__", "__init__", "__new__", "_generate_next_value_",
})  # fmt: skip
"""Methods of the program's that are called when the class is made, for each member."""
