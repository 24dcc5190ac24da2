"""Scripts of real stacks (`examples/stacks`) run unchanged under `holdfast run`, warm and cold.

What a script prints at its end is a digest of all its parameters: the same digest means that
every step of the training was the same, to the last bit.
"""

from __future__ import annotations

import pytest

from holdfast.core.protocol.preload_steps import brought_by

from .conftest import Launches
from .launches import HOLD_AT, WORKERS, Launch

pytestmark = [pytest.mark.stacks, pytest.mark.slow]


def test_the_result_is_the_same_warm_cold_and_under_torchrun(launched: Launches) -> None:
    others = [launched.first, launched.later, launched.torchrun]
    assert len(launched.cold.results) == WORKERS
    for launch in [launched.cold, *filter(None, others)]:
        assert launch.digests == launched.cold.digests, launch.folder
        assert len(launch.results) == WORKERS
    assert len(launched.cold.digests) == 1, "the workers do not agree"


def test_workers_are_forked_from_a_zygote_unless_told_not_to(launched: Launches) -> None:
    assert launched.first.starts == [True]
    assert launched.later.starts == [True]
    assert launched.cold.starts == [False]


def test_the_journal_says_what_is_preloaded_and_what_not_and_why(launched: Launches) -> None:
    for launch in (launched.first, launched.later):
        assert launch.planned, "nothing was to be preloaded"
        unexplained = [name for name in launch.planned if not is_accounted_for(launch, name)]
        assert unexplained == []
        assert all(launch.left_out.values()), launch.left_out
        assert not set(launch.preloaded) & set(launch.left_out)


def test_no_package_keeps_its_rank_in_a_way_that_is_not_put_right(launched: Launches) -> None:
    """Else it is left to the workers. `fork_fixups.py` knows the versions installed here."""
    rejected = launched.first.events("ModuleRejected")
    assert [event for event in rejected if "RANK" in event["reason"]] == []


def is_accounted_for(launch: Launch, module: str) -> bool:
    """Whether it is preloaded, or left out by itself or with a package above it."""
    parts = module.split(".")
    above = {".".join(parts[: length + 1]) for length in range(len(parts))}
    return module in launch.preloaded or bool(above & set(launch.left_out))


def test_what_is_preloaded_is_not_imported_again(launched: Launches) -> None:
    for launch in (launched.first, launched.later):
        assert not set(launch.preloaded) & launch.imported()
    cold = launched.cold.imported()
    assert {name for name in launched.stack.proves if name not in cold} == set()


def test_what_the_first_launch_learned_is_tried_at_the_later_one(launched: Launches) -> None:
    learned = {
        name for event in launched.first.events("ImportsLearned") for name in event["modules"]
    }
    started = launched.later.events("NodeStarted")[0]
    tried = brought_by((*started["preload"], *started.get("late", ())))
    assert learned <= tried | started.get("avoid", {}).keys()


def test_a_killed_worker_is_replaced_and_the_result_is_the_same(
    launched: Launches, killed: Launch
) -> None:
    assert killed.digests == launched.cold.digests
    assert [result["attempt"] for result in killed.results] == [1] * WORKERS
    for result in killed.results:
        assert result["first_step"] < HOLD_AT
    exits = killed.events("WorkerExited")
    assert any(event["status"].get("signal") == 9 for event in exits)
