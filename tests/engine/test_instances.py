"""The number of a job's life is one that others believe."""

from __future__ import annotations

from holdfast.core.objections import INSTANCE_MOST
from holdfast.engine.ports import new_instance


def test_a_later_life_has_a_larger_number_and_none_that_cannot_be() -> None:
    first, second = new_instance(), new_instance()
    assert first <= second < INSTANCE_MOST
