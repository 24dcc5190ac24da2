"""Following a Slurm job: its nodes, its output, its end.

Rules
1. Slurm's controller is asked rarely: soon after something changed, then less and less often, up to
   once in `ASK_EVERY_S`. The job's own folder is read every `LOOK_EVERY_S`, as `tail -f`
   does, without requests. How the job ended is in a file there, which its agents write.
2. Lines are passed on whole, each with its element. Equal lines of several agents are passed on
   once; they are all in the files.
3. Slurm is queried in formats that have been the same for many releases. No secret reaches it: it
   would keep the submitter's environment.
4. Following decides nothing: Ctrl-C, a lost terminal or an absent controller end or
   delay the following, never the job.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast.cli import sentences
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.bounds import clean
from holdfast.placement import slurm_queue
from holdfast.placement.slurm_batch import OVER_MARK

TOKEN_VARIABLE = "HOLDFAST_TOKEN"
UNKNOWN_JOB = 1
ANSWER_S = 60.0
"""For one command of Slurm's: a busy controller may take half a minute."""
ASK_EVERY_S = 30.0
ASK_FIRST_S = 1.0
ASK_AFTER_NEWS_S = 5.0
"""After a line of an agent: it may be about a node that comes or goes."""
LOOK_EVERY_S = 0.25
"""How often the job's files are read: other machines write them, so the kernel may not notify."""
OWN_WORDS = b"holdfast: "
STATUSES = {
    "succeeded": exit_status.SUCCEEDED,
    "not_formed": exit_status.NOT_FORMED,
    "interrupted": exit_status.BY_SIGNAL + signal.SIGTERM,
}
"""By the first word of the outcome file; any other is a failure. `interrupted` is there only after
`holdfast stop`, which ends a job with the status of SIGTERM."""
SAME_FOR_S = 60.0
"""How long an equal line of an agent is not passed on again."""
SHOWN_BYTES = 4096
"""The most earlier output that is shown."""


class SlurmSilent(Exception):
    """A command of Slurm's did not answer, or said no. It may work a little later."""

    def __init__(self, words: str, status: int | None = None) -> None:
        super().__init__(words)
        self.status = status


class Follower:
    """One job, followed from here."""

    def __init__(self, number: str, folder: str, from_the_start: bool) -> None:
        self.number = number
        self.folder = Path(folder)
        self._from_the_start = from_the_start
        self._read_to: dict[Path, int] = {}
        """How much of each file has been passed on."""
        self._elements: list[slurm_queue.Element] = []
        self._pause_s = ASK_FIRST_S
        self._ask_at = 0.0
        self._passed_on: dict[bytes, float] = {}
        """When each line of agents was passed on."""

    def run(self) -> int:
        """Follow until the job is over; return its exit status."""
        while self._ask():
            self._read()
            self._wait()
        self._read(last=True)
        return self._end()

    # --- Slurm ------------------------------------------------------------------------------

    def _ask(self) -> bool:
        """Query Slurm if it is time to; return whether the job is still there."""
        if time.monotonic() < self._ask_at:
            return True
        try:
            now = _queue(self.number)
        except SlurmSilent as error:
            if not _is_forgotten(error):
                say(sentences.slurm_is_silent(str(error)))
                self._plan(changed=False)
                return True
            now = []
        lines = list(slurm_queue.news(self._elements, now))
        for line in lines:
            say(line)
        self._elements = now
        self._plan(changed=bool(lines))
        return bool(now)

    def _plan(self, changed: bool) -> None:
        self._pause_s = ASK_FIRST_S if changed else min(self._pause_s * 2, ASK_EVERY_S)
        self._ask_at = time.monotonic() + self._pause_s

    # --- the folder -------------------------------------------------------------------------

    def _read(self, last: bool = False) -> None:
        """Pass on new output in every file."""
        for path in sorted(self.folder.glob("*.out")):
            try:
                lines = self._new_lines(path, last)
            except OSError:
                continue  # A disk of others: the next look may find it.
            self._print(path.stem, lines)
        self._from_the_start = True

    def _new_lines(self, path: Path, last: bool) -> list[bytes]:
        """The whole lines that were added since the last call; at last the rest, too."""
        with open(path, "rb") as file:
            if path not in self._read_to and not self._from_the_start:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - SHOWN_BYTES))
                skipped = file.readline() if size > SHOWN_BYTES else b""
                self._read_to[path] = max(0, size - SHOWN_BYTES) + len(skipped)
            start = file.seek(self._read_to.get(path, 0))
            whole, end, rest = file.read().rpartition(b"\n")
        self._read_to[path] = start + len(whole + end)
        return [*(whole.split(b"\n") if end else ()), *([rest] if last and rest else ())]

    def _print(self, name: str, lines: list[bytes]) -> None:
        prefix = f"{name}: ".encode()
        told = (prefix + line + b"\n" for line in lines if self._is_new(line))
        sys.stdout.buffer.write(b"".join(told))
        sys.stdout.buffer.flush()
        if any(line.startswith(OWN_WORDS) for line in lines):
            self._ask_at = min(self._ask_at, time.monotonic() + ASK_AFTER_NEWS_S)

    def _is_new(self, line: bytes) -> bool:
        """Whether the line was not passed on recently; a program's output always is new."""
        if not line.startswith(OWN_WORDS):
            return True
        now = time.monotonic()
        recent = {text: at for text, at in self._passed_on.items() if now - at < SAME_FOR_S}
        is_new = line not in recent
        self._passed_on = {**recent, line: now} if is_new else recent
        return is_new

    def _wait(self) -> None:
        """Wait until the files are to be read, or Slurm is to be queried."""
        time.sleep(min(max(self._ask_at - time.monotonic(), 0.0), LOOK_EVERY_S))

    def _end(self) -> int:
        try:
            outcome = (self.folder / OVER_MARK).read_text(errors="replace").strip()
        except OSError:
            say(sentences.ended_unrecorded(self.number))
            return exit_status.FAILED
        say(sentences.ended_as(self.number, outcome))
        return STATUSES.get(outcome.partition(":")[0], exit_status.FAILED)


def follow_job(number: str, folder: str, from_the_start: bool = True) -> int:
    """Follow a job to its end; returns the exit status that it ends with."""
    try:
        return Follower(number, folder, from_the_start).run()
    except KeyboardInterrupt:
        say(sentences.no_longer_followed(number))
        print(f"hint: holdfast slurm follow {number}  (come back)", file=sys.stderr)
        print(f"hint: scancel {number}  (cancel it)", file=sys.stderr)
        return exit_status.BY_SIGNAL + signal.SIGINT


def say(line: str) -> None:
    print(f"holdfast: {clean(line)}", file=sys.stderr, flush=True)


def _queue(number: str) -> list[slurm_queue.Element]:
    """The present states of a job's elements. Raises `SlurmSilent`."""
    said = ask_slurm(
        [
            "squeue",
            "--noheader",
            "--array",
            f"--jobs={number}",
            f"--format={slurm_queue.SQUEUE_FORMAT}",
        ]
    )
    return slurm_queue.read_queue(said)


def _is_forgotten(error: SlurmSilent) -> bool:
    """Whether Slurm answered that there is no such job: it ended some time ago."""
    return error.status == UNKNOWN_JOB and "job id" in str(error).lower()


def ask_slurm(command: Sequence[str]) -> str:
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
