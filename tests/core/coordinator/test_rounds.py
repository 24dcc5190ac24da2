"""A round and its seats: what is known of each, and what is counted."""

from __future__ import annotations

from holdfast.core.protocol.document import Ledger, roll
from holdfast.core.rounds import MissingReports, Round, Stop, StopCause
from holdfast.core.seating import inherited_seats, seats_of

CAUSE = StopCause("failure", "rank 0 failed")


def running() -> Round:
    return Round(3, 1, seats_of(["a", "b"]), 10.0, announced=True)


def inherited(*, finished: tuple[int, ...] = ()) -> Round:
    seats = inherited_seats(Ledger(3, 3, roll=roll("abc"), done=finished))
    missing = MissingReports(50.0)
    return Round(3, 1, seats, 50.0, announced=True, missing=missing, done=set(finished))


def statuses(current: Round) -> list[str]:
    return [seat.status for seat in current.seats.by_rank]


def test_a_formed_round_has_a_seat_for_each_node() -> None:
    seats = seats_of(["b", "a"])
    assert [(seat.rank, seat.node) for seat in seats.by_rank] == [(0, "b"), (1, "a")]
    assert (list(seats.by_node), seats.unreported, len(seats)) == (["b", "a"], 0, 2)
    assert seats.roll() == roll("ab")


def test_an_inherited_round_has_seats_of_which_only_the_number_is_known() -> None:
    current = inherited(finished=(1,))
    seats = current.seats
    assert statuses(current) == ["unreported", "finished", "unreported"]
    assert (seats.unreported, seats.nodes(), seats.unreported_ranks()) == (2, [], [0, 2])
    seats.take(2, "c")
    assert (seats.unreported, seats.nodes(), "c" in seats) == (1, ["c"], True)
    seats.give_up_all()
    assert statuses(current) == ["absent", "finished", "member"]
    assert seats.unreported == 0


def test_the_roll_of_an_inherited_round_is_the_one_that_was_written_down() -> None:
    known, unknown = inherited().seats, inherited_seats(Ledger(3, 2))
    known.take(0, "a")
    known.give_up_all()
    assert known.roll() == roll("abc"), "also when not all of them are known"
    unknown.take(0, "a")
    assert unknown.roll() == 0
    unknown.take(1, "b")
    assert unknown.roll() == roll("ab")


def test_successes_and_exits_are_counted_once() -> None:
    seats = running().seats
    for _ in range(2):
        seats.note_success("a")
        seats.note_exit("a", "gone")
    assert (seats.succeeded, seats.exited) == (1, 1)
    assert (seats.has_succeeded("a"), seats.has_succeeded("b"), seats.has_succeeded("c")) == (
        True,
        False,
        False,
    )


def test_a_round_is_over_when_nobody_is_waited_for() -> None:
    current = running()
    current.seats.note_exit("a", "gone")
    assert not current.is_over, "it runs"
    current.stop = Stop(CAUSE, 90.0)
    assert (current.seats.awaited(), current.is_over) == (["b"], False)
    current.seats.note_exit("b", "back")
    assert current.is_over


def test_nothing_is_over_while_a_seat_is_unreported() -> None:
    current = inherited(finished=(0, 1))
    current.stop = Stop(CAUSE, 90.0)
    assert not current.is_over
    current.seats.give_up_all()
    assert current.is_over, "the finished and the absent are not waited for"


def test_all_have_succeeded_when_the_nodes_that_are_known_have_and_none_is_unreported() -> None:
    current = inherited(finished=(1, 2))
    assert current.has_success
    assert not current.have_all_succeeded
    current.seats.take(0, "a")
    assert not current.have_all_succeeded
    current.seats.note_success("a")
    assert current.have_all_succeeded


def test_a_member_is_present_until_it_is_gone() -> None:
    seats = running().seats
    seats.note_exit("b", "idle")
    assert (seats.is_present("a"), seats.is_present("b"), seats.is_present("c")) == (
        True,
        True,
        False,
    )
    seats.note_exit("a", "gone")
    assert not seats.is_present("a")
    assert seats.present() == ["b"]


def test_a_round_is_whole_once_it_runs_and_all_are_known() -> None:
    forming = Round(3, 1, seats_of(["a"]), 10.0)
    assert (forming.is_running, forming.is_whole) == (False, False)
    assert (inherited().is_running, inherited().is_whole) == (True, False)
    current = running()
    assert (current.is_running, current.is_whole, current.staying) == (True, True, 2)
    current.leaving["a"] = 99.0
    assert current.staying == 1
