"""The words of the protocol: how they read, and that they survive the journal."""

from __future__ import annotations

import signal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.protocol.model import (
    Endpoint,
    ErrorDetail,
    ExitStatus,
    Failure,
    Outcome,
    signal_name,
)


@given(st.integers(-64, 255))
def test_an_exit_status_keeps_the_number_it_was_made_from(returncode: int) -> None:
    status = ExitStatus.from_wait_status(returncode)
    assert status.returncode == returncode
    assert (status.code is None) != (status.signal is None)
    assert status.succeeded == (returncode == 0)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (ExitStatus(code=0), "exit code 0"),
        (ExitStatus(code=3), "exit code 3"),
        (ExitStatus(signal=9), "signal 9 (SIGKILL)"),
        (ExitStatus(signal=36), "signal 36 (SIGRTMIN+2)"),
    ],
)
def test_an_exit_status_reads_well(status: ExitStatus, words: str) -> None:
    assert str(status) == words


def test_a_status_of_neither_kind_is_no_success() -> None:
    assert not ExitStatus().succeeded


@pytest.mark.parametrize("known", sorted(signal.Signals), ids=lambda known: known.name)
def test_a_signal_that_has_a_name_is_called_by_it(known: signal.Signals) -> None:
    assert getattr(signal, signal_name(known)) == known


@given(st.integers(signal.SIGRTMIN + 1, signal.SIGRTMAX - 1))
def test_a_realtime_signal_is_counted_from_the_first(number: int) -> None:
    assert signal_name(number) == f"SIGRTMIN+{number - signal.SIGRTMIN}"


@pytest.mark.parametrize("number", [32, 33])
def test_a_signal_of_the_c_library_has_its_number_for_a_name(number: int) -> None:
    assert signal_name(number) == f"SIG{number}"


@pytest.mark.parametrize(
    ("address", "text"),
    [("10.0.0.1", "10.0.0.1:80"), ("node7", "node7:80"), ("fe80::1", "[fe80::1]:80")],
)
def test_an_endpoint_is_written_so_that_it_can_be_read_back(address: str, text: str) -> None:
    assert str(Endpoint(address, 80)) == text


names = st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=5)
details = st.builds(
    ErrorDetail,
    message=st.text(max_size=20),
    traceback=st.text(max_size=20),
    timestamp=st.none() | st.floats(0, 2e9),
    non_retryable=st.booleans(),
)
failures = st.builds(
    Failure,
    node=names,
    host=names,
    local_rank=st.integers(0, 7),
    rank=st.integers(0, 99),
    role=names,
    pid=st.integers(0, 2**22),
    status=st.integers(-64, 255).map(ExitStatus.from_wait_status),
    observed_at=st.floats(0, 1e9),
    error=details,
    stderr_tail=st.text(max_size=20),
    out_of_memory=st.text(max_size=5),
    stopped_by_us=st.booleans(),
    error_file=st.text(max_size=5),
)
ends = st.just(("succeeded", 0)) | st.tuples(
    st.sampled_from(["failed", "interrupted", "not_formed"]), st.integers(1, 255)
)
outcomes = st.builds(
    lambda end, *rest: Outcome(end[0], rest[0], end[1], *rest[1:]),
    ends,
    st.text(max_size=20),
    st.none() | failures,
    st.lists(failures, max_size=2).map(tuple),
)


@given(outcomes)
def test_an_outcome_with_all_its_failures_survives_the_way_through_a_file(
    outcome: Outcome,
) -> None:
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=Outcome) == outcome


@pytest.mark.parametrize("end", [("failed", 0), ("interrupted", 0), ("succeeded", 1)])
def test_an_outcome_whose_status_says_the_opposite_is_none(end: tuple[str, int]) -> None:
    written = {"verdict": end[0], "reason": "", "exit_status": end[1]}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(written, Outcome)


def test_records_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        ExitStatus(code=1).code = 0  # type: ignore[misc]
