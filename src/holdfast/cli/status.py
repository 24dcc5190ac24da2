"""`holdfast status` and `events`: a job's status, and its events."""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.admin.client import AdminClient, AdminError
from holdfast.cli.job_connection import JobHasEnded, connect, job_parser
from holdfast.cli.status_view import WIDE, Overview, line, painted, render
from holdfast.cli.verbs import verb
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
from holdfast.observe.report_text import told_shortly
from holdfast.observe.story import StoryEvent

STATUS = job_parser(
    "status",
    "Show a job's status: its round, its nodes and what each of them does, how far the workers "
    "are and how fast, what is being waited for, and what happened last.",
)
STATUS.add_argument("--json", action="store_true",
                    help="the same for programs (docs/reference/status-json.md)")  # fmt: skip
EVENTS = job_parser(
    "events",
    "Show what has happened to a job so far, one line for each event, as its coordinator knows "
    "it; of a job that has ended, as its journals have it.",
)
EVENTS.add_argument("--follow", "-f", action="store_true", help="go on, until the job ends")
EVENTS.add_argument("--json", action="store_true",
                    help="one object a line, as `holdfast run --json` has them")  # fmt: skip
LAST_EVENTS = 6


@verb(STATUS)
def status(asked: Namespace) -> None:
    try:
        with connect(asked) as job:
            seen = look(job)
    except JobHasEnded as ended:
        if asked.json:
            from holdfast.cli.status_json import of_ended

            print(msgspec.json.encode(of_ended(ended.job)).decode())
        else:
            print(ended)
        return
    if asked.json:
        from holdfast.cli.status_json import of_running

        print(msgspec.json.encode(of_running(seen)).decode())
        return
    is_terminal = sys.stdout.isatty()
    page = render(seen, shutil.get_terminal_size().columns if is_terminal else WIDE)
    print(painted(page) if is_terminal else page, end="")


def look(job: AdminClient) -> Overview:
    """Request all that a screen shows. Raises `AdminError`."""
    told = _job(job)
    ranks: dict[str, RanksTold] = {}
    for node, answer in job.ask(RanksAsked(), of="all"):
        if isinstance(answer, RanksTold):
            ranks[node] = answer
    missing = job.missing
    last = tuple(event for event, _ in events_after(job, 0))[-LAST_EVENTS:]
    history = job.ask_coordinator(HistoryAsked())
    known = history if isinstance(history, HistoryTold) else None
    return Overview(told, ranks, last, missing, known)


def _job(job: AdminClient) -> JobTold:
    """All nodes of it, in as many requests as needed."""
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
    """The events after that number, each with the number to continue from."""
    while True:
        told = job.ask_coordinator(EventsAsked(last, WAIT_MOST_S if follow and last else 0.0))
        if not isinstance(told, EventsTold):
            return
        for packed in told.events:
            yield msgspec.msgpack.decode(packed, type=StoryEvent), told.last
        if not follow and told.last == last:
            return
        last = told.last


@verb(EVENTS)
def events(asked: Namespace) -> None:
    try:
        with connect(asked) as job:
            try:
                found = (event for event, _ in events_after(job, 0, asked.follow))
                _print(found if asked.follow else list(found), asked.json)
            except AdminError:
                if not asked.follow:
                    raise
                # The job is over: that is where following ends.
    except JobHasEnded as ended:
        from holdfast.observe.job_report import report
        from holdfast.observe.journal import read

        if not ended.job.journals:
            raise
        _print(report([read(Path(path)) for path in ended.job.journals]).events, asked.json)


def _print(found: Iterable[StoryEvent], as_json: bool) -> None:
    """All that is known at once is told shortly, what comes as it comes."""
    if as_json:
        lines = (msgspec.json.encode(event).decode() for event in found)
    elif isinstance(found, Sequence):
        lines = (line(event, words) for event, words in told_shortly(found))
    else:
        lines = (line(event) for event in found)
    for each in lines:
        print(each, flush=True)
