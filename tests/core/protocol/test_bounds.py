"""What comes from outside is within bounds, and fit to be shown."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.policy.failures import within_bounds
from holdfast.core.protocol import bounds
from holdfast.core.protocol.bounds import (
    LINE_MOST,
    TEXT_MOST,
    clean,
    clean_lines,
    cut,
    one_line_each,
)
from holdfast.core.protocol.model import ErrorDetail


def is_taken(kind: Any, value: object) -> bool:
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)
    except msgspec.ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (bounds.Number, (0, 2**53), (-1, 2**53 + 1, 2**64 - 1, 1.5)),
        (bounds.Port, (0, 65535), (-5, 65536)),
        (bounds.Slots, (1, 1024), (0, 1025, 10_000)),
        (bounds.SignalNumber, (1, 64), (0, -9, 65)),
        (bounds.Seconds, (-1.0, 0.5, 7), (math.nan, math.inf, -math.inf, 1e16)),
        (bounds.Name, ("node-1", "nödé 1"), ("", "a\n", "a\0", "\x1b[2J", "\u202eevil", "x" * 513)),
        (bounds.Address, ("", "10.0.0.1", "fe80::1%eth0"), ("a b", "a\t", "a\0", "a\n", "x" * 256)),
        (bounds.Line, ("a\nb", "x" * 2000), ("x" * 2001,)),
    ],
)
def test_a_bound_holds(kind: Any, good: tuple[object, ...], bad: tuple[object, ...]) -> None:
    assert [value for value in good if not is_taken(kind, value)] == []
    assert [value for value in bad if is_taken(kind, value)] == []


@given(st.text())
def test_what_is_clean_is_one_line_that_moves_no_cursor(text: str) -> None:
    assert clean(text).isprintable()
    assert all(line.isprintable() for line in clean_lines(text).split("\n"))
    assert is_taken(bounds.Host, clean(text)[:255])


@given(st.lists(st.text()))
def test_a_page_has_as_many_lines_as_were_meant(lines: list[str]) -> None:
    page = one_line_each(lines)
    assert page.count("\n") == len(lines)
    assert all(line.isprintable() for line in page.split("\n"))


def test_a_line_of_a_page_keeps_its_indentation() -> None:
    assert one_line_each(["  as it is", "  a\nb"]) == "  as it is\n  a b\n"


@given(st.text(st.characters(categories=["L", "N", "P"]) | st.sampled_from(" ")))
def test_what_is_clean_already_stays_as_it_is(text: str) -> None:
    assert clean(text) == clean_lines(text) == text


def test_colours_are_left_out_and_the_rest_can_be_seen() -> None:
    assert clean("\x1b[31mred\x1b[0m\nholdfast: so\x07") == "red holdfast: so\ufffd"
    assert clean_lines("a\n\tb\x1b[1mc\r\nd\x1b[2J") == "a\n        bc\nd\ufffd[2J"


def test_what_we_say_ourselves_is_cut_to_its_bound() -> None:
    assert is_taken(bounds.Line, cut("x" * 10_000))
    assert len(cut("x" * 10_000)) == LINE_MOST
    assert cut("short") == "short"
    much = ErrorDetail("m" * 2 * TEXT_MOST, "t" * TEXT_MOST + "the end", math.nan)
    told = within_bounds(much)
    assert is_taken(ErrorDetail, told)
    assert told.traceback.endswith("the end")
    assert told.timestamp is None
