"""Which rank did not come to a collective that timed out."""

from __future__ import annotations

from holdfast.core.policy.root_cause import culprit, name, summary
from holdfast.core.protocol.model import EarlyEnd, Failure

from .test_root_cause import LOST, STOPPED, TIMED_OUT, blame_of, failure, raised_at


def test_of_a_collective_that_timed_out_the_rank_that_did_not_come_is_named() -> None:
    found = blame_of(
        failure(0, 1.0, message=TIMED_OUT),
        failure(1, 1.1, message=LOST),
        failure(2, 2.0, **STOPPED),
        failure(3, 1.1, message=TIMED_OUT),
    )
    assert (found.kind, found.who, found.certainty) == (
        "collective timed out",
        "rank 2 on here",
        "likely",
    )
    assert found.why == (
        "ranks 0, 1 and 3 waited 1800 s for rank 2, and nobody knows where that one was"
    )


def test_a_time_out_alone_singles_nobody_out() -> None:
    found = blame_of(failure(0, 1.0, message=TIMED_OUT), *(failure(n, **STOPPED) for n in (1, 2)))
    assert (found.who, found.certainty) == ("one of ranks 1 and 2", "unclear")
    assert (
        blame_of(failure(0, message=TIMED_OUT), failure(1, message=TIMED_OUT)).certainty
        == "unclear"
    )


def located(rank: int, location: str, in_collective: bool) -> Failure:
    return failure(rank, location=location, in_collective=in_collective, **STOPPED)


BACKWARD = ("in backward at train.py:5", True)


def test_a_rank_that_was_found_in_no_collective_is_the_one_that_did_not_come() -> None:
    first = failure(0, message=TIMED_OUT)
    rest = (located(1, *BACKWARD), located(2, "in tokenize at data.py:4", False))
    found = blame_of(first, *rest)
    assert (found.who, found.certainty) == ("rank 2 on here", "likely")
    assert found.why == (
        "ranks 0 and 1 waited 1800 s for rank 2, which was in tokenize at data.py:4"
    )
    cause = name((first, *rest))
    assert cause is not None
    assert summary(cause) == (
        "rank 2 on here did not come to a collective: it was in tokenize at data.py:4"
    )


def test_a_rank_in_another_collective_than_the_rest_is_the_one_that_did_not_come() -> None:
    rest = [located(rank, *BACKWARD) for rank in (1, 3)]
    found = blame_of(
        failure(0, message=TIMED_OUT), *rest, located(2, "in barrier at train.py:9", True)
    )
    assert (found.who, found.certainty) == ("rank 2 on here", "likely")


def test_where_all_gave_up_the_one_in_another_collective_is_named() -> None:
    found = blame_of(
        failure(0, 1.0, **raised_at("barrier", 9)),
        failure(1, 1.1, **raised_at("all_reduce", 5)),
        failure(2, 1.1, **raised_at("barrier", 9, LOST)),
        failure(3, 1.1, **raised_at("barrier", 9)),
    )
    assert (found.kind, found.who) == ("collectives that differ", "rank 1 on here")
    assert found.why == (
        "it waited in all_reduce at train.py:5, and ranks 0, 2 and 3 in barrier at train.py:9"
    )


def test_a_summary_says_what_the_cause_does() -> None:
    cause = name([failure(n, 1.0, **raised_at("barrier", 9)) for n in (0, 2)])
    assert cause is not None
    assert "Timed out waiting" in summary(cause), "nobody is to blame"
    odd = failure(1, 1.0, **raised_at("all_reduce", 5))
    cause = name([odd, *cause.failed])
    assert cause is not None
    assert summary(cause) == (
        "rank 1 on here waited in all_reduce at train.py:5, where no other rank was"
    )


def test_no_host_is_blamed_for_a_rank_that_had_ended() -> None:
    first = failure(0, 1.0, message=TIMED_OUT, ended_before=(EarlyEnd(1, host="there"),))
    cause = name([first, failure(2, **STOPPED)])
    assert cause is not None
    assert summary(cause).startswith("rank 1 on there had ended with exit code 0")
    assert culprit(cause) is None


def test_where_all_gave_up_in_pairs_nobody_is_named() -> None:
    there, here = raised_at("barrier", 9), raised_at("all_reduce", 5)
    found = blame_of(*(failure(n, 1.0 + n, **(there if n < 2 else here)) for n in range(4)))
    assert (found.kind, found.certainty) == ("collective timed out", "unclear")


def test_a_rank_that_was_not_found_is_suspected_before_one_at_another_place() -> None:
    found = blame_of(
        failure(0, 1.0, **raised_at("barrier", 9)),
        failure(1, 1.1, **raised_at("all_reduce", 5)),
        failure(2, 1.1, **raised_at("barrier", 9)),
        failure(3, **STOPPED),
    )
    assert found.who == "rank 3 on here"


def test_a_rank_that_fails_by_itself_after_others_gave_up_is_why_they_did() -> None:
    late = failure(2, 3.0, message="MemoryError")
    found = blame_of(*(failure(n, 1.0, **raised_at("barrier", 9)) for n in (0, 1)), late)
    assert (found.kind, found.who) == ("out of memory", "rank 2 on here")
    assert found.why == "ranks 0 and 1 waited 1800 s for rank 2, which then failed by itself"


def test_an_error_that_a_time_out_led_to_is_not_its_cause() -> None:
    after = raised_at("barrier", 9)["traceback"] + "\nDuring handling of that: step failed"
    led_to = failure(2, 3.0, message="TrainingError: step failed", traceback=after)
    found = blame_of(*(failure(n, 1.0, **raised_at("barrier", 9)) for n in (0, 1)), led_to)
    assert (found.kind, found.certainty) == ("collective timed out", "unclear")


def test_two_ranks_that_were_elsewhere_are_both_suspects() -> None:
    rest = [located(rank, "in tokenize at data.py:4", False) for rank in (1, 2)]
    found = blame_of(failure(0, message=TIMED_OUT), *rest)
    assert (found.who, found.certainty) == ("one of ranks 1 and 2", "unclear")


def test_a_monitored_barrier_names_the_rank() -> None:
    words = "RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 5000 ms"
    rest = [failure(n, **STOPPED) for n in (1, 2, 3)]
    found = blame_of(failure(0, 1.0, message=words), *rest)
    assert (found.who, found.certainty) == ("rank 2 on here", "likely")
