"""Slurm's own commands, and the folder of a job.

Rules
1. A folder has one job. It is its owner's alone, and so is the token in it.
2. Slurm is queried through `sbatch`, `squeue` and `scontrol`, in formats that have been the same
   for many releases. Their refusal is a user's mistake, told in their words.
3. No secret reaches Slurm: it would keep the submitter's environment.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast.core.protocol.errors import UsageError
from holdfast.placement.slurm_batch import LOGS, REGISTER, SCRIPT, TOKEN, Submission, batch_script
from holdfast.placement.slurm_queue import SQUEUE_FORMAT, Element, read_queue

TOKEN_VARIABLE = "HOLDFAST_TOKEN"
TOKEN_BYTES = 32
UNKNOWN_JOB = 1
ANSWER_S = 60.0
"""For one command of Slurm's: a busy controller may take half a minute."""


class SlurmSilent(Exception):
    """A command of Slurm's did not answer, or said no. It may work a little later."""

    def __init__(self, words: str, status: int | None = None) -> None:
        super().__init__(words)
        self.status = status


def require(command: str) -> None:
    """Raise `UsageError` where there is no such command."""
    if shutil.which(command) is None:
        raise UsageError(
            f"there is no {command} here", "run this where you would run sbatch: on a login node"
        )


# --- the folder -----------------------------------------------------------------------------


def name_of(program: str) -> str:
    """A name for a job that runs this program."""
    return re.sub(r"[^\w.-]", "_", Path(program).stem)[:40] or "job"


def new_folder(base: str, name: str) -> str:
    """The path of a folder that no other job has; nothing is made yet."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = os.path.abspath(os.path.join(base, f"{name}-{stamp}-{secrets.token_hex(2)}"))
    if set(folder) & set("%\\") or not folder.isprintable():
        raise UsageError(
            f"--folder: {base!r} has characters that Slurm does not accept in a path",
            "choose a path without % and \\ in it",
        )
    return folder


def make_folder(job: Submission) -> None:
    """Make it, with token and script. Raises `UsageError` on failure."""
    folder = Path(job.folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        (folder / REGISTER).mkdir()
        (folder / LOGS).mkdir()
        _write(folder / TOKEN, _token().encode(), 0o600)
        _write(folder / SCRIPT, batch_script(job).encode(), 0o700)
    except OSError as error:
        raise UsageError(
            f"cannot make {error.filename or folder}: {error.strerror}",
            "--folder must be a place that you can write to and that all nodes see",
        ) from None


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        file.write(content)


def _token() -> str:
    """The user's own token, if there is one; else a random one."""
    return os.environ.get(TOKEN_VARIABLE, "").strip() or secrets.token_hex(TOKEN_BYTES)


def own_command() -> str:
    """The path of this `holdfast`, which nodes use too."""
    called = shutil.which(sys.argv[0])
    return os.path.abspath(called) if called else "holdfast"


# --- Slurm ----------------------------------------------------------------------------------


def submit(job: Submission) -> str:
    """Hand the script to Slurm; returns the job's number. Raises `UsageError`."""
    script = os.path.join(job.folder, SCRIPT)
    try:
        said = _ask(["sbatch", "--parsable", script])
    except SlurmSilent as error:
        shutil.rmtree(job.folder, ignore_errors=True)
        raise UsageError(f"sbatch refused the job: {error}", "sbatch --help; sinfo") from None
    number = said.strip().partition(";")[0]
    link = Path(job.folder).parent / number
    link.unlink(
        missing_ok=True
    )  # A job of that number was there before the cluster was set up anew.
    link.symlink_to(Path(job.folder).name)
    return number


def folder_of(number: str, base: str) -> str:
    """The folder of a job, found here if Slurm has forgotten it. Raises `UsageError`."""
    try:
        said = _ask(["scontrol", "--oneliner", "show", "job", number])
    except SlurmSilent as error:
        here = Path(base, number)
        if (here / TOKEN).exists():
            return str(here.resolve())
        raise UsageError(
            f"Slurm does not know job {number}: {error}",
            f"the logs of an older job are in {base}/{number}, where it was submitted",
        ) from None
    found = re.search(r" Command=(\S+)", said)
    folder = Path(found.group(1)).parent if found else Path()
    if not (folder / TOKEN).exists():
        raise UsageError(
            f"job {number} was not submitted by holdfast slurm submit", "squeue --me lists yours"
        )
    return str(folder)


def queue(number: str) -> list[Element]:
    """The present states of a job's elements. Raises `SlurmSilent`."""
    said = _ask(
        ["squeue", "--noheader", "--array", f"--jobs={number}", f"--format={SQUEUE_FORMAT}"]
    )
    return read_queue(said)


def is_forgotten(error: SlurmSilent) -> bool:
    """Whether Slurm answered that there is no such job: it ended some time ago."""
    return error.status == UNKNOWN_JOB and "job id" in str(error).lower()


def _ask(command: Sequence[str]) -> str:
    """The output of a command. Raises `SlurmSilent`."""
    environment = {k: v for k, v in os.environ.items() if k != TOKEN_VARIABLE}
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise SlurmSilent(f"{command[0]} has not answered for {ANSWER_S:g} s") from None
    if done.returncode != 0:
        words = _first_line(done.stderr) or f"{command[0]} ended with status {done.returncode}"
        raise SlurmSilent(words, done.returncode)
    return done.stdout


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return re.sub(r"^\w+: error: ", "", lines[0]) if lines else ""
