"""`holdfast dashboard`: the page of a job, in a browser."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from holdfast.cli.verbs import VerbParser, verb
from holdfast.core.policy.texts import whole_number
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.errors import UsageError

if TYPE_CHECKING:
    from holdfast.admin.client import LocalAgent

PORT_MOST = 65535
PARSER = VerbParser(
    "dashboard",
    "Print the link to a job's page. For a job that runs on this machine and was started with "
    "--dashboard, that is the page of its agent: live, and with its key. For journals, and for a "
    "job that has ended, the page is served from here until Ctrl-C. Journals can also be dropped "
    "onto that page, or chosen there.",
    epilog="Whoever has the link can use the page. It answers on this machine only; from another "
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
    help="serve journals at this port [any that is free]",
)


@verb(PARSER)
def dashboard(asked: Namespace) -> None:
    link = _running(asked.places) if asked.port is None else ""
    if link:
        print(link)
    else:
        _serve(asked.places, asked.port or 0)


def _running(paths: list[str]) -> str:
    """The link of a job that runs here, if one of that name does."""
    if len(paths) > 1 or any("/" in path for path in paths):
        return ""
    from holdfast.admin.client import local_agents

    wanted = paths[0] if paths else ""
    agents = local_agents(wanted)
    if not agents:
        return ""
    runs = sorted({agent.run_id for agent in agents})
    if len(runs) > 1:
        raise UsageError("several jobs run on this machine", f"name one: {', '.join(runs)}")
    links = [link for link in map(_link, agents) if link]
    if not links:
        raise UsageError(
            f"{runs[0]} runs here without a dashboard",
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
        pass  # It has just ended, or has nobody to ask: the next one may know.
    return ""


def _serve(paths: list[str], port: int) -> None:
    from holdfast.cli.journal_search import find_journals, find_last_journals
    from holdfast.dashboard.serving import serve_journals
    from holdfast.observe.journal import read

    found = find_journals(paths) if paths else find_last_journals()
    if found is None:
        print("holdfast: no job has left a journal here: drop some onto the page", file=sys.stderr)
    for note in found.notes if found else ():
        print(f"holdfast: {clean(note)}", file=sys.stderr)
    journals = [read(path) for path in found.journals] if found else []

    def say(link: str) -> None:
        print(link, flush=True)
        print("holdfast: Ctrl-C ends it", file=sys.stderr, flush=True)

    try:
        serve_journals(journals, port, say)
    except OSError as error:
        raise UsageError(
            f"port {port} cannot be used: {error.strerror}", "leave --port out for any that is free"
        ) from error
