"""A program that writes down all that it can see of itself.

Each function of `OBSERVATIONS` looks at one thing and returns it in a form that is the same
in two processes that cannot be told apart. The results go as JSON to the file `$SAW.$RANK`.
"""

import sys

LOADED = set(sys.modules)

import os  # noqa: E402 - what was loaded before is one of the observations

OPEN = {}
for _entry in os.listdir("/proc/self/fd"):
    try:
        OPEN[int(_entry)] = os.readlink(f"/proc/self/fd/{_entry}")
    except OSError:
        pass  # the one through which the directory was read
# Warm and cold workers have these two for `holdfast stacks`, and plain Python has not.
OPEN = {number: target for number, target in OPEN.items() if "holdfast-stacks" not in target}
STACKS_SIGNAL = 1 << 60
CRASH_SIGNALS = sum(1 << (number - 1) for number in (4, 6, 7, 8, 11))
"""They are caught in workers, to have the stack of a crash."""
MAIN = {name: value for name, value in globals().items() if name.startswith("__")}
SPECIFIC = {
    "HOLDFAST_CHANNEL", "HOLDFAST_PAGE", "HOLDFAST_STACKS", "MASTER_PORT", "SAW",
    "TORCHELASTIC_ERROR_FILE", "_", "HOLDFAST_HOOK", "HOLDFAST_HOOK_PYTHONPATH", "PYTHONPATH",
}  # fmt: skip
"""Variables that name a port, a process or a file of one job; the last three are those of the
hook by which a cold worker leaves its traceback, and are gone when the program starts."""


def argv() -> object:
    return sys.argv


def orig_argv() -> object:
    return sys.orig_argv


def module_path() -> object:
    return sys.path


def flags() -> object:
    return [str(sys.flags), repr(sys._xoptions), sys.warnoptions, sys.dont_write_bytecode]


def interpreter() -> object:
    return [sys.executable, sys.prefix, sys.base_prefix, sys.pycache_prefix, sys.platlibdir]


def names_of_sys() -> object:
    return sorted(vars(sys))


def limits_of_sys() -> object:
    return [sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits()]


def names_of_main() -> object:
    return [name for name in MAIN if name != "__warningregistry__"]


def values_of_main() -> object:
    plain = ("__name__", "__file__", "__cached__", "__package__")
    return {name: MAIN.get(name) for name in plain}


def types_of_main() -> object:
    return {name: type(value).__name__ for name, value in MAIN.items()}


def spec_of_main() -> object:
    spec = MAIN["__spec__"]
    return spec and [spec.name, spec.origin, spec.parent, spec.cached, spec.has_location]


def loader_of_main() -> object:
    loader = MAIN["__loader__"]
    return [type(loader).__name__, loader.name, loader.path, loader.get_filename(loader.name)]


def main_is_this_module() -> object:
    import __main__

    return [__main__.__dict__ is globals(), sys.modules[__name__] is __main__, repr(__main__)]


def importers() -> object:
    cache = sorted(entry for entry, value in sys.path_importer_cache.items() if value is None)
    finders = [repr(type(entry)) for entry in sys.meta_path]
    if "import_reports" in finders[0]:
        del finders[0]  # It differs, as docs/guides/warm-start.md has it.
    return [finders, len(sys.path_hooks), cache]


def hooks() -> object:
    names = ("displayhook", "breakpointhook", "unraisablehook")
    same = [getattr(sys, name) is getattr(sys, f"__{name}__") for name in names]
    return [same, repr(sys.gettrace()), repr(sys.getprofile())]


def exception_hook() -> object:
    return [repr(sys.excepthook), sys.excepthook is sys.__excepthook__]


def warnings_filters() -> object:
    import warnings

    return [repr(entry) for entry in warnings.filters]


def signal_handlers() -> object:
    import signal

    return {int(number): repr(signal.getsignal(number)) for number in signal.valid_signals()}


def signal_dispositions() -> object:
    """As the kernel has them. Signals 32 and 33 belong to the C library."""
    with open("/proc/self/status") as file:
        lines = [line.split() for line in file]
    masks = {
        words[0]: int(words[1], 16)
        for words in lines
        if words[0].startswith("Sig") and "/" not in words[1]
    }
    masks["SigIgn:"] &= ~(3 << 31)
    masks["SigCgt:"] &= ~(STACKS_SIGNAL | CRASH_SIGNALS)
    return [masks[f"Sig{name}:"] for name in ("Pnd", "Blk", "Ign", "Cgt")]


def signal_details() -> object:
    import signal

    timers = [signal.getitimer(which) for which in range(3)]
    return [timers, signal.set_wakeup_fd(-1), sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))]


def _stream(name: str) -> object:
    import fcntl
    import stat

    stream = getattr(sys, name)
    raw = getattr(stream.buffer, "raw", stream.buffer)
    attributes = ("encoding", "errors", "line_buffering", "write_through", "newlines", "mode")
    descriptor = stream.fileno()
    return {
        **{attribute: repr(getattr(stream, attribute)) for attribute in attributes},
        "calls": [stream.isatty(), stream.seekable(), stream.readable(), stream.writable()],
        "layers": [type(layer).__name__ for layer in (stream, stream.buffer, raw)],
        "names": [str(layer.name) for layer in (stream, stream.buffer, raw)],
        "modes": [raw.mode, raw.closefd, raw._blksize],
        "own names": sorted(vars(stream)),
        "kind": stat.S_IFMT(os.fstat(descriptor).st_mode),
        "flags": [fcntl.fcntl(descriptor, call) for call in (fcntl.F_GETFL, fcntl.F_GETFD)],
        "original": stream is getattr(sys, f"__{name}__"),
    }


def standard_input() -> object:
    return _stream("stdin")


def standard_output() -> object:
    return _stream("stdout")


def standard_error() -> object:
    return _stream("stderr")


def open_descriptors() -> object:
    """Which are open, and what kind of thing each is."""
    # `ctypes`, which a zygote has loaded, may keep its library open.
    return {number: _kind(target) for number, target in OPEN.items() if "/libffi" not in target}


def _kind(target: str) -> str:
    if target.startswith("/") and not target.startswith("/dev/"):
        return "file"
    return target.partition(":[")[0]


def command_line() -> object:
    with open("/proc/self/cmdline", "rb") as file:
        return file.read().decode().split("\0")


def short_name() -> object:
    with open("/proc/self/comm") as file:
        return file.read()


def executable() -> object:
    return os.readlink("/proc/self/exe")


def environment() -> object:
    return {name: value for name, value in os.environ.items() if name not in SPECIFIC}


def environment_of_children() -> object:
    """What a child gets is in the C library's memory, not in `os.environ`."""
    import subprocess

    code = "import os, json; print(json.dumps(dict(os.environ)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    import json

    return [json.loads(done.stdout) == dict(os.environ), len(done.stderr)]


def environment_in_proc() -> object:
    with open("/proc/self/environ", "rb") as file:
        entries = [entry.decode().split("=", 1) for entry in file.read().split(b"\0")[:-1]]
    return {name: value for name, value in entries if name not in SPECIFIC}


def parent() -> object:
    with open(f"/proc/{os.getppid()}/comm") as file:
        return file.read()


def session() -> object:
    return [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()]


def death_with_parent() -> object:
    import ctypes

    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(number))
    return number.value


def working_directory() -> object:
    return os.getcwd()


def file_creation_mask() -> object:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def resource_limits() -> object:
    import resource

    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def scheduling() -> object:
    with open("/proc/self/oom_score_adj") as file:
        adjustment = file.read()
    return [os.nice(0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)), adjustment]


def garbage_collection() -> object:
    import gc

    return [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks), gc.garbage]


def threads() -> object:
    import threading

    main = threading.main_thread()
    return [
        [thread.name for thread in threading.enumerate()],
        main is threading.current_thread(),
        os.getpid() == threading.get_native_id(),
        main.ident == threading.get_ident(),
        repr(threading.excepthook),
    ]


def logging_configuration() -> object:
    import logging

    return [repr(logging.root), repr(logging.root.handlers), repr(logging.lastResort)]


def locale_settings() -> object:
    import locale

    return [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), locale.getlocale()]


def encodings() -> object:
    return [sys.getdefaultencoding(), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()]


def modules_of_holdfast() -> object:
    ours = ["holdfast", "wire", "linux", "run_as_main", "zygote", "_holdfast_error_file"]
    ours += ["private_messages", "private_names"]
    return [name for name in LOADED if name.partition(".")[0] in ours]


def modules_not_of_the_library() -> object:
    outside = {name for name in LOADED if name.partition(".")[0] not in sys.stdlib_module_names}
    beside_os = {name for name in outside if _folder_of(name) == os.path.dirname(os.__file__)}
    return sorted(outside - beside_os - {"__main__", "__mp_main__"})


def _folder_of(name: str) -> str:
    """Of a module's file: not all of the library are on its list."""
    return os.path.dirname(getattr(sys.modules.get(name), "__file__", None) or "")


def exit_handlers() -> object:
    import atexit

    return atexit._ncallbacks()


def event_loop() -> object:
    import asyncio

    async def look() -> object:
        return asyncio.get_running_loop().is_running()

    return asyncio.run(look())


def temporary_folder() -> object:
    import tempfile

    return tempfile.gettempdir()


def processes() -> object:
    import multiprocessing

    process = multiprocessing.current_process()
    return [
        process.name,
        process.pid == os.getpid(),
        multiprocessing.parent_process() is None,
        sys.modules["__mp_main__"] is sys.modules["__main__"],
        len(process.authkey),
        multiprocessing.get_start_method(),
    ]


def source_of_a_function() -> object:
    import inspect

    return inspect.getsource(argv)


def pickle_of_a_class() -> object:
    import pickle

    return [Thing.__module__, type(pickle.loads(pickle.dumps(Thing()))) is Thing]


class Thing:
    """Something to be pickled."""


OBSERVATIONS = [
    argv, orig_argv, module_path, flags, interpreter, names_of_sys, limits_of_sys,
    names_of_main, values_of_main, types_of_main, spec_of_main, loader_of_main,
    main_is_this_module, importers, hooks, exception_hook, warnings_filters,
    signal_handlers, signal_dispositions, signal_details, standard_input, standard_output,
    standard_error, open_descriptors, command_line, short_name, executable, environment,
    environment_of_children, environment_in_proc, parent, session, death_with_parent,
    working_directory, file_creation_mask, resource_limits, scheduling, garbage_collection,
    threads, logging_configuration, locale_settings, encodings,
    modules_of_holdfast, modules_not_of_the_library, exit_handlers, event_loop,
    temporary_folder, processes, source_of_a_function, pickle_of_a_class,
]  # fmt: skip


if __name__ == "__main__":
    saw = {look.__name__: look() for look in OBSERVATIONS}
    import json

    with open(f"{os.environ['SAW']}.{os.environ.get('RANK', '0')}", "w") as _file:
        json.dump(saw, _file)
