"""`holdfast dashboard`: the page of a job, in a browser."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from holdfast.cli.verbs import verb
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.errors import UsageError

if TYPE_CHECKING:
    from holdfast.admin.client import LocalAgent

HELP = """\
Usage: holdfast dashboard [RUN]
       holdfast dashboard [JOURNAL | FOLDER | RUN]... [--port PORT]

Prints the link to a job's page. For a job that runs on this machine and was started with
--dashboard, that is the page of its agent: live, and with its key. For journals
(journal.jsonl, or a folder below which they are; of several nodes they become one story),
and for a job that has ended, the page is served from here until Ctrl-C. Journals can also be
dropped onto that page, or chosen there.

Whoever has the link can use the page. It answers on this machine only; from another one,
go through ssh: ssh -L 8470:127.0.0.1:8470 HOST

  --port PORT    serve journals at this port [any that is free]
"""
PORT_MOST = 65535


@verb(HELP)
def dashboard(words: list[str]) -> None:
    paths, port = _parse(words)
    link = _running(paths) if port is None else ""
    if link:
        print(link)
    else:
        _serve(paths, port or 0)


def _parse(words: list[str]) -> tuple[list[str], int | None]:
    paths, port = [], None
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name == "--port":
            value = value if equals else next(rest, "")
            if not value.isdecimal() or int(value) > PORT_MOST:
                raise UsageError(f"--port {value or 'without a number'} is no port", "0 to 65535")
            port = int(value)
        elif word.startswith("-"):
            raise UsageError(f"there is no option {word}", "`holdfast dashboard --help` shows them")
        else:
            paths.append(word)
    return paths, port


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
