"""What the agent is told of its workers' steps, and when."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from holdfast.core.node.io import AgentEvent, StepReported
from holdfast.core.policy.standings import WorkerStanding
from holdfast.core.protocol.model import Ranks
from holdfast.processes.monitoring.lookout import Lookout, WatchedRound
from holdfast.processes.monitoring.stack_files import LookMeans
from holdfast.processes.output.log_files import AT_ONCE
from holdfast.runtime.loop import EventLoop
from holdfast.worker.page import AT, DONE, HAS_STEP, STEP, VARIABLE, open_page

from ...waiting import loop_until

WORKERS = [Ranks(rank=rank, local_rank=rank, role_rank=rank) for rank in range(2)]


class Scene:
    """A round of two workers, whose pages are written here."""

    def __init__(self, interval_s: float) -> None:
        self.told: list[AgentEvent] = []
        self.loop = EventLoop()
        self.means = LookMeans(self.loop, AT_ONCE, AT_ONCE, os.getpid())
        self.lookout = Lookout(WatchedRound(4, 2, interval_s), self.means, self.told.append)

    def say(self, local_rank: int, step: int) -> None:
        page = open_page(self.lookout.variables(local_rank))
        page.words[HAS_STEP] = 1
        page.words[STEP] = step
        page.times[AT] = time.monotonic()
        page.words[DONE] = page.words[DONE - 4] = page.words[DONE] + 1

    def until(self, condition: Callable[[], bool]) -> None:
        loop_until(self.loop, condition)


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(getattr(request, "param", 3600.0))
    yield scene
    scene.lookout.close()
    scene.loop.close()


@pytest.mark.parametrize("scene", [0.001], indirect=True)
def test_what_is_news_is_told_at_the_next_look_and_once(scene: Scene) -> None:
    scene.lookout.born(WORKERS[0], 100)
    scene.lookout.born(WORKERS[1], 101)
    scene.say(1, 5)
    scene.lookout.heard(0, 1)
    scene.until(lambda: len(scene.told) > 1)
    scene.say(0, 6)
    scene.until(lambda: len(scene.told) > 2)
    assert scene.told == [StepReported(4, 0, 1), StepReported(4, 1, 5), StepReported(4, 0, 6)]


def test_the_first_step_is_told_when_it_comes(scene: Scene) -> None:
    scene.lookout.born(WORKERS[0], 100)
    scene.lookout.heard(0, 1)
    assert scene.told == [StepReported(4, 0, 1)]
    scene.lookout.heard(0, 2)
    assert scene.told == [StepReported(4, 0, 1)], "too soon after"


def test_the_last_step_is_told_with_the_end(scene: Scene) -> None:
    scene.lookout.born(WORKERS[0], 100)
    scene.say(0, 9)
    scene.lookout.ended(0)
    assert scene.told == [StepReported(4, 0, 9)]


def test_what_was_said_by_message_is_told_with_the_end_too(scene: Scene) -> None:
    scene.lookout.born(WORKERS[0], 100)
    for step in range(5):
        scene.lookout.heard(0, step)
    scene.lookout.ended(0)
    assert scene.told == [StepReported(4, 0, 0), StepReported(4, 0, 4)]


def test_after_the_end_of_the_round_nothing_is_left(scene: Scene) -> None:
    before = set(os.listdir("/proc/self/fd"))
    lookout = Lookout(WatchedRound(5, 2, 3600.0), scene.means, scene.told.append)
    lookout.born(WORKERS[0], 100)
    lookout.heard(0, 1)
    lookout.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert lookout.variables(0) == {}


def test_each_worker_is_told_its_own_place(scene: Scene) -> None:
    places = {scene.lookout.variables(rank)[VARIABLE] for rank in range(2)}
    assert len(places) == 2


def test_whoever_shows_it_is_told_how_far_each_is_and_how_fast(scene: Scene) -> None:
    assert scene.lookout.standings() == []
    scene.lookout.born(WORKERS[1], 101)
    scene.lookout.born(WORKERS[0], 100)
    assert scene.lookout.standings() == [WorkerStanding(0, 0, 100), WorkerStanding(1, 1, 101)]
    scene.say(0, 5)
    first = scene.lookout.standings()[0]
    assert (first.step, first.steps_a_second) == (5, None)
    scene.say(0, 6)
    second = scene.lookout.standings()[0]
    assert second.step == 6
    assert second.step_age_s is not None
    assert second.steps_a_second is not None
    assert second.steps_a_second > 0
    scene.lookout.ended(0)
    assert [one.rank for one in scene.lookout.standings()] == [1]


def test_what_came_over_the_channel_has_a_standing_too(scene: Scene) -> None:
    scene.lookout.born(WORKERS[0], 100)
    for step in (3, 4, 5):
        scene.lookout.heard(0, step)
    assert scene.lookout.standings()[0].step == 5
