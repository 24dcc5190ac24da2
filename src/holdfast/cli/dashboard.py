"""`holdfast dashboard`: the page of a job, in a browser."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.verbs import VerbParser, verb
from holdfast.core.policy.texts import whole_number
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.errors import UsageError

if TYPE_CHECKING:
    from holdfast.admin.client import LocalAgent
    from holdfast.dashboard.pages import PageState
    from holdfast.dashboard.wire import LogLineShown

PORT_MOST = 65535
PARSER = VerbParser(
    "dashboard",
    "Print the link to a page. Without a job it lists yours on this machine, running and ended, "
    "and opens any. For a job that runs here and was started with --dashboard, it is the page of "
    "its agent: live, and with its key. For journals, and for a job that has ended, the page is "
    "served from here until Ctrl-C.",
    epilog="Anyone with the link can use the page. It answers on this machine only; from another "
    "one,\ngo through ssh: ssh -L 8470:127.0.0.1:8470 HOST",
)
PARSER.add_argument(
    "places",
    nargs="*",
    metavar="JOB | FOLDER | JOURNAL",
    help="the name of a job, a folder below which journals are, or a journal (journal.jsonl); "
    "those of several nodes become one story",
)
PARSER.add_argument(
    "--port",
    type=whole_number(0, PORT_MOST),
    metavar="PORT",
    help="serve it from here, at this port [any that is free]",
)


@verb(PARSER)
def dashboard(asked: Namespace) -> None:
    link = _running(asked.places) if asked.places and asked.port is None else ""
    if link:
        print(link)
    else:
        _serve(asked.places, asked.port or 0)


def _running(paths: list[str]) -> str:
    """The link of a job that runs here, if any has that name."""
    if len(paths) > 1 or any("/" in path for path in paths):
        return ""
    from holdfast.admin.client import local_agents

    agents = local_agents(paths[0])
    if not agents:
        return ""
    links = [link for link in map(_link, agents) if link]
    if not links:
        raise UsageError(
            f"{paths[0]} runs here without a dashboard",
            "start it with `holdfast run --dashboard`, or name its journal to see it so far",
        )
    return "\n".join(links)


def _link(agent: LocalAgent) -> str:
    from holdfast.admin.client import AdminError, connect_to
    from holdfast.core.protocol.requests import DashboardAsked, DashboardTold

    try:
        with connect_to(agent) as job:
            for _, told in job.ask(DashboardAsked(), of="some", nodes=[agent.node]):
                if isinstance(told, DashboardTold):
                    return clean(told.link)
    except AdminError:
        pass  # It has just ended, or cannot be asked: the next one may know.
    return ""


def _serve(paths: list[str], port: int) -> None:
    from holdfast.cli.journal_search import find_journals
    from holdfast.dashboard.pages import PageState
    from holdfast.dashboard.site import Machine, serve

    state = PageState()
    if paths:
        found = find_journals(paths)
        for note in found.notes:
            print(f"holdfast: {clean(note)}", file=sys.stderr)
        state = _opened([str(path) for path in found.journals])

    def say(link: str) -> None:
        print(link, flush=True)
        print("holdfast: Ctrl-C ends it", file=sys.stderr, flush=True)

    try:
        serve(state, port, say, None if paths else Machine(_listed, _opened))
    except OSError as error:
        raise UsageError(
            f"port {port} cannot be used: {error.strerror}", "leave --port out for any that is free"
        ) from error


def _listed() -> list[dict[str, Any]]:
    from msgspec.structs import asdict

    from holdfast.admin.client import local_agents
    from holdfast.cli.jobs import ending, list_jobs

    links: dict[str, str] = {}
    for agent in local_agents():
        links[agent.run_id] = links.get(agent.run_id) or _link(agent)
    return [
        {
            **asdict(one),
            "name": clean(one.name),
            "end": ending(one),
            "link": links.get(one.name, "") if one.state == "running" else "",
        }
        for one in list_jobs()
    ]


def _opened(journals: Sequence[str]) -> PageState:
    """The story of a job, with the last lines of its workers where they are in files."""
    from holdfast.cli.report import running_at
    from holdfast.dashboard.views import static_page
    from holdfast.observe import job_report
    from holdfast.observe.journal import read

    known = [(Path(path), read(Path(path))) for path in journals]
    headers = [header for _, (header, _) in known]
    told = job_report.report([journal for _, journal in known], running_at(headers))
    state = static_page(told)
    state.lines = _last_lines([path for path, _ in known])
    return state


def _last_lines(journals: Sequence[Path]) -> list[LogLineShown]:
    """The kept output of these runs."""
    from holdfast.core.protocol.requests import LogBlock, LogsTold
    from holdfast.dashboard.logs import LINES_KEPT, lines_of
    from holdfast.observe.log_lines import LineMaker
    from holdfast.processes.output import run_folders

    found: list[LogLineShown] = []
    for folder in run_folders.folders():
        places = run_folders.places_of(folder)
        if any(path.absolute().is_relative_to(place) for path in journals for place in places):
            kept = run_folders.output_of(folder).blocks
            blocks = [LogBlock(b.at, b.rank, 2 if b.stream == 2 else 1, b.text) for b in kept]
            found += lines_of(LineMaker(), "", LogsTold(tuple(blocks), 0))
    return sorted(found, key=lambda line: line.at)[-LINES_KEPT:]
