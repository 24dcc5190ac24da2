"""The stages of a round, and its seats: what each has, and what becomes of it."""

from __future__ import annotations

import pytest

from holdfast.core.rounds import (
    AbsentSeat,
    AnyRound,
    FinishedSeat,
    FormingRound,
    InheritedRound,
    MissingReports,
    NodeSeat,
    RoundCourse,
    RunningRound,
    StopCause,
    StoppingRound,
    UnreportedSeat,
    is_present,
    missing_reports,
    seats_inherited,
    seats_of,
)
from holdfast.core.protocol.document import Ledger, roll

CAUSE = StopCause("failure", "rank 0 failed")


def forming() -> FormingRound:
    return FormingRound(3, 1, seats_of(["a", "b"]), 7, 10.0, {})


def inherited(*, finished: tuple[int, ...] = ()) -> InheritedRound:
    seats = seats_inherited(Ledger(3, 3, roll=roll("abc"), done=finished))
    course = RoundCourse(done=set(finished))
    return InheritedRound(3, 1, seats, 50.0, MissingReports(50.0), course)


def test_a_formed_round_has_a_seat_for_each_node() -> None:
    seats = seats_of(["b", "a"])
    assert seats.by_rank == [NodeSeat("b"), NodeSeat("a")]
    assert (seats.ranks, seats.unreported, len(seats)) == ({"b": 0, "a": 1}, 0, 2)
    assert seats.roll() == roll("ab")


def test_an_inherited_round_has_seats_of_which_only_the_number_is_known() -> None:
    seats = inherited(finished=(1,)).seats
    assert seats.by_rank == [UnreportedSeat(), FinishedSeat(), UnreportedSeat()]
    assert (seats.unreported, seats.nodes(), seats.unreported_ranks()) == (2, [], [0, 2])
    seats.take(2, "c")
    assert (seats.unreported, seats.nodes(), "c" in seats) == (1, ["c"], True)
    seats.give_up()
    assert seats.by_rank == [AbsentSeat(), FinishedSeat(), NodeSeat("c")]
    assert seats.unreported == 0


def test_the_roll_of_an_inherited_round_is_the_one_that_was_written_down() -> None:
    known, unknown = inherited().seats, seats_inherited(Ledger(3, 2))
    known.take(0, "a")
    known.give_up()
    assert known.roll() == roll("abc"), "also when not all of them are known"
    unknown.take(0, "a")
    assert unknown.roll() == 0
    unknown.take(1, "b")
    assert unknown.roll() == roll("ab")


def test_a_round_is_announced_and_keeps_who_wants_to_leave() -> None:
    formed = forming()
    formed.leaving["b"] = 99.0
    running = formed.announced(12.0)
    assert (running.number, running.instance, running.started_at) == (3, 1, 12.0)
    assert (running.seats, running.leaving) == (formed.seats, {"b": 99.0})


def test_an_inherited_round_that_is_whole_runs_from_now_on() -> None:
    before = inherited()
    before.course.succeeded.add("a")
    before.gone.add("a")
    running = before.whole(20.0)
    assert (running.started_at, running.course, running.gone) == (20.0, before.course, {"a"})


@pytest.mark.parametrize("current", [forming(), forming().announced(11.0), inherited()])
def test_what_is_known_of_a_round_is_known_when_it_stops(
    current: FormingRound | RunningRound | InheritedRound,
) -> None:
    stopping = current.stopping(CAUSE, 90.0)
    assert (stopping.number, stopping.seats, stopping.cause) == (3, current.seats, CAUSE)
    assert stopping.deadline == 90.0
    assert stopping.has_run == (not isinstance(current, FormingRound))
    assert (stopping.missing is not None) == isinstance(current, InheritedRound)


def test_who_was_gone_is_not_waited_for() -> None:
    running = forming().announced(11.0)
    running.course.succeeded.add("a")
    running.gone.add("a")
    stopping = running.stopping(CAUSE, 90.0)
    assert (stopping.exited, stopping.awaited(), stopping.is_over) == (
        {"a": "gone"},
        ["b"],
        False,
    )
    stopping.exited["b"] = "back"
    assert stopping.is_over


def test_nothing_is_over_while_a_seat_is_unreported() -> None:
    stopping = inherited(finished=(0, 1)).stopping(CAUSE, 90.0)
    assert not stopping.is_over
    stopping.seats.give_up()
    assert stopping.is_over, "the finished and the absent are not waited for"


def test_all_have_succeeded_when_the_nodes_that_are_known_have_and_none_is_unreported() -> None:
    current = inherited(finished=(1, 2))
    assert current.course.has_success
    assert not current.course.has_all_succeeded(current.seats)
    current.seats.take(0, "a")
    assert not current.course.has_all_succeeded(current.seats)
    current.course.succeeded.add("a")
    assert current.course.has_all_succeeded(current.seats)


def gone(current: AnyRound) -> AnyRound:
    match current:
        case StoppingRound():
            current.exited["a"] = "gone"
        case RunningRound() | InheritedRound():
            current.gone.add("a")
        case FormingRound():
            pass
    return current


def test_who_is_present() -> None:
    stopping = forming().announced(11.0).stopping(CAUSE, 90.0)
    stopping.exited["b"] = "idle"
    for current in (forming(), forming().announced(11.0), stopping):
        assert is_present(current, "a")
        assert is_present(current, "b"), "back is present"
        assert not is_present(current, "c")
        assert is_present(gone(current), "a") == isinstance(current, FormingRound)


def test_only_an_inherited_round_misses_reports() -> None:
    assert missing_reports(None) is None
    assert missing_reports(forming()) is None
    assert missing_reports(forming().announced(11.0)) is None
    assert missing_reports(inherited()) == MissingReports(50.0)
    assert missing_reports(inherited().stopping(CAUSE, 90.0)) == MissingReports(50.0)
