"""Requests about the job: who is asked, and when all have answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.coordinator import (
    Coordinator,
    begin,
    check_requests,
    coordinator_of,
    disconnected,
    receive,
)
from holdfast.core.coordinator_io import CoordinatorEffect, Tell, WakeCoordinator
from holdfast.core.features.requests import (
    PATIENCE_S,
    REQUESTS_MOST,
    REQUESTS_OF_ONE_MOST,
)
from holdfast.core.policy import sentences
from holdfast.core.policy.config import JobConfig, Program
from holdfast.core.protocol.messages import (
    CloseRequest,
    ForwardRequest,
    NodeGreeted,
    NodeLeft,
    PassResponse,
    RequestAnswered,
    RequestMade,
)
from holdfast.core.protocol.model import NodeInfo

ALL = RequestMade(7, b"how?", "all")


def job(*nodes: str) -> Coordinator:
    """A coordinator on the first of these nodes, which all have greeted it."""
    config = JobConfig("job", Program("script", "train.py"), min_nodes=1, max_nodes=9)
    liveness = coordinator_of(begin(config), nodes[0])
    for node in nodes:
        receive(liveness, node, NodeGreeted(NodeInfo(node, f"host-{node}", slots=1)), 0.0)
    liveness.taken.clear()
    return liveness


def told(effects: list[CoordinatorEffect]) -> list[tuple[str, object]]:
    return [(one.node, one.message) for one in effects if isinstance(one, Tell)]


def test_a_request_of_all_is_put_to_all_and_settled_when_the_last_has_answered() -> None:
    liveness = job("a", "b")
    put = ForwardRequest(1, b"how?")
    assert told(receive(liveness, "b", ALL, 1.0)) == [("a", put), ("b", put)]
    assert told(receive(liveness, "a", RequestAnswered(1, b"well"), 1.1)) == [
        ("b", PassResponse(7, "host-a", b"well"))
    ]
    assert told(receive(liveness, "b", RequestAnswered(1, b"so so"), 1.2)) == [
        ("b", PassResponse(7, "host-b", b"so so")),
        ("b", CloseRequest(7)),
    ]


def test_a_request_is_no_step_of_the_coordinator() -> None:
    liveness = job("a")
    receive(liveness, "a", ALL, 1.0)
    receive(liveness, "a", RequestAnswered(1, b"well"), 1.0)
    assert liveness.taken == []


def test_the_coordinators_own_node_is_asked_what_the_coordinator_knows() -> None:
    asked = receive(job("a", "b"), "b", RequestMade(1, b"?"), 1.0)
    assert told(asked) == [("a", ForwardRequest(1, b"?"))]


@pytest.mark.parametrize("wanted", ["b", "host-b"])
def test_some_are_found_by_name_and_by_identity(wanted: str) -> None:
    asked = receive(job("a", "b"), "a", RequestMade(1, b"?", "some", (wanted, wanted)), 1.0)
    assert told(asked) == [("b", ForwardRequest(1, b"?"))]


def test_a_name_that_nobody_has_is_refused() -> None:
    asked = receive(job("a"), "a", RequestMade(1, b"?", "some", ("a", "x")), 1.0)
    assert told(asked) == [("a", CloseRequest(1, sentences.no_such_node("x")))]


def test_a_node_that_has_not_greeted_is_told_so_and_not_hung_up_on() -> None:
    effects = receive(job("a"), "z", ALL, 1.0)
    assert told(effects) == [("z", CloseRequest(7, sentences.NOT_JOINED))]


def test_who_is_lost_is_named_and_not_waited_for() -> None:
    liveness = job("a", "b", "c")
    receive(liveness, "a", ALL, 1.0)
    receive(liveness, "a", RequestAnswered(1, b"well"), 1.1)
    assert told(disconnected(liveness, "b", 1.2)) == []
    effects = receive(liveness, "c", NodeLeft("it was asked to"), 1.3)
    settled = CloseRequest(7, "", ("host-b", "host-c"), 2)
    assert ("a", settled) in told(effects)


def test_who_has_not_answered_in_time_is_named() -> None:
    liveness = job("a", "b")
    effects = receive(liveness, "a", ALL, 1.0)
    assert WakeCoordinator("requests", PATIENCE_S) in effects
    receive(liveness, "a", RequestAnswered(1, b"well"), 1.1)
    assert told(check_requests(liveness, 1.0 + PATIENCE_S - 0.1)) == []
    settled = told(check_requests(liveness, 1.0 + PATIENCE_S))
    assert settled == [("a", CloseRequest(7, "", ("host-b",), 1))]
    assert told(receive(liveness, "b", RequestAnswered(1, b"late"), 42.0)) == []


def test_an_answer_counts_once_and_only_from_who_was_asked() -> None:
    liveness = job("a", "b")
    receive(liveness, "a", RequestMade(1, b"?", "some", ("b",)), 1.0)
    assert receive(liveness, "a", RequestAnswered(1, b"forged"), 1.1) == []
    assert receive(liveness, "b", RequestAnswered(2, b"of another"), 1.1) == []
    assert len(told(receive(liveness, "b", RequestAnswered(1, b"well"), 1.2))) == 2
    assert receive(liveness, "b", RequestAnswered(1, b"again"), 1.3) == []


def test_a_lost_asker_is_told_nothing() -> None:
    liveness = job("a", "b")
    receive(liveness, "b", ALL, 1.0)
    disconnected(liveness, "b", 1.1)
    assert told(receive(liveness, "a", RequestAnswered(1, b"well"), 1.2)) == []


def test_one_asker_cannot_ask_without_end_and_neither_can_all_together() -> None:
    nodes = [f"n{number}" for number in range(9)]
    liveness = job(*nodes)
    refused = {}
    for node in nodes:
        for number in range(REQUESTS_OF_ONE_MOST + 1):
            effects = told(receive(liveness, node, RequestMade(number, b"?"), 1.0))
            refused[node, number] = any(isinstance(one, CloseRequest) for _, one in effects)
    assert not refused["n0", REQUESTS_OF_ONE_MOST - 1]
    assert refused["n0", REQUESTS_OF_ONE_MOST]
    assert len(liveness.requests.open) == REQUESTS_MOST
    assert refused["n8", 0]


NODES = ("a", "b", "c")
happenings = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from(NODES), st.sampled_from(("all", "coordinator"))),
    st.tuples(st.just("answer"), st.sampled_from(NODES), st.integers(1, 6)),
    st.tuples(st.just("lose"), st.sampled_from(NODES), st.none()),
    st.tuples(st.just("wait"), st.sampled_from(NODES), st.floats(0.0, 30.0)),
)


@given(st.lists(happenings, max_size=30))
def test_whatever_happens_each_request_is_settled_at_most_once_and_in_the_end(
    story: list[tuple[str, str, object]],
) -> None:
    liveness, now, asked = job(*NODES), 1.0, 0
    settled: list[int] = []
    unheard: set[int] = set()
    by: dict[int, str] = {}
    lost: set[str] = set()

    def take(effects: list[CoordinatorEffect]) -> None:
        for node, message in told(effects):
            if isinstance(message, CloseRequest):
                assert by[message.number] == node
                settled.append(message.number)

    for what, node, detail in story:
        if what == "ask":
            asked += 1
            by[asked] = node
            if node in lost:
                unheard.add(asked)
            take(receive(liveness, node, RequestMade(asked, b"?", detail), now))  # type: ignore[arg-type]
        elif what == "answer":
            take(receive(liveness, node, RequestAnswered(detail, b"!"), now))  # type: ignore[arg-type]
        elif what == "lose":
            lost.add(node)
            unheard |= {number for number, asker in by.items() if asker == node}
            take(disconnected(liveness, node, now))
        else:
            now += detail  # type: ignore[operator]
            take(check_requests(liveness, now))
    take(check_requests(liveness, now + PATIENCE_S))
    assert len(settled) == len(set(settled))
    assert set(by) - set(settled) <= unheard
    assert not liveness.requests.open


def test_a_node_without_a_connection_is_not_waited_for() -> None:
    liveness = job("a", "b", "c")
    disconnected(liveness, "c", 1.0)
    receive(liveness, "a", ALL, 2.0)
    for node in "ab":
        effects = receive(liveness, node, RequestAnswered(1, b"so"), 3.0)
    settled = [message for _, message in told(effects) if isinstance(message, CloseRequest)]
    assert [one.missing for one in settled] == [("host-c",)]
