"""What an operator wants of a job: `holdfast drain`, `restart`, `scale`, `save` and `stop`."""

from __future__ import annotations

from holdfast.admin.client import AdminClient, AdminError
from holdfast.cli import values
from holdfast.cli.chaos import seconds
from holdfast.cli.job_connection import (
    FINDING,
    JobArguments,
    connect,
    job_arguments,
    own_name,
    take_values,
)
from holdfast.cli.status import events_after
from holdfast.cli.verbs import verb
from holdfast.core.policy import rounds
from holdfast.core.protocol.bounds import COUNT_MOST
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.requests import (
    DrainWanted,
    EventsAsked,
    EventsTold,
    JobAsked,
    JobTold,
    NotKnown,
    RestartWanted,
    SaveStage,
    SaveTold,
    SaveWanted,
    ScaleWanted,
    StopWanted,
)

SAVE_MOST_S = 86_400.0
LOOK_EVERY_S = 1.0
"""How often the nodes that are left are counted, if nothing else is heard."""
NOT_SAVED: dict[SaveStage, str] = {
    "nobody looks": "no worker of this job looks at holdfast.draining(), so none can be asked to"
    " save: see docs/guides/asked-to-leave.md",
    "given up": "not all workers asked, or came to a common step, in time, so nobody has saved;"
    " --within gives them more",
}

DRAIN_HELP = f"""\
Usage: holdfast drain NODE [JOB]

Have a node leave its job, as if its agent had got SIGTERM: workers can save first, the job
goes on without the node if it can, or waits a while for another. NODE is a name as
`holdfast status` shows it.

{FINDING}"""
RESTART_HELP = f"""\
Usage: holdfast restart [JOB]

End the present round and begin the next, with all workers started again. Workers that ask
`holdfast.draining()` save first, for up to --save-timeout. It is not counted against
--max-restarts.

{FINDING}"""
SCALE_HELP = f"""\
Usage: holdfast scale MIN:MAX [JOB]
       holdfast scale N [JOB]

Change between how many nodes a job may have while it runs, in place of its --nnodes. Where
more run than MAX, the round ends, uncounted, and the next has MAX nodes; the surplus stands
by. Workers that ask `holdfast.draining()` save first, for up to --save-timeout. Where fewer
run than MIN, the round goes on; the next one waits for MIN, up to --join-timeout. Nodes are
not started or ended by this: those that are there get a seat or stand by.

{FINDING}"""
SAVE_HELP = f"""\
Usage: holdfast save [JOB] [--within TIME]

Ask all workers to save, at one and the same step, and to go on. They are asked through
`holdfast.draining(step)`, as when a node has to leave; a program that never calls it cannot
be asked. Waits until all have saved. Ctrl-C ends the waiting; the workers save all the same.

  --within TIME  how long they have to get to a common step [2m]

{FINDING}"""
STOP_HELP = f"""\
Usage: holdfast stop [JOB]

End a job: workers get SIGTERM and their grace (--shutdown-timeout), and all agents leave
with the status 143.

{FINDING}"""


@verb(DRAIN_HELP)
def drain(words: list[str]) -> None:
    request = job_arguments(words, (), ahead=1)
    if not request.ahead:
        raise UsageError("which node is to leave?", "`holdfast status` shows their names")
    node = request.ahead[0]
    with connect(request) as job:
        for _, answer in job.ask(DrainWanted(own_name()), of="some", nodes=(node,)):
            if isinstance(answer, NotKnown):
                raise AdminError(answer.reason)
        if job.missing:
            raise AdminError(f"{node} does not answer; it may be gone already")
    print(f"{node} was asked to leave; `holdfast events --follow` shows how it goes")


@verb(RESTART_HELP)
def restart(words: list[str]) -> None:
    _send(
        job_arguments(words, ()), RestartWanted(own_name()), "the round ends, and the next begins"
    )


@verb(SCALE_HELP)
def scale(words: list[str]) -> None:
    request = job_arguments(words, (), ahead=1)
    if not request.ahead:
        raise UsageError("how many nodes?", "for example: holdfast scale 2:4")
    least, most = values.nodes(request.ahead[0])
    if most > COUNT_MOST:
        raise UsageError(f"{most} nodes are too many", f"at most {COUNT_MOST}")
    with connect(request) as job:
        job.ask_coordinator(ScaleWanted(least, most, own_name()))
    print(f"the job has {rounds.between(least, most)} from now on")


@verb(SAVE_HELP)
def save(words: list[str]) -> None:
    taken, rest = take_values(words, ("--within",))
    request = job_arguments(rest, ())
    within_s = seconds(taken["--within"][-1] if taken["--within"] else "2m")
    if within_s > SAVE_MOST_S:
        raise UsageError(f"{within_s:g} s are too long", "a day at most")
    with connect(request) as job:
        *_, (_, last) = [(None, 0), *events_after(job, 0)]
        job.ask_coordinator(SaveWanted(own_name(), within_s))
        print("all workers are asked to save; waiting until they have", flush=True)
        told = _saved(job, last)
    if told.stage != "saved":
        raise AdminError(NOT_SAVED[told.stage])
    at = f" step {told.step:,}" if told.step is not None else ""
    print(f"all workers that ask have saved{at}, and go on")


def _saved(job: AdminClient, last: int) -> SaveTold:
    """Wait until it is over, and tell how it goes. Raises `AdminError` where the round ends."""
    number, shown = 0, ""
    while True:
        told = job.ask_coordinator(JobAsked())
        save = told.save if isinstance(told, JobTold) and told.stage == "running" else None
        if save is None or (number and save.number != number):
            raise AdminError("the round ended before all had saved; `holdfast events` says why")
        number = save.number
        if save.stage not in ("agreeing", "saving"):
            return save
        words = "waiting for a common step" if save.step is None else f"saving step {save.step:,}"
        words += f", {save.nodes_left} node{'' if save.nodes_left == 1 else 's'} left"
        if words != shown:
            shown = words
            print(words, flush=True)
        news = job.ask_coordinator(EventsAsked(last, LOOK_EVERY_S))
        last = news.last if isinstance(news, EventsTold) else last


@verb(STOP_HELP)
def stop(words: list[str]) -> None:
    _send(
        job_arguments(words, ()),
        StopWanted(own_name()),
        "the job ends; its workers have their grace",
    )


def _send(request: JobArguments, command: RestartWanted | StopWanted, words: str) -> None:
    with connect(request) as job:
        job.ask_coordinator(command)
    print(words)
