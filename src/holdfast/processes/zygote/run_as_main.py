"""In a forked worker: become what `python script.py` would have been, and run it.

    argv, orig_argv, path[0]     set as the interpreter sets them
    __main__                     ours, with nothing left in it but what the interpreter puts there
    environment                  the worker's own, plus what the preloaded modules changed
    /proc/<pid>/cmdline, environ point to the worker's command and environment
    standard streams             the same objects, made anew over the worker's descriptors
    what importing printed       printed again, in every worker
    unhandled exceptions         our frames are cut off; the interpreter prints them, runs `atexit`,
                                 waits for threads, and chooses the status
    what is not plain source     is left to the interpreter, which starts over in this process
    random state                 that of NumPy and PyTorch is seeded anew
    modules                      ours are taken out of `sys.modules` again

What stays different is listed in docs/guides/warm-start.md. Standard library only: for the zygote.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import runpy
import sys
import types
from importlib.machinery import BuiltinImporter, SourceFileLoader

from holdfast.processes.stdlib_only import linux, private_names, stack_handler
from holdfast.processes.stdlib_only.private_messages import NamedFields
from holdfast.worker import optimizer_steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from holdfast.processes.stdlib_only.private_messages import InCommon, WarmWorker
    from holdfast.processes.zygote import import_reports

_HERE = os.path.dirname(os.path.abspath(__file__))
OWN_FOLDERS = (_HERE, os.path.join(os.path.dirname(_HERE), "stdlib_only"))
PROGRAM_IS_NO_SOURCE = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)


class ForkedWorker(NamedFields):
    """The worker that a forked process is to be, as it was asked for."""

    common: InCommon
    worker: WarmWorker
    env: dict[str, str]
    kept: list[int]
    """Copies of the descriptors that it is to have at the numbers that it is to keep."""


class PreparedWorker(ForkedWorker):
    """The same, with what the zygote knows of what it has done ahead."""

    preload_changes: dict[str, str | None]
    set_ahead: dict[str, str | None]
    added_to_path: list[str]
    printed: KeptOutput
    folder_is_on_path: bool
    fresh_path: list[str] | None
    apply_fixups: Callable[[], None]
    watch: import_reports.Watch
    avoided: list[str]
    files: tuple[tuple[str, tuple[int, ...]], ...]
    """The program's own that were read, with when each was changed and how long it is."""


class KeptOutput:
    """What importing prints, kept in memory, to be printed by each worker."""

    def __init__(self) -> None:
        """From here on, all that this process writes to stdout and stderr is kept."""
        self._files = (os.memfd_create("holdfast-stdout"), os.memfd_create("holdfast-stderr"))
        for target, file in enumerate(self._files, start=1):
            os.dup2(file, target)
        self.sizes = (0, 0)

    def measure(self) -> tuple[int, int]:
        """How much has been written so far, by streams that have a buffer too."""
        flush_streams()
        stdout, stderr = (os.fstat(file).st_size for file in self._files)
        return stdout, stderr

    def errors_since(self, sizes: tuple[int, int]) -> bytes:
        """What stderr got since then."""
        start = sizes[1]
        return os.pread(self._files[1], self.measure()[1] - start, start)

    def cut(self, sizes: tuple[int, int]) -> None:
        """Forget what was written since then."""
        for file, size in zip(self._files, sizes, strict=True):
            os.ftruncate(file, size)
            os.lseek(file, size, os.SEEK_SET)
        self.sizes = sizes

    def make_way(self, numbers: tuple[int, ...]) -> None:
        """Be at none of these numbers."""
        if not set(numbers).isdisjoint(self._files):
            old = self._files
            stdout, stderr = linux.moved_above(list(old), numbers)
            self._files = stdout, stderr
            for file in old:
                os.close(file)

    def print_again(self) -> None:
        """In a worker: write it all out, as far as it was kept when last cut."""
        streams: Any = (sys.__stdout__, sys.__stderr__)
        for stream, file, size in zip(streams, self._files, self.sizes, strict=True):
            left = memoryview(os.pread(file, size, 0))
            while left and stream is not None:
                left = left[stream.buffer.write(left) :]  # Without a buffer it may take a part.
            if stream is not None and stream.line_buffering:
                stream.flush()
            os.close(file)


def changes(before: dict[str, str], after: dict[str, str]) -> dict[str, str | None]:
    """Variables that differ, with their new value; None for those that are gone."""
    changed: dict[str, str | None] = {
        name: value for name, value in after.items() if before.get(name) != value
    }
    changed.update((name, None) for name in before if name not in after)
    return changed


def run(order: PreparedWorker) -> None:
    """Run the program as `__main__`; what it raises leaves through the interpreter."""
    take_identity(order)
    main = _clean_main(order)
    code = _compile(order) if order.worker.kind != "module" else None
    run_module = private_names.module_runner(runpy)
    order.printed.print_again()
    atexit.register(before_the_end)
    try:
        # Not in functions of their own: each would be one more frame of ours in a stack
        # that the program prints.
        if code is None:
            run_module(order.worker.target)
        else:
            exec(code, main)
    except SystemExit:
        raise
    except BaseException as error:
        error.__traceback__ = _without_our_frames(error.__traceback__)
        try:
            _leave_error_file(order, error)
        except OSError:
            pass  # No descriptor is left, or no disk: what is printed has to do.
        _let_interpreter_print(error)
        raise
    finally:
        order.watch.tell_too_early()


def leave_sys_modules() -> None:
    """Take ours out of `sys.modules`, where neither a package nor the program is to find them."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "holdfast"]:
        del sys.modules[name]
    package = os.path.dirname(os.path.dirname(_HERE))
    for path in list(sys.path_importer_cache):
        is_ours = path == package or path.startswith(f"{package}/")
        if is_ours or (path == os.path.dirname(package) and path not in sys.path):
            del sys.path_importer_cache[path]


# The identity of a worker.


def take_identity(order: PreparedWorker) -> None:
    """Be that worker from now on, to all that looks; a cold one if the program is another now."""
    if any(_stamp(path) != tuple(stamp) for path, stamp in order.files):
        start_over(order)
    environment = dict(order.env)
    for name, value in order.preload_changes.items():
        if value is None:
            environment.pop(name, None)
        elif environment.get(name) == order.common.shared_env.get(name):
            environment[name] = value
    os.environ.clear()
    os.environ.update(environment)
    linux.permit_agent(environment)
    stack_handler.take_variable()
    optimizer_steps.take_variable()
    sys.argv[:] = order.worker.argv
    sys.orig_argv[:] = _command(order)
    linux.show_as(_command(order), order.env)
    _renew_streams()
    order.apply_fixups()
    _take_back_path(order)
    placed = order.folder_is_on_path or order.fresh_path is not None
    if not placed and not sys.flags.safe_path:
        sys.path.insert(0, _program_folder(order))
    if order.worker.learns and "HOLDFAST_CHANNEL" in order.env:
        order.watch.report(order.env["HOLDFAST_CHANNEL"], order.avoided, order.set_ahead)
    else:
        order.watch.end()


def _stamp(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size


def _take_back_path(order: PreparedWorker) -> None:
    if order.fresh_path is not None:
        first = [] if sys.flags.safe_path else [_program_folder(order)]
        sys.path[:] = [*first, *order.fresh_path]
        return
    for entry in order.added_to_path:
        if entry in sys.path:
            sys.path.remove(entry)


def _command(forked: ForkedWorker) -> list[str]:
    return [*forked.worker.interpreter, *forked.worker.command]


def _program_folder(order: PreparedWorker) -> str:
    if order.worker.kind == "code":
        return ""
    if order.worker.kind == "module":
        return os.getcwd()
    return os.path.dirname(os.path.realpath(order.worker.target))


def _renew_streams() -> None:
    """Make the streams anew, as they remember what their descriptors once were.

    The objects stay: a handler that a preloaded module made may hold one of them.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        stream: Any = getattr(sys, f"__{name}__")
        if stream is None:
            continue
        is_buffered = descriptor == 0 or not stream.write_through
        mode, buffering = "rb" if descriptor == 0 else "wb", -1 if is_buffered else 0
        buffer: Any = io.open(descriptor, mode, buffering=buffering, closefd=False)  # noqa: SIM115, UP020
        getattr(buffer, "raw", buffer).name = f"<{name}>"
        encoding, errors = stream.encoding, stream.errors
        at_once = stream.write_through
        by_line = not at_once and (descriptor == 2 or buffer.isatty())
        stream.__init__(buffer, encoding, errors, "\n", by_line, write_through=at_once)


def flush_streams() -> None:
    """Unless they are closed, or are somebody's own and cannot be."""
    for stream in (sys.__stdout__, sys.__stderr__, sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]


def renew_memories(modules: dict[str, Any]) -> None:
    """Have the preloaded modules forget what they know of the process that loaded them."""
    loaded: Any = modules.get
    if process := loaded("multiprocessing.process"):
        process.current_process().authkey = os.urandom(32)
    if numpy_random := loaded("numpy.random"):
        numpy_random.seed()
    if torch_random := loaded("torch.random"):
        torch_random.default_generator.seed()


# The program.


def _clean_main(order: PreparedWorker) -> dict[str, Any]:
    """Leave in `__main__` only the attributes that the interpreter gives, in their order.

    It has to be the very module that was there before: others may hold on to it, as
    `multiprocessing` does, and the interpreter does so too.
    """
    values: dict[str, Any] = {
        "__name__": "__main__",
        "__doc__": None,
        "__package__": None,
        "__loader__": BuiltinImporter,
        "__spec__": None,
        "__annotations__": {},
        "__builtins__": sys.modules["builtins"],
    }
    if order.worker.kind == "script":
        path = _script_path(order)
        values.update(__loader__=SourceFileLoader("__main__", path), __file__=path, __cached__=None)
        # The interpreter asks first whether it is an archive, and remembers the answer.
        sys.path_importer_cache.setdefault(path, None)
    main = vars(sys.modules["__main__"])
    # It was frozen with all that the zygote had, and what it holds would never be collected.
    private_names.refill(main, {name: values[name] for name in main if name in values})
    return main


def _script_path(order: PreparedWorker) -> str:
    """The script as the interpreter names it: absolute, and otherwise as it was given."""
    target = order.worker.target
    return target if target.startswith("/") else f"{os.getcwd()}/{target}"


def _compile(order: PreparedWorker) -> types.CodeType:
    """The code of a script. Whatever is not plain source is left to the interpreter itself."""
    if order.worker.kind == "code":
        return compile(order.worker.target, "<string>", "exec", dont_inherit=True)
    path = _script_path(order)
    source = b""
    stderr, held_back = sys.stderr, io.StringIO()
    sys.stderr = held_back
    try:
        with io.open_code(path) as file:
            source = file.read()
        source.decode()
        code = compile(source, path, "exec", dont_inherit=True)
    except OSError:
        start_over(order)
    except PROGRAM_IS_NO_SOURCE as error:
        if isinstance(error, SyntaxError) and b"\0" not in source:
            error.__traceback__ = _without_our_frames(error.__traceback__)
            _leave_error_file(order, error)
        start_over(order)
    finally:
        sys.stderr = stderr
    # Warnings about the syntax. Had the interpreter started over, it would give them.
    stderr.write(held_back.getvalue())
    return code


def start_over(forked: ForkedWorker) -> NoReturn:
    """Become a cold worker after all: same process, same descriptors."""
    command = _command(forked)
    os.execvpe(command[0], command, forked.env)


# Its end.


def before_the_end() -> None:
    """Flush files, since one that a frozen object holds would not be collected any more.

    A library that counts what it has made (nanobind) would report a leak: for it, nothing stays
    frozen. That is not done for all, since the collection which follows takes half a second with
    PyTorch.
    """
    is_file: dict[type, bool] = {}  # There may be millions of objects, but few types.
    for one in gc.get_objects():
        kind = type(one)
        if kind not in is_file:
            is_file[kind] = issubclass(kind, io.IOBase)
        if is_file[kind]:
            with contextlib.suppress(Exception):
                one.flush()
    if counts_objects():
        gc.unfreeze()


def counts_objects() -> bool:
    """Whether a compiled module is loaded whose library counts what it has made (nanobind)."""
    modules: list[Any] = list(sys.modules.values())
    for module in modules:
        names = vars(module) if isinstance(module, types.ModuleType) else {}
        is_compiled = str(names.get("__file__")).endswith(".so")
        if is_compiled and any(type(one).__module__ == "nanobind" for one in names.values()):
            return True
    return False


def _without_our_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback from the first frame on that is not of a file of ours."""
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) in OWN_FOLDERS:
        trace = trace.tb_next
    return trace


def _let_interpreter_print(error: BaseException) -> None:
    """Have the program's own hook called with the program's own frames only.

    The exception leaves through our frames once more; the hook that the interpreter
    calls at the very end takes them off again.
    """
    hook = sys.excepthook

    def print_without_our_frames(kind: Any, value: BaseException, trace: object) -> None:
        sys.excepthook = hook
        own = error.__traceback__ = sys.last_traceback = _without_our_frames(error.__traceback__)
        hook(kind, value, own)

    sys.excepthook = print_without_our_frames


def _leave_error_file(order: PreparedWorker, error: BaseException) -> None:
    path = order.env.get("TORCHELASTIC_ERROR_FILE")
    if not path or not order.common.error_writer or isinstance(error, KeyboardInterrupt):
        return
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("_holdfast_error_file", order.common.error_writer)
    if spec is not None and spec.loader is not None:
        writer = module_from_spec(spec)
        spec.loader.exec_module(writer)
        writer.write(path, error, only_if_absent=True)
