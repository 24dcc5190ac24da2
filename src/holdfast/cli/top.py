"""`holdfast top`: a job and its workers, live."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import termios
import time
import tty
from argparse import Namespace
from collections.abc import Callable, Iterator

from msgspec import Struct

from holdfast.admin.client import AdminClient, AdminError
from holdfast.cli.job_connection import connect, job_parser
from holdfast.cli.status import look
from holdfast.cli.status_view import (
    RANK_COLUMNS,
    Overview,
    head,
    line,
    painted,
    rank_row,
    render_table,
)
from holdfast.cli.verbs import verb
from holdfast.core.protocol.bounds import clean, one_line_each
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.requests import RankOverview
from holdfast.observe.report_text import told_shortly

PARSER = job_parser(
    "top",
    "Show a job's status live, with every worker. Those with less than half of the middle one's "
    'steps a second are marked "slow"; those that have made no step for longer than usual are '
    "marked, too.\n\n"
    "Keys: s sorts by the next column, r the other way round, / shows only the workers whose line "
    "has some words, arrows and page keys scroll, q ends it. The job does not notice.",
)
REDRAW_S = 1.0
EVENTS_SHOWN = 3
RECORD_WITHIN_S = 5.0
"""How long an agent may take to write down how its job ended."""
_CLEAR, _HOME = "\x1b[2J\x1b[H", "\x1b[H"
_HIDE, _SHOW = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
Worker = tuple[str, RankOverview]
SORTS: dict[str, Callable[[Worker], tuple[object, int]]] = {
    "rank": lambda worker: (0, worker[1].rank),
    "slowest": lambda worker: (worker[1].steps_per_s or 0.0, worker[1].rank),
    "last step": lambda worker: (-(worker[1].step_age_s or 0.0), worker[1].rank),
    "cpu": lambda worker: (-(worker[1].cpu or 0.0), worker[1].rank),
    "memory": lambda worker: (-(worker[1].memory_bytes or 0), worker[1].rank),
    "node": lambda worker: (worker[0], worker[1].rank),
}
KEYS = {
    "\x1b[A": "up", "k": "up", "\x1b[B": "down", "j": "down", "\x1b[5~": "page up",
    "\x1b[6~": "page down", " ": "page down", "\x1b[H": "top", "g": "top", "\x1b[F": "bottom",
    "G": "bottom", "s": "sort", "r": "reverse", "/": "filter", "q": "quit", "\x03": "quit",
}  # fmt: skip


class TopView(Struct):
    """The reader's choices."""

    sort: str = "rank"
    is_reversed: bool = False
    words: str = ""
    """Only workers whose line contains this."""
    is_typing: bool = False
    """The filter is being typed."""
    first: int = 0
    """The index of the first shown worker."""
    is_over: bool = False

    def press(self, keys: str, page: int = 10) -> None:
        """Handle these keys; `page` is how many rows are shown."""
        while keys:
            key = next((each for each in KEYS if keys.startswith(each)), keys[0])
            keys = keys[len(key) :]
            if self.is_typing:
                self._type(key)
            else:
                self._do(KEYS.get(key, ""), page)

    def _type(self, key: str) -> None:
        if key in ("\r", "\n", "\x1b"):
            self.is_typing = False
            self.words = "" if key == "\x1b" else self.words
        elif key in ("\x7f", "\b"):
            self.words = self.words[:-1]
        elif key.isprintable():
            self.words, self.first = self.words + key, 0

    def _do(self, what: str, page: int) -> None:
        names = list(SORTS)
        moves = {"up": -1, "down": 1, "page up": -page, "page down": page}
        match what:
            case "quit":
                self.is_over = True
            case "sort":
                self.sort = names[(names.index(self.sort) + 1) % len(names)]
            case "reverse":
                self.is_reversed = not self.is_reversed
            case "filter":
                self.is_typing, self.words = True, ""
            case "top" | "bottom":
                self.first = 0 if what == "top" else sys.maxsize
            case "up" | "down" | "page up" | "page down":
                self.first = max(0, self.first + moves[what])


def render(seen: Overview, view: TopView, columns: int, rows: int) -> str:
    """The page, for a screen of that size."""
    above = [*head(seen), ""]
    told = told_shortly(seen.events)[::-1]
    events = [f"  {line(event, words)}" for event, words in told[:EVENTS_SHOWN]]
    table = _workers(seen, view, columns)
    room = max(1, rows - len(above) - len(events) - 4)
    count = len(table) - 1
    view.first = max(0, min(view.first, count - room))
    shown = table[1 + view.first : 1 + view.first + room]
    devices = [f"  {node}: {each}" for node, told in seen.ranks.items()
               for each in told.accelerators]  # fmt: skip
    below = [_footer(view, len(shown), count), "", *events]
    spare = max(0, room - len(shown))
    return one_line_each([*above, table[0], *shown, *devices[:spare], *below])


def _workers(seen: Overview, view: TopView, columns: int) -> list[str]:
    paces = sorted(one.steps_per_s for _, one in seen.workers() if one.steps_per_s is not None)
    middle = paces[len(paces) // 2] if paces else None
    workers = sorted(seen.workers(), key=SORTS[view.sort], reverse=view.is_reversed)
    rows = [rank_row(node, one, seen, middle) for node, one in workers]
    wanted = view.words.lower()
    rows = [row for row in rows if wanted in " ".join(row.cells).lower()]
    return render_table(RANK_COLUMNS, rows, columns)


def _footer(view: TopView, shown: int, count: int) -> str:
    if view.is_typing:
        return f"  / {clean(view.words)}_"
    order = f"sort: {view.sort}{' (reversed)' if view.is_reversed else ''}"
    some = f", {count - shown} more" if shown < count else ""
    only = f", only {clean(view.words)!r}" if view.words else ""
    return f"  {shown} of {count} workers{some}{only} | s {order} | / filter | q quit"


@verb(PARSER)
def top(asked: Namespace) -> None:
    if not sys.stdout.isatty():
        raise UsageError("`holdfast top` needs a terminal", "`holdfast status` prints it once")
    with connect(asked) as job:
        shown = ShownJob(job)
        try:
            with Screen() as screen, pressed_keys() as keys, contextlib.suppress(KeyboardInterrupt):
                shown.follow(screen, keys)
        except AdminError as error:
            _tell_the_end(job, shown.page, error)


class ShownJob:
    """The shown state."""

    def __init__(self, job: AdminClient) -> None:
        self.page = ""
        self._job, self._view = job, TopView()
        self._seen: Overview | None = None

    def follow(self, screen: Screen, keys: int | None) -> None:
        """Show it until the reader quits. Raises `AdminError` if the job ends."""

        def read() -> None:
            pressed = os.read(keys or 0, 1024)
            if not pressed:
                self._view.is_over = True  # The terminal is gone.
            self._view.press(pressed.decode(errors="replace"))
            self._draw(screen)

        while not self._view.is_over:
            self._seen = look(self._job)
            self._draw(screen)
            self._job.pause(REDRAW_S, keys, read, lambda: self._view.is_over)

    def _draw(self, screen: Screen) -> None:
        if self._seen is not None:
            self.page = render(self._seen, self._view, *shutil.get_terminal_size())
            screen.draw(self.page)


def _tell_the_end(job: AdminClient, page: str, error: AdminError) -> None:
    """The job has ended while shown: the last page stays, with its outcome."""
    from holdfast.cli.jobs import ended_job, in_words

    until = time.monotonic() + RECORD_WITHIN_S
    while (ended := ended_job(job.run_id)) is None and time.monotonic() < until:
        time.sleep(0.1)  # The agent writes it last, and there is no event for it.
    if not page or ended is None:
        raise error
    print(page, end="")
    print(f"holdfast: {in_words(ended)}")


@contextlib.contextmanager
def pressed_keys() -> Iterator[int | None]:
    """The terminal from which keys are read as they are pressed; None if there is none."""
    if not sys.stdin.isatty():
        yield None
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield terminal
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


class Screen:
    """The whole terminal, while entered; its earlier content is restored."""

    def __enter__(self) -> Screen:
        sys.stdout.write(_HIDE + _CLEAR)
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.write(_SHOW)
        sys.stdout.flush()

    def draw(self, page: str) -> None:
        """As much as the screen holds; each line erases the rest of the line before."""
        columns, rows = shutil.get_terminal_size()
        cut = "".join(f"{text[:columns]}\n" for text in page.splitlines()[: rows - 1])
        lines = painted(cut).splitlines()
        sys.stdout.write(_HOME + "".join(f"{text}\x1b[K\n" for text in lines) + "\x1b[J")
        sys.stdout.flush()
