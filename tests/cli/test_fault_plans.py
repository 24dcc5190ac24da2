"""Which faults are injected into a job, and when."""

from __future__ import annotations

import random

from holdfast.cli.chaos import FaultRate, plan_faults

KILLS = FaultRate("kill worker", 30.0)
PAUSES = FaultRate("pause worker", 100.0, 5.0)


def test_the_same_seed_gives_the_same_plan_and_another_one_another() -> None:
    first, again, other = (
        plan_faults([KILLS, PAUSES], 3600.0, random.Random(n)) for n in (1, 1, 2)
    )
    assert first == again != other


def test_each_kind_comes_at_its_own_mean_interval_in_order_and_in_time() -> None:
    planned = plan_faults([KILLS, PAUSES], 36_000.0, random.Random(7))
    times = [one.at_s for one in planned]
    assert times == sorted(times)
    assert times[0] >= 15.0
    assert times[-1] < 36_000.0
    kills = sum(one.rate is KILLS for one in planned)
    assert 1100 < kills < 1300
    assert 330 < len(planned) - kills < 390


def test_a_plan_that_is_too_short_for_a_fault_has_none() -> None:
    assert plan_faults([KILLS], 14.0, random.Random(1)) == []
