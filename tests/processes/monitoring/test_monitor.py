"""What the agent is told of its workers' steps, and when."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from holdfast.core.node_io import NodeEvent, StepReported
from holdfast.core.policy.worker_progress import WorkerProgress
from holdfast.core.protocol.model import Ranks
from holdfast.processes.monitoring.monitor import Monitor, WatchedRound
from holdfast.processes.monitoring.pages import StackMeans
from holdfast.processes.output.log_files import AT_ONCE
from holdfast.runtime.loop import EventLoop
from holdfast.worker.page import AT, DONE, HAS_STEP, STEP, VARIABLE, open_page

from ...waiting import loop_until

WORKERS = [Ranks(rank=rank, local_rank=rank, role_rank=rank) for rank in range(2)]


class Scene:
    """A round of two workers, whose pages are written here."""

    def __init__(self, interval_s: float) -> None:
        self.told: list[NodeEvent] = []
        self.loop = EventLoop()
        self.means = StackMeans(self.loop, AT_ONCE, AT_ONCE, os.getpid())
        self.monitor = Monitor(WatchedRound(4, 2, interval_s), self.means, self._take)

    def _take(self, event: NodeEvent) -> None:
        """Note it, without how long ago a step was made."""
        self.told.append(replace(event, age_s=0.0) if isinstance(event, StepReported) else event)

    def say(self, local_rank: int, step: int) -> None:
        page = open_page(self.monitor.variables(local_rank))
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
    scene.monitor.close()
    scene.loop.close()


@pytest.mark.parametrize("scene", [0.001], indirect=True)
def test_what_is_news_is_told_at_the_next_look_and_once(scene: Scene) -> None:
    scene.monitor.started(WORKERS[0], 100)
    scene.monitor.started(WORKERS[1], 101)
    scene.say(1, 5)
    scene.monitor.heard(0, 1)
    scene.until(lambda: len(scene.told) > 1)
    scene.say(0, 6)
    scene.until(lambda: len(scene.told) > 2)
    assert scene.told == [StepReported(4, 0, 1), StepReported(4, 1, 5), StepReported(4, 0, 6)]


def test_the_first_step_is_told_when_it_comes(scene: Scene) -> None:
    scene.monitor.started(WORKERS[0], 100)
    scene.monitor.heard(0, 1)
    assert scene.told == [StepReported(4, 0, 1)]
    scene.monitor.heard(0, 2)
    assert scene.told == [StepReported(4, 0, 1)], "too soon after"


def test_the_last_step_is_told_with_the_end(scene: Scene) -> None:
    scene.monitor.started(WORKERS[0], 100)
    scene.say(0, 9)
    scene.monitor.ended(0)
    assert scene.told == [StepReported(4, 0, 9)]


def test_what_was_said_by_message_is_told_with_the_end_too(scene: Scene) -> None:
    scene.monitor.started(WORKERS[0], 100)
    for step in range(5):
        scene.monitor.heard(0, step)
    scene.monitor.ended(0)
    assert scene.told == [StepReported(4, 0, 0), StepReported(4, 0, 4)]


def test_after_the_end_of_the_round_nothing_is_left(scene: Scene) -> None:
    before = set(os.listdir("/proc/self/fd"))
    monitor = Monitor(WatchedRound(5, 2, 3600.0), scene.means, scene.told.append)
    monitor.started(WORKERS[0], 100)
    monitor.heard(0, 1)
    monitor.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert monitor.variables(0) == {}


def test_each_worker_is_told_its_own_place(scene: Scene) -> None:
    places = {scene.monitor.variables(rank)[VARIABLE] for rank in range(2)}
    assert len(places) == 2


def test_whoever_shows_it_is_told_how_far_each_is_and_how_fast(scene: Scene) -> None:
    assert scene.monitor.worker_progress() == []
    scene.monitor.started(WORKERS[1], 101)
    scene.monitor.started(WORKERS[0], 100)
    assert scene.monitor.worker_progress() == [WorkerProgress(0, 0, 100), WorkerProgress(1, 1, 101)]
    scene.say(0, 5)
    first = scene.monitor.worker_progress()[0]
    assert (first.step, first.steps_a_second) == (5, None)
    scene.say(0, 6)
    second = scene.monitor.worker_progress()[0]
    assert second.step == 6
    assert second.step_age_s is not None
    assert second.steps_a_second is not None
    assert second.steps_a_second > 0
    scene.monitor.ended(0)
    assert [one.rank for one in scene.monitor.worker_progress()] == [1]


def test_what_came_over_the_channel_has_a_standing_too(scene: Scene) -> None:
    scene.monitor.started(WORKERS[0], 100)
    for step in (3, 4, 5):
        scene.monitor.heard(0, step)
    assert scene.monitor.worker_progress()[0].step == 5
