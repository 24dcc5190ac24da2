"""Every planted bug is found by the simulator, and the core without it passes the same seeds."""

from __future__ import annotations

import pytest

from holdfast.testing import make_plan, simulate
from holdfast.testing.everywhere import Case
from holdfast.testing.plan import Plan

from .mutants import MUTANTS, Mutant, planted


def _plans(mutant: Mutant) -> list[Plan]:
    of_seeds = [make_plan(seed, mutant.profile) for seed in mutant.seeds]
    return of_seeds + [Case.named(name).plan() for name in mutant.cases]


def _shown(mutant: Mutant, plan: Plan) -> list[str]:
    violations = simulate(plan).violations
    return [str(v) for v in violations if mutant.shown_by in ("", v.checker)]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_simulator_finds_a_core_in_which(mutant: Mutant) -> None:
    plans = _plans(mutant)
    assert plans, "no run is known that shows it"
    for plan in plans:
        run = simulate(plan)
        assert not run.violations, f"the core itself fails {plan.profile}: {run.violations[0]}"
    with planted(mutant):
        found = [text for plan in plans for text in _shown(mutant, plan)]
    assert found, f"{mutant.name}: it survives (rule {mutant.rule})"


def test_a_planted_bug_is_taken_out_again() -> None:
    mutant = MUTANTS[0]
    with planted(mutant):
        pass
    assert not _shown(mutant, _plans(mutant)[0])


def test_each_numbered_rule_of_fencing_and_of_the_coordinator_has_a_mutant() -> None:
    rules = {mutant.rule for mutant in MUTANTS}
    numbered = {f"§3.{n}" for n in range(2, 8)} | {f"§4.{n}" for n in (*range(1, 8), 9, 10)}
    numbered |= {f"§5.{n}" for n in range(10, 17)} | {f"§7.{n}" for n in range(1, 7)}
    assert numbered <= rules
