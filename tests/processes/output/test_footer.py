"""The line below all output: on a real model of a terminal, with whatever workers may write."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.processes.output.console import Footer

pyte = pytest.importorskip("pyte", reason="a terminal to look at")

ROWS, COLUMNS = 90, 40
LINE = b"holdfast | round 1 | 0:01"


class Terminal:
    """A terminal that is written to with the line, or without."""

    def __init__(self, rows: int = ROWS, footer: Footer | None = None) -> None:
        self.screen = pyte.Screen(COLUMNS, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.footer = footer
        self.line_open = False

    def write(self, data: bytes) -> None:
        if not data:
            return
        self.line_open = not data.endswith(b"\n")
        if self.footer is not None:
            data = self.footer.around(data, self.line_open)
        self._feed(data)

    def show(self, text: bytes) -> None:
        if self.footer is not None:
            self._feed(self.footer.show(text, self.line_open))

    def hide(self) -> None:
        if self.footer is not None:
            self._feed(self.footer.hide())

    def _feed(self, data: bytes) -> None:
        self._stream.feed(data.replace(b"\n", b"\r\n"))  # As the terminal's driver does.

    @property
    def lines(self) -> list[str]:
        shown = [line.rstrip() for line in self.screen.display]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    @property
    def cursor(self) -> tuple[int, int]:
        return self.screen.cursor.y, self.screen.cursor.x


words = st.sampled_from(
    [
        *(b"plain words\n", b"two\nlines\n", b"no end", b"\n", b"\r\n", b"x" * 70 + b"\n"),
        *(b"\r 10%|#", b"\r 20%|##", b"\r100%|####\n", b"\rbar \x1b[K", b"\x1b[31mred\x1b[0m\n"),
        *("größer → 日本\n".encode(), "▏▎▍ 40%".encode(), b"\x1b[1;32m"),
        *(b"\n\rbelow\x1b[A", b"\x1b[2A\rup", b"\x1b7", b"\x1b8", b"\x1b[5;5Hthere", b"\x0c"),
    ]
)
changes = st.sampled_from([LINE, b"holdfast | round 2 | 0:02", b""])
piece = st.tuples(st.just("write"), words) | st.tuples(st.just("show"), changes)


@given(st.lists(piece, max_size=25), st.lists(st.integers(1, 6), max_size=8))
@settings(max_examples=100, deadline=None)
def test_whatever_is_written_looks_as_if_there_were_no_such_line(
    pieces: list[tuple[str, bytes]], cuts: list[int]
) -> None:
    """Also where blocks are cut in the middle of a character or of a control sequence."""
    bare, kept = Terminal(), Terminal(footer=Footer())
    for what, data in pieces:
        if what == "show":
            kept.show(data)
            continue
        rest = data
        for cut in cuts:
            bare.write(rest[:cut])
            kept.write(rest[:cut])
            rest = rest[cut:]
        bare.write(rest)
        kept.write(rest)
    kept.hide()
    assert kept.lines == bare.lines
    assert kept.cursor == bare.cursor


def test_it_is_below_lines_that_have_ended_and_stays_there() -> None:
    terminal = Terminal(footer=Footer())
    terminal.write(b"one\n")
    terminal.show(LINE)
    assert terminal.lines == ["one", LINE.decode()]
    terminal.write(b"two\nthree\n")
    assert terminal.lines == ["one", "two", "three", LINE.decode()]
    terminal.hide()
    assert terminal.lines == ["one", "two", "three"]


def test_it_is_below_a_progress_bar_and_the_bar_goes_on() -> None:
    terminal = Terminal(footer=Footer())
    terminal.show(LINE)
    for percent in range(0, 100, 10):
        terminal.write(f"\r{percent:3d}%|{'#' * (percent // 10)}".encode())
        assert terminal.lines == [f"{percent:3d}%|{'#' * (percent // 10)}", LINE.decode()]
    terminal.write(b"\r100%|done\x1b[K\n")
    assert terminal.lines == ["100%|done", LINE.decode()]


def test_at_the_bottom_of_the_screen_what_was_above_moves_up_by_one_row() -> None:
    terminal = Terminal(rows=4, footer=Footer())
    terminal.write(b"one\ntwo\nthree\n\r 50%|#")
    terminal.show(LINE)
    assert terminal.lines == ["two", "three", " 50%|#", LINE.decode()]
    terminal.write(b"\r 60%|##")
    assert terminal.lines == ["two", "three", " 60%|##", LINE.decode()]
    terminal.hide()
    assert terminal.lines == ["two", "three", " 60%|##"]


def test_who_moves_the_cursor_has_the_screen_until_somebody_else_begins() -> None:
    """Bars below each other, as `tqdm(position=1)` draws them."""
    terminal = Terminal(footer=Footer())
    terminal.show(LINE)
    terminal.write(b"\r outer 10%")
    terminal.write(b"\n\r inner 50%\x1b[A")
    terminal.show(LINE)
    assert terminal.lines == [" outer 10%", " inner 50%"]
    terminal.write(b"\r outer 20%\n\r inner 60%\x1b[A")
    assert terminal.lines == [" outer 20%", " inner 60%"]
    terminal.write(b"\n\n")
    assert terminal.footer is not None
    terminal.footer.begin_anew()
    terminal.show(LINE)
    assert terminal.lines[-1] == LINE.decode()


def test_a_line_that_got_too_wide_is_cleared_with_all_its_rows() -> None:
    """The terminal was made narrower, and has wrapped what is longer."""
    terminal = Terminal(footer=Footer())
    terminal.write(b"one\n")
    terminal.show(b"h" * (COLUMNS + 20))
    terminal.screen.cursor.y, terminal.screen.cursor.x = 1, 0  # Where a reflow leaves it.
    terminal.hide()
    assert terminal.lines == ["one"]


def test_nothing_is_written_where_nothing_changes() -> None:
    footer = Footer()
    assert footer.show(LINE, False)
    assert footer.show(LINE, False) == b""
    assert footer.hide()
    assert footer.hide() == b""
