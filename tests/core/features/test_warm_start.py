"""How a zygote gets better while a job runs, and what is said of what it cannot do."""

from __future__ import annotations

import pytest

from holdfast.core.features import warm_start as agent_warming
from holdfast.core.node import StartMode
from holdfast.core.node_io import (
    AllGone,
    EndpointReserved,
    ImportLeft,
    ImportsLearned,
    ModuleRejected,
    ModulesUnfit,
    NodeStarted,
    NodeTimerFired,
    Remember,
    SpawnerEnded,
    StartZygote,
    Told,
    WakeNode,
    ZygoteLost,
    ZygoteReady,
)
from holdfast.core.policy import sentences
from holdfast.core.protocol.messages import CloseJob, StopRound
from holdfast.core.protocol.model import Outcome

from ..node.agent_life import PORT, Life, run_round, said, without_words

STEPS = ("import torch",)
DYNAMO = "torch._dynamo"
SETTLED = NodeTimerFired("improve")


@pytest.fixture
def life() -> Life:
    """A node whose round runs, from a zygote that has torch."""
    life = Life()
    life.take(NodeStarted(preload=STEPS), ZygoteReady(STEPS, has_torch=True))
    life.take(EndpointReserved(PORT), run_round())
    return life


def test_what_workers_import_late_is_prepared_beside_the_zygote_that_serves(life: Life) -> None:
    assert life.take(ImportsLearned((DYNAMO,))) == [WakeNode("improve", 0.5)]
    assert life.take(SETTLED) == [StartZygote(STEPS, late=(DYNAMO,), beside=True)]
    assert life.take(ImportsLearned((DYNAMO,))) == []
    effects = life.take(ZygoteReady(STEPS, late=(DYNAMO,), beside=True))
    assert effects == [Remember((DYNAMO,), {})]


def test_what_has_used_a_variable_too_early_is_left_to_the_workers_and_said(life: Life) -> None:
    """The zygote that is made then finds it unfit."""
    life.take(ImportsLearned((DYNAMO,)), SETTLED, ZygoteReady(STEPS, late=(DYNAMO,), beside=True))
    event = ImportsLearned((), too_early={DYNAMO: ("TORCH_LOGS",)})
    effects = life.take(event)
    assert said(effects) == sentences.imported_too_early(DYNAMO, "TORCH_LOGS")
    assert without_words(effects) == [WakeNode("improve", 0.5)]
    assert life.take(event) == []
    under: dict[str, tuple[str, ...]] = {DYNAMO: ("TORCH_LOGS",)}
    assert life.take(SETTLED) == [StartZygote(STEPS, late=(DYNAMO,), under=under, beside=True)]


def test_it_is_not_begun_while_more_is_being_imported(life: Life) -> None:
    life.take(ZygoteReady(STEPS, beside=True, took_s=8.0))
    assert life.take(ImportsLearned(("pandas",))) == [WakeNode("improve", 2.0)]
    assert life.take(ImportsLearned((DYNAMO,))) == [WakeNode("improve", 2.0)]
    assert life.take(SETTLED) == [StartZygote(STEPS, late=("pandas", DYNAMO), beside=True)]


def test_what_a_zygote_takes_is_waited_for_within_bounds(life: Life) -> None:
    for took_s, settled_s in ((0.1, 0.5), (4.0, 1.0), (600.0, 15.0)):
        life.take(ZygoteReady(STEPS, beside=True, took_s=took_s))
        assert life.take(ImportsLearned((f"m{took_s}",))) == [WakeNode("improve", settled_s)]


def test_what_the_zygote_has_already_is_nothing_new() -> None:
    life = Life()
    late = ("from sklearn.model_selection import train_test_split", "from torch import nn")
    life.take(NodeStarted(preload=("import hydra",), late=late), ZygoteReady((), late=late))
    life.take(EndpointReserved(PORT), run_round())
    there = ("sklearn.model_selection", "sklearn", "torch.nn", "torch", "hydra")
    assert life.take(ImportsLearned(there)) == []
    assert life.take(ImportsLearned(("sklearn.svm",))) == [WakeNode("improve", 0.5)]


def test_a_new_round_is_not_kept_from_its_work_by_what_is_learned(life: Life) -> None:
    life.take(ImportsLearned((DYNAMO,)))
    life.take(Told(StopRound(1, "a worker failed")), AllGone(1), EndpointReserved(PORT))
    effects = life.take(run_round(2))
    assert not [each for each in effects if isinstance(each, StartZygote)]
    assert WakeNode("improve", 0.5) in effects


def test_a_job_that_ends_before_it_is_prepared_leaves_it_to_the_next(life: Life) -> None:
    life.take(ImportsLearned((DYNAMO,)))
    effects = life.take(Told(CloseJob(Outcome("succeeded", "all is done", 0))))
    effects += life.take(SpawnerEnded())
    assert [each for each in effects if isinstance(each, Remember)] == [Remember((DYNAMO,), {})]


def test_one_at_a_time_is_prepared_and_what_came_meanwhile_is_not_forgotten(life: Life) -> None:
    life.take(ImportsLearned((DYNAMO,)), SETTLED)
    assert life.take(ImportsLearned(("pandas",))) == []
    effects = life.take(ZygoteReady(STEPS, late=(DYNAMO,), beside=True))
    assert effects[-1] == WakeNode("improve", 0.5)
    again = StartZygote(STEPS, late=(DYNAMO, "pandas"), beside=True)
    assert life.take(SETTLED) == [again]


def test_what_is_unfit_is_avoided_with_what_is_inside_it(life: Life) -> None:
    life.take(ImportsLearned(("lightning.fabric", "pandas")), SETTLED)
    effects = life.take(ModulesUnfit({"lightning": "it reads RANK when imported"}, beside=True))
    again = StartZygote(STEPS, late=("pandas",), avoid=("lightning",), beside=True)
    assert effects == [again]


def test_a_node_does_not_learn_for_ever(life: Life) -> None:
    begun = 0
    for number in range(3 * agent_warming.MOST_IMPROVEMENTS):
        life.take(ImportsLearned((f"m{number}",)))
        effects = life.take(SETTLED)
        effects += life.take(ZygoteReady(STEPS, beside=True))
        begun += sum(isinstance(effect, StartZygote) for effect in effects)
    assert begun == agent_warming.MOST_IMPROVEMENTS


def test_the_loss_of_a_better_one_costs_nothing(life: Life) -> None:
    life.take(ImportsLearned((DYNAMO,)), SETTLED)
    assert life.take(ZygoteLost("it ended with status 1", beside=True)) == []
    assert life.state.start_mode == StartMode(warm=True, has_torch=True)


def test_a_step_that_only_the_better_one_rejects_is_left_out_too(life: Life) -> None:
    life.take(ImportsLearned((DYNAMO,)), SETTLED)
    effects = life.take(ModuleRejected("import torch", "it raised", beside=True))
    (start,) = without_words(effects)
    assert start == StartZygote((), late=(), avoid=("torch",), beside=True)


def test_what_a_zygote_stopped_in_is_said_once_with_what_it_costs_and_what_to_do() -> None:
    life = Life()
    reason = "it reads LOCAL_RANK when imported"
    life.take(NodeStarted(preload=("import lightning",)))
    life.take(ZygoteReady((), stopped_in=("lightning.rank", "lightning"), reason=reason))
    life.take(EndpointReserved(PORT), run_round())
    effects = life.take(ImportLeft(2.13))
    assert said(effects) == sentences.imported_by_each("lightning", 2.13, reason)
    assert life.take(ImportLeft(2.2)) == []


def test_what_costs_next_to_nothing_is_not_said() -> None:
    life = Life()
    life.take(NodeStarted(preload=("import small",)))
    life.take(ZygoteReady((), stopped_in=("small",), reason="it reads RANK when imported"))
    assert life.take(ImportLeft(0.01)) == []
