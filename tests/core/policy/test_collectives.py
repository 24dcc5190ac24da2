"""The rank that called another collective than the others."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.policy.collectives import OddCall, odd_call, ranks_in_keys
from holdfast.core.policy.root_cause import blame, name
from holdfast.core.protocol.model import ErrorDetail, ExitStatus, Failure

SAYS = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is running collective: "
    "CollectiveFingerPrint(SequenceNumber=2, OpType={1}, TensorShape=[{2}], TensorDtypes=Float, "
    "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu)), but Rank {3} is running "
    "collective: CollectiveFingerPrint(SequenceNumber=2, OpType={4}, TensorShape=[{5}], "
    "TensorDtypes=Float).Collectives differ in the following aspects: \t Tensor shapes: 3vs 2"
)
"""As PyTorch 2.13 writes it, but for what is left out here."""


def failure(rank: int, message: str, tail: str = "", at: float = 0.0) -> Failure:
    return Failure(
        node="n",
        host=f"host{rank}",
        local_rank=0,
        rank=rank,
        role="default",
        pid=100,
        status=ExitStatus(code=1),
        observed_at=at,
        error=ErrorDetail(message),
        stderr_tail=tail,
    )


def test_the_rank_whose_call_nobody_else_made_is_the_odd_one() -> None:
    told = [
        failure(0, SAYS.format(0, "ALLREDUCE", 2, 1, "ALLREDUCE", 3)),
        failure(2, "", tail=SAYS.format(2, "ALLREDUCE", 2, 1, "ALLREDUCE", 3)),
    ]
    assert odd_call(told) == OddCall(1, "ALLREDUCE [3]", "ALLREDUCE [2]")
    cause = name([*told, failure(1, SAYS.format(1, "ALLREDUCE", 3, 0, "ALLREDUCE", 2), at=1.0)])
    assert cause is not None
    found = blame(cause)
    assert (found.kind, found.who) == ("collectives that differ", "rank 1 on host1")
    assert found.why == "it called ALLREDUCE [3], and all others ALLREDUCE [2]"


def test_of_two_ranks_nobody_can_tell_which_is_wrong() -> None:
    told = failure(0, SAYS.format(0, "ALLREDUCE", 2, 1, "BROADCAST", 2))
    assert odd_call([told]) is None
    cause = name([told])
    assert cause is not None
    assert blame(cause).certainty == "unclear"


@pytest.mark.parametrize(
    ("key", "ranks"),
    [
        ("/default_pg/0//cpu//0/2", (2,)),
        ("/default_pg/0//ready/12", (12,)),
        ("/default_pg/0//1//cpu//0/2", ()),
        ("/default_pg/0//cpu//0/rank_2", ()),
    ],
)
def test_a_key_of_the_group_of_all_ranks_names_one(key: str, ranks: tuple[int, ...]) -> None:
    words = f"DistStoreError: wait timeout after 6000ms, keys: {key}"
    assert ranks_in_keys([failure(0, words), failure(1, words)]) == ranks


def test_the_rank_whose_key_is_missing_did_not_come_unless_it_waits_itself() -> None:
    words = "DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//cpu//0/2"
    stopped = [msgspec.structs.replace(failure(n, ""), stopped_by_us=True) for n in (1, 2)]
    cause = name([failure(0, words), *stopped])
    assert cause is not None
    assert blame(cause).who == "rank 2 on host2"
    waits = {"location": "in all_reduce at train.py:4", "in_collective": True}
    cause = name([failure(0, words), stopped[0], msgspec.structs.replace(stopped[1], **waits)])
    assert cause is not None
    assert blame(cause).who == "rank 1 on host1"


@given(st.text())
def test_whatever_is_said_nothing_breaks(text: str) -> None:
    assert odd_call([failure(0, text, text)]) is None
    ranks_in_keys([failure(0, text, text)])
