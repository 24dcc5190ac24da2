"""One seed, one story: byte for byte, in any process, whatever the hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tools.simulator import Fault, make_plan, shrink, simulate
from tools.simulator.plan import Plan

from .mutants import MUTANTS, planted


def _story(seed: int, hash_seed: str) -> bytes:
    command = [sys.executable, "-m", "tools.simulator", "--seed", str(seed), "--story"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, env=environment, capture_output=True, check=True).stdout


@pytest.mark.parametrize("seed", [3, 11, 29])
def test_the_same_seed_tells_the_same_story_in_every_process(seed: int) -> None:
    first, second = _story(seed, "1"), _story(seed, "4242")
    assert first == second
    assert first.count(b"\n") > 20


def test_looking_does_not_change_what_happens() -> None:
    plan = make_plan(17)
    with_story, without = simulate(plan, story=True), simulate(plan)
    assert with_story.history == without.history


def test_different_seeds_are_different_runs() -> None:
    assert simulate(make_plan(1)).history != simulate(make_plan(2)).history


def test_a_failing_plan_is_shrunk_to_what_it_needs() -> None:
    mutant = next(m for m in MUTANTS if m.name == "a broken connection is taken for death")
    plan: Plan = make_plan(mutant.seeds[0], mutant.profile)
    with planted(mutant):
        checker = simulate(plan).violations[0].checker
        short = shrink(plan, checker)
        assert any(v.checker == checker for v in simulate(short).violations)
    assert len(short.faults) <= len(plan.faults)
    assert all(isinstance(fault, Fault) for fault in short.faults)
    assert len(short.faults) <= 2
