"""`holdfast.launch`: a function on several workers, from a script or a notebook.

The job has an agent process of its own, as `holdfast run` does, so the caller's process
keeps its signals, children and event loop to itself. Between the two there is a private
folder (the call, the results, the outcome) and a pipe without data: when the caller is gone, for
any reason, its end closes, and the agent ends the job at once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import IO, Any

import msgspec

from holdfast.core.policy.config import JobConfig, Output, Program, RestartPolicy, WarmStart
from holdfast.core.protocol.errors import HoldfastError, JobFailed, UsageError
from holdfast.core.protocol.model import Outcome
from holdfast.core.protocol.preload_steps import module_of
from holdfast.observe.report import render
from holdfast.placement.scheduler_variables import describing_ranks
from holdfast.processes import environment
from holdfast.processes.zygote import function_imports
from holdfast.processes.zygote.function import CALL, result_file
from holdfast.processes.zygote.preload import installed

CONFIG = "config.json"
OUTCOME = "outcome.json"
_outcomes = msgspec.json.Decoder(tuple[Outcome, str])
"""Made here, once: msgspec crashes if two threads first meet a type at the same time."""


def launch(
    function: Callable[..., Any],
    *args: Any,
    nproc: int = 1,
    max_restarts: int = 0,
    log_dir: str | None = None,
    env: Mapping[str, str] | None = None,
    warm: bool = True,
) -> dict[int, Any]:
    """Call `function(*args)` on `nproc` workers and return what each returned, by rank.

    The function may be a closure, a lambda or defined in a notebook. Each worker has the
    environment of `holdfast run` (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, …), plus `env`, without the
    ranks of a scheduler that placed the caller (`SLURM_PROCID`, …). They are
    forked from a process that has imported what the function's module does, unless not `warm`. When
    the job fails for good, `JobFailed` is raised with the report; an interrupt reaches the
    workers, which have their grace, and is raised then. Any other exception that comes while it
    waits, such as a `SystemExit` of a signal's handler, ends the job at once.
    """
    if not callable(function):
        raise UsageError(f"{function!r} cannot be called", "launch takes a function")
    import cloudpickle

    # First, since it may take long or fail: a caller that is killed then leaves no folder.
    call = cloudpickle.dumps((function, args))
    folder = tempfile.mkdtemp(prefix="holdfast_call_")
    variables = {**os.environ, **(env or {})}
    try:
        job = JobConfig(
            run_id=f"launch-{os.urandom(4).hex()}",
            program=Program("function", folder, interpreter=sys.executable),
            slots=nproc,
            restarts=RestartPolicy(max_restarts=max_restarts),
            output=Output(log_dir=log_dir),
            warm=_warm_start(function, variables, enabled=warm),
            hidden_variables=describing_ranks(variables),
        ).validate()
        _write_call(folder, call, job)
        _run_agent(folder, environment.without_secrets(variables))
        return _results(folder, job)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _warm_start(
    function: Callable[..., Any], variables: Mapping[str, str], *, enabled: bool
) -> WarmStart:
    if not enabled or environment.forbids_warm(variables):
        return WarmStart(enabled=False)
    modules = (*_modules_of_its_module(function), *_modules_in_sight(function))
    return WarmStart(preload=tuple(dict.fromkeys(modules)))


def _modules_of_its_module(function: Callable[..., Any]) -> tuple[str, ...]:
    """The installed modules that its own module imports, up to where it does anything else."""
    steps = function_imports.steps_of(function)
    modules = itertools.takewhile(bool, map(module_of, steps))
    return tuple(name for name in modules if installed(name, None))


def _modules_in_sight(function: Callable[..., Any]) -> tuple[str, ...]:
    """The installed modules that the function can name: worth importing ahead."""
    seen = getattr(function, "__globals__", {}).values()
    names = dict.fromkeys(value.__name__ for value in seen if isinstance(value, ModuleType))
    return tuple(name for name in names if installed(name, None))


def _write_call(folder: str, call: bytes, job: JobConfig) -> None:
    path = [entry or os.getcwd() for entry in sys.path]
    with open(os.path.join(folder, CALL), "wb") as file:
        pickle.dump({"sys_path": path, "call": call}, file)
    with open(os.path.join(folder, CONFIG), "wb") as file:
        file.write(msgspec.json.encode(job))


def _run_agent(folder: str, environment: dict[str, str]) -> None:
    """Start the agent, show its output where ours goes, and wait for its end."""
    lifeline, held = _pipe()
    command = [sys.executable, "-m", "holdfast.agent.function_job", folder, str(lifeline)]
    try:
        agent = subprocess.Popen(
            command,
            env=environment,
            pass_fds=[lifeline],
            start_new_session=True,
            stdout=_destination(sys.stdout, 1),
            stderr=_destination(sys.stderr, 2),
        )
    except BaseException:
        os.close(held)
        raise
    finally:
        os.close(lifeline)
    with agent:
        try:
            _wait(agent)
        finally:
            # Before `with` waits for the agent: whatever leaves by an exception ends the job.
            os.close(held)


def _pipe() -> tuple[int, int]:
    """A pipe that does not take the place of a standard stream that was closed."""
    import fcntl

    low = os.pipe()
    reading, writing = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in low)
    for end in low:
        os.close(end)
    return reading, writing


def _wait(agent: subprocess.Popen[bytes]) -> None:
    """Pass an interrupt on, give the job its grace, and raise it then; a second one ends it."""
    try:
        _show_output(agent)
        agent.wait()
    except KeyboardInterrupt:
        agent.send_signal(signal.SIGINT)
        try:
            _show_output(agent)
            agent.wait()
        except KeyboardInterrupt:
            agent.send_signal(signal.SIGINT)
            agent.wait()
        raise


def _destination(stream: Any, descriptor: int) -> int | None:
    """Ours, if Python's stream is the process's own; a pipe for a notebook's or a capture."""
    if stream is None:
        return subprocess.DEVNULL  # The process was started without one.
    try:
        return None if stream.fileno() == descriptor else subprocess.PIPE
    except (AttributeError, OSError, ValueError):
        return subprocess.PIPE


def _show_output(agent: subprocess.Popen[bytes]) -> None:
    """Copy what comes through pipes to `sys.stdout` and `sys.stderr` as they are now."""
    import selectors
    from codecs import getincrementaldecoder

    new_decoder = getincrementaldecoder("utf-8")  # A block may end in the middle of a letter.

    with selectors.DefaultSelector() as selector:
        for pipe, shown in ((agent.stdout, sys.stdout), (agent.stderr, sys.stderr)):
            if pipe is not None and not pipe.closed:
                selector.register(pipe, selectors.EVENT_READ, (shown, new_decoder("replace")))
        while selector.get_map():
            for key, _ in selector.select():
                source: IO[bytes] = key.fileobj  # type: ignore[assignment]
                shown, decoder = key.data
                block = os.read(source.fileno(), 65536)
                shown.write(decoder.decode(block, final=not block))
                shown.flush()
                if not block:
                    selector.unregister(source)
                    source.close()


def _results(folder: str, job: JobConfig) -> dict[int, Any]:
    outcome, journal = _ended(folder)
    if outcome.verdict != "succeeded":
        raise JobFailed(outcome, render(outcome, journal or None), journal)
    return dict(_read_results(folder, job.slots))


def _ended(folder: str) -> tuple[Outcome, str]:
    """The outcome, and where the journal is."""
    with contextlib.suppress(OSError), open(os.path.join(folder, OUTCOME), "rb") as file:
        return _outcomes.decode(file.read())
    raise HoldfastError(
        "the agent of the job ended before the job did, so there are no results; "
        "was it killed? Call launch again"
    )


def _read_results(folder: str, number: int) -> Iterator[tuple[int, Any]]:
    for rank in range(number):
        with open(result_file(folder, rank), "rb") as file:
            yield rank, pickle.load(file)
