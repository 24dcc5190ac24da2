"""`holdfast drain`, `restart`, `scale` and `stop`: what an operator wants of a job that runs."""

from __future__ import annotations

from holdfast.cli import values
from holdfast.cli.visit import FINDING, VisitRequest, run_verb, sort, visit, whoami
from holdfast.core.policy import rounds
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.bounds import COUNT_MOST
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.questions import (
    DrainWanted,
    NotKnown,
    RestartWanted,
    ScaleWanted,
    StopWanted,
)
from holdfast.node.visiting import VisitError

DRAIN_HELP = f"""\
Usage: holdfast drain NODE [JOB]

Have a node leave its job, as if its agent had got SIGTERM: workers can save first, the job
goes on without the node if it can, or waits a while for another. NODE is a name as
`holdfast status` shows it.

{FINDING}"""
RESTART_HELP = f"""\
Usage: holdfast restart [JOB]

End the present round and begin the next, with all workers started again. It is not counted
against --max-restarts.

{FINDING}"""
SCALE_HELP = f"""\
Usage: holdfast scale MIN:MAX [JOB]
       holdfast scale N [JOB]

Change between how many nodes a job may have while it runs, in place of its --nnodes. Where
more run than MAX, the round ends, uncounted, and the next has MAX nodes; the surplus stands
by. Where fewer run than MIN, the round goes on; the next one waits for MIN, up to
--join-timeout. Nodes are not started or ended by this: those that are there get a seat or
stand by.

{FINDING}"""
STOP_HELP = f"""\
Usage: holdfast stop [JOB]

End a job: workers get SIGTERM and their grace (--shutdown-timeout), and all agents leave
with the status 143.

{FINDING}"""


def drain(words: list[str]) -> int:
    """The verb. Returns the exit status."""
    return run_verb(_drain, words, DRAIN_HELP)


def _drain(words: list[str]) -> int:
    request = sort(words, (), most_names=2)
    if not request.names:
        raise UsageError("which node is to leave?", "`holdfast status` shows their names")
    node, name = request.names[0], "".join(request.names[1:])
    with visit(request, name) as job:
        for _, answer in job.ask(DrainWanted(whoami()), of="some", nodes=(node,)):
            if isinstance(answer, NotKnown):
                raise VisitError(answer.reason)
        if job.missing:
            raise VisitError(f"{node} does not answer; it may be gone already")
    print(f"{node} was asked to leave; `holdfast events --follow` shows how it goes")
    return exit_status.SUCCEEDED


def restart(words: list[str]) -> int:
    """The verb. Returns the exit status."""
    return run_verb(_restart, words, RESTART_HELP)


def _restart(words: list[str]) -> int:
    return _want(sort(words, ()), RestartWanted(whoami()), "the round ends, and the next begins")


def scale(words: list[str]) -> int:
    """The verb. Returns the exit status."""
    return run_verb(_scale, words, SCALE_HELP)


def _scale(words: list[str]) -> int:
    request = sort(words, (), most_names=2)
    if not request.names:
        raise UsageError("how many nodes?", "for example: holdfast scale 2:4")
    least, most = values.nodes(request.names[0])
    if most > COUNT_MOST:
        raise UsageError(f"{most} nodes are too many", f"at most {COUNT_MOST}")
    with visit(request, "".join(request.names[1:])) as job:
        job.ask_coordinator(ScaleWanted(least, most, whoami()))
    print(f"the job has {rounds.between(least, most)} from now on")
    return exit_status.SUCCEEDED


def stop(words: list[str]) -> int:
    """The verb. Returns the exit status."""
    return run_verb(_stop, words, STOP_HELP)


def _stop(words: list[str]) -> int:
    wish = StopWanted(whoami())
    return _want(sort(words, ()), wish, "the job ends; its workers have their grace")


def _want(request: VisitRequest, wish: RestartWanted | StopWanted, words: str) -> int:
    with visit(request, "".join(request.names)) as job:
        job.ask_coordinator(wish)
    print(words)
    return exit_status.SUCCEEDED
