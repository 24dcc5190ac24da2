"""What is written down: small, unique, and read back as it was."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.protocol.document import (
    HOSTS_KEPT,
    LIMIT_BYTES,
    SUCCESSORS,
    Document,
    HostKept,
    Ledger,
    brief,
    decode,
    digest,
    encode,
)
from holdfast.core.protocol.model import (
    EarlyEnd,
    Endpoint,
    ErrorDetail,
    ExitStatus,
    Failure,
    Outcome,
    Term,
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
    ended_before=(EarlyEnd(100_000, 2**53),) * 8,
)
WORST = Outcome("interrupted", LONG, 255, HUGE, (HUGE,) * 1000)


def document(outcome: Outcome | None) -> Document:
    names = tuple(f"{number}" + "n" * 80 for number in range(SUCCESSORS))
    ledger = Ledger(10**6, 10**5, 10**4, brief(outcome), 10**4, 2**56, 10**12, held=True)
    addresses = {name: Endpoint("2001:db8:" + "ffff:" * 6, 65535) for name in ("l" * 80, *names)}
    return Document(10**12, 10**6, 10**9, "n" * 90, "l" * 80, names, ledger, addresses)


def test_the_largest_outcome_fits_the_document() -> None:
    assert len(encode(document(WORST))) <= LIMIT_BYTES


def test_all_that_is_held_against_hosts_fits() -> None:
    """Where no further round is to come, nothing is (`coordinator.state.ledger`)."""
    hosts = tuple(
        HostKept(2**56 - n, 10**6, 10**6, -123456789.1, 10**6, 3600.1) for n in range(HOSTS_KEPT)
    )
    whole = document(None)
    ledger = msgspec.structs.replace(whole.ledger, hosts=hosts, done=tuple(range(64)))
    largest = msgspec.structs.replace(whole, ledger=ledger)
    assert len(encode(largest)) <= LIMIT_BYTES
    assert decode(encode(largest)) == largest


def test_a_host_that_is_there_twice_is_not_believed() -> None:
    kept = HostKept(7, 1, 0, 2.5)
    forged = msgspec.structs.replace(document(None), ledger=Ledger(1, 1, hosts=(kept, kept)))
    with pytest.raises(msgspec.DecodeError, match="a host twice"):
        decode(encode(forged))


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
    assert written.term == Term(10**12, 10**6)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"instance": "x"}'])
def test_what_is_no_document_is_refused(content: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(content)


GENUINE: dict[str, object] = {
    "instance": 7,
    "epoch": 2,
    "counter": 9,
    "nonce": "node/9",
    "leader": "node",
    "successors": ["other"],
    "addresses": {"node": {"address": "192.0.2.1", "port": 1}},
}
LEDGER: dict[str, object] = {"round": 3, "size": 2, "charges": 1, "leader_seat": 0, "done": [1]}
SUCCESS = {"verdict": "succeeded", "reason": "", "exit_status": 0}


def forged(ledger: dict[str, object] | None = None, **changes: object) -> bytes:
    """What another program could have written in place of a genuine document."""
    return msgspec.json.encode({**GENUINE, **changes, "ledger": {**LEDGER, **(ledger or {})}})


def test_a_genuine_document_is_read() -> None:
    read = decode(forged())
    assert (read.term, read.ledger.size, read.ledger.done) == (Term(7, 2), 2, (1,))
    over = decode(forged({"outcome": SUCCESS, "size": 0, "done": [], "leader_seat": None}))
    assert over.ledger.outcome == Outcome("succeeded", "", 0)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(forged({"size": 10**13}), id="size"),
        pytest.param(forged({"size": -3, "done": []}), id="negative size"),
        pytest.param(forged({"charges": 10**13}), id="charges"),
        pytest.param(forged({"charges": -1}), id="negative charges"),
        pytest.param(forged({"round": 2**64 - 1}), id="round"),
        pytest.param(forged({"round": 0}), id="members of no round"),
        pytest.param(forged({"done": [99]}), id="done, and no member"),
        pytest.param(forged({"done": [1, 1]}), id="done twice"),
        pytest.param(forged({"done": [-1]}), id="negative seat"),
        pytest.param(forged({"size": 500, "done": list(range(400))}), id="too many done"),
        pytest.param(forged({"size": 0, "done": [0]}), id="done of nobody"),
        pytest.param(forged({"leader_seat": -2}), id="no seat of the leader"),
        pytest.param(forged({"roll": 2**64 - 1}), id="roll"),
        pytest.param(forged({"instance": 2**64 - 1}), id="instance of the round"),
        pytest.param(forged({"size": 2.5}), id="half a node"),
        pytest.param(forged({"size": "2"}), id="text for a number"),
        pytest.param(forged({"outcome": {**SUCCESS, "exit_status": 1}}), id="false success"),
        pytest.param(
            forged({"closing": {"verdict": "failed", "reason": "", "exit_status": 0}}),
            id="a failure that counts as none",
        ),
        pytest.param(forged(epoch=2**64 - 1), id="epoch"),
        pytest.param(forged(epoch=-1), id="negative epoch"),
        pytest.param(forged(instance=2**63), id="instance"),
        pytest.param(forged(counter=2**64 - 1), id="counter"),
        pytest.param(forged(nonce="x" * 5000), id="nonce"),
        pytest.param(forged(leader="x" * 5000), id="leader"),
        pytest.param(forged(leader="a\x1b[2Jb"), id="a leader that clears the screen"),
        pytest.param(forged(left="a\nb"), id="one that left on two lines"),
        pytest.param(forged(successors=[f"n{n}" for n in range(100)]), id="successors"),
        pytest.param(
            forged(addresses={f"n{n}": {"address": "a", "port": 1} for n in range(100)}),
            id="addresses",
        ),
        pytest.param(b" " * 100_000 + forged(), id="length"),
        pytest.param(b'{"x":' + b"[" * 50_000, id="depth"),
    ],
)
def test_what_holdfast_cannot_have_written_is_refused(content: bytes) -> None:
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
