"""Commands of an operator: `holdfast drain`, `restart`, `scale`, `save` and `stop`."""

from __future__ import annotations

from argparse import Namespace

from holdfast.admin.client import AdminClient, AdminError
from holdfast.cli import sentences, values
from holdfast.cli.job_connection import connect, job_parser, own_name
from holdfast.cli.status import events_after
from holdfast.cli.verbs import verb
from holdfast.core.policy.sentences import between
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
"""How often the remaining nodes are counted, without other news."""
NOT_SAVED: dict[SaveStage, str] = {
    "nobody looks": sentences.NOBODY_ASKS_TO_SAVE,
    "given up": sentences.SAVE_GIVEN_UP,
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
    type=values.duration,
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
    with connect(asked) as job:
        for _, answer in job.ask(DrainWanted(own_name()), of="some", nodes=(asked.node,)):
            if isinstance(answer, NotKnown):
                raise AdminError(answer.reason)
        if job.missing:
            raise AdminError(sentences.does_not_answer(asked.node))
    print(sentences.leaves_soon(asked.node))


@verb(RESTART)
def restart(asked: Namespace) -> None:
    _send(asked, RestartWanted(own_name()), sentences.ROUND_RESTARTS)


@verb(SCALE)
def scale(asked: Namespace) -> None:
    least, most = values.nodes(asked.nodes)
    if most > COUNT_MOST:
        raise UsageError(f"{most} nodes are too many", f"at most {COUNT_MOST}")
    with connect(asked) as job:
        job.ask_coordinator(ScaleWanted(least, most, own_name()))
    print(sentences.scaled(between(least, most)))


@verb(SAVE)
def save(asked: Namespace) -> None:
    if asked.within > SAVE_MOST_S:
        raise UsageError(f"--within: {asked.within:g} s are too long", "a day at most")
    with connect(asked) as job:
        *_, (_, last) = [(None, 0), *events_after(job, 0)]
        job.ask_coordinator(SaveWanted(own_name(), asked.within))
        print(sentences.SAVE_BEGINS, flush=True)
        told = _saved(job, last)
    if told.stage != "saved":
        raise AdminError(NOT_SAVED[told.stage])
    print(sentences.saved(told.step))


def _saved(job: AdminClient, last: int) -> SaveTold:
    """Wait until it is over, and print progress. Raises `AdminError` if the round ends."""
    number, shown = 0, ""
    while True:
        told = job.ask_coordinator(JobAsked())
        save = told.save if isinstance(told, JobTold) and told.stage == "running" else None
        if save is None or (number and save.number != number):
            raise AdminError(sentences.ROUND_ENDED_BEFORE_SAVING)
        number = save.number
        if save.stage not in ("agreeing", "saving"):
            return save
        words = sentences.save_goes_on(save.step, save.nodes_left)
        if words != shown:
            shown = words
            print(words, flush=True)
        news = job.ask_coordinator(EventsAsked(last, LOOK_EVERY_S))
        last = news.last if isinstance(news, EventsTold) else last


@verb(STOP)
def stop(asked: Namespace) -> None:
    _send(asked, StopWanted(own_name()), sentences.JOB_STOPS)


def _send(asked: Namespace, command: RestartWanted | StopWanted, words: str) -> None:
    with connect(asked) as job:
        job.ask_coordinator(command)
    print(words)
