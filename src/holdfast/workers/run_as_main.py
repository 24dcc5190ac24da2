"""In a forked worker: become what `python script.py` would have been, and run it.

What a program could notice, and what is done about it:

    argv, orig_argv, path[0]     set as the interpreter sets them
    __main__                     a fresh module with the attributes the interpreter gives it
    environment                  the worker's own, plus what the preloaded modules changed
    /proc/<pid>/cmdline, environ point to the worker's command and environment
    standard streams             made anew over the worker's descriptors
    what importing printed       printed again, in every worker
    unhandled exceptions         our frames are cut off; the interpreter itself prints them,
                                 runs `atexit`, waits for threads, and chooses the status
    random state                 NumPy's is seeded anew; `random` does so itself after a
                                 fork; PyTorch starts from a constant, fork or not
    modules                      ours are taken out of `sys.modules` again

What stays different is harmless and documented: one hash seed for all workers of a node,
and the modules of the standard library that the zygote needed are already imported.

Standard library only: loaded by path, in the zygote.
"""

from __future__ import annotations

import io
import os
import runpy
import sys
import types

OWN_MODULES = ("wire", "linux", "run_as_main")


def divert_output() -> tuple[int, int]:
    """Keep what importing prints, in memory, to be printed by each worker."""
    kept = (os.memfd_create("holdfast-stdout"), os.memfd_create("holdfast-stderr"))
    for target, descriptor in enumerate(kept, start=1):
        os.dup2(descriptor, target)
    return kept


def changes(before: dict[str, str], after: dict[str, str]) -> dict[str, str | None]:
    """Variables that differ, with their new value; None for those that are gone."""
    changed: dict[str, str | None] = {
        name: value for name, value in after.items() if before.get(name) != value
    }
    changed.update((name, None) for name in before if name not in after)
    return changed


def become(order: dict) -> None:
    """Take on the worker's identity: environment, streams, command line, random state."""
    environment = dict(order["env"])
    for name, value in order["preload_changes"].items():
        if value is None:
            environment.pop(name, None)
        elif environment.get(name) == order["shared_env"].get(name):
            environment[name] = value
    os.environ.clear()
    os.environ.update(environment)
    _replay_output(order["printed"])
    _renew_streams()
    command = [*order["interpreter"], *order["command"]]
    sys.modules["linux"].show_as(command, order["env"])
    sys.argv = list(order["argv"])
    sys.orig_argv = command
    for name in OWN_MODULES:
        sys.modules.pop(name, None)
    sys.path_importer_cache.pop(os.path.dirname(os.path.abspath(__file__)), None)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def run(order: dict) -> None:
    """Run the program as `__main__`; what it raises leaves through the interpreter."""
    try:
        if order["kind"] == "module":
            _put_first_on_path(os.getcwd())
            sys.modules["__main__"] = types.ModuleType("__main__")
            runpy._run_module_as_main(order["target"])
        else:
            _run_script(order["target"])
    except SystemExit as request:
        request.__traceback__ = None
        raise
    except BaseException as error:
        # The frame of this function is the first, those of the program follow.
        error.__traceback__ = _without_our_frames(error.__traceback__)
        _leave_error_file(order, error)
        _let_interpreter_print(error)
        raise


def _run_script(path: str) -> None:
    absolute = os.path.abspath(path)
    _put_first_on_path(os.path.dirname(os.path.realpath(path)))
    main = types.ModuleType("__main__")
    from importlib.machinery import SourceFileLoader

    main.__dict__.update(
        __file__=absolute,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", absolute),
        __builtins__=sys.modules["builtins"],
        __annotations__={},
    )
    sys.modules["__main__"] = main
    try:
        with io.open_code(absolute) as file:
            source = file.read()
    except OSError as error:
        text = f"{sys.executable}: can't open file {absolute!r}: [Errno {error.errno}] {error.strerror}"
        print(text, file=sys.stderr)
        raise SystemExit(2) from None
    exec(compile(source, absolute, "exec", dont_inherit=True), main.__dict__)


def _put_first_on_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


def _replay_output(printed: tuple[int, int]) -> None:
    for target, kept in enumerate(printed, start=1):
        size = os.fstat(kept).st_size
        offset = 0
        while offset < size:
            offset += os.write(target, os.pread(kept, min(65536, size - offset), offset))
        os.close(kept)


def _renew_streams() -> None:
    """Make `sys.stdin` and its kin anew: they remember what their descriptors once were."""
    for name, descriptor in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        if old is None:
            continue
        raw: io.RawIOBase = io.FileIO(descriptor, "r" if descriptor == 0 else "w", closefd=False)
        raw.name = f"<{name}>"  # type: ignore[attr-defined]
        stream = io.TextIOWrapper(
            io.BufferedReader(raw) if descriptor == 0 else raw,  # type: ignore[arg-type]
            encoding=old.encoding,
            errors=old.errors,
            newline="\n",
            line_buffering=False,
            write_through=descriptor != 0,
        )
        stream.mode = "r" if descriptor == 0 else "w"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _without_our_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _let_interpreter_print(error: BaseException) -> None:
    """Have the program's own hook called with the program's own frames only.

    The exception leaves through our frames once more; the hook that the interpreter
    calls at the very end takes them off again.
    """
    hook = sys.excepthook

    def print_without_our_frames(kind: type, value: BaseException, trace: object) -> None:
        sys.excepthook = hook
        own = error.__traceback__ = _without_launcher_frames(error.__traceback__)
        hook(kind, value, own)

    sys.excepthook = print_without_our_frames


def _without_launcher_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    folder = os.path.dirname(os.path.abspath(__file__))
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) == folder:
        trace = trace.tb_next
    return trace


def _leave_error_file(order: dict, error: BaseException) -> None:
    path = order["env"].get("TORCHELASTIC_ERROR_FILE")
    if not path or isinstance(error, KeyboardInterrupt):
        return
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("_holdfast_error_file", order["error_writer"])
    if spec is not None and spec.loader is not None:
        writer = module_from_spec(spec)
        spec.loader.exec_module(writer)
        writer.write(path, error, only_if_absent=True)
