"""Which failure is named: the first observed that is neither stopped nor a victim."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.policy.root_cause import describe, lost_a_peer, name
from holdfast.core.protocol.model import EarlyEnd, ErrorDetail, ExitStatus, Failure

LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:4096"
OWN = "ValueError: bad batch"
RAISED = ExitStatus(code=1)


def failure(
    rank: int = 0,
    at: float = 0.0,
    message: str = OWN,
    status: ExitStatus = RAISED,
    stopped: bool = False,
    **details: object,
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
        error=ErrorDetail(message),
        stopped_by_us=stopped,
        **details,  # type: ignore[arg-type]
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
            "rank 0 on here was killed by signal 11 (SIGSEGV)",
        ),
        (
            failure(0, message="", status=ExitStatus(signal=9), out_of_memory="oom_kill 1"),
            "rank 0 on here was killed by signal 9 (SIGKILL): out of memory",
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


@given(st.text(min_size=1) | st.text("ab ", min_size=300))
def test_a_description_is_one_line_whatever_the_error_says(message: str) -> None:
    described = describe(failure(message=message))
    assert len(described.splitlines()) == 1
    assert len(described) < 300


def test_who_had_ended_well_is_named_beside_a_failure_that_missed_a_peer() -> None:
    early = (EarlyEnd(1, step=4), EarlyEnd(2))
    assert describe(failure(message=LOST, ended_before=early)).endswith(
        "4096), after rank 1 (at step 4) and rank 2 had already ended with exit code 0"
    )
    assert "ended with exit code 0" not in describe(failure(message=OWN, ended_before=early))


def test_a_long_error_is_cut_at_the_end_of_a_word_and_says_so() -> None:
    described = describe(failure(message="ValueError: " + "nothing fits " * 30))
    assert described.endswith(("nothing fits…)", "nothing…)"))
