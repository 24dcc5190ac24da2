"""What the tests have run as processes: here, a fresh interpreter can import it."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any


def twice(value: Any) -> Any:
    return value * 2


def nothing() -> None:
    pass


def variables(*names: str) -> tuple[str | None, ...]:
    return tuple(os.environ.get(name) for name in names)


def raises(value: str) -> None:
    if value:
        raise ValueError(value)
    stay()


def leaves(code: int) -> None:
    sys.exit(code)


def dies(number: int) -> None:
    if number:
        os.kill(os.getpid(), number)
    stay()


def leaves_without_a_word() -> None:
    os._exit(0)


def first_leaves_without_a_word(local_rank: int) -> int:
    if local_rank == 0:
        os._exit(0)
    return local_rank


def leaves_with_words() -> None:
    sys.exit("these words")


def interrupts() -> None:
    raise KeyboardInterrupt


def aborts() -> None:
    faulthandler.disable()  # The test's own is loud.
    os.abort()


def makes_shared_memory(path: str, then: int) -> None:
    memory = SharedMemory(create=True, size=1)
    Path(path).write_text(memory.name, encoding="utf-8")
    if then:
        os.kill(os.getpid(), then)


def closes_everything() -> int:
    os.closerange(3, 300)
    return 5


def returns_a_lock() -> Any:
    return threading.Lock()


class Unpicklable(Exception):
    """Cannot go anywhere."""

    def __reduce__(self) -> Any:
        raise RuntimeError("it stays")


def raises_the_unpicklable() -> None:
    raise Unpicklable("words")


def leaves_a_child() -> int:
    child = os.fork()
    if child == 0:
        stay()
    print("said", flush=True)
    return child


def processors() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def writes_through(ends: list[Any]) -> int:
    for number, end in enumerate(ends):
        end.send(number)
    return len(ends)


def sum_of_sums(tensors: list[Any]) -> float:
    return float(sum(tensor.sum().item() for tensor in tensors))


def writes(text: str) -> None:
    print(f"{text} to stdout", flush=True)
    print(f"{text} to stderr", file=sys.stderr, flush=True)


def puts(queue: Any, value: Any) -> None:
    queue.put(value)


def count(counter: Any, times: int) -> None:
    for _ in range(times):
        with counter.get_lock():
            counter.value += 1


def stay() -> None:
    while True:
        time.sleep(60)


def ignores_sigterm(ready: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            tell(ready, os.getpid())
            stay()
        os._exit(0)
    os.wait()
    stay()


def notes_the_signal(folder: str, local_rank: int) -> None:
    def note(number: int, frame: object) -> None:
        tell(f"{folder}/signal_{local_rank}", number)
        sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, note)
    tell(f"{folder}/ready_{local_rank}", os.getpid())
    stay()


def returns_when(path: str) -> str:
    while path and not os.path.exists(path):
        time.sleep(0.01)
    return path


def starts_others(folder: str, method: str) -> Any:
    from holdfast.elastic.multiprocessing import DefaultLogsSpecs, start_processes

    logs = DefaultLogsSpecs(log_dir=folder)
    arguments = {0: (1,), 1: (2,)}
    variables: dict[int, dict[str, str]] = {0: {}, 1: {}}
    context = start_processes("in", twice, arguments, variables, logs, start_method=method)
    result = context.wait()
    assert result is not None
    return result.return_values


def starts_one_that_stays(path: str) -> None:
    from holdfast.elastic.multiprocessing import DefaultLogsSpecs, start_processes

    logs = DefaultLogsSpecs(log_dir=path + ".logs")
    context = start_processes("in", ignores_sigterm, {0: (path,)}, {0: {}}, logs)
    context.wait()


def tell(path: str, number: int) -> None:
    Path(path + ".part").write_text(str(number), encoding="utf-8")
    os.replace(path + ".part", path)


def caller(kind: str, folder: str) -> None:
    """A process that starts others, says which, and waits for whatever comes."""
    from holdfast.elastic.multiprocessing import DefaultLogsSpecs, start_processes

    logs = DefaultLogsSpecs(log_dir=f"{folder}/logs")
    if kind == "command":
        path = f"{folder}/child"
        lines = f"sleep 1000 & echo $! > {path}.part; mv {path}.part {path}; wait"
        context = start_processes("t", "/bin/sh", {0: ("-c", lines)}, {0: {}}, logs)
    else:
        context = start_processes(
            "t", ignores_sigterm, {0: (f"{folder}/child",)}, {0: {}}, logs, start_method=kind
        )
    if os.fork() == 0:  # It lives on, and must not hold on to what is ours.
        tell(f"{folder}/fork", os.getpid())
        stay()
    returns_when(f"{folder}/child")
    tell(f"{folder}/worker", context.pids()[0])
    if "exit" in folder:
        sys.exit(0)
    context.wait()


if __name__ == "__main__":
    caller(sys.argv[1], sys.argv[2])
