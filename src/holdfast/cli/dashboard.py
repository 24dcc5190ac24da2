"""`holdfast dashboard`: the page of a job, in a browser."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.verbs import verb
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.errors import UsageError

if TYPE_CHECKING:
    from holdfast.admin.client import LocalAgent
    from holdfast.dashboard.page_state import PageState
    from holdfast.dashboard.wire import LogLineShown
    from holdfast.observe.journal import Step

HELP = """\
Usage: holdfast dashboard [--port PORT]
       holdfast dashboard RUN
       holdfast dashboard [JOURNAL | FOLDER | RUN]... [--port PORT]

Prints the link to a page. Without a job it lists yours on this machine, those that run and
the last ones that have ended, and opens any. For a job that runs here and was started with
--dashboard, it is the page of its agent: live, and with its key. For journals (journal.jsonl,
or a folder below which they are; of several nodes they become one story), and for a job that
has ended, the page is served from here until Ctrl-C. Journals can also be dropped onto a page
that is served from here, or chosen there.

Whoever has the link can use the page. It answers on this machine only; from another one,
go through ssh: ssh -L 8470:127.0.0.1:8470 HOST

  --port PORT    serve journals at this port [any that is free]
"""
PORT_MOST = 65535
READ_BYTES = 64 << 10
LINES_EACH = 200
"""Of each file of a worker that has ended."""


@verb(HELP)
def dashboard(words: list[str]) -> None:
    paths, port = _parse(words)
    link = _running(paths) if paths and port is None else ""
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
        pass  # It has just ended, or has nobody to ask: the next one may know.
    return ""


def _serve(paths: list[str], port: int) -> None:
    from holdfast.cli.journal_search import find_journals
    from holdfast.dashboard.page_state import PageState
    from holdfast.dashboard.serving import Machine, serve

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
    from holdfast.dashboard.static import static_page
    from holdfast.observe import job_report
    from holdfast.observe.journal import read

    known = [(Path(path), read(Path(path))) for path in journals]
    headers = [header for _, (header, _) in known]
    told = job_report.report([journal for _, journal in known], running_at(headers))
    state = static_page(told)
    state.lines = _last_lines([(path, journal[1]) for path, journal in known])
    return state


def _last_lines(journals: Sequence[tuple[Path, Sequence[Step]]]) -> list[LogLineShown]:
    from holdfast.core.node_io import Told
    from holdfast.core.protocol.bounds import clean_lines
    from holdfast.core.protocol.messages import RunRound
    from holdfast.dashboard.logs import LINES_KEPT
    from holdfast.dashboard.wire import LogLineShown
    from holdfast.observe.journal import NodeStep
    from holdfast.processes.output.run_folders import STREAM_FILES, JobLogs

    found: list[LogLineShown] = []
    for path, steps in journals:
        ranks = {
            (step.event.message.assignment.restart_count, worker.local_rank): worker.rank
            for step in steps
            if isinstance(step, NodeStep)
            and isinstance(step.event, Told)
            and isinstance(step.event.message, RunRound)
            for worker in step.event.message.assignment.workers
        }
        for (attempt, local_rank), rank in ranks.items():
            folder = JobLogs(path.parent).worker(attempt, local_rank)
            if folder is None:
                continue
            for stream, name in STREAM_FILES.items():
                text = _end_of(folder / name)
                shown = clean_lines(text.decode(errors="replace")).splitlines()
                kind = "err" if stream == 2 else "out"
                found += [LogLineShown(None, rank, kind, line) for line in shown[-LINES_EACH:]]
    return found[-LINES_KEPT:]


def _end_of(file: Path) -> bytes:
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - READ_BYTES))
            return log.read(READ_BYTES)
    except OSError:
        return b""
