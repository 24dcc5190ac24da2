"""What the command line says: notes, outcomes and refusals of a job, as functions of facts.

The words of a mistake are beside the check that finds it, and all of them are in the transcript
`tests/cli/mistakes.txt`. Tests compare with these functions; `tests/cli/test_sentences.py` has the
words of each once. A sentence without facts is a constant.
"""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT_OMP_THREADS = "workers get OMP_NUM_THREADS=1; set it to change that"
OPEN_DOCTOR = (
    "this job has no token, so anyone who reaches its nodes can take part in the doctor's "
    "meeting; HOLDFAST_TOKEN or --token-file keeps strangers out"
)
ROUND_RESTARTS = "the round ends, and the next begins"
JOB_STOPS = "the job ends; its workers have their grace"
SAVE_BEGINS = "all workers are asked to save; waiting until they have"
ROUND_ENDED_BEFORE_SAVING = "the round ended before all had saved; `holdfast events` says why"
NOBODY_ASKS_TO_SAVE = (
    "no worker of this job looks at holdfast.draining(), so none can be asked to save: "
    "see docs/guides/asked-to-leave.md"
)
SAVE_GIVEN_UP = (
    "not all workers asked, or came to a common step, in time, so nobody has saved; "
    "--within gives them more"
)
NO_JOBS = "no job of yours runs on this machine, and none has left a journal"

# Before a job starts.


def out_of_descriptors(problem: str) -> tuple[str, str]:
    """The sentence, and its hint."""
    hint = "raise the limit (`ulimit -n`), or start fewer workers"
    return f"{problem}; the job cannot go on", hint


def unfit_node(problem: str) -> str:
    return f"this node stays out: {problem}"


def nobody_shown(workers: int) -> str:
    ranks = f"local ranks: 0 to {workers - 1}"
    return f"--local-ranks-filter: no worker of this node is shown ({ranks})"


def standalone_is_one_node(most: int) -> str:
    return f"--standalone runs on this node alone, not on up to {most}"


def standalone_ignores(option: str, value: str) -> str:
    return f"--standalone ignores {option} {value}"


def static_endpoints(agents: str, workers: str) -> str:
    return f"static: the agents meet at {agents}, where rank 0 listens; the workers at {workers}"


def few_cpus(workers: int, cpus: int) -> str:
    usable = "1 CPU" if cpus == 1 else f"{cpus} CPUs"
    return (
        f"{workers} workers share {usable}, all that srun lets this node use; "
        "for more, give srun --cpus-per-task=N (sbatch's is not passed on)"
    )


def no_token(who: str, variable: str, how: str) -> str:
    give = f"give all nodes one, in {variable} or with --token-file FILE; {how}"
    return f"this job has no token: {who} can join it, and stop it; {give}"


def short_token(how: str) -> str:
    return f"the token is short enough to be guessed; {how}"


def open_file(others: Sequence[str], what: str, path: str) -> str:
    """`others` are what other users can do with it."""
    can = " and ".join(others)
    return f"others on this machine can {can} the {what} in {path}; chmod 600 {path}"


def reachable_dashboard(host: str) -> str:
    shown = f"--dashboard-host {host}: every host that reaches this one can open the dashboard"
    key = "the key in its link protects it, and crosses the network unencrypted; prefer ssh -L"
    return f"{shown}; {key}"


# Of a job that runs.


def in_full(file: str, node: str = "") -> str:
    """A file of stacks; of a `node` where there are several."""
    return f"in full{f', on {node}' if node else ''}: {file}"


def no_node_answers(job: str) -> str:
    return f"no node of {job} answers"


def unknown_there(nodes: Sequence[str]) -> str:
    return f"{no_answer(nodes)}: what runs there is not known"


def no_answer(nodes: Sequence[str]) -> str:
    return f"no answer from {', '.join(nodes)}"


def no_step(ranks: Sequence[int], workers: int, since: str) -> str:
    """These of so many workers have made no step for that long."""
    if len(ranks) == workers:
        return f"no worker has made a step for {since}"
    if len(ranks) == 1:
        return f"rank {ranks[0]} has made no step for {since}"
    some = ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{min(ranks)}-{max(ranks)}"
    return f"{len(ranks)} of {workers} workers (ranks {some}) have made no step for {since}"


def leaves_soon(node: str) -> str:
    return f"{node} was asked to leave; `holdfast events --follow` shows how it goes"


def does_not_answer(node: str) -> str:
    return f"{node} does not answer; it may be gone already"


def scaled(nodes: str) -> str:
    return f"the job has {nodes} from now on"


def save_goes_on(step: int | None, nodes_left: int) -> str:
    doing = "waiting for a common step" if step is None else f"saving step {step:,}"
    return f"{doing}, {nodes_left} node{'' if nodes_left == 1 else 's'} left"


def saved(step: int | None) -> str:
    at = f" step {step:,}" if step is not None else ""
    return f"all workers that ask have saved{at}, and go on"


# Of one that has ended.


def ended(name: str, state: str, after: str, more: str) -> str:
    """`more` is a reason, or numbers."""
    when = "in" if state == "succeeded" else "after"
    facts = ", ".join(filter(None, (f"{state} {when} {after}", more)))
    return f"{name} has ended: {facts}; report: holdfast report {name}"


# Of a job under Slurm.


def submitted(job: str, folder: str) -> str:
    return f"submitted job {job}; its folder is {folder}"


def slurm_is_silent(problem: str) -> str:
    return f"Slurm does not answer ({problem}); the job goes on without it"


def no_longer_followed(job: str) -> str:
    return f"job {job} goes on; you only stopped following it"


def ended_unrecorded(job: str) -> str:
    return f"job {job} has ended, but no node recorded how"


def ended_as(job: str, outcome: str) -> str:
    return f"job {job} {outcome}"
