"""What a node answers to the questions of outsiders. Loaded when the first one comes.

Views, all of them: nothing is kept for them, and nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.coordinator.overview import overview
from holdfast.core.protocol.bounds import cut
from holdfast.core.protocol.questions import (
    Answer,
    FrameTold,
    JobAsked,
    NotKnown,
    StacksAsked,
    StacksTold,
    StackTold,
    pack,
    read_question,
)
from holdfast.node.engine import Engine
from holdfast.processes.workplace import Workplace

if TYPE_CHECKING:
    from holdfast.processes.lookout.stacks import StackSnapshot

    Reply = Callable[[Answer], None]

NOT_THE_COORDINATOR = "this node is not the coordinator any more; ask again"
NO_WORKERS = "no worker runs on this node now"


class Answering:
    """Answers for one node."""

    def __init__(self, engine: Engine, workplace: Workplace) -> None:
        self._engine, self._workplace = engine, workplace

    def answer(self, packed: bytes, reply: Callable[[bytes], None]) -> None:
        """`reply` gets the answer as soon as it is known, maybe from within."""

        def tell(answer: Answer) -> None:
            reply(pack(answer))

        match read_question(packed):
            case JobAsked() as question:
                tell(self._job(question))
            case StacksAsked() as question:
                self._workplace.take_stacks(question.reason, lambda found: tell(_stacks(found)))
            case None:
                tell(NotKnown("this version of Holdfast does not know that question"))

    def _job(self, question: JobAsked) -> Answer:
        coordinating = self._engine.place.coordinating
        if coordinating is None:
            return NotKnown(NOT_THE_COORDINATOR)
        return overview(coordinating.liveness, question, self._engine.clock.now())


def _stacks(snapshot: StackSnapshot | None) -> Answer:
    if snapshot is None:
        return NotKnown(NO_WORKERS)
    told = tuple(
        StackTold(
            stack.rank,
            tuple(FrameTold(cut(f.file), f.line, cut(f.function)) for f in stack.frames),
            cut(stack.kernel),
        )
        for stack in snapshot.stacks()
    )
    return StacksTold(told, snapshot.file)
