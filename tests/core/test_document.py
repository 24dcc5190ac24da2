"""What is written down: small, unique, and read back as it was."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.document import (
    LIMIT_BYTES,
    SUCCESSORS,
    Document,
    Ledger,
    brief,
    decode,
    digest,
    encode,
)
from holdfast.core.model import (
    EarlyEnd,
    Endpoint,
    ErrorDetail,
    ExitStatus,
    Failure,
    Outcome,
    Tenure,
)

LONG = "x" * 100_000
HUGE = Failure(
    node="node-" + "n" * 60,
    host="host-" + "h" * 60,
    local_rank=127,
    rank=100_000,
    role="r" * 1000,
    pid=4_000_000,
    status=ExitStatus(code=255),
    observed_at=123456789.123456,
    error=ErrorDetail(LONG, LONG, 123456789.123456, non_retryable=True),
    stderr_tail=LONG,
    out_of_memory=LONG,
    error_file="/" + "f" * 4000,
    wall_time=1e9,
    ended_before=(EarlyEnd(100_000, 2**62),) * 8,
)
WORST = Outcome("interrupted", LONG, 255, HUGE, (HUGE,) * 1000)


def document(outcome: Outcome | None) -> Document:
    names = tuple(f"{number}" + "n" * 80 for number in range(SUCCESSORS))
    ledger = Ledger(10**6, 10**5, 10**4, brief(outcome), 10**4, 2**56, 10**12, held=True)
    places = {name: Endpoint("2001:db8:" + "ffff:" * 6, 65535) for name in ("l" * 80, *names)}
    return Document(10**12, 10**6, 10**9, "n" * 90, "l" * 80, names, ledger, places)


def test_the_largest_outcome_fits_the_document() -> None:
    assert len(encode(document(WORST))) <= LIMIT_BYTES


def test_a_long_reason_fits_without_a_cause_too() -> None:
    outcome = Outcome("failed", LONG, 1)
    assert len(encode(document(outcome))) <= LIMIT_BYTES


@pytest.mark.parametrize("character", ["\x01", "\N{GRINNING FACE}", "\n"])
def test_characters_that_take_many_bytes_fit_too(character: str) -> None:
    text = character * 100_000
    odd = msgspec.structs.replace(HUGE, error=ErrorDetail(text), stderr_tail=text)
    assert len(encode(document(Outcome("failed", text, 1, odd)))) <= LIMIT_BYTES


@pytest.mark.parametrize("outcome", [None, WORST, Outcome("succeeded", "all went well", 0)])
def test_a_document_comes_back_as_it_was(outcome: Outcome | None) -> None:
    written = document(outcome)
    assert decode(encode(written)) == written
    assert written.tenure == Tenure(10**12, 10**6)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"instance": "x"}'])
def test_what_is_no_document_is_refused(content: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(content)


def test_a_digest_keeps_what_a_failure_is_judged_by() -> None:
    kept = digest(HUGE)
    assert kept.brief
    assert (kept.rank, kept.status, kept.error.non_retryable) == (100_000, HUGE.status, True)
    assert HUGE.error.message.startswith(kept.error.message.removesuffix("…"))
    assert HUGE.stderr_tail.endswith(kept.stderr_tail.removeprefix("…"))
    assert kept.error.traceback == ""


def test_what_was_cut_off_a_text_shows() -> None:
    words = "the batch does not fit " * 100
    short = brief(Outcome("failed", words, 1))
    assert short is not None
    assert short.reason.endswith("…")
    assert words.startswith(short.reason.removesuffix("…"))
    assert brief(Outcome("failed", "short", 1)) == Outcome("failed", "short", 1)
