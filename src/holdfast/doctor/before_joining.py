"""The check before a node joins a job (`--check`): the built-in one, or a command of the user's.

Rules
1. Only an error keeps a node out; a warning is said, and the node joins.
2. A command says by its exit status; its last lines are the reason. It has a time to end in, and
   is killed with all that it started in its process group.
3. Nothing here decides what becomes of the job: the node tells its coordinator and goes
   (`core.node.leave_unfit`).
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping

from msgspec import Struct

from holdfast.core.policy.config import BUILT_IN_CHECK, JobConfig
from holdfast.core.protocol.bounds import clean, cut
from holdfast.doctor import machine, reading
from holdfast.doctor.facts import MachineFacts, Wanted
from holdfast.processes.stdlib_only import linux

LINES_KEPT = 3
REASON_MOST = 400
AFTER_KILL_S = 5.0


class Fitness(Struct, frozen=True):
    """The result of the check."""

    problem: str = ""
    """Why the node stays out; empty where it may join."""
    warnings: tuple[str, ...] = ()


def examine(config: JobConfig, environ: Mapping[str, str]) -> Fitness:
    """Do what `--check` asks for. Takes a second, or as long as the command does."""
    if config.check == BUILT_IN_CHECK:
        return judge(_read(config, environ), config)
    return Fitness(run_command(config.check, config.timeouts.check_s))


def _read(config: JobConfig, environ: Mapping[str, str]) -> MachineFacts:
    meeting = reading.meeting_endpoint(config) if config.max_nodes > 1 else None
    return reading.read(environ, log_dir=config.output.log_dir, meeting=meeting)


def judge(facts: MachineFacts, config: JobConfig) -> Fitness:
    """Separate what keeps a node out from what is only said."""
    seen, workers = facts.accelerators, config.slots
    # Two workers on each card may be meant; seven cards for eight workers are not.
    odd = 0 < seen < workers and workers % seen != 0
    wanted = Wanted(workers, per_accelerator=odd, several_nodes=config.max_nodes > 1)
    found = machine.judge(facts, wanted)
    errors = [one.what for one in found if one.level == "error"]
    warnings = tuple(one.what for one in found if one.level == "warning")
    return Fitness(cut("; ".join(errors), REASON_MOST), warnings)


def run_command(command: str, limit_s: float) -> str:
    """Why the command says no; empty where it says yes."""
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            # Ctrl-C ends us before there is a job: the check goes with us.
            preexec_fn=_die_with_us,  # noqa: PLW1509 - there is no thread yet
        )
    except OSError as error:
        return f"the check cannot be run ({error.strerror}): {command}"
    with process:
        try:
            output = process.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output = _rest(process)
            return f"the check took longer than {limit_s:g} s (--check-timeout){_last(output)}"
    if process.returncode == 0:
        return ""
    return (_last(output) or f": the check ended with {_how(process.returncode)}").removeprefix(
        ": "
    )


def _die_with_us() -> None:
    linux.set_parent_death_signal(signal.SIGKILL)


def _rest(process: subprocess.Popen[bytes]) -> bytes:
    try:
        return process.communicate(timeout=AFTER_KILL_S)[0]
    except subprocess.TimeoutExpired:
        return b""  # What it started in a group of its own still holds the pipe.


def _last(output: bytes) -> str:
    lines = [clean(line) for line in output.decode(errors="replace").splitlines() if line.strip()]
    return f": {cut(' / '.join(lines[-LINES_KEPT:]), REASON_MOST)}" if lines else ""


def _how(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit code {status}"
