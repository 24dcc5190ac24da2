"""`holdfast slurm submit` and `holdfast slurm follow`: jobs that Slurm places and Holdfast runs.

Rules
- Before `--` come our options, and any of sbatch's; after it come the words of `holdfast run`: its
  options, the program, the program's arguments.
- Options that contradict the way in which the job is made (an array, an endpoint) are refused,
  with an alternative.
- `--dry-run` prints the batch script, and neither writes nor submits anything.
- A folder has one job. It is its owner's alone, and so is the token in it.
- A refusal of Slurm's is a user's mistake, told in its words.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from holdfast.cli import options, sentences, values
from holdfast.cli.slurm_follow import TOKEN_VARIABLE, SlurmSilent, ask_slurm, follow_job
from holdfast.cli.verbs import VerbParser, ending_of, with_dashes
from holdfast.core.policy import texts
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.errors import UsageError
from holdfast.placement.slurm_batch import LOGS, REGISTER, SCRIPT, TOKEN, Submission, batch_script

Value = TypeVar("Value")

FOLDER = "holdfast-jobs"
TOKEN_BYTES = 32
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
    request = sort(words)
    job = submission(request)
    if request.ours.dry_run:
        print(batch_script(job), end="")
        return exit_status.SUCCEEDED
    require("sbatch")
    make_folder(job)
    number = hand_over(job)
    print(f"holdfast: {sentences.submitted(number, job.folder)}", file=sys.stderr)
    if request.ours.no_follow:
        print(f"hint: holdfast slurm follow {number}", file=sys.stderr)
        return exit_status.SUCCEEDED
    return follow_job(number, job.folder)


def follow(job: str) -> int:
    """Follow a job that was submitted before. Raises `UsageError`."""
    require("squeue")
    number = job.partition("_")[0]
    folder = folder_of(number, FOLDER)
    return follow_job(number, folder, from_the_start=False)


# --- from words to a submission -------------------------------------------------------------


def sort(words: Sequence[str]) -> Request:
    """Split our options from sbatch's and from those of `holdfast run`. Raises `UsageError`."""
    end = list(words).index("--") if "--" in words else len(words)
    ours, others = SUBMIT.parse_known_args(list(map(with_dashes, words[:end])))
    if end == len(words):
        raise UsageError(
            "no program is given",
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
        raise UsageError("no program is given", "write it after --: -- train.py --epochs 3")
    for name in NOT_FOR_RUN:
        if name in given:
            raise UsageError(
                f"{given[name].origin} is set by holdfast slurm",
                "leave it out; --nodes says how many",
            )
    backend, endpoint = _register(ours)
    name = name_of(program[0])
    return Submission(
        name=name,
        min_nodes=least,
        max_nodes=most,
        folder=new_folder(ours.folder, name),
        command=own_command(),
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
            f"--rdzv-backend: {backend!r} depends on one node, which may be lost",
            "leave it out to meet in the folder, or write etcd",
        )
    if backend == "file" and endpoint:
        raise UsageError("--rdzv-endpoint is for etcd", "--folder says where the nodes meet")
    if backend != "file" and not endpoint:
        raise UsageError(
            f"--rdzv-backend {backend} needs a --rdzv-endpoint", "--rdzv-endpoint HOST:2379"
        )
    return backend, endpoint


def require(command: str) -> None:
    """Raise `UsageError` where there is no such command."""
    if shutil.which(command) is None:
        raise UsageError(
            f"{command} was not found", "run this where you would run sbatch: on a login node"
        )


# --- the folder, and Slurm -------------------------------------------------------------------


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


def hand_over(job: Submission) -> str:
    """Hand the script to Slurm; returns the job's number. Raises `UsageError`."""
    script = os.path.join(job.folder, SCRIPT)
    try:
        said = ask_slurm(["sbatch", "--parsable", script])
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
        said = ask_slurm(["scontrol", "--oneliner", "show", "job", number])
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
