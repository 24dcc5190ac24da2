"""Which harm is done to a job, and when."""

from __future__ import annotations

import random

from holdfast.core.policy.storms import HarmRate, storm

KILLS = HarmRate("kill worker", 30.0)
PAUSES = HarmRate("pause worker", 100.0, 5.0)


def test_the_same_seed_gives_the_same_storm_and_another_one_another() -> None:
    first, again, other = (storm([KILLS, PAUSES], 3600.0, random.Random(n)) for n in (1, 1, 2))
    assert first == again != other


def test_each_kind_comes_at_its_own_mean_interval_in_order_and_in_time() -> None:
    strokes = storm([KILLS, PAUSES], 36_000.0, random.Random(7))
    times = [stroke.at_s for stroke in strokes]
    assert times == sorted(times)
    assert times[0] >= 15.0
    assert times[-1] < 36_000.0
    kills = sum(stroke.rate is KILLS for stroke in strokes)
    assert 1100 < kills < 1300
    assert 330 < len(strokes) - kills < 390


def test_a_storm_that_is_too_short_for_a_stroke_has_none() -> None:
    assert storm([KILLS], 14.0, random.Random(1)) == []
