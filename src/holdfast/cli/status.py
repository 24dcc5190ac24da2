"""`holdfast status`, `top` and `events`: how a job is, and what happened to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec

from holdfast.admin.client import AdminClient, AdminError
from holdfast.cli.job_connection import FINDING, connect, job_arguments
from holdfast.cli.status_view import Overview, line, render
from holdfast.cli.verbs import verb
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.requests import (
    WAIT_MOST_S,
    EventsAsked,
    EventsTold,
    HistoryAsked,
    HistoryTold,
    JobAsked,
    JobTold,
    RanksAsked,
    RanksTold,
)
from holdfast.observe.story import StoryEvent

STATUS_HELP = f"""\
Usage: holdfast status [JOB] [--json]

How a job is right now: its round, its nodes and what each of them does, how far the workers
are and how fast, what is being waited for, and what happened last.

  --json  the same for programs

{FINDING}"""
TOP_HELP = f"""\
Usage: holdfast top [JOB]

The same as `holdfast status`, live, with every worker: the slowest first, those with less
than half of the middle one's steps a second marked "slow". Ctrl-C ends it; the job does not
notice.

{FINDING}"""
EVENTS_HELP = f"""\
Usage: holdfast events [JOB] [--follow] [--json]

What has happened to a job so far, one line for each event, as its coordinator knows it.

  --follow, -f  go on, until the job ends
  --json        one object a line, as `holdfast run --json` has them

{FINDING}"""
LAST_EVENTS = 6
REDRAW_S = 1.0
_CLEAR, _HOME = "\x1b[2J\x1b[H", "\x1b[H"
_HIDE, _SHOW = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


@verb(STATUS_HELP)
def status(words: list[str]) -> None:
    request = job_arguments(words, ("--json",))
    with connect(request) as job:
        seen = look(job)
    if "--json" in request.flags:
        told = {"job": seen.job, "ranks": seen.ranks, "missing": seen.missing,
                "events": seen.events, "goodput": seen.goodput}  # fmt: skip
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
    else:
        sys.stdout.write(render(seen))


def look(job: AdminClient) -> Overview:
    """Ask all that a screen shows. Raises `AdminError`."""
    told = _job(job)
    ranks: dict[str, RanksTold] = {}
    for node, answer in job.ask(RanksAsked(), of="all"):
        if isinstance(answer, RanksTold):
            ranks[node] = answer
    missing = job.missing
    last = tuple(event for event, _ in events_after(job, 0))[-LAST_EVENTS:]
    goodput = job.ask_coordinator(HistoryAsked())
    known = goodput if isinstance(goodput, HistoryTold) else None
    return Overview(told, ranks, last, missing, known)


def _job(job: AdminClient) -> JobTold:
    """All nodes of it, however many requests that takes."""
    told = job.ask_coordinator(JobAsked())
    assert isinstance(told, JobTold), told
    nodes = list(told.nodes)
    while len(nodes) < told.node_count:
        more = job.ask_coordinator(JobAsked(len(nodes)))
        if not isinstance(more, JobTold) or not more.nodes:
            break
        nodes += more.nodes
    return msgspec.structs.replace(told, nodes=tuple(nodes)) if len(nodes) <= 2000 else told


def events_after(
    job: AdminClient, last: int, follow: bool = False
) -> Iterator[tuple[StoryEvent, int]]:
    """The events behind that number, each with the number to go on from."""
    while True:
        told = job.ask_coordinator(EventsAsked(last, WAIT_MOST_S if follow and last else 0.0))
        if not isinstance(told, EventsTold):
            return
        for packed in told.events:
            yield msgspec.msgpack.decode(packed, type=StoryEvent), told.last
        if not follow and told.last == last:
            return
        last = told.last


@verb(EVENTS_HELP)
def events(words: list[str]) -> None:
    request = job_arguments(words, ("--follow", "-f", "--json"))
    follow = bool(request.flags & {"--follow", "-f"})
    with connect(request) as job:
        try:
            for event, _ in events_after(job, 0, follow):
                as_json = "--json" in request.flags
                print(msgspec.json.encode(event).decode() if as_json else line(event), flush=True)
        except AdminError:
            if not follow:
                raise
            # The job is over: that is where following ends.


@verb(TOP_HELP)
def top(words: list[str]) -> None:
    request = job_arguments(words, ())
    if not sys.stdout.isatty():
        raise UsageError("`holdfast top` needs a terminal", "`holdfast status` prints it once")
    with connect(request) as job, Screen() as screen:
        try:
            while True:
                screen.draw(render(look(job), each_rank=True))
                job.pause(REDRAW_S)
        except KeyboardInterrupt:
            pass  # That is how it ends.


class Screen:
    """All of the terminal, as long as it is entered; what was on it comes back."""

    def __enter__(self) -> Screen:
        sys.stdout.write(_HIDE + _CLEAR)
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.write(_SHOW)
        sys.stdout.flush()

    def draw(self, page: str) -> None:
        """As much as the screen holds; each line ends what was there before."""
        import shutil

        columns, rows = shutil.get_terminal_size()
        lines = [text[:columns] for text in page.splitlines()][: rows - 1]
        sys.stdout.write(_HOME + "".join(f"{text}\x1b[K\n" for text in lines) + "\x1b[J")
        sys.stdout.flush()
