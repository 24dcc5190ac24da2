"""One text for all secrets of a round: each member can be told from any other by it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.protocol.marks import grow, leads_to, mark_of, path_of, top

SIZES = st.integers(1, 40)


def secret(number: int) -> str:
    return f"{number:032x}"


def tree(size: int) -> tuple[tuple[str, ...], ...]:
    return grow([mark_of(secret(seat)) for seat in range(size)])


@given(SIZES)
def test_the_secret_of_every_seat_leads_to_the_same_text(size: int) -> None:
    grown = tree(size)
    for seat in range(size):
        assert leads_to(secret(seat), seat, size, path_of(grown, seat)) == top(grown)


@given(SIZES, st.data())
def test_nothing_else_does(size: int, data: st.DataObject) -> None:
    grown, seat = tree(size), data.draw(st.integers(0, size - 1))
    path = path_of(grown, seat)
    assert leads_to(secret(size), seat, size, path) != top(grown), "another secret"
    for other in {(seat + 1) % size, (seat - 1) % size, size // 2} - {seat}:
        assert leads_to(secret(seat), other, size, path_of(grown, other)) != top(grown)
        assert leads_to(secret(seat), other, size, path) != top(grown), "another seat"
    assert leads_to(secret(seat), seat, size, (*path, path[0] if path else secret(0))) == ""
    assert not path or leads_to(secret(seat), seat, size, path[:-1]) == ""
    assert leads_to(secret(seat), size, size, path) == "", "there is no such seat"


def test_a_member_without_a_mark_is_spoken_for_by_nobody() -> None:
    grown = grow([mark_of(secret(0)), ""])
    path = path_of(grown, 1)
    assert all(leads_to(known, 1, 2, path) != top(grown) for known in ("", secret(0), secret(1)))


def test_a_path_is_short() -> None:
    assert len(path_of(tree(1000), 999)) <= 10


def test_no_members_have_no_text() -> None:
    assert top(grow([])) == ""
    assert path_of((), 0) == ()
