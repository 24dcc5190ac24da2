"""`holdfast logs`: the output of a job's workers, on all nodes, in the order of time."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from holdfast.admin.client import AdminClient, AdminError
from holdfast.cli.job_connection import JobHasEnded, connect, job_parser
from holdfast.cli.verbs import verb
from holdfast.core.policy.texts import whole_number
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.requests import LogBlock, LogsAsked, LogsTold
from holdfast.observe.log_lines import LineMaker

PARSER = job_parser(
    "logs",
    "Show what the workers of a job have written last, on all nodes, in the order of time, each "
    "line with its rank. Of each worker the last 64 kB of either stream are kept, whether or not "
    "the job has a --log-dir. What a worker writes straight into a file (--redirects) is there, "
    "and the file is named. Of a job that "
    "has ended it is what was there at the end.",
)
PARSER.add_argument("--rank", action="append", default=[], type=whole_number(0), metavar="N",
                    help="of this rank only; may be given several times")  # fmt: skip
PARSER.add_argument(
    "--node",
    action="append",
    default=[],
    metavar="NAME",
    help="of this node only, by its name in `holdfast status`; several times, too",
)
PARSER.add_argument("--timestamps", action="store_true",
                    help="with the time at which each line came")  # fmt: skip
PARSER.add_argument("--follow", "-f", action="store_true", help="go on, until the job ends")
FOLLOW_S = 1.0
"""How long nodes wait for output before they answer without any."""


class LogsWanted(Struct, frozen=True):
    """The selected output."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    timestamps: bool = False


@verb(PARSER)
def logs(asked: Namespace) -> None:
    wanted = LogsWanted(tuple(asked.rank), tuple(asked.node), asked.timestamps)
    try:
        with connect(asked) as job:
            _show(job, wanted, follow=asked.follow)
    except JobHasEnded as ended:
        _show_last(ended, wanted)


def _show_last(ended: JobHasEnded, wanted: LogsWanted) -> None:
    """The kept output of a job that has ended."""
    from holdfast.processes.output import run_folders

    kept = [run_folders.output_of(Path(folder)) for folder in ended.job.folders]
    if not any(one.blocks or one.files for one in kept):
        raise ended
    lines = LineMaker()
    for file in sorted({file for one in kept for file in one.files}):
        print(f"holdfast: {clean(file)}", file=sys.stderr)
    found = [
        line
        for number, one in enumerate(kept)
        for block in one.blocks
        if not wanted.ranks or block.rank in wanted.ranks
        for line in lines.take(
            str(number), LogBlock(block.at, block.rank, 2 if block.stream == 2 else 1, block.text)
        )
    ]
    for at, rank, text in sorted(found, key=lambda line: line[0]):
        _print(wanted, at, rank, text)
    for rank, text in lines.rest():
        _print(wanted, time.time(), rank, text)


def _show(job: AdminClient, wanted: LogsWanted, follow: bool) -> None:
    shown = ShownLogs(job, wanted)
    try:
        shown.show_what_is_there()
        while follow:
            shown.show_news(wanted.nodes, FOLLOW_S)
    except AdminError:
        if not (follow and shown.last):
            raise
        # The job is over: that is where following ends.
    shown.show_the_rest()


class ShownLogs:
    """The output shown so far."""

    def __init__(self, job: AdminClient, wanted: LogsWanted) -> None:
        self._job, self._wanted = job, wanted
        self._lines = LineMaker()
        self._files: set[str] = set()
        self.last: dict[str, int] = {}
        """By the name of each node, the number of its last block that was shown."""

    def show_what_is_there(self) -> None:
        """Show all output up to the first request, however long that takes."""
        there = self.show_news(self._wanted.nodes)
        while behind := [node for node, newest in there.items() if self.last[node] < newest]:
            before = dict(self.last)
            self.show_news(behind)
            # Nodes that have no more output, or are gone, are not asked again.
            there = {node: there[node] for node in behind if self.last[node] > before[node]}

    def show_news(self, nodes: Sequence[str], wait_s: float = 0.0) -> dict[str, int]:
        """Show newer output; return the number of the newest block of each node that answers."""
        request = LogsAsked(self.last, self._wanted.ranks, wait_s)
        found: list[tuple[float, int, str]] = []
        newest: dict[str, int] = {}
        for node, told in self._job.ask(request, "some" if nodes else "all", nodes):
            if isinstance(told, LogsTold):
                self._name_files(node, told)
                found += [line for block in told.blocks for line in self._lines.take(node, block)]
                self.last[node], newest[node] = told.last, told.newest
        for at, rank, text in sorted(found, key=lambda line: line[0]):
            _print(self._wanted, at, rank, text)
        return newest

    def show_the_rest(self) -> None:
        """Show lines that have not ended."""
        for rank, text in self._lines.rest():
            _print(self._wanted, time.time(), rank, text)

    def _name_files(self, node: str, told: LogsTold) -> None:
        for file in told.files:
            if file not in self._files:
                self._files.add(file)
                print(f"holdfast: {clean(node)}: {clean(file)}", file=sys.stderr)


def _print(wanted: LogsWanted, at: float, rank: int, text: str) -> None:
    when = ""
    if wanted.timestamps:
        when = time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d} "
    print(f"{when}[{rank}]: {text}", flush=True)
