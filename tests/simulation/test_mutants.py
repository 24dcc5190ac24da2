"""Every planted bug is found by the simulator; the core without it passes the run that shows it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tools.simulator import make_plan, simulate
from tools.simulator.everywhere import Case
from tools.simulator.plan import Plan

from .mutants import MUTANTS, Mutant, planted


def _plans(mutant: Mutant) -> Iterator[Plan]:
    yield from (make_plan(seed, mutant.profile) for seed in mutant.seeds)
    yield from (Case.named(name).plan() for name in mutant.cases)


def _shown(mutant: Mutant, plan: Plan) -> list[str]:
    violations = simulate(plan).violations
    return [str(v) for v in violations if mutant.shown_by in ("", v.checker)]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_simulator_finds_a_core_in_which(mutant: Mutant) -> None:
    with planted(mutant):
        shows_it = next((plan for plan in _plans(mutant) if _shown(mutant, plan)), None)
    assert shows_it is not None, f"{mutant.name}: it survives (rule {mutant.rule})"
    run = simulate(shows_it)
    assert not run.violations, f"the core itself fails {shows_it.profile}: {run.violations[0]}"


def test_a_planted_bug_is_taken_out_again() -> None:
    mutant = MUTANTS[0]
    with planted(mutant):
        pass
    assert not _shown(mutant, next(_plans(mutant)))


def test_each_numbered_rule_of_fencing_and_of_the_coordinator_has_a_mutant() -> None:
    rules = {mutant.rule for mutant in MUTANTS}
    numbered = {f"§3.{n}" for n in range(2, 8)} | {f"§4.{n}" for n in (*range(1, 8), 9, 10)}
    numbered |= {f"§5.{n}" for n in range(10, 17)} | {f"§7.{n}" for n in range(1, 7)}
    assert numbered <= rules
