"""Which failure is named: the first observed that is neither stopped nor a victim."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.policy.root_cause import blame, describe, lost_a_peer, name
from holdfast.core.protocol.model import Blame, EarlyEnd, ErrorDetail, ExitStatus, Failure

LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:4096"
OWN = "ValueError: bad batch"
RAISED = ExitStatus(code=1)


def failure(
    rank: int = 0,
    at: float = 0.0,
    message: str = OWN,
    status: ExitStatus = RAISED,
    stopped: bool = False,
    traceback: str = "",
    **details: Any,
) -> Failure:
    return Failure(
        node="n",
        host="here",
        local_rank=rank,
        rank=rank,
        role="default",
        pid=100 + rank,
        status=status,
        observed_at=at,
        error=ErrorDetail(message, traceback),
        stopped_by_us=stopped,
        **details,
    )


@st.composite
def failures_of_a_round(draw: st.DrawFn) -> list[Failure]:
    """Any failures, at different times, in any order."""
    count = draw(st.integers(0, 8))
    times = draw(st.permutations(range(count)))
    return [
        failure(
            rank,
            float(at),
            message=draw(st.sampled_from([LOST, OWN, ""])),
            stopped=draw(st.booleans()),
            stderr_tail=draw(st.sampled_from(["", LOST, "something else"])),
        )
        for rank, at in enumerate(times)
    ]


@given(failures_of_a_round())
def test_the_first_that_is_no_victim_is_named(failures: list[Failure]) -> None:
    cause = name(failures)
    in_order = sorted(failures, key=lambda one: one.observed_at)
    own = [one for one in in_order if not one.stopped_by_us]
    without_symptom = [one for one in own if not lost_a_peer(one)]
    if not own:
        assert cause is None
    else:
        assert cause is not None
        assert cause.first == (without_symptom or own)[0]


@given(failures_of_a_round())
def test_every_failure_is_told_once_and_of_its_kind(failures: list[Failure]) -> None:
    cause = name(failures)
    if cause is None:
        return
    told = [cause.first, *cause.also_failed, *cause.victims, *cause.stopped]
    assert sorted(told, key=lambda one: one.rank) == failures
    assert all(one.stopped_by_us for one in cause.stopped)
    assert all(lost_a_peer(one) for one in cause.victims)
    assert not any(one.stopped_by_us for one in (*cause.also_failed, *cause.victims))
    for kind in (cause.also_failed, cause.victims, cause.stopped):
        assert list(kind) == sorted(kind, key=lambda one: one.observed_at)


def test_a_victim_that_was_seen_first_is_not_named() -> None:
    victim, guilty = failure(0, at=1.0, message=LOST), failure(1, at=1.2)
    cause = name([victim, guilty])
    assert cause is not None
    assert cause.first == guilty
    assert cause.victims == (victim,)


def test_where_all_lost_a_peer_the_first_of_them_is_named() -> None:
    first, second = failure(1, at=1.0, message=LOST), failure(0, at=2.0, message=LOST)
    cause = name([second, first])
    assert cause is not None
    assert cause.first == first


def test_what_we_stopped_is_never_named() -> None:
    stopped = failure(0, at=0.0, status=ExitStatus(signal=15), message="", stopped=True)
    assert name([stopped]) is None
    cause = name([stopped, failure(1, at=5.0)])
    assert cause is not None
    assert cause.first.rank == 1
    assert cause.stopped == (stopped,)


@pytest.mark.parametrize(
    "words",
    [
        LOST,
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "ConnectionRefusedError: [Errno 111]",
        "torch.distributed.DistNetworkError: no answer",
        "torch.distributed.DistBackendError: NCCL said: remote process exited",
        "RuntimeError: the socket closed while reading",
    ],
)
def test_the_symptom_of_a_lost_peer_is_recognised(words: str) -> None:
    assert lost_a_peer(failure(message=words))


@pytest.mark.parametrize(
    "words",
    [
        "",
        OWN,
        "torch.OutOfMemoryError: CUDA out of memory",
        "FileNotFoundError: [Errno 2] No such file or directory: 'connections.csv'",
        "KeyError: 'peer'",
        "ConnectionError: HTTPSConnectionPool(host='hub'): NameResolutionError: failed",
        "ConnectionError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate is not yet valid",
    ],
)
def test_other_errors_are_not_taken_for_it(words: str) -> None:
    assert not lost_a_peer(failure(message=words))


def test_the_last_lines_of_stderr_are_read_where_there_is_no_message() -> None:
    assert lost_a_peer(failure(message="", stderr_tail=f"step 7\n{LOST}\n"))
    assert not lost_a_peer(failure(message=OWN, stderr_tail=LOST))


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (failure(3), "rank 3 on here ended with exit code 1 (ValueError: bad batch)"),
        (
            failure(0, message="", status=ExitStatus(signal=11)),
            "rank 0 on here was killed (SIGSEGV)",
        ),
        (
            failure(0, message="", status=ExitStatus(signal=9), out_of_memory="oom_kill 1"),
            "rank 0 on here was killed (SIGKILL: out of memory)",
        ),
        (failure(0, message="A: b\nc"), "rank 0 on here ended with exit code 1 (A: b)"),
        (
            failure(0, message="rank 9 failed\nbadly", status=ExitStatus()),
            "here: rank 9 failed",
        ),
    ],
)
def test_a_failure_is_described_in_one_line(one: Failure, words: str) -> None:
    assert describe(one) == words


@given(st.text(min_size=1) | st.text("ab ", min_size=1).map(lambda words: words * 300))
def test_a_description_is_one_line_whatever_the_error_says(message: str) -> None:
    described = describe(failure(message=message))
    assert len(described.splitlines()) == 1
    assert len(described) < 300


def test_who_had_ended_well_is_named_beside_a_failure_that_missed_a_peer() -> None:
    early = (EarlyEnd(1, step=4), EarlyEnd(2))
    assert describe(failure(message=LOST, ended_before=early)).startswith(
        "rank 1 (at step 4) and rank 2 had ended with exit code 0, while others still ran; then "
        "rank 0 on here ended with exit code 1 (RuntimeError: Connection closed by peer"
    )
    assert "ended with exit code 0" not in describe(failure(message=OWN, ended_before=early))


def test_a_long_error_is_cut_at_the_end_of_a_word_and_says_so() -> None:
    described = describe(failure(message="ValueError: " + "nothing fits " * 30))
    assert described.endswith(("nothing fits…)", "nothing…)"))


# How sure it is.


def blame_of(*failures: Failure) -> Blame:
    cause = name(failures)
    assert cause is not None
    return blame(cause)


STOPPED: dict[str, Any] = {"status": ExitStatus(signal=15), "message": "", "stopped": True}


def test_the_only_one_that_failed_is_certain_to_be_the_cause() -> None:
    found = blame_of(failure(1, 1.0), failure(0, 2.0, **STOPPED), failure(2, 2.0, **STOPPED))
    why = "nobody else failed before it; ranks 0 and 2 ran until stopped"
    assert found == Blame("exception", "rank 1 on here", "certain", why)


def test_victims_after_it_make_it_no_less_sure() -> None:
    found = blame_of(failure(1, 1.0), failure(0, 2.0, message=LOST))
    why = "nobody else failed before it; rank 0 lost a connection"
    assert (found.certainty, found.why) == ("certain", why)


def test_a_victim_that_was_seen_first_makes_it_most_likely() -> None:
    found = blame_of(failure(1, 1.2), failure(0, 1.0, message=LOST))
    assert (found.who, found.certainty) == ("rank 1 on here", "likely")
    assert found.why == "it is the only one that failed by itself; rank 0 lost a connection"


def test_all_that_fail_in_the_same_way_are_one_cause() -> None:
    found = blame_of(*(failure(n, 1.0 + n, message=f"E: {n} of 4") for n in range(4)))
    assert (found.certainty, found.why) == ("certain", "ranks 1, 2 and 3 failed in the same way")


def test_the_first_of_several_on_one_node_is_most_likely_the_cause() -> None:
    found = blame_of(failure(1, 1.0), failure(0, 3.0, message="KeyError: 'x'"))
    assert (found.who, found.certainty) == ("rank 1 on here", "likely")
    assert found.why == "2 ranks failed within 2.0 s, each in its own way, and it was the first"


def test_words_of_two_nodes_that_come_together_prove_no_order() -> None:
    there = failure(0, 1.1, message="KeyError: 'x'")
    found = blame_of(failure(1, 1.0), msgspec.structs.replace(there, node="m"))
    assert found.certainty == "unclear"
    later = msgspec.structs.replace(there, node="m", observed_at=9.0)
    assert blame_of(failure(1, 1.0), later).certainty == "likely"


def test_where_all_lost_a_peer_nobody_is_sure() -> None:
    found = blame_of(failure(1, 1.0, message=LOST), failure(0, 2.0, message=LOST))
    assert (found.kind, found.certainty) == ("lost connection", "unclear")


def test_a_connection_that_was_lost_outside_of_a_collective_is_the_cause() -> None:
    refused = "ConnectionRefusedError: [Errno 111] Connection refused"
    trace = f"""Traceback (most recent call last):
  File "/job/train.py", line 7, in read_config
    socket.create_connection(server)
{refused}"""
    found = blame_of(
        failure(0, 1.0, **raised_at("all_reduce", 5, LOST)),
        failure(1, 1.1, message=refused, traceback=trace),
        failure(2, 1.2, **raised_at("all_reduce", 5, LOST)),
    )
    assert (found.kind, found.who, found.certainty) == ("exception", "rank 1 on here", "likely")
    assert found.why == "it was in no collective, in which ranks 0 and 2 lost a connection"


def test_the_address_of_the_peer_that_was_lost_is_told() -> None:
    lost = [f"RuntimeError: Connection closed by peer [10.0.0.{n}]:4096" for n in (2, 3)]
    assert (
        "lost a connection to 10.0.0.2;" in blame_of(*(failure(n, n, lost[0]) for n in (0, 1))).why
    )
    assert "lost a connection;" in blame_of(*(failure(n, n, lost[n]) for n in (0, 1))).why


def test_who_ended_too_early_is_named_and_not_who_missed_it() -> None:
    early = (EarlyEnd(3, step=4, host="there"),)
    found = blame_of(failure(0, 1.0, message=LOST, ended_before=early))
    assert (found.kind, found.who, found.certainty) == (
        "ended too early",
        "rank 3 on there",
        "likely",
    )
    clean = blame_of(failure(0, 1.0, ended_before=early))
    assert clean.who == "rank 0 on here", "it has an error of its own"


TIMED_OUT = "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"


def raised_at(function: str, line: int, message: str = TIMED_OUT) -> dict[str, Any]:
    """What a rank leaves that gave up waiting there."""
    trace = f"""Traceback (most recent call last):
  File "/job/train.py", line {line}, in train
    the line
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 3252, in {function}
    work.wait()
{message}"""
    return {"message": message, "traceback": trace}


def test_a_rank_that_had_ended_is_why_a_collective_timed_out() -> None:
    early = (EarlyEnd(3, step=4, host="there"),)
    found = blame_of(failure(0, 1.0, message=TIMED_OUT, ended_before=early), failure(1, **STOPPED))
    assert (found.kind, found.who) == ("ended too early", "rank 3 on there")


def test_a_rank_that_had_ended_is_why_all_that_were_left_were_stalled() -> None:
    early = (EarlyEnd(3, host="there"),)
    ended: dict[str, Any] = {
        "message": "the job hung, and it was ended",
        "ended_for": "hang of all ranks",
    }
    found = blame_of(failure(0, 1.0, ended_before=early, **ended), failure(1, **STOPPED))
    assert (found.kind, found.who) == ("ended too early", "rank 3 on there")
    found = blame_of(failure(0, 1.0, **ended), failure(1, **STOPPED))
    assert found.kind == "hang of all ranks"


def test_where_most_had_ended_the_rank_that_went_on_is_named() -> None:
    early = (EarlyEnd(1), EarlyEnd(2))
    found = blame_of(failure(0, 1.0, message=LOST, ended_before=early))
    assert (found.kind, found.who, found.certainty) == ("extra step", "rank 0 on here", "likely")


def test_what_we_ended_is_certain_to_be_of_that_kind() -> None:
    ours = failure(2, 1.0, message="the deadline of x ran out", ended_for="deadline")
    assert blame_of(ours) == Blame(
        "deadline", "rank 2 on here", "certain", "Holdfast ended it for this"
    )


def test_workers_of_others_are_believed_with_a_reservation() -> None:
    found = blame_of(failure(0, 1.0, message="rank 9 failed", status=ExitStatus()))
    assert (found.who, found.certainty) == ("here", "unclear")


def test_one_that_was_stopped_after_it_had_raised_failed_in_the_same_way() -> None:
    found = blame_of(failure(0, 1.0), failure(1, 1.1, status=ExitStatus(signal=15)))
    assert (found.certainty, found.why) == ("certain", "rank 1 failed in the same way")
