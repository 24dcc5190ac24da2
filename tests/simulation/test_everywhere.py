"""Whoever leads may be lost at every point of the protocol: every promise holds all the same.

A sample here; `python -m tools.simulator --everywhere` strikes at all points. A failure names the
case; `python -m tools.simulator --case NAME --story` tells its story.
"""

from __future__ import annotations

import os

import pytest
from tools.simulator.cluster import simulate
from tools.simulator.everywhere import LOSSES, STORES, STORIES, Case, base, cases, points
from tools.simulator.facts import FaultStruck, Recorded

POINTS = 2 if os.environ.get("TEST_ALL") else 1


@pytest.mark.thorough(
    but=("leader drains", "scale up", "leader loss", "drain", "steady round", "leader is a spare")
)
@pytest.mark.parametrize("story", STORIES)
def test_no_promise_is_broken_where_the_leader_is_lost_during(story: str) -> None:
    for case in cases(story, at_most=POINTS):
        run = case.play()
        assert not run.violations, f"{case}: {run.violations[0]}"


@pytest.mark.parametrize("story", STORIES)
def test_each_story_is_a_good_one_by_itself(story: str) -> None:
    for store in STORES:
        assert not simulate(base(story, store)).violations


def test_a_leader_is_struck_exactly_at_the_point() -> None:
    at = simulate(base("steady round", "plain")).points
    number = points("steady round", "plain")[3]
    run = Case("steady round", "plain", "its node is killed", number).play()
    (struck,) = (fact for fact in run.history if isinstance(fact, FaultStruck))
    assert struck.at == at[number - 1]


def test_losing_a_leader_that_is_needed_makes_another_one_lead() -> None:
    number = points("steady round", "holding")[0]
    run = Case("steady round", "holding", "its host loses power", number).play()
    leaders = {fact.document.leader for fact in run.history if isinstance(fact, Recorded)}
    assert len(leaders - {""}) > 1


def test_a_case_is_found_again_by_its_name() -> None:
    case = Case("closing", "holding", next(iter(LOSSES)), 12)
    assert Case.named(str(case)) == case
