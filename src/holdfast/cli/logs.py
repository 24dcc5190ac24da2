"""`holdfast logs`: what the workers of a job write, on all nodes, in the order of time."""

from __future__ import annotations

import re
import sys
import time

from msgspec import Struct

from holdfast.cli.verbs import verb
from holdfast.cli.visit import FINDING, sort, take_values, visit
from holdfast.core.policy.texts import whole_number
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.questions import LogsAsked, LogsTold
from holdfast.node.visiting import Visit, VisitError
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
    request = sort(rest, ("--follow", "-f", "--timestamps"))
    wanted = LogsWanted(
        tuple(whole_number(0)(text) for text in values["--rank"]),
        tuple(values["--node"]),
        _pattern(values["--grep"]),
        "--timestamps" in request.flags,
    )
    with visit(request) as job:
        _show(job, wanted, follow=bool(request.flags & {"--follow", "-f"}))


def _pattern(texts: list[str]) -> re.Pattern[str] | None:
    if not texts:
        return None
    try:
        return re.compile("|".join(f"(?:{text})" for text in texts))
    except re.error as error:
        hint = "a regular expression of Python; put a \\ before ( [ { . * + ? | to mean just that"
        raise UsageError(f"--grep {texts[-1]!r}: {error}", hint) from None


def _show(job: Visit, wanted: LogsWanted, follow: bool) -> None:
    lines, last = LineMaker(), dict[str, int]()
    said: set[str] = set()
    try:
        while _show_news(job, wanted, lines, last, said) or follow:
            pass
    except VisitError:
        if not (follow and last):
            raise
        # The job is over: that is where following ends.
    for rank, text in lines.rest():
        _print(wanted, time.time(), rank, text)


def _show_news(
    job: Visit, wanted: LogsWanted, lines: LineMaker, last: dict[str, int], said: set[str]
) -> bool:
    """Show what was written since; whether there was anything."""
    question = LogsAsked(last, wanted.ranks, FOLLOW_S if last else 0.0)
    found: list[tuple[float, int, str]] = []
    for node, told in job.ask(question, "some" if wanted.nodes else "all", wanted.nodes):
        if not isinstance(told, LogsTold):
            continue
        for file in told.files:
            if file not in said:
                said.add(file)
                print(f"holdfast: {node}: {file}", file=sys.stderr)
        found += [line for block in told.blocks for line in lines.take(node, block)]
        last[node] = told.last
    for at, rank, text in sorted(found, key=lambda line: line[0]):
        _print(wanted, at, rank, text)
    return bool(found)


def _print(wanted: LogsWanted, at: float, rank: int, text: str) -> None:
    if wanted.pattern is not None and not wanted.pattern.search(text):
        return
    when = ""
    if wanted.timestamps:
        when = time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d} "
    print(f"{when}[{rank}]: {text}", flush=True)
