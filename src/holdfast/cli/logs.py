"""`holdfast logs`: what the workers of a job write, on all nodes, in the order of time."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence

from msgspec import Struct

from holdfast.admin.client import AdminClient, AdminError
from holdfast.cli.job_connection import FINDING, connect, job_arguments, take_values
from holdfast.cli.verbs import verb
from holdfast.core.policy.texts import whole_number
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.requests import LogsAsked, LogsTold
from holdfast.observe.log_lines import LineMaker

HELP = f"""\
Usage: holdfast logs [JOB] [--rank N]… [--node NAME]… [--grep PATTERN] [--follow]

What the workers of a job have written last, on all nodes, in the order of time, each line
with its rank. Of each worker the last 64 kB of either stream are kept, whether or not the
job has a --log-dir. What a worker writes straight into a file (--redirects) is there, and
the file is named.

  --rank N         of this rank only; may be given several times
  --node NAME      of this node only, by its name in `holdfast status`; several times, too
  --grep PATTERN   only lines in which this regular expression is found
  --timestamps     with the time at which each line came
  --follow, -f     go on, until the job ends

{FINDING}"""
FOLLOW_S = 1.0
"""How long nodes wait for output before they answer that there is none."""
VALUES = ("--rank", "--node", "--grep")


class LogsWanted(Struct, frozen=True):
    """What is to be shown."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    pattern: re.Pattern[str] | None
    timestamps: bool = False


@verb(HELP)
def logs(words: list[str]) -> None:
    values, rest = take_values(words, VALUES)
    request = job_arguments(rest, ("--follow", "-f", "--timestamps"))
    wanted = LogsWanted(
        tuple(whole_number(0)(text) for text in values["--rank"]),
        tuple(values["--node"]),
        _pattern(values["--grep"]),
        "--timestamps" in request.flags,
    )
    with connect(request) as job:
        _show(job, wanted, follow=bool(request.flags & {"--follow", "-f"}))


def _pattern(texts: list[str]) -> re.Pattern[str] | None:
    if not texts:
        return None
    try:
        return re.compile("|".join(f"(?:{text})" for text in texts))
    except re.error as error:
        hint = "a regular expression of Python; put a \\ before ( [ { . * + ? | to mean just that"
        raise UsageError(f"--grep {texts[-1]!r}: {error}", hint) from None


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
    """What was shown so far of a job's output."""

    def __init__(self, job: AdminClient, wanted: LogsWanted) -> None:
        self._job, self._wanted = job, wanted
        self._lines = LineMaker()
        self._files: set[str] = set()
        self.last: dict[str, int] = {}
        """By the name of each node, the number of its last block that was shown."""

    def show_what_is_there(self) -> None:
        """Show all that was written when it was asked first, however long that takes."""
        there = self.show_news(self._wanted.nodes)
        while behind := [node for node, newest in there.items() if self.last[node] < newest]:
            before = dict(self.last)
            self.show_news(behind)
            # Who has nothing more to tell, or has gone, is not asked again.
            there = {node: there[node] for node in behind if self.last[node] > before[node]}

    def show_news(self, nodes: Sequence[str], wait_s: float = 0.0) -> dict[str, int]:
        """Show what was written since; the number of the newest block of each node that answers."""
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
    if wanted.pattern is not None and not wanted.pattern.search(text):
        return
    when = ""
    if wanted.timestamps:
        when = time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d} "
    print(f"{when}[{rank}]: {text}", flush=True)
