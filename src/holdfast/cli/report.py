"""`holdfast report`: the history of a job, from its journals."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.values import duration
from holdfast.cli.verbs import VerbParser, verb
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.errors import UsageError

if TYPE_CHECKING:
    from holdfast.observe.job_report import JobReport
    from holdfast.observe.journal import JournalHeader

PARSER = VerbParser(
    "report",
    "Tell what happened to a job, as a short story, and where its time went, in all and for each "
    "interruption. Journals of several nodes become one story.",
)
PARSER.add_argument(
    "places",
    nargs="*",
    metavar="JOB | FOLDER | JOURNAL",
    help="the name of a job, a folder below which journals are (--log-dir), or a journal "
    "(journal.jsonl) [the last job on this machine]",
)
PARSER.add_argument("--since", type=duration, metavar="TIME",
                    help="only the end: 90s, 10m or 2h before the last line")  # fmt: skip
PARSER.add_argument("--all", action="store_true", help="all events and interruptions")
_form = PARSER.add_mutually_exclusive_group()
_form.add_argument("--json", action="store_true", help="the same for programs")
_form.add_argument(
    "--html",
    default="",
    metavar="FILE",
    help="the dashboard's page with the report in it, as one file; - is standard output",
)


@verb(PARSER)
def report(asked: Namespace) -> None:
    from holdfast.cli.journal_search import find_journals
    from holdfast.observe import job_report
    from holdfast.observe.journal import read

    found = find_journals(asked.places)
    for note in found.notes:
        print(f"holdfast: {clean(note)}", file=sys.stderr)
    journals = [read(path) for path in found.journals]
    shown = job_report.report(journals, running_at([header for header, _ in journals]))
    if asked.since is not None:
        shown = job_report.within(shown, shown.end - asked.since, shown.end)
    if asked.json:
        import msgspec

        print(msgspec.json.encode(shown).decode())
    elif asked.html:
        _write_page(shown, asked.html)
    else:
        from holdfast.observe.report_text import render_text

        print(render_text(shown, all_events=asked.all), end="", flush=True)


def running_at(headers: list[JournalHeader]) -> float | None:
    """Now, if an agent that writes one of these journals runs on this machine."""
    from holdfast.admin.client import AdminError, local_agents

    nodes = {header.node for header in headers}
    try:
        runs = any(door.node in nodes for door in local_agents(headers[0].job))
    except AdminError:
        return None  # Another user has a job of that name: it is not known which one this is.
    return time.time() if runs else None


def _write_page(shown: JobReport, file: str) -> None:
    from holdfast.dashboard.report_file import report_file

    page = report_file(shown)
    if file == "-":
        print(page, end="", flush=True)
        return
    try:
        Path(file).write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write {file}: {error.strerror}", "name a file in a folder that can be written"
        ) from error
    print(f"written: {file}", file=sys.stderr)
