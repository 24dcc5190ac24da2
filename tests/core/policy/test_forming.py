"""When a round forms, and when one makes room: the rules of `policy.forming`, in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.core.policy.config import Timeouts
from holdfast.core.policy.forming import (
    Fail,
    Form,
    View,
    WaitLonger,
    decide,
    makes_room_at,
    min_round_s,
)

NOW = 1000.0
TIMES = Timeouts(join_s=600.0, last_call_s=5.0, scale_up_delay_s=1.0, min_round_s=2.0)

FULL = View(candidates=4, minimum=2, maximum=4, timeouts=TIMES)
ENOUGH = View(candidates=2, minimum=2, maximum=4, timeouts=TIMES, enough_since=NOW - 1)
TOO_FEW = View(candidates=1, minimum=2, maximum=4, timeouts=TIMES, short_since=NOW - 100)


# --- forming ------------------------------------------------------------------------------


def test_3_a_pause_is_waited_for_until_its_end() -> None:
    paused = structs.replace(FULL, not_before=NOW + 2.5)
    decision = decide(paused, NOW)
    assert decision == WaitLonger("pausing before the next round", NOW + 2.5)
    assert isinstance(decide(paused, NOW + 2.5), Form)


def test_4_with_as_many_as_it_may_have_a_round_forms_at_once() -> None:
    assert decide(structs.replace(FULL, enough_since=NOW), NOW) == Form()


def test_4_a_surplus_stands_by() -> None:
    assert decide(structs.replace(FULL, candidates=9), NOW) == Form()


def test_5_with_fewer_than_it_needs_a_round_waits_and_counts_the_missing() -> None:
    decision = decide(TOO_FEW, NOW)
    assert decision == WaitLonger("1 of at least 2 nodes; waiting for 1 more", NOW + 500)


def test_5_too_few_for_too_long_fail_the_job() -> None:
    assert isinstance(decide(TOO_FEW, NOW + 499.9), WaitLonger)
    assert decide(TOO_FEW, NOW + 500) == Fail(
        "only 1 of at least 2 nodes came within 600 s (--join-timeout)"
    )


def test_5_who_comes_meanwhile_does_not_lengthen_the_wait() -> None:
    one = structs.replace(TOO_FEW, minimum=4, maximum=4)
    before, after = decide(one, NOW), decide(structs.replace(one, candidates=3), NOW + 50)
    assert isinstance(before, WaitLonger)
    assert isinstance(after, WaitLonger)
    assert before.wake_at == after.wake_at


def test_6_the_first_round_waits_for_latecomers_until_the_last_call_is_over() -> None:
    waiting = decide(ENOUGH, NOW)
    assert waiting == WaitLonger("2 nodes are enough; last call for up to 2 more", NOW + 4.0)
    assert decide(ENOUGH, NOW + 4.0) == Form()


def test_6_a_last_call_that_nobody_started_starts_now() -> None:
    decision = decide(structs.replace(ENOUGH, enough_since=None), NOW)
    assert isinstance(decision, WaitLonger)
    assert decision.wake_at == NOW + 5.0


def test_6_a_later_round_does_not_wait_for_latecomers() -> None:
    assert decide(structs.replace(ENOUGH, first_round=False), NOW) == Form()


# --- forming, in order --------------------------------------------------------------------

Rule = tuple[str, type, Callable[[View, float], bool]]

RULES: list[Rule] = [
    ("a pause", WaitLonger, lambda view, now: now < view.not_before),
    ("full", Form, lambda view, now: view.candidates >= view.maximum),
    ("too few", WaitLonger, lambda view, now: short(view) and now < join_ends(view, now)),
    ("too few for too long", Fail, lambda view, now: short(view)),
    ("last call", WaitLonger, lambda view, now: view.first_round and now < call_ends(view, now)),
    ("enough", Form, lambda view, now: True),
]


def short(view: View) -> bool:
    return view.candidates < view.minimum


def join_ends(view: View, now: float) -> float:
    return (now if view.short_since is None else view.short_since) + view.timeouts.join_s


def call_ends(view: View, now: float) -> float:
    return (now if view.enough_since is None else view.enough_since) + view.timeouts.last_call_s


@st.composite
def views(draw: st.DrawFn) -> View:
    minimum = draw(st.integers(1, 4))
    moments = st.floats(NOW - 10, NOW + 10)
    durations = st.floats(0, 12)
    return View(
        candidates=draw(st.integers(0, 6)),
        minimum=minimum,
        maximum=minimum + draw(st.integers(0, 2)),
        timeouts=Timeouts(join_s=draw(durations), last_call_s=draw(durations)),
        first_round=draw(st.booleans()),
        enough_since=draw(st.none() | moments),
        short_since=draw(st.none() | moments),
        not_before=draw(st.just(0.0) | moments),
    )


@given(views())
def test_the_first_rule_that_applies_decides(view: View) -> None:
    expected = next(kind for _, kind, applies in RULES if applies(view, NOW))
    assert type(decide(view, NOW)) is expected


@pytest.mark.parametrize("rule", range(len(RULES)), ids=[name for name, *_ in RULES])
def test_every_rule_decides_somewhere(rule: int) -> None:
    """Otherwise the test above would say nothing about it."""
    examples = [
        structs.replace(FULL, not_before=NOW + 1),
        FULL,
        TOO_FEW,
        structs.replace(TOO_FEW, short_since=NOW - 601),
        ENOUGH,
        structs.replace(ENOUGH, first_round=False),
    ]
    applying = [applies(examples[rule], NOW) for _, _, applies in RULES]
    assert applying.index(True) == rule
    assert type(decide(examples[rule], NOW)) is RULES[rule][1]


@given(views())
def test_every_wait_and_refusal_has_a_reason_and_none_wakes_in_the_past(view: View) -> None:
    decision = decide(view, NOW)
    if not isinstance(decision, Form):
        assert decision.reason
    if isinstance(decision, WaitLonger):
        assert decision.wake_at is None or decision.wake_at > NOW


@given(views())
def test_nothing_forms_with_fewer_than_the_job_needs(view: View) -> None:
    if isinstance(decide(view, NOW), Form):
        assert view.candidates >= view.minimum


@given(views())
def test_waking_when_asked_to_is_never_for_nothing(view: View) -> None:
    """The wait that named a time is over at that time, for a reason further down the list."""
    decision = decide(view, NOW)
    if isinstance(decision, WaitLonger) and decision.wake_at is not None:
        assert decide(view, decision.wake_at) != decision


# --- making room --------------------------------------------------------------------------


def room_at(started_at: float = NOW - 60, *, fills: bool = False, fruitless: int = 0) -> float:
    return makes_room_at(NOW, started_at, TIMES, fills=fills, fruitless=fruitless)


def test_7_a_newcomer_ends_the_round_after_the_delay_that_others_may_use_too() -> None:
    assert room_at() == NOW + 1.0


def test_7_newcomers_that_fill_the_round_wait_for_nobody() -> None:
    assert room_at(fills=True) == NOW


def test_7_a_round_lasts_its_least_time_whoever_waits() -> None:
    assert room_at(started_at=NOW) == NOW + 2.0
    assert room_at(started_at=NOW, fills=True, fruitless=2) == NOW + 8.0


def test_7_after_fruitless_rounds_the_least_time_grows_up_to_a_limit() -> None:
    assert [min_round_s(TIMES, n) for n in (0, 1, 2, 5, 1000)] == [2.0, 4.0, 8.0, 60.0, 60.0]
