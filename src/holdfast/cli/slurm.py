"""`holdfast slurm submit` and `holdfast slurm follow`: jobs that Slurm places and Holdfast runs.

Rules
- Before `--` come our options, and any of sbatch's; after it come the words of `holdfast run`: its
  options, the program, the program's arguments.
- Options that contradict the way in which the job is made (an array, an endpoint) are refused,
  with an alternative.
- `--dry-run` prints the batch script, and neither writes nor submits anything.
"""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from holdfast.cli import sentences
from holdfast.cli.verbs import VerbParser, ending_of, with_dashes
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.errors import UsageError

if TYPE_CHECKING:
    from holdfast.placement.slurm_batch import Submission

Value = TypeVar("Value")

FOLDER = "holdfast-jobs"
ABOUT = """\
Jobs that Slurm places, and Holdfast holds together.

Each node is an element of a job array. An element whose node is lost, preempted or at its time
limit goes back into the queue by itself, and joins the job again when it starts; the others go on.
Ctrl-C stops following, never the job: `holdfast slurm follow JOB` follows it again, `scancel JOB`
cancels it."""
SUBMIT = VerbParser(
    "slurm submit",
    "Submit a job and follow it. Every other option before -- goes to sbatch as it is "
    "(--partition gpu --gpus-per-node 8 --time 4:00:00). What follows -- is what you would write "
    "after `holdfast run` on one machine.",
    usage="holdfast slurm submit --nodes N|MIN:MAX [sbatch options] -- [run options] SCRIPT ...",
    epilog="For example:\n  holdfast slurm submit --nodes 2:8 --spares 1 --gpus-per-node 8 -- "
    "train.py --epochs 3",
    allow_abbrev=False,
)
SUBMIT.add_argument("--nodes", "-N", metavar="N|MIN:MAX", help="nodes of the job, or their range")
SUBMIT.add_argument("--spares", default="0", metavar="N",
                    help="extra nodes, which stand by to replace a lost one [0]")  # fmt: skip
SUBMIT.add_argument("--one-allocation", action="store_true",
                    help="one allocation for all nodes, instead of an array")  # fmt: skip
SUBMIT.add_argument("--share-nodes", action="store_true",
                    help="do not ask for whole machines")  # fmt: skip
SUBMIT.add_argument(
    "--folder",
    default=FOLDER,
    metavar="DIR",
    help=f"for token, register and logs; all nodes must see it [{FOLDER}]",
)
SUBMIT.add_argument("--rdzv-backend", default="file", metavar="BACKEND",
                    help="meet in etcd instead of the folder")  # fmt: skip
SUBMIT.add_argument("--rdzv-endpoint", default="", metavar="HOST:2379,...",
                    help="where etcd is")  # fmt: skip
SUBMIT.add_argument("--no-follow", action="store_true", help="submit, and return at once")
SUBMIT.add_argument("--dry-run", action="store_true",
                    help="print the batch script, and do nothing")  # fmt: skip
FOLLOW = VerbParser("slurm follow", "Come back to a job that was submitted before.")
FOLLOW.add_argument("job", metavar="JOB", help="the number that Slurm gave")
PARSER = VerbParser("slurm", ABOUT, usage="holdfast slurm submit|follow ...")
PARSER.add_argument("command", choices=("submit", "follow"), metavar="submit|follow",
                    help="--help after it shows its options")  # fmt: skip
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
_OTHER_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that end a line, or are shown as something else, or cannot be UTF-8."""


class Request(Struct, frozen=True):
    """The words of `submit`, sorted."""

    ours: Namespace
    sbatch_words: tuple[str, ...]
    run_words: tuple[str, ...]


def slurm(words: list[str]) -> int:
    """The verb. Returns the exit status."""
    return ending_of(lambda: _slurm(words))


def _slurm(words: list[str]) -> int:
    command = PARSER.read(words[:1]).command
    if command == "follow":
        return follow(FOLLOW.read(words[1:]).job)
    return submit(words[1:])


def submit(words: Sequence[str]) -> int:
    """Write the job's folder, submit it, and follow it. Raises `UsageError`."""
    from holdfast.cli import slurm_commands
    from holdfast.placement import slurm_batch

    request = sort(words)
    job = submission(request)
    if request.ours.dry_run:
        print(slurm_batch.batch_script(job), end="")
        return exit_status.SUCCEEDED
    slurm_commands.require("sbatch")
    slurm_commands.make_folder(job)
    number = slurm_commands.submit(job)
    print(f"holdfast: {sentences.submitted(number, job.folder)}", file=sys.stderr)
    if request.ours.no_follow:
        print(f"hint: holdfast slurm follow {number}", file=sys.stderr)
        return exit_status.SUCCEEDED
    from holdfast.cli.slurm_follow import follow_job

    return follow_job(number, job.folder)


def follow(job: str) -> int:
    """Follow a job that was submitted before. Raises `UsageError`."""
    from holdfast.cli import slurm_commands
    from holdfast.cli.slurm_follow import follow_job

    slurm_commands.require("squeue")
    number = job.partition("_")[0]
    folder = slurm_commands.folder_of(number, FOLDER)
    return follow_job(number, folder, from_the_start=False)


# --- from words to a submission -------------------------------------------------------------


def sort(words: Sequence[str]) -> Request:
    """Split our options from sbatch's and from those of `holdfast run`. Raises `UsageError`."""
    end = list(words).index("--") if "--" in words else len(words)
    ours, others = SUBMIT.parse_known_args(list(map(with_dashes, words[:end])))
    if end == len(words):
        raise UsageError(
            "there is nothing to run",
            "put -- before the program: holdfast slurm submit --nodes 2 -- train.py",
        )
    _check_sbatch(others)
    return Request(ours, tuple(others), tuple(words[end + 1 :]))


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
    """The submission. Raises `UsageError`."""
    from holdfast.cli import options, slurm_commands, values
    from holdfast.core.policy import texts
    from holdfast.placement.slurm_batch import Submission

    ours = request.ours
    if ours.nodes is None:
        raise UsageError(
            "--nodes is missing: how many nodes?", "--nodes 4, or --nodes 2:8 for an elastic job"
        )
    # Slurm itself writes a range with a dash.
    least, most = _named("--nodes", values.nodes, ours.nodes.replace("-", ":", 1))
    spares = _named("--spares", texts.whole_number(0), ours.spares)
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
    backend, endpoint = _register(ours)
    name = slurm_commands.name_of(program[0])
    return Submission(
        name=name,
        min_nodes=least,
        max_nodes=most,
        folder=slurm_commands.new_folder(ours.folder, name),
        command=slurm_commands.own_command(),
        run_words=request.run_words,
        spares=spares,
        one_allocation=ours.one_allocation,
        share_nodes=ours.share_nodes,
        backend=backend,
        endpoint=endpoint,
        sbatch_words=request.sbatch_words,
    )


def _named(spelled: str, parse: Callable[[str], Value], text: str) -> Value:
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{spelled}: {error.message}", error.hint) from None


def _register(ours: Namespace) -> tuple[str, str]:
    """The rendezvous of the nodes; an empty endpoint is the job's folder."""
    backend, endpoint = ours.rdzv_backend, ours.rdzv_endpoint
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
