"""Events are told in the order in which they happened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.core.node_io import AllGone, NodeEvent, SpawnerEnded, WorkerExited
from holdfast.core.protocol.model import ExitStatus
from holdfast.processes.supervisor import Outbox
from holdfast.runtime.loop import EventLoop

FIRST = WorkerExited(1, 0, 7, ExitStatus(code=1))
SECOND = WorkerExited(1, 1, 8, ExitStatus(code=1))
COMPLETE = WorkerExited(1, 0, 7, ExitStatus(code=1), stderr_tail="why")
LONG_S = 1000.0


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop()
    yield made
    made.close()


def test_what_happens_later_is_told_later(loop: EventLoop) -> None:
    told: list[NodeEvent] = []
    outbox = Outbox(told.append)
    outbox.put(SpawnerEnded())
    complete_first = outbox.put_incomplete(FIRST, loop, LONG_S)
    complete_second = outbox.put_incomplete(SECOND, loop, LONG_S)
    outbox.put(AllGone())
    complete_second(SECOND)
    assert told == [SpawnerEnded()]
    complete_first(COMPLETE)
    assert told == [SpawnerEnded(), COMPLETE, SECOND, AllGone()]
    outbox.put(AllGone())
    assert told[4:] == [AllGone()]


def test_one_that_is_not_completed_in_time_is_told_as_it_stands(loop: EventLoop) -> None:
    told: list[NodeEvent] = []
    outbox = Outbox(told.append)
    complete = outbox.put_incomplete(FIRST, loop, 0.01)
    outbox.put(AllGone())
    loop.run_until(lambda: len(told) == 2)
    complete(COMPLETE)  # Too late.
    assert told == [FIRST, AllGone()]


def test_nothing_is_told_after_the_end(loop: EventLoop) -> None:
    told: list[NodeEvent] = []
    outbox = Outbox(told.append)
    complete = outbox.put_incomplete(FIRST, loop, LONG_S)
    outbox.close()
    complete(COMPLETE)
    assert told == []
