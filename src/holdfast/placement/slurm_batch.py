"""The batch script of `holdfast slurm submit`, made from what the user asked for.

Rules
1. One element of a job array is one node. Slurm is to queue it again when its node is lost, and it
   asks for that itself when its agent says "run me again"; so a lost node brings back one element,
   and the rest of the job is not touched. There are `spares` more of them than the job has nodes.
2. With one allocation, one step has an agent on each node, and outlives nodes that are lost.
3. Nodes meet through a register that any node may leave: a folder on the shared disk, or etcd.
4. No secret is in the script, which others can read: the token is in a file of its owner's alone.
5. No element begins the job anew after its end, however late Slurm brings it back. Only an agent
   says that the job is over, in a file of the folder: `srun` ends with the same numbers when a node
   failed, or has no `holdfast`, and then the job goes on.
6. A job that was cancelled stays cancelled: it is queued again only while Slurm calls it running.
7. What the user says to `sbatch` comes last, and so wins over what is said here.
8. No word leaves its line: what `sbatch` is told has no control characters (the maker of a
   `Submission` sees to it), and those in words for the shell are written as escapes.

The agent runs in a step (`srun`) even on a single node: at a preemption Slurm tells steps, with
time to leave, and does not tell batch scripts.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator, Sequence

from msgspec import Struct

from holdfast.core.protocol import exit_status

NOTICE = "TERM@120"
"""Asked to leave this long before the time limit (seconds), unless the user says otherwise."""
RUN_AGAIN = (exit_status.RUN_AGAIN, exit_status.BY_SIGNAL + signal.SIGKILL)
TOKEN, REGISTER, LOGS, SCRIPT, OVER_MARK = "token", "register", "logs", "job.sh", "over"
"""Names of the files in the folder of a job."""


class Submission(Struct, frozen=True):
    """A job to be submitted."""

    name: str
    min_nodes: int
    max_nodes: int
    folder: str
    """The folder of the token, the register and the logs, shared by all nodes: an absolute path."""
    command: str
    """The `holdfast` that nodes run."""
    run_words: tuple[str, ...]
    """Options of `holdfast run`, the program and its arguments."""
    spares: int = 0
    one_allocation: bool = False
    share_nodes: bool = False
    """Let Slurm put other jobs, and other elements of this one, on the same machines."""
    backend: str = "file"
    endpoint: str = ""
    """Of the register; empty: the folder."""
    sbatch_words: tuple[str, ...] = ()

    @property
    def elements(self) -> int:
        """Nodes that are asked for at most."""
        return self.max_nodes + self.spares


def batch_script(job: Submission) -> str:
    """The whole text."""
    lines = ["#!/bin/bash", f"# {_about(job)}", *_directives(job), "", *_body(job)]
    return "\n".join(lines) + "\n"


def output_pattern(job: Submission) -> str:
    """The output file of an element, or of the allocation, for Slurm."""
    return f"{job.folder}/{'%j' if job.one_allocation else '%A_%a'}.out"


def _about(job: Submission) -> str:
    nodes = _count(job.min_nodes, "node")
    if job.max_nodes > job.min_nodes:
        nodes = f"{job.min_nodes} to {_count(job.max_nodes, 'node')}"
    spares = f" and {_count(job.spares, 'spare')}" if job.spares else ""
    how = "in one allocation" if job.one_allocation else "one array element each"
    return f"Made by `holdfast slurm submit`: {nodes}{spares}, {how}."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _directives(job: Submission) -> Iterator[str]:
    own = [f"--job-name={job.name}"]
    if job.one_allocation:
        # No number of tasks: Slurm would count them for the least nodes, and give no more.
        own += [f"--nodes={_slurm_range(job)}", "--no-kill"]
    else:
        own += [f"--array=0-{job.elements - 1}", "--nodes=1", "--ntasks-per-node=1"]
    own += [] if job.share_nodes else ["--exclusive"]
    own += ["--requeue", "--open-mode=append", f"--signal={NOTICE}"]
    own += [f"--output={output_pattern(job)}"]
    for words in (*([word] for word in own), *_options(job.sbatch_words)):
        yield f"#SBATCH {_quoted(words)}"


def _slurm_range(job: Submission) -> str:
    least = job.min_nodes
    return str(least) if least == job.elements else f"{least}-{job.elements}"


def _options(words: tuple[str, ...]) -> Iterator[list[str]]:
    """Each option with the words that follow it, which are its value."""
    option: list[str] = []
    for word in words:
        if word.startswith("-") and option:
            yield option
            option = []
        option.append(word)
    if option:
        yield option


def _quoted(words: list[str]) -> str:
    """As sbatch reads a directive: quotes and backslashes, and # would begin a comment."""
    plain = all(word and word.isprintable() and not set(word) & set(" \"'\\#$`") for word in words)
    if plain:
        return " ".join(words)
    escaped = (word.replace("\\", "\\\\").replace('"', '\\"') for word in words)
    return " ".join(f'"{word}"' for word in escaped)


def _body(job: Submission) -> Iterator[str]:
    number = "$SLURM_JOB_ID" if job.one_allocation else "$SLURM_ARRAY_JOB_ID"
    yield f"folder={_word(job.folder)}"
    yield f'over="$folder/{OVER_MARK}"  # An agent writes there how the job ended.'
    yield from _before(job)
    yield "trap : TERM USR1 USR2  # The agent is told too; what it says at its end counts."
    yield f"{_srun(job)} {_word(job.command)} run \\"
    for line in _meeting(job, number):
        yield f"  {line} \\"
    yield f"  {' '.join(map(_word, job.run_words))}"
    yield from _after(job, number)


def _before(job: Submission) -> Iterator[str]:
    """Lines that end the script where there is nothing to run, or this node cannot."""
    yield f'if [ ! -r "$folder/{TOKEN}" ]; then'
    yield f'  echo "holdfast: $folder/{TOKEN} cannot be read on $(hostname)" >&2'
    yield '  echo "hint: the folder has to be on a disk that all nodes share (--folder)" >&2'
    yield f"  exit {exit_status.USAGE}"
    yield "fi"
    yield 'if [ -e "$over" ]; then  # It came back after the end of the job.'
    yield '  echo "holdfast: the job is over ($(cat "$over")): nothing is started here" >&2'
    yield "  exit 0"
    yield "fi"


def _after(job: Submission, number: str) -> Iterator[str]:
    """Lines that queue this element, or the allocation, again where that is due."""
    # An element's own job id is no name for it: that of the last one is the whole array's.
    own = number if job.one_allocation else "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    yield "status=$?"
    yield 'if [ ! -e "$over" ]; then'
    yield "  case $status in"
    yield "  0) ;;"
    yield f"  {_any(RUN_AGAIN)})  # Asked to leave, or its agent was killed."
    yield f"    state=$(squeue --noheader --format=%T --jobs={own})"
    yield f'    if [ "$state" = RUNNING ]; then scontrol requeue {own}; fi ;;'
    yield f'  *) echo "holdfast: {own} ended with status $status before the job did" >&2 ;;'
    yield "  esac"
    if not job.one_allocation:
        yield "else  # Nobody has to start any more."
        yield f"  scancel --quiet --state=PENDING {number}"
    yield "fi"
    yield "exit $status"


def _word(text: str) -> str:
    """One word for the shell, on one line whatever is in it."""
    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, os.fsencode(text)))}'"


def _escaped(byte: int) -> str:
    is_plain = 32 <= byte < 127 and byte not in b"'\\"
    return chr(byte) if is_plain else f"\\x{byte:02x}"


def _any(statuses: Sequence[int]) -> str:
    return "|".join(map(str, statuses))


def _srun(job: Submission) -> str:
    """The step. No task's end ends another's, and the first to end hurries nobody."""
    words = ["srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=0"]
    return " ".join([*words, *(["--no-kill"] if job.one_allocation else [])])


def _meeting(job: Submission, number: str) -> Iterator[str]:
    nodes = f"{job.min_nodes}:{job.max_nodes}"
    endpoint = _word(job.endpoint) if job.endpoint else f'"$folder/{REGISTER}"'
    yield f"--nnodes {nodes} --rdzv-id slurm-{number}"
    yield f"--rdzv-backend {job.backend} --rdzv-endpoint {endpoint}"
    yield f'--token-file "$folder/{TOKEN}" --log-dir "$folder/{LOGS}"'
    yield f'--outcome-file "$folder/{OVER_MARK}"'
