"""What the tests have run as processes: here, a fresh interpreter can import it."""

from __future__ import annotations

import os
import signal
import sys
import time
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


def tell(path: str, number: int) -> None:
    Path(path + ".part").write_text(str(number), encoding="utf-8")
    os.replace(path + ".part", path)


def caller(kind: str, folder: str) -> None:
    """A process that starts others, says which, and waits for whatever comes."""
    from holdfast.elastic.multiprocessing import DefaultLogsSpecs, start_processes

    logs = DefaultLogsSpecs(log_dir=f"{folder}/logs")
    if kind == "command":
        lines = f"sleep 1000 & echo $! > {folder}/child; wait"
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
