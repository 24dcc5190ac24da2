"""What the scripts of this folder tell whoever watches them; by themselves they need none of it.

A script imports this first, before anything heavy, and calls `begin()` when its imports are
through, `stepped()` after each step and `finished(digest)` at its end. What that leaves, and
where, is up to the environment:

    BENCH_REPORTS=PATH   a named pipe or a file. A worker's first step appends a line to it: rank,
                         attempt, pid, when the program began, when the step was done, number of
                         workers; times are of CLOCK_MONOTONIC, the same in all processes. Each
                         step, the first included, appends its time to `steps-PID` beside it.
    STACK_RESULTS=DIR    `result-RANK.json`: the digest, the attempt, what `finished` was told.
    STACK_PROBE=1        with STACK_RESULTS: `imports-RANK-ATTEMPT.json`, how many seconds this
                         worker spent in importing, and which modules that loaded.
    STACK_HOLD_AT=STEP   the first attempt waits after so many steps, for ever: whoever wants to
                         kill a worker at a known moment finds it there.

How imports are timed without changing them, and without a statement that would do something
before the script's imports are through: what lies between the first line and `begin()` is imports
and definitions, so the clock is read at both. For what is imported later, inside of functions,
`begin()` puts a stopwatch around the one function that all of Python's imports pass through when
a module is not loaded yet, statements as well as calls of `importlib`; it runs for the outermost
import only, so that nothing counts twice. What is loaded already never gets there, so it costs
and counts nothing: what is timed is what is left for this worker to import.
"""

import json
import os
import sys
import time

BEGUN = time.monotonic()
"""When this was imported, which is the first thing that a script here does."""

RANK = os.environ.get("RANK", "0")
ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
WORLD_SIZE = os.environ.get("WORLD_SIZE", "1")

MODULES = frozenset(sys.modules)
"""What was there before the script imported anything."""


class Worker:
    """What is known of this one so far. The class itself, since to make an object is to do
    something, and nothing is done before the script's imports are through."""

    steps = 0
    step_log = -1
    top_s = 0.0
    """From the first line to `begin()`."""
    stopwatch: "Stopwatch | None" = None
    laps: dict[str, object] = {}  # noqa: RUF012  (there is one of it)


def begin() -> None:
    """Say that the imports at the top of the script are through."""
    if os.environ.get("STACK_PROBE"):
        Worker.top_s = time.monotonic() - BEGUN
        Worker.stopwatch = Stopwatch()


def stepped() -> None:
    """Say that a step was done, just now: one short write, and one more after the first step."""
    path = os.environ.get("BENCH_REPORTS")
    if path is None:
        return
    now = time.monotonic()
    Worker.steps += 1
    if Worker.step_log < 0:
        log = os.path.join(os.path.dirname(path), f"steps-{os.getpid()}")
        append = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        Worker.step_log = os.open(log, append | os.O_CREAT)
        reports = os.open(path, append)
        line = f"{RANK} {ATTEMPT} {os.getpid()} {BEGUN} {now} {WORLD_SIZE}\n"
        os.write(reports, line.encode())
        os.close(reports)
        _lap()
    os.write(Worker.step_log, f"{now}\n".encode())
    if ATTEMPT == "0" and os.environ.get("STACK_HOLD_AT") == str(Worker.steps):
        while True:
            time.sleep(3600)


def finished(digest: str, **more: object) -> None:
    """Say that training is over, and what it came to."""
    _leave(f"result-{RANK}.json", {"digest": digest, "attempt": int(ATTEMPT), **more})
    _lap()


def _leave(name: str, content: dict[str, object]) -> None:
    folder = os.environ.get("STACK_RESULTS")
    if folder is None:
        return
    path = os.path.join(folder, name)
    with open(f"{path}.part", "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.part", path)


class Stopwatch:
    """Adds up the time that the main thread spends in imports from now on."""

    def __init__(self) -> None:
        import _frozen_importlib
        import threading

        self.seconds = 0.0
        self.is_inside = False
        names = vars(_frozen_importlib)
        find_and_load = names["_find_and_load"]
        main_thread = threading.main_thread().ident

        def timed(name: str, import_function: object) -> object:
            if self.is_inside or threading.get_ident() != main_thread:
                return find_and_load(name, import_function)
            self.is_inside = True
            begun = time.monotonic()
            try:
                return find_and_load(name, import_function)
            finally:
                self.seconds += time.monotonic() - begun
                self.is_inside = False

        names["_find_and_load"] = timed


def _lap() -> None:
    """Write down how much importing has taken so far: at the first step, and at the end."""
    if Worker.stopwatch is not None:
        now = {
            "at_the_top": Worker.top_s,
            "later": Worker.stopwatch.seconds,
            "modules": sorted(set(sys.modules) - MODULES),
        }
        Worker.laps.setdefault("first_step", now)
        _leave(f"imports-{RANK}-{ATTEMPT}.json", {**Worker.laps, "end": now})
