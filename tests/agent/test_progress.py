"""Lines of progress: who says them, and when."""

from __future__ import annotations

from tools.simulator.timeline import ManualClock

from holdfast.agent.progress import JobProgress
from holdfast.core.coordinator import Beginning
from holdfast.core.coordinator_io import CoordinatorTimerFired
from holdfast.core.node_io import NodeStarted, StepReported, Told, WorkerStarted
from holdfast.core.policy.config import JobConfig, Program
from holdfast.core.protocol.document import Ledger
from holdfast.core.protocol.messages import RunRound
from holdfast.core.protocol.model import Assignment, Endpoint, Ranks, Term
from holdfast.observe.history import LiveHistory
from holdfast.observe.journal import (
    SCHEMA,
    ClockPair,
    CoordinatorBegan,
    CoordinatorStep,
    JournalHeader,
    NodeStep,
    Step,
)


class Watched:
    """The progress of a job, on a clock that only the test moves."""

    def __init__(self, speaks: bool = True) -> None:
        self.clock = ManualClock()
        self.said: list[tuple[float, str]] = []
        self.coordinates = True
        config = JobConfig("job", Program("command", "train"))
        header = JournalHeader(SCHEMA, "job", "node", "host", "", config, ClockPair(0.0, 0.0))
        self.live = LiveHistory(header)
        say = self._say if speaks else None
        self.progress = JobProgress(self.clock, self.live, lambda: self.coordinates, say)
        self.take(NodeStep(1, 0.0, NodeStarted(), []))

    def take(self, step: Step) -> None:
        self.live.feed(step)
        self.progress.take(step)

    def _say(self, text: str) -> None:
        self.said.append((self.clock.now(), text))

    def coordinate(self) -> None:
        self.take(CoordinatorStep(1, self.clock.now(), CoordinatorTimerFired("look"), []))

    def take_over(self) -> None:
        known = Beginning(Term(1, 2), ledger=Ledger(4, 1))
        self.take(CoordinatorBegan(1, self.clock.now(), known))
        self.coordinate()

    def run(self) -> None:
        ranks = (Ranks(0, 0, 0),)
        word = RunRound(Assignment(1, 0, 0, 1, 1, 1, ranks, Endpoint("here", 1)))
        for event in (Told(word), WorkerStarted(1, 0, 7)):
            self.take(NodeStep(1, self.clock.now(), event, []))

    def step(self, number: int) -> None:
        self.take(NodeStep(1, self.clock.now(), StepReported(1, 0, number), []))

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.said]


def test_the_first_line_comes_after_a_minute_and_then_one_every_five() -> None:
    job = Watched()
    job.coordinate()
    job.run()
    job.clock.advance(1000.0)
    assert job.times == [60.0, 300.0, 600.0, 900.0]
    assert job.said[1][1] == "running for 5 min, round 1, 1 rank"


def test_a_node_that_does_not_coordinate_says_nothing_and_sets_no_timer() -> None:
    job = Watched()
    job.clock.advance(10.0)
    taken = job.clock.timeline.taken
    job.run()
    job.clock.advance(1000.0)
    assert job.said == []
    assert job.clock.timeline.taken == taken


def test_a_node_that_takes_over_speaks_from_then_on() -> None:
    job = Watched()
    job.clock.advance(310.0)
    job.take_over()
    job.run()
    job.clock.advance(300.0)
    assert job.times == [600.0]


def test_a_node_that_has_handed_over_is_silent_until_it_coordinates_again() -> None:
    job = Watched()
    job.coordinate()
    job.clock.advance(100.0)
    job.coordinates = False
    job.clock.advance(1000.0)
    assert job.times == [60.0]
    job.coordinates = True
    job.coordinate()
    job.clock.advance(200.0)
    assert job.times == [60.0, 1200.0]


def test_without_anybody_to_speak_to_the_numbers_are_there_at_the_end() -> None:
    job = Watched(speaks=False)
    job.coordinate()
    job.run()
    job.clock.advance(2.0)
    for number in range(11):
        job.clock.advance(1.0)
        job.step(number)
    known = job.progress.close()
    assert (known.seconds, known.steps, known.ranks) == (13.0, 11, 1)
    assert job.said == []


def test_a_job_that_is_over_within_a_moment_has_its_numbers_too() -> None:
    job = Watched()
    job.coordinate()
    job.run()
    job.step(1)
    job.clock.advance(0.5)
    assert job.progress.close().steps == 1
    job.clock.advance(1000.0)
    assert job.said == []


def test_of_a_job_that_was_taken_over_only_the_time_on_this_node_is_known() -> None:
    job = Watched()
    job.take_over()
    job.run()
    job.step(1)
    job.clock.advance(100.0)
    known = job.progress.close()
    assert (known.seconds, known.steps, known.goodput) == (100.0, None, None)
