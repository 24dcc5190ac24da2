"""`holdfast slurm submit` and `holdfast slurm follow`: jobs that Slurm places and Holdfast holds.

Rules
- Before `--` come our options, and any of sbatch's; after it come the words of `holdfast run`: its
  options, the program, the program's arguments.
- What would contradict the way in which the job is made (an array, a meeting place) is refused,
  with what to write instead.
- `--dry-run` prints the batch script, and neither writes nor submits anything.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from holdfast.cli.verbs import say_mistake
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.errors import UsageError

if TYPE_CHECKING:
    from holdfast.placement.slurm_batch import Submission

Value = TypeVar("Value")

HELP = """\
holdfast slurm: jobs that Slurm places, and Holdfast holds together

Usage: holdfast slurm submit --nodes N|MIN:MAX [options] [sbatch options] -- [run options] SCRIPT …
       holdfast slurm follow JOB

  --nodes N|MIN:MAX    nodes of the job, or their range
  --spares N           extra nodes, which stand by to replace a lost one [0]
  --one-allocation     one allocation for all nodes, instead of an array with one job for each
  --share-nodes        do not ask for whole machines
  --folder DIR         for token, register and logs; all nodes must see it [holdfast-jobs]
  --rdzv-backend, --rdzv-endpoint
                       meet in etcd instead of the folder: etcd HOST:2379,…
  --no-follow          submit, and return at once
  --dry-run            print the batch script, and do nothing

Every other option before -- goes to sbatch as it is
(--partition gpu --gpus-per-node 8 --time 4:00:00).
What follows -- is what you would write after `holdfast run` on one machine.

Each node is an element of a job array. An element whose node is lost, preempted or at its time
limit goes back into the queue by itself, and joins the job again when it starts; the others go on.
Ctrl-C stops following, never the job: `holdfast slurm follow JOB` follows it again, `scancel JOB`
cancels it.

For example: holdfast slurm submit --nodes 2:8 --spares 1 --gpus-per-node 8 -- train.py --epochs 3
"""

VALUES = ("nodes", "spares", "folder", "rdzv-backend", "rdzv-endpoint")
FLAGS = ("one-allocation", "share-nodes", "no-follow", "dry-run")
SHORT = {"-N": "nodes"}
NOT_FOR_SBATCH = {
    "--array": "each node is an element of an array already; --nodes says how many",
    "-a": "each node is an element of an array already; --nodes says how many",
    "--wrap": "write the program after --",
    "--no-requeue": "leave it out: an element that is not requeued is lost to the job",
    "--parsable": "leave it out",
    "--ntasks": "each node has one agent; --nproc-per-node, after --, says how many workers",
    "-n": "each node has one agent; --nproc-per-node, after --, says how many workers",
    "--ntasks-per-node": "write --nproc-per-node, after --, for the number of workers",
    "--output": "the output is followed, and kept in --folder",
    "-o": "the output is followed, and kept in --folder",
    "--error": "the output is followed, and kept in --folder",
    "-e": "the output is followed, and kept in --folder",
}
NOT_FOR_RUN = (
    *("nnodes", "rdzv-endpoint", "rdzv-backend", "rdzv-id", "standalone", "node-rank"),
    *("master-addr", "master-port", "token-file", "log-dir", "outcome-file"),
)
FOLDER = "holdfast-jobs"
_OTHER_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""What ends a line, or is shown as something else, or cannot be written as UTF-8."""


class Request(Struct, frozen=True):
    """The words of `submit`, sorted."""

    values: dict[str, str]
    flags: frozenset[str]
    sbatch_words: tuple[str, ...]
    run_words: tuple[str, ...]


def slurm(words: list[str]) -> int:
    """The verb. Returns the exit status."""
    verb, rest = (words[0], words[1:]) if words else ("", [])
    ours = rest[: rest.index("--")] if "--" in rest else rest
    if verb in ("-h", "--help", "help") or any(word in ("-h", "--help") for word in ours):
        print(HELP, end="")
        return exit_status.SUCCEEDED
    try:
        if verb == "submit":
            return submit(rest)
        if verb == "follow":
            return follow(rest)
        raise UsageError(
            f"{verb!r} is not a command of holdfast slurm"
            if verb
            else "say what to do: submit or follow",
            "holdfast slurm --help lists the commands",
        )
    except UsageError as error:
        return say_mistake(error)


def submit(words: Sequence[str]) -> int:
    """Write the job's folder, submit it, and follow it. Raises `UsageError`."""
    from holdfast.cli import slurm_commands
    from holdfast.placement import slurm_batch

    request = sort(words)
    job = submission(request)
    if "dry-run" in request.flags:
        print(slurm_batch.batch_script(job), end="")
        return exit_status.SUCCEEDED
    slurm_commands.require("sbatch")
    slurm_commands.make_folder(job)
    number = slurm_commands.submit(job)
    print(f"holdfast: submitted job {number}; its folder is {job.folder}", file=sys.stderr)
    if "no-follow" in request.flags:
        print(f"hint: holdfast slurm follow {number}", file=sys.stderr)
        return exit_status.SUCCEEDED
    from holdfast.cli.slurm_follow import follow_job

    return follow_job(number, job.folder)


def follow(words: Sequence[str]) -> int:
    """Come back to a job that was submitted before. Raises `UsageError`."""
    if len(words) != 1 or words[0].startswith("-"):
        raise UsageError("which job?", "holdfast slurm follow JOB, with the number that Slurm gave")
    from holdfast.cli import slurm_commands
    from holdfast.cli.slurm_follow import follow_job

    slurm_commands.require("squeue")
    number = words[0].partition("_")[0]
    folder = slurm_commands.folder_of(number, FOLDER)
    return follow_job(number, folder, from_the_start=False)


# --- from words to a submission -------------------------------------------------------------


def sort(words: Sequence[str]) -> Request:
    """Part our options from sbatch's and from those of `holdfast run`. Raises `UsageError`."""
    if "--" not in words:
        raise UsageError(
            "there is nothing to run",
            "put -- before the program: holdfast slurm submit --nodes 2 -- train.py",
        )
    end = list(words).index("--")
    values: dict[str, str] = {}
    flags: set[str] = set()
    others: list[str] = []
    ahead = iter(words[:end])
    for word in ahead:
        spelled, equals, attached = word.partition("=")
        name = SHORT.get(spelled) or spelled.removeprefix("--").replace("_", "-")
        if name in FLAGS and spelled.startswith("--"):
            flags.add(name)
        elif name in VALUES and spelled.startswith("-"):
            values[name] = attached if equals else _next(spelled, ahead)
        else:
            others.append(word)
    _check_sbatch(others)
    return Request(values, frozenset(flags), tuple(others), tuple(words[end + 1 :]))


def _next(spelled: str, ahead: Iterator[str]) -> str:
    value = next(ahead, "")
    if not value or value.startswith("-"):
        raise UsageError(f"{spelled} needs a value", f"write {spelled}=VALUE")
    return value


def _check_sbatch(words: Sequence[str]) -> None:
    if words and not words[0].startswith("-"):
        raise UsageError(
            f"{words[0]!r} is neither an option of holdfast slurm nor of sbatch",
            "the program comes after --",
        )
    for word in words:
        if _OTHER_LINE.search(word):
            raise UsageError(
                f"{word!r} has characters that do not fit into one line of the batch script",
                "leave out line breaks and other control characters",
            )
        spelled = word.partition("=")[0]
        if spelled in NOT_FOR_SBATCH:
            raise UsageError(f"{spelled} cannot be passed to sbatch here", NOT_FOR_SBATCH[spelled])


def submission(request: Request) -> Submission:
    """What is to be submitted. Raises `UsageError`."""
    from holdfast.cli import options, slurm_commands, values
    from holdfast.core.policy import texts
    from holdfast.placement.slurm_batch import Submission

    if "nodes" not in request.values:
        raise UsageError(
            "--nodes is missing: how many nodes?", "--nodes 4, or --nodes 2:8 for an elastic job"
        )
    # Slurm itself writes a range with a dash.
    least, most = _named("--nodes", values.nodes, request.values["nodes"].replace("-", ":", 1))
    spares = _named("--spares", texts.whole_number(0), request.values.get("spares", "0"))
    given, program = options.split(request.run_words)
    if not program:
        raise UsageError(
            "there is nothing to run", "write the program after --: -- train.py --epochs 3"
        )
    for name in NOT_FOR_RUN:
        if name in given:
            raise UsageError(
                f"{given[name].origin} is set by holdfast slurm",
                "leave it out; --nodes says how many",
            )
    backend, endpoint = _register(request)
    name = slurm_commands.name_of(program[0])
    return Submission(
        name=name,
        min_nodes=least,
        max_nodes=most,
        folder=slurm_commands.new_folder(request.values.get("folder", FOLDER), name),
        command=slurm_commands.own_command(),
        run_words=request.run_words,
        spares=spares,
        one_allocation="one-allocation" in request.flags,
        share_nodes="share-nodes" in request.flags,
        backend=backend,
        endpoint=endpoint,
        sbatch_words=request.sbatch_words,
    )


def _named(spelled: str, parse: Callable[[str], Value], text: str) -> Value:
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{spelled}: {error.message}", error.hint) from None


def _register(request: Request) -> tuple[str, str]:
    """How and where the nodes meet; an empty place is the job's folder."""
    backend = request.values.get("rdzv-backend", "file")
    endpoint = request.values.get("rdzv-endpoint", "")
    if backend not in ("file", "etcd", "etcd-v2"):
        raise UsageError(
            f"--rdzv-backend: {backend!r} lives on one node, which may be lost",
            "leave it out to meet in the folder, or write etcd",
        )
    if backend == "file" and endpoint:
        raise UsageError("--rdzv-endpoint is for etcd", "--folder says where the nodes meet")
    if backend != "file" and not endpoint:
        raise UsageError(
            f"--rdzv-backend {backend} needs a --rdzv-endpoint", "--rdzv-endpoint HOST:2379"
        )
    return backend, endpoint
