"""Every planted bug is found by the simulator, and the core without it passes the same seeds."""

from __future__ import annotations

import pytest

from holdfast.testing import make_plan, simulate

from .mutants import MUTANTS, Mutant, planted


def _shown(mutant: Mutant, seed: int) -> list[str]:
    violations = simulate(make_plan(seed, mutant.profile)).violations
    return [str(v) for v in violations if mutant.shown_by in ("", v.checker)]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_simulator_finds_a_core_in_which(mutant: Mutant) -> None:
    assert mutant.seeds, "no seed is known that shows it"
    for seed in mutant.seeds:
        run = simulate(make_plan(seed, mutant.profile))
        assert not run.violations, f"the core itself fails seed {seed}: {run.violations[0]}"
    with planted(mutant):
        found = [text for seed in mutant.seeds for text in _shown(mutant, seed)]
    assert found, f"{mutant.name}: it survives (rule {mutant.rule})"


def test_a_planted_bug_is_taken_out_again() -> None:
    mutant = MUTANTS[0]
    with planted(mutant):
        pass
    assert not _shown(mutant, mutant.seeds[0])


def test_each_numbered_rule_of_fencing_and_of_the_coordinator_has_a_mutant() -> None:
    rules = {mutant.rule for mutant in MUTANTS}
    numbered = {f"§3.{n}" for n in range(2, 8)} | {f"§4.{n}" for n in range(1, 8)}
    numbered |= {f"§5.{n}" for n in range(10, 17)}
    assert numbered <= rules
