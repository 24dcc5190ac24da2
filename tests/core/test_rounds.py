"""When a round forms: the rules of `core.rounds`, in their order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.core.rounds import Form, Refuse, View, Wait, decide

NOW = 1000.0
FOUR = ("a", "b", "c", "d")

FULL = View(candidates=FOUR, minimum=2, maximum=4)
ENOUGH = View(candidates=("a", "b"), minimum=2, maximum=4, enough_since=NOW - 1, last_call_s=5.0)
TOO_FEW = View(candidates=("a",), minimum=2, maximum=4)


def test_a_closed_job_forms_nothing_and_says_how_it_closed() -> None:
    decision = decide(structs.replace(FULL, closed="all workers succeeded"), NOW)
    assert decision == Refuse("the job is closed: all workers succeeded")


def test_nothing_forms_while_a_member_of_the_last_round_is_not_back() -> None:
    decision = decide(structs.replace(FULL, not_back=("e",)), NOW)
    assert decision == Wait("waiting until e has stopped its workers")


def test_of_many_that_are_not_back_only_some_are_named() -> None:
    decision = decide(structs.replace(FULL, not_back=("e", "f", "g", "h", "i")), NOW)
    assert isinstance(decision, Wait)
    assert "e, f, g and 2 more" in decision.reason


def test_a_pause_is_waited_for_until_its_end() -> None:
    paused = structs.replace(FULL, not_before=NOW + 2.5)
    decision = decide(paused, NOW)
    assert isinstance(decision, Wait)
    assert decision.wake_at == NOW + 2.5
    assert "2.5 s" in decision.reason
    assert isinstance(decide(paused, NOW + 2.5), Form)


def test_with_as_many_as_it_may_have_a_round_forms_at_once() -> None:
    assert decide(structs.replace(FULL, enough_since=NOW, last_call_s=5.0), NOW) == Form(FOUR)


def test_a_surplus_stands_by() -> None:
    assert decide(structs.replace(FULL, maximum=3), NOW) == Form(("a", "b", "c"))


def test_with_fewer_than_it_needs_a_round_waits_and_counts_the_missing() -> None:
    decision = decide(TOO_FEW, NOW)
    assert decision == Wait("1 of at least 2 nodes; waiting for 1 more")


def test_the_first_round_waits_for_latecomers_until_the_last_call_is_over() -> None:
    waiting = decide(ENOUGH, NOW)
    assert isinstance(waiting, Wait)
    assert waiting.wake_at == NOW + 4.0
    assert "up to 2 more" in waiting.reason
    assert decide(ENOUGH, NOW + 4.0) == Form(("a", "b"))


def test_a_last_call_that_nobody_started_starts_now() -> None:
    decision = decide(structs.replace(ENOUGH, enough_since=None), NOW)
    assert isinstance(decision, Wait)
    assert decision.wake_at == NOW + 5.0


def test_a_later_round_does_not_wait_for_latecomers() -> None:
    assert decide(structs.replace(ENOUGH, first_round=False), NOW) == Form(("a", "b"))


# --- in order -----------------------------------------------------------------------------

RULES: list[tuple[str, type, Callable[[View, float], bool]]] = [
    ("closed", Refuse, lambda view, now: bool(view.closed)),
    ("not back", Wait, lambda view, now: bool(view.not_back)),
    ("a pause", Wait, lambda view, now: now < view.not_before),
    ("full", Form, lambda view, now: len(view.candidates) >= view.maximum),
    ("too few", Wait, lambda view, now: len(view.candidates) < view.minimum),
    ("last call", Wait, lambda view, now: view.first_round and now < call_ends(view, now)),
    ("enough", Form, lambda view, now: True),
]


def call_ends(view: View, now: float) -> float:
    since = now if view.enough_since is None else view.enough_since
    return since + view.last_call_s


@st.composite
def views(draw: st.DrawFn) -> View:
    minimum = draw(st.integers(1, 4))
    moments = st.floats(NOW - 10, NOW + 10)
    return View(
        candidates=tuple(f"n{i}" for i in range(draw(st.integers(0, 6)))),
        minimum=minimum,
        maximum=minimum + draw(st.integers(0, 2)),
        closed=draw(st.sampled_from(["", "", "the workers failed"])),
        not_back=tuple(draw(st.sampled_from([(), (), ("x",), ("x", "y")]))),
        first_round=draw(st.booleans()),
        enough_since=draw(st.none() | moments),
        not_before=draw(st.just(0.0) | moments),
        last_call_s=draw(st.floats(0, 10)),
    )


@given(views())
def test_the_first_rule_that_applies_decides(view: View) -> None:
    expected = next(kind for _, kind, applies in RULES if applies(view, NOW))
    assert type(decide(view, NOW)) is expected


@pytest.mark.parametrize("rule", range(len(RULES)), ids=[name for name, *_ in RULES])
def test_every_rule_decides_somewhere(rule: int) -> None:
    """Otherwise the test above would say nothing about it."""
    examples = [
        structs.replace(FULL, closed="x", not_back=("e",), not_before=NOW + 1),
        structs.replace(FULL, not_back=("e",), not_before=NOW + 1),
        structs.replace(FULL, not_before=NOW + 1),
        FULL,
        TOO_FEW,
        ENOUGH,
        structs.replace(ENOUGH, first_round=False),
    ]
    applying = [applies(examples[rule], NOW) for _, _, applies in RULES]
    assert applying.index(True) == rule
    assert type(decide(examples[rule], NOW)) is RULES[rule][1]


@given(views())
def test_a_wait_has_a_reason_and_never_wakes_in_the_past(view: View) -> None:
    decision = decide(view, NOW)
    if isinstance(decision, Wait):
        assert decision.reason
        assert decision.wake_at is None or decision.wake_at > NOW
    if isinstance(decision, Refuse):
        assert decision.reason


@given(views())
def test_what_forms_is_the_front_of_the_queue_and_of_an_allowed_size(view: View) -> None:
    decision = decide(view, NOW)
    assume(isinstance(decision, Form))
    assert isinstance(decision, Form)
    assert view.minimum <= len(decision.members) <= view.maximum
    assert decision.members == view.candidates[: len(decision.members)]


@given(views())
def test_waking_when_asked_to_is_never_for_nothing(view: View) -> None:
    """The wait that named a time is over at that time, for a reason further down the list."""
    decision = decide(view, NOW)
    if isinstance(decision, Wait) and decision.wake_at is not None:
        later = decide(view, decision.wake_at)
        assert later != decision
