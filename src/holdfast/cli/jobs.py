"""`holdfast jobs`: running jobs on this machine, and the last runs that have ended."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli import sentences
from holdfast.cli.journal_search import Candidate, candidates
from holdfast.cli.verbs import VerbParser, verb
from holdfast.core.policy.root_cause import shortened
from holdfast.core.protocol.bounds import clean
from holdfast.observe.summary import counted, length
from holdfast.processes.output import run_folders
from holdfast.processes.output.run_folders import RunRecord

if TYPE_CHECKING:
    from holdfast.admin.client import LocalAgent

PARSER = VerbParser(
    "jobs",
    "List your jobs on this machine: those that run, and the last ones that have ended, the newest "
    "first. `holdfast status NAME` says more of one that runs, `holdfast report NAME` of any.",
)
PARSER.add_argument("--json", action="store_true", help="one object for each job, in a list")
REASON_MOST = 80
KILLED = "killed"
STATES = {"not_formed": "not formed"}


class ListedJob(Struct, frozen=True, omit_defaults=True):
    """One line."""

    name: str
    state: str
    """running, succeeded, failed, interrupted, not formed, or killed: its agents were."""
    started: float = 0.0
    """Seconds since 1970; 0 if not known."""
    seconds: float = 0.0
    nodes: int = 0
    ranks: int = 0
    restarts: int = 0
    steps: int | None = None
    goodput: float | None = None
    exit_status: int | None = None
    reason: str = ""
    journals: tuple[str, ...] = ()
    """On this machine."""
    folders: tuple[str, ...] = ()
    """The files with its end and its last output."""


@verb(PARSER)
def jobs(asked: Namespace) -> None:
    found = list_jobs()
    if asked.json:
        print(msgspec.json.encode(found).decode())
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(render(found, width), end="", flush=True)


def list_jobs() -> list[ListedJob]:
    """All of this user's jobs on this machine, the newest first; the nodes of one job are one."""
    together: list[ListedJob] = []
    for one in sorted(_with_journals(), key=lambda one: one.started):
        at = next((at for at, each in enumerate(together) if _is_same(each, one)), None)
        if at is None:
            together.append(one)
        else:
            together[at] = _as_one(together[at], one)
    agents = _agents()
    for at, one in enumerate(together):
        if one.state == "running" and (agent := agents.pop(one.name, None)):
            together[at] = replace(one, nodes=agent.nodes, ranks=agent.ranks)
    # Some run with /dev/null as log dir.
    unlogged = (
        ListedJob(name, "running", nodes=a.nodes, ranks=a.ranks) for name, a in agents.items()
    )
    return [*unlogged, *reversed(together)]


def ended_job(name: str = "") -> ListedJob | None:
    """The last of that name, if it has ended, or the last of all that has."""
    found = [one for one in list_jobs() if (one.name == name if name else one.state != "running")]
    return found[0] if found and found[0].state != "running" else None


def _with_journals() -> Iterator[ListedJob]:
    for folder in run_folders.folders():
        record = run_folders.record_of(folder)
        found = list(candidates(run_folders.places_of(folder)))
        if record is not None:
            yield replace(_ended(record, found), folders=(str(folder),))
        elif found:
            yield _without_end(found[0], run_folders.is_running(folder))


def _ended(record: RunRecord, found: list[Candidate]) -> ListedJob:
    return ListedJob(
        name=record.job,
        state=STATES.get(record.verdict, record.verdict),
        started=record.started,
        seconds=record.seconds,
        nodes=record.nodes,
        ranks=record.ranks,
        restarts=record.restarts,
        steps=record.steps,
        goodput=record.goodput,
        exit_status=record.exit_status,
        reason=record.reason,
        journals=tuple(str(one.path) for one in found),
    )


def _without_end(one: Candidate, is_running: bool) -> ListedJob:
    end = time.time() if is_running else one.end
    return ListedJob(
        name=one.job,
        state="running" if is_running else KILLED,
        started=one.start,
        seconds=max(0.0, end - one.start),
        journals=(str(one.path),),
    )


def _agents() -> dict[str, LocalAgent]:
    """One of each job that runs: that with the most ranks in its round."""
    from holdfast.admin.client import local_agents

    return {one.run_id: one for one in sorted(local_agents(), key=lambda one: one.ranks)}


def _is_same(one: ListedJob, other: ListedJob) -> bool:
    return one.name == other.name and other.started <= one.started + one.seconds


def _as_one(first: ListedJob, second: ListedJob) -> ListedJob:
    """Merge two nodes of a job: one that runs, or that knows its steps, knows most."""
    best = max(first, second, key=_knowledge)
    journals = (*first.journals, *second.journals)
    folders = (*first.folders, *second.folders)
    start = min(first.started, second.started)
    return replace(best, started=start, journals=journals, folders=folders)


def _knowledge(one: ListedJob) -> tuple[bool, bool, bool]:
    return one.state == "running", one.state != KILLED, one.steps is not None


# In words.


def in_words(one: ListedJob) -> str:
    """How a job ended, in a sentence."""
    name = clean(shlex.quote(one.name))
    return sentences.ended(name, one.state, length(one.seconds), ending(one))


def render(found: list[ListedJob], width: int | None = None) -> str:
    """A table; the last column is as wide as it is, or cut where a line has to fit."""
    if not found:
        return f"{sentences.NO_JOBS}\n"
    rows = [("NAME", "STATE", "STARTED", "TIME", "NODES", "RANKS", "END"), *map(_row, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "".join(f"{line if width is None else shortened(line, width)}\n" for line in lines)


def _row(one: ListedJob) -> tuple[str, ...]:
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.started)) if one.started else "-"
    return (
        clean(one.name),
        one.state,
        started,
        length(one.seconds) if one.started else "-",
        str(one.nodes or "-"),
        str(one.ranks or "-"),
        ending(one),
    )


def ending(one: ListedJob) -> str:
    """How it ended, in a few words."""
    if one.state != "succeeded":
        return clean(shortened(one.reason, REASON_MOST))
    parts = [counted(one.steps, "step")] if one.steps is not None else []
    parts += [counted(one.restarts, "restart")] if one.restarts else []
    parts += [f"goodput {100 * one.goodput:.1f} %"] if one.goodput is not None else []
    return ", ".join(parts)
