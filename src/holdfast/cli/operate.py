"""Commands of an operator: `holdfast drain`, `restart`, `scale`, `save` and `stop`."""

from __future__ import annotations

import re
from argparse import Namespace

from holdfast.admin.client import AdminClient, AdminError, local_agents
from holdfast.cli import values
from holdfast.cli.job_connection import connect, is_elsewhere, job_parser, own_name
from holdfast.cli.status import events_after
from holdfast.cli.time_arguments import duration
from holdfast.cli.verbs import verb
from holdfast.core.policy import sentences
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
RANGE = re.compile(r"\d+(:\d+)?")
LOOK_EVERY_S = 1.0
"""How often the remaining nodes are counted, without other news."""
NOT_SAVED: dict[SaveStage, str] = {
    "nobody looks": "no worker of this job looks at holdfast.draining(), so none can be asked to"
    " save: see docs/guides/asked-to-leave.md",
    "given up": "not all workers asked, or came to a common step, in time, so nobody has saved;"
    " --within gives them more",
}

DRAIN = job_parser(
    "drain",
    "Have a node leave its job, as if its agent had got SIGTERM: workers can save first, the job "
    "goes on without the node if it can, or waits a while for another.",
    then="NODE",
)
DRAIN.add_argument("node", metavar="NODE", help="its name, as `holdfast status` shows it")
RESTART = job_parser(
    "restart",
    "End the present round and begin the next, with all workers started again. Workers that ask "
    "`holdfast.draining()` save first, for up to --save-timeout. It is not counted against "
    "--max-restarts.",
)
SCALE = job_parser(
    "scale",
    "Change between how many nodes a job may have while it runs, in place of its --nnodes. Where "
    "more run than MAX, the round ends, uncounted, and the next has MAX nodes; the surplus stands "
    "by. Workers that ask `holdfast.draining()` save first, for up to --save-timeout. Where fewer "
    "run than MIN, the round goes on; the next one waits for MIN, up to --join-timeout. Nodes are "
    "not started or ended by this: those that are there get a seat or stand by.",
    then="N|MIN:MAX",
)
SCALE.add_argument("nodes", metavar="N|MIN:MAX", help="how many nodes, or their range")
SAVE = job_parser(
    "save",
    "Checkpoint all workers, without stopping: they are asked to save at one and the same step, "
    "through `holdfast.draining(step)`, as when a node has to leave; a program that never calls it "
    "cannot be asked. Waits until all have saved. Ctrl-C ends the waiting; the workers save all "
    "the same.",
)
SAVE.add_argument(
    "--within",
    type=duration,
    default=120.0,
    metavar="TIME",
    help="how long they have to get to a common step [2m]",
)
STOP = job_parser(
    "stop",
    "End a job: workers get SIGTERM and their grace (--shutdown-timeout), and all agents leave "
    "with the status 143.",
)


@verb(DRAIN)
def drain(asked: Namespace) -> None:
    if _is_old_order(asked):
        asked.job, asked.node = asked.node, asked.job
    with connect(asked) as job:
        for _, answer in job.ask(DrainWanted(own_name()), of="some", nodes=(asked.node,)):
            if isinstance(answer, NotKnown):
                raise AdminError(answer.reason)
        if job.missing:
            raise AdminError(f"{asked.node} does not answer; it may be gone already")
    print(f"{asked.node} was asked to leave; `holdfast events --follow` shows how it goes")


def _is_old_order(asked: Namespace) -> bool:
    """Whether NODE JOB was written: the second word is a job here, and the first is none."""
    if not asked.job or is_elsewhere(asked):
        return False
    here = {agent.run_id for agent in local_agents()}
    return asked.node in here and asked.job not in here


@verb(RESTART)
def restart(asked: Namespace) -> None:
    _send(asked, RestartWanted(own_name()), "the round ends, and the next begins")


@verb(SCALE)
def scale(asked: Namespace) -> None:
    if RANGE.fullmatch(asked.job) and not RANGE.fullmatch(asked.nodes):
        asked.job, asked.nodes = asked.nodes, asked.job  # The old order.
    least, most = values.nodes(asked.nodes)
    if most > COUNT_MOST:
        raise UsageError(f"{most} nodes are too many", f"at most {COUNT_MOST}")
    with connect(asked) as job:
        job.ask_coordinator(ScaleWanted(least, most, own_name()))
    print(f"the job has {sentences.between(least, most)} from now on")


@verb(SAVE)
def save(asked: Namespace) -> None:
    if asked.within > SAVE_MOST_S:
        raise UsageError(f"--within: {asked.within:g} s are too long", "a day at most")
    with connect(asked) as job:
        *_, (_, last) = [(None, 0), *events_after(job, 0)]
        job.ask_coordinator(SaveWanted(own_name(), asked.within))
        print("all workers are asked to save; waiting until they have", flush=True)
        told = _saved(job, last)
    if told.stage != "saved":
        raise AdminError(NOT_SAVED[told.stage])
    at = f" step {told.step:,}" if told.step is not None else ""
    print(f"all workers that ask have saved{at}, and go on")


def _saved(job: AdminClient, last: int) -> SaveTold:
    """Wait until it is over, and print progress. Raises `AdminError` if the round ends."""
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


@verb(STOP)
def stop(asked: Namespace) -> None:
    _send(asked, StopWanted(own_name()), "the job ends; its workers have their grace")


def _send(asked: Namespace, command: RestartWanted | StopWanted, words: str) -> None:
    with connect(asked) as job:
        job.ask_coordinator(command)
    print(words)
