"""What `holdfast top` shows, and what its keys do."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.cli.status_view import Overview
from holdfast.cli.top import SORTS, TopView, render
from holdfast.core.protocol.requests import RankOverview, RanksTold

from .test_status_view import EVENT, JOB, RANKS

LATER = replace(EVENT, at=EVENT.at + 1, words="the later one")
MANY = Overview(
    JOB,
    {
        "host1": RanksTold(
            "host1",
            tuple(
                RankOverview(k, k, 100 + k, "running", 50, 0.1 * k, 10.0, "", 0.5, 10**6 * k)
                for k in range(200)
            ),
        )
    },
    (EVENT, LATER),
)


def ranks(page: str) -> list[int]:
    """The ranks of the workers that are shown, in order."""
    lines = page.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("  rank"))
    rows = [line[2:].split() for line in lines[first + 1 :]]
    return [int(row[0]) for row in rows if "running" in row]


def test_a_page_fits_the_screen_and_says_how_many_more_there_are() -> None:
    page = render(MANY, TopView(), 80, 24)
    assert len(page.splitlines()) < 24
    shown = ranks(page)
    assert shown == list(range(len(shown)))
    assert f"{len(shown)} of 200 workers, {200 - len(shown)} more" in page
    assert all(len(line) <= 80 for line in page.splitlines() if "running" in line)


def test_the_newest_event_comes_first() -> None:
    page = render(MANY, TopView(), 80, 24)
    assert page.index("the later one") < page.index("round 1 ends")


def test_workers_are_in_the_order_of_ranks_until_another_is_wanted() -> None:
    view = TopView()
    assert ranks(render(Overview(JOB, RANKS), view, 80, 24)) == [0, 1]
    view.press("s")
    page = render(Overview(JOB, RANKS), view, 80, 24)
    assert (view.sort, ranks(page)) == ("slowest", [1, 0])
    assert "! 1 slow" in page
    assert "sort: slowest" in page
    view.press("r")
    assert ranks(render(Overview(JOB, RANKS), view, 80, 24)) == [0, 1]
    view.press("s" * (len(SORTS) - 1))
    assert view.sort == "rank"


@pytest.mark.parametrize(
    ("keys", "first"),
    [("j", 1), ("\x1b[B\x1b[Bk", 1), ("\x1b[6~", 10), (" \x1b[5~", 0), ("k", 0)],
)
def test_keys_scroll(keys: str, first: int) -> None:
    view = TopView()
    view.press(keys)
    assert ranks(render(MANY, view, 80, 24))[0] == first


def test_the_last_page_is_full() -> None:
    view = TopView()
    view.press("G")
    shown = ranks(render(MANY, view, 80, 24))
    assert shown[-1] == 199
    assert len(shown) == len(ranks(render(MANY, TopView(), 80, 24)))
    view.press("g")
    assert ranks(render(MANY, view, 80, 24))[0] == 0


def test_only_the_workers_with_some_words_are_shown() -> None:
    view = TopView()
    view.press("/19x\x7f")
    assert "/ 19_" in render(MANY, view, 80, 24)
    view.press("\r")
    assert not view.is_typing
    assert ranks(render(MANY, view, 80, 40))[:2] == [19, 90], "by its pid, 190, too"
    view.press("/\x1b")
    assert len(ranks(render(MANY, view, 80, 400))) == 200


def test_q_ends_it_but_not_within_words() -> None:
    view = TopView()
    view.press("/q")
    assert not view.is_over
    view.press("\rq")
    assert view.is_over
