"""A program that does what programs do, with processes, threads, files and modules.

Each function of `OBSERVATIONS` does one thing and returns what came of it. The results go as
JSON to the file `$SAW.$RANK`.
"""

import asyncio
import concurrent.futures
import json
import linecache
import logging
import multiprocessing
import os
import pickle
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from multiprocessing.context import ForkContext, ForkServerContext, SpawnContext

import queue_of_mine
import rank_at_import


def square(number: int) -> tuple[int, bool]:
    return number * number, __name__ in ("__main__", "__mp_main__")


def put_square(number: int, results: "multiprocessing.Queue[object]") -> None:
    results.put((square(number), multiprocessing.current_process().name))


def _processes(context: ForkContext | ForkServerContext | SpawnContext) -> object:
    results = context.Queue()
    process = context.Process(target=put_square, args=(3, results))
    process.start()
    answer = results.get()
    process.join()
    with context.Pool(2) as pool:
        squares = pool.map(square, range(4))
    return [answer, process.exitcode, squares]


def processes_by_spawn() -> object:
    return _processes(multiprocessing.get_context("spawn"))


def processes_by_fork() -> object:
    return _processes(multiprocessing.get_context("fork"))


def processes_by_forkserver() -> object:
    return _processes(multiprocessing.get_context("forkserver"))


def process_pool_executor() -> object:
    with concurrent.futures.ProcessPoolExecutor(2) as executor:
        return list(executor.map(square, range(4)))


def child_sees_its_own_thread() -> object:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps(threading.main_thread() is threading.current_thread()).encode())
        os._exit(0)
    os.wait()
    return os.read(reader, 100).decode()


def descriptors_of_a_child() -> object:
    """What is inherited beyond 0, 1 and 2; `ls` itself opens the directory."""
    listed = subprocess.run(["ls", "/proc/self/fd"], capture_output=True, text=True, check=True)
    all_of_them = subprocess.run(
        ["ls", "/proc/self/fd"], capture_output=True, text=True, check=True, close_fds=False
    )
    return [listed.stdout.split(), all_of_them.stdout.split()]


def signals_of_a_child() -> object:
    code = "import signal; print([str(signal.getsignal(n)) for n in signal.valid_signals()])"
    return subprocess.check_output([sys.executable, "-c", code], text=True)


def output_of_a_child() -> object:
    command = ["sh", "-c", "echo one; echo two >&2; exit 3"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return [done.returncode, done.stdout, done.stderr]


def asynchronous_child() -> object:
    async def run() -> object:
        process = await asyncio.create_subprocess_exec("echo", "text", stdout=subprocess.PIPE)
        return (await process.communicate())[0].decode()

    return asyncio.run(run())


def temporary_files() -> object:
    with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as folder:
        return [os.path.dirname(file.name), os.path.dirname(folder), oct(os.stat(folder).st_mode)]


def pickles() -> object:
    return [pickle.loads(pickle.dumps(square)) is square, b"__main__" in pickle.dumps(square)]


def other_programs() -> object:
    return runpy.run_path("other.py", run_name="__main__")["told"]


def modules_of_the_tree() -> object:
    return [queue_of_mine.NAME, rank_at_import.RANK, os.path.basename(rank_at_import.__file__)]


def lines_of_tracebacks() -> object:
    try:
        square("x")  # type: ignore[arg-type]
    except TypeError:
        return [traceback.format_exc(), linecache.getline(__file__, 1)]
    raise AssertionError("a word has no square")


def log_records() -> object:
    logging.basicConfig(stream=sys.stdout, format="%(processName)s %(threadName)s %(module)s")
    logging.getLogger("x").warning("text")
    record = logging.LogRecord("x", 10, __file__, 1, "text", (), None)
    return [record.process == os.getpid(), record.processName, record.thread == record.thread]


def caught_warnings() -> object:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("text", DeprecationWarning, stacklevel=1)
    return [str(entry.message) for entry in caught]


def main_imported_by_name() -> object:
    import __main__

    return __main__.square is square


def locks_and_threads() -> object:
    done: list[int] = []
    threads = [threading.Thread(target=done.append, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [sorted(done), threading.active_count(), [thread.name for thread in threads]]


OBSERVATIONS = [
    child_sees_its_own_thread,  # first, while there is one only
    processes_by_spawn, processes_by_fork, processes_by_forkserver, process_pool_executor,
    descriptors_of_a_child, signals_of_a_child, output_of_a_child,
    locks_and_threads,  # before the next one, whose thread may take its time to end
    asynchronous_child, temporary_files, pickles, other_programs, modules_of_the_tree,
    lines_of_tracebacks, log_records, caught_warnings, main_imported_by_name,
]  # fmt: skip


if __name__ == "__main__":
    saw = {look.__name__: look() for look in OBSERVATIONS}
    with open(f"{os.environ['SAW']}.{os.environ.get('RANK', '0')}", "w") as _file:
        json.dump(saw, _file)
