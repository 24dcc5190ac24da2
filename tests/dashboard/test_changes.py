"""What differs from what a page has heard."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.dashboard.changes import changed_column, changed_columns, changed_items

values = st.lists(st.none() | st.integers(-3, 3), max_size=40)


def heard(before: list[Any], change: dict[str, Any] | None) -> list[Any]:
    """What a page knows then: `frontend/src/workers.ts` does the same."""
    if change is None:
        return before
    if "i" not in change:
        return list(change["v"])
    now = list(before)
    for k, value in zip(change["i"], change["v"], strict=True):
        now[k] = value
    return now


@given(before=values, now=values)
def test_a_page_that_hears_the_changes_knows_all(before: list[Any], now: list[Any]) -> None:
    assert heard(before, changed_column(before, now)) == now


@given(now=values)
def test_a_page_that_knows_nothing_is_told_all(now: list[Any]) -> None:
    assert changed_column(None, now) == {"v": now}


def test_few_changes_are_few_numbers() -> None:
    before = [0] * 10_000
    now = [*before]
    now[17] = 5
    assert changed_column(before, now) == {"i": [17], "v": [5]}


def test_a_column_that_has_not_changed_is_not_there() -> None:
    assert changed_columns({"a": [1], "b": [2]}, {"a": [1], "b": [3]}) == {"b": {"v": [3]}}


@given(before=values, now=values)
def test_a_list_is_put_together_from_its_changes(before: list[Any], now: list[Any]) -> None:
    change = changed_items(before, now)
    if change is None:
        assert before == now
        return
    known = before[: change["count"]]
    for k, item in change["set"]:
        known[k : k + 1] = [item]
    assert known == now
