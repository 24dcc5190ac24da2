"""Calls that may be passed over, and those behind which imports are no steps any more.

A call that is passed over is made in the worker, after imports that it came before. So it is in
`CALLS` only if it changes nothing but what it returns, shows nothing and waits for nothing. What an
import may notice, but what sets neither a variable nor the module path, is in `NOTICED`. Any other
call ends the reading: `load_dotenv()` sets variables that are not in the program.

Names are full names: what the program calls `Path` counts only if it is `pathlib.Path`.
"""

from __future__ import annotations

MODULES = (
    "collections", "dataclasses", "datetime", "enum", "fractions", "itertools", "math", "typing",
    "typing_extensions",
)  # fmt: skip
"""All that these have makes one value out of others, or asks for the time."""
CALLS = frozenset({
    *(f"builtins.{name}" for name in (
        "abs", "all", "any", "bool", "bytes", "dict", "enumerate", "float", "frozenset", "int",
        "len", "list", "max", "min", "object", "property", "range", "repr", "reversed", "round",
        "set", "slice", "sorted", "staticmethod", "str", "sum", "tuple", "zip",
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
    "logging.getLogger", "numpy.dtype", "numpy.finfo", "packaging.version.parse", "pathlib.Path",
    "pathlib.Path.cwd", "pathlib.Path.home", "platform.machine", "platform.python_version",
    "platform.system", "pydantic.Field", "re.compile", "socket.gethostname", "torch.device",
    "torch.finfo", "types.SimpleNamespace", "uuid.uuid4",
})  # fmt: skip
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
DECORATORS = (
    "abc.", "builtins.", "contextlib.", "dataclasses.", "enum.", "functools.", "holdfast.",
    "torch.distributed.elastic.", "torch.enable_grad", "torch.inference_mode", "torch.jit.ignore",
    "torch.no_grad", "typing.", "typing_extensions.",
)  # fmt: skip
"""Beginnings of decorators that only wrap or mark. Another installed one may be noticed."""
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
FILTERS = frozenset({"warnings.filterwarnings", "warnings.simplefilter"})
"""Only those that ignore warnings: another one may show them, or raise."""
LEAVES = frozenset({"builtins.exit", "builtins.quit", "os._exit", "os.abort", "sys.exit"})
"""What ends the program."""


def is_free(name: str) -> bool:
    """Whether a call of it, by its full name, changes nothing but what it returns."""
    return name in CALLS or name.partition(".")[0] in MODULES
