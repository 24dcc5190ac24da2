"""The text of `holdfast run --help`, made from the table of options.

Rules
- No line is longer than the width that was asked for, from 72 columns on.
- Everything is readable without colour; colour only sets off names from words.
- Rules for all options (spellings, variables, brackets) are stated once, at the top.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from holdfast.cli import table
from holdfast.cli.table import GROUPS, OPTIONS, Option
from holdfast.core.protocol import exit_status

SYNOPSIS = "holdfast run [options] SCRIPT [arguments]"

EXAMPLES = (
    "holdfast run --nproc-per-node 4 train.py --epochs 3",
    "holdfast run --nproc-per-node auto --max-restarts 3 -m package.train",
)

ABOUT = (
    (
        "Starts the workers of a job, watches over them, restarts them when one fails, and says"
        " what happened. Options come first: whatever follows the script is passed on to it."
        " SCRIPT is a Python file; with -m a module, with --no-python any command."
    ),
    (
        "Every option can be written with - or _, as --name value or --name=value, can be cut"
        " short where that leaves no doubt (--max for --max-restarts), and can be set in the"
        " environment as HOLDFAST_NAME or PET_NAME (HOLDFAST_MAX_RESTARTS=3, flags with 1 or 0)."
        " The command line wins, then HOLDFAST_, then PET_. What you leave out is taken from"
        " what placed this process (Slurm, mpirun, Kubernetes, ...), if anything did:"
        " `holdfast where` shows it."
    ),
    "S is a time in seconds, [...] the default; + marks what torchrun does not have.",
)

NOTES = {
    table.OUTPUT: "WHICH: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank: 0:3,1:2",
    table.TORCHRUN: ("Packages register event handlers as entry points of holdfast.event_handlers"),
}
"""Notes for several rows of a group."""

VARIABLES = (
    ("  PYTHON_EXEC", "the workers' Python [the one running this]"),
    ("  HOLDFAST_REGISTER_USER", "user name for etcd; or user= in --rdzv-conf"),
    ("  HOLDFAST_REGISTER_PASSWORD", "password for etcd; or password_file= in --rdzv-conf"),
)

EXIT_STATUSES = (
    (f"  {exit_status.SUCCEEDED}", "all workers succeeded"),
    (f"  {exit_status.FAILED}", "the job failed for good"),
    (f"  {exit_status.USAGE}", "the command line is wrong"),
    (f"  {exit_status.NOT_FORMED}", "the nodes did not meet in time"),
    (f"  {exit_status.UNFIT}", "this node did not pass its --check"),
    (f"  {exit_status.RUN_AGAIN}", "asked to leave under Slurm and the like: run it again"),
    (f"  {exit_status.BY_SIGNAL}+n", "ended by signal n"),
)

_NARROWEST = 72
"""Options and words share a line; a terminal that is narrower folds them itself."""
_BOLD, _PLAIN = "\033[1m", "\033[0m"

Rows = Sequence[tuple[str, str]]


def render_run_help(width: int, color: bool) -> str:
    """The whole text, in lines of at most `width` columns, though never less than 72."""
    layout = _Layout(max(width, _NARROWEST), color)
    options = [[row for o in OPTIONS if o.group == group for row in _rows(o)] for group in GROUPS]
    column = max(len(left) for rows in options for left, _ in rows) + 2
    lines = [*layout.usage(), *layout.paragraphs(ABOUT)]
    for group, rows in zip(GROUPS, options, strict=True):
        lines += layout.section(group, rows, column)
    lines += layout.section("Also read from the environment", VARIABLES, column)
    lines += layout.section("Exit status", EXIT_STATUSES, max(len(s) for s, _ in EXIT_STATUSES) + 2)
    return "\n".join(lines) + "\n"


def _rows(option: Option) -> Iterator[tuple[str, str]]:
    """The option, and its further notes below it."""
    yield _left(option), _right(option)
    if option.note:
        yield "", option.note


def _left(option: Option) -> str:
    mark = "+" if option.ours else " "
    short = f", -{option.short}" if option.short else ""
    value = f" {option.metavar}" if option.metavar else ""
    return f"{mark} --{option.name}{short}{value}"


def _right(option: Option) -> str:
    return f"{option.help} [{option.default}]" if option.default else option.help


class _Layout(Struct, frozen=True):
    """Lays out text: knows the width and whether there is colour."""

    width: int
    color: bool

    def bold(self, text: str) -> str:
        return f"{_BOLD}{text}{_PLAIN}" if self.color else text

    def usage(self) -> Iterator[str]:
        yield from self._labelled("Usage: ", SYNOPSIS)
        yield ""
        for label, example in zip(("Example: ", " " * 9), EXAMPLES, strict=True):
            yield from self._labelled(label, example)

    def _labelled(self, label: str, text: str) -> Iterator[str]:
        first, *more = self._wrap(text, len(label) + 4, first_indent=len(label))
        yield self.bold(label) + self.bold(first.lstrip())
        yield from map(self.bold, more)

    def paragraphs(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            yield ""
            yield from self._wrap(text, 0)

    def section(self, heading: str, rows: Rows, column: int) -> Iterator[str]:
        yield ""
        yield self.bold(heading)
        if heading in NOTES:
            yield from self._wrap(NOTES[heading], 2)
        for left, right in rows:
            first, *more = self._wrap(right, column)
            yield (self.bold(left) if left else "") + first[len(left) :]
            yield from more

    def _wrap(self, text: str, indent: int, first_indent: int | None = None) -> list[str]:
        return textwrap.wrap(
            text,
            self.width,
            initial_indent=" " * (indent if first_indent is None else first_indent),
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
        )
