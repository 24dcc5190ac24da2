"""Whether other versions are told apart, and only where they say something."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.policy.root_cause import blame, name
from holdfast.core.policy.versions import difference
from holdfast.core.protocol.model import ErrorDetail, ExitStatus, Failure


def failure(number: int, versions: str, message: str = "", stopped: bool = True) -> Failure:
    return Failure(
        node=f"node{number}",
        host=f"host{number}",
        local_rank=0,
        rank=number,
        role="default",
        pid=100,
        status=ExitStatus(code=1),
        observed_at=float(not stopped),
        error=ErrorDetail(message),
        stopped_by_us=stopped,
        versions=versions,
    )


@pytest.mark.parametrize(
    ("first", "others", "words"),
    [
        ("torch 2.12", ["torch 2.13", "torch 2.13"], "host1 has torch 2.12, all others 2.13"),
        ("a 1, b 2", ["a 1, b 3"], "host1 has b 2, all others 3"),
        ("torch 2.13", ["torch 2.13", "torch 2.13"], ""),
        ("torch 2.12", ["torch 2.13", "torch 2.14"], ""),
        ("torch 2.12", ["", "numpy 1"], ""),
        ("", ["torch 2.13"], ""),
        ("torch 2.12", [], ""),
    ],
)
def test_what_differs_from_all_others_is_told(first: str, others: list[str], words: str) -> None:
    told = [failure(n, versions) for n, versions in enumerate(others, 2)]
    assert difference(failure(1, first), told) == words


def test_workers_of_the_same_node_are_no_others() -> None:
    here = failure(1, "torch 2.12")
    assert difference(here, [here, failure(2, "torch 2.13")]).startswith("host1 has torch 2.12")


def test_where_all_fail_the_node_that_differs_from_two_others_is_named() -> None:
    def blamed(*versions: str) -> tuple[str, str]:
        failed = [
            failure(n, one, f"ValueError: {n}", stopped=False) for n, one in enumerate(versions)
        ]
        cause = name(failed)
        assert cause is not None
        found = blame(cause)
        return found.kind, found.who

    args = ["arguments --lr 1", "arguments --lr 2", "arguments --lr 1"]
    assert blamed(*args) == ("different versions", "rank 1 on host1")
    assert blamed(*args[:2])[0] == "exception", "of two, either may be wrong"
    assert blamed("torch 1", "torch 2", "torch 3")[0] == "exception"


def test_it_is_the_kind_of_an_exception_that_only_that_node_had() -> None:
    first = failure(1, "layers 1.0", "AttributeError: no fused_attention", stopped=False)
    cause = name([first, failure(0, "layers 2.0"), failure(2, "layers 2.0")])
    assert cause is not None
    found = blame(cause)
    assert (found.kind, found.who, found.certainty) == (
        "different versions",
        "rank 1 on host1",
        "likely",
    )
    assert found.why.startswith("host1 has layers 1.0, all others 2.0; nobody else failed")


@given(st.text(), st.text())
def test_whatever_is_listed_nothing_breaks(one: str, other: str) -> None:
    difference(failure(1, one), [failure(2, other)])
