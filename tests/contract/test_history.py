"""The judge of histories is judged itself, by histories whose fault is known."""

from __future__ import annotations

from typing import Any

import pytest

from .history import NotLinearizable, Operation, check


def read(when: tuple[float, float], seen: str | None, who: str = "reader") -> Operation:
    return Operation(who, *when, "read", seen)


def done(when: tuple[float, float], content: str, over: str | None, who: str = "a") -> Operation:
    return Operation(who, *when, "set", content, content, over)


def refused(
    when: tuple[float, float], content: str, over: str | None, seen: str | None
) -> Operation:
    return Operation("b", *when, "refused", seen, content, over)


def unknown(when: tuple[float, float], content: str, over: str | None) -> Operation:
    return Operation("c", *when, "unknown", None, content, over)


FIRST, SECOND = done((0, 1), "one", None), done((2, 3), "two", "one", "b")

POSSIBLE: dict[str, list[Operation]] = {
    "nothing": [],
    "one after the other": [FIRST, SECOND, read((4, 5), "two")],
    "a read of nothing before": [read((0, 0.5), None), FIRST],
    "a read of what a set under way has done": [FIRST, SECOND, read((2.1, 2.2), "two")],
    "a read of what a set under way has not done": [FIRST, SECOND, read((2.8, 2.9), "one")],
    "two reads during a set, in its order": [
        FIRST,
        SECOND,
        read((2.1, 2.2), "one"),
        read((2.3, 2.4), "two"),
    ],
    "a refusal that shows the later": [FIRST, SECOND, refused((3, 4), "three", "one", "two")],
    "a lost reply to what happened": [FIRST, unknown((2, 3), "lost", "one"), read((4, 5), "lost")],
    "a lost reply to what did not": [FIRST, unknown((2, 3), "lost", "one"), read((4, 5), "one")],
    "a lost write that arrives late": [
        FIRST,
        unknown((2, 3), "lost", "one"),
        read((4, 5), "one"),
        read((6, 7), "lost"),
    ],
    "a lost write that others followed": [
        FIRST,
        unknown((2, 3), "lost", "one"),
        done((4, 5), "three", "lost"),
    ],
    "a lost write, tried again": [
        FIRST,
        unknown((2, 3), "lost", "one"),
        read((4, 5), "lost"),
        done((6, 7), "lost", "one"),
    ],
    "two sets at once, seen in their order": [
        done((0, 9), "one", None),
        done((0, 9), "two", "one"),
        read((1, 2), "one"),
        read((3, 4), "two"),
    ],
}


@pytest.mark.parametrize("name", POSSIBLE)
def test_what_could_have_been_is_accepted(name: str) -> None:
    history = POSSIBLE[name]
    chain = check(history)
    assert check(reversed(history)) == chain
    assert {each.content for each in history if each.outcome == "set"} <= set(chain)


IMPOSSIBLE: dict[str, tuple[list[Operation], str]] = {
    "two that follow one": ([FIRST, SECOND, done((2, 3), "twin", "one")], "both follow one"),
    "two that are first": ([FIRST, done((0, 1), "twin", None)], "both follow None"),
    "a set over what was never there": ([FIRST, done((2, 3), "three", "two")], "never there"),
    "a read of what nobody set": ([FIRST, read((2, 3), "nine")], "nobody set"),
    "a read of what was refused": (
        [FIRST, SECOND, refused((3, 4), "three", "one", "two"), read((5, 6), "three")],
        "refused, and happened",
    ),
    "a refusal that happened": (
        [FIRST, SECOND, refused((3, 4), "two", "one", "one")],
        "refused, and",
    ),
    "a refusal of the right token": (
        [FIRST, SECOND, refused((4, 5), "three", "two", "two")],
        "token was right",
    ),
    "a stale read": ([FIRST, SECOND, read((4, 5), "one")], "came to one after"),
    "a read of nothing after a set": ([FIRST, read((2, 3), None)], "came to None after"),
    "a read of the future": (
        [FIRST, SECOND, read((1.2, 1.5), "two")],
        "before its set began|came to",
    ),
    "reads that go back": (
        [FIRST, done((2, 9), "two", "one"), read((3, 4), "two"), read((5, 6), "one")],
        "came to one after",
    ),
    "a set that comes before what it follows": (
        [done((2, 3), "one", None), done((0, 1), "two", "one")],
        "came to one after",
    ),
    "a stale refusal": (
        [FIRST, SECOND, done((4, 5), "three", "two"), refused((6, 7), "x", "one", "two")],
        "came to two after",
    ),
    "a set that shows another": (
        [FIRST, Operation("a", 2, 3, "set", "one", "two", "one")],
        "was shown",
    ),
    "the same set twice": ([FIRST, FIRST], "set twice"),
    "two lost ones that both happened over one": (
        [
            FIRST,
            unknown((2, 3), "x", "one"),
            unknown((2, 3), "y", "one"),
            read((4, 5), "x"),
            read((6, 7), "y"),
        ],
        "both follow one",
    ),
    "a lost write seen before it was sent": (
        [FIRST, read((1.1, 1.2), "lost"), unknown((2, 3), "lost", "one")],
        "before its set began",
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_could_not_have_been_is_found(name: str) -> None:
    history, reason = IMPOSSIBLE[name]
    for order in (history, history[::-1]):
        with pytest.raises(NotLinearizable, match=reason):
            check(order)


class Broken:
    """A register in memory that compares first and sets later, as if by two requests."""

    def __init__(self, store: dict[str, Any]) -> None:
        self._store = store

    def get_state(self) -> tuple[bytes, int] | None:
        return self._store.get("document")

    def compare(self, token: int | None) -> bool:
        found = self.get_state()
        return (found[1] if found else None) == token

    def set(self, content: bytes, token: int | None) -> None:
        self._store["document"] = content, (token or 0) + 1


def test_a_register_that_compares_and_sets_in_two_steps_is_found() -> None:
    store: dict[str, Any] = {}
    first, second = Broken(store), Broken(store)
    assert first.compare(None)
    assert second.compare(None)
    first.set(b"of the first", None)
    second.set(b"of the second", None)
    history = [done((0, 2), "of the first", None), done((1, 3), "of the second", None, "b")]
    with pytest.raises(NotLinearizable):
        check(history)
