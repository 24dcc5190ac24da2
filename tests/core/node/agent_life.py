"""An agent in the situations that its tests begin with."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import node as agent
from holdfast.core.features.of_node import new_node
from holdfast.core.node_io import (
    CoordinatorReached,
    EndpointReserved,
    NodeEffect,
    NodeEvent,
    NodeStarted,
    Say,
    Told,
    WorkerExited,
    WorkerStarted,
)
from holdfast.core.policy.config import JobConfig, Program, Timeouts
from holdfast.core.protocol.messages import RunRound, StopRound
from holdfast.core.protocol.model import (
    Assignment,
    Endpoint,
    ErrorDetail,
    ExitStatus,
    Failure,
    Outcome,
    Ranks,
)

PORT = Endpoint("127.0.0.1", 29501)
KILLED = ExitStatus(signal=9)
TERMINATED = ExitStatus(signal=15)
TIMEOUTS = Timeouts(shutdown_s=30.0, unkillable_s=10.0, preload_s=60.0)
SUCCEEDED = Outcome("succeeded", "all workers succeeded", 0)


class Life:
    """An agent, and what it has asked for so far."""

    def __init__(self, slots: int = 2) -> None:
        program = Program("script", "train.py")
        config = JobConfig("job", program, slots=slots, timeouts=TIMEOUTS)
        self.state = new_node(config, "here-1", "here")
        self.now = 100.0

    @property
    def failures(self) -> dict[int, Failure]:
        assert self.state.round is not None
        return self.state.round.failures

    def take(self, *events: NodeEvent) -> list[NodeEffect]:
        """Take the events one after the other; what came of the last."""
        effects: list[NodeEffect] = []
        for event in events:
            self.now += 1.0
            effects = agent.step(self.state, event, self.now)
        return effects


def assignment(number: int = 1, slots: int = 2) -> Assignment:
    return Assignment(
        round=number,
        restart_count=number - 1,
        group_rank=0,
        group_size=1,
        world_size=slots,
        role_world_size=slots,
        workers=tuple(Ranks(local, local, local) for local in range(slots)),
        master=PORT,
    )


def run_round(number: int = 1, slots: int = 2) -> Told:
    return Told(RunRound(assignment(number, slots)))


def exited(local_rank: int, status: ExitStatus = KILLED, message: str = "") -> WorkerExited:
    return WorkerExited(1, local_rank, 101 + local_rank, status, error=ErrorDetail(message))


def waiting(slots: int = 2) -> Life:
    life = Life(slots)
    life.take(NodeStarted(cold="not wanted"), EndpointReserved(PORT))
    return life


def running(slots: int = 2) -> Life:
    """A cold round 1 whose workers have all started."""
    life = waiting(slots)
    starts = [WorkerStarted(1, local, 101 + local) for local in range(slots)]
    life.take(run_round(slots=slots), *starts)
    return life


def member(min_nodes: int = 1) -> Life:
    """One of the two nodes of a job, whose round 1 runs."""
    life = running()
    config = replace(life.state.config, min_nodes=min_nodes, max_nodes=2)
    life.state.config = config
    life.state.link.lease = new_node(config, "here-1", "here").link.lease
    assert life.state.round is not None
    assignment = life.state.round.assignment
    life.state.round.assignment = replace(assignment, group_size=2, world_size=4)
    life.take(CoordinatorReached())
    return life


def stopping() -> Life:
    """Rank 1 was killed and the round is being stopped; rank 0 still runs."""
    life = running()
    life.take(exited(1), Told(StopRound(1, "rank 1 was killed")))
    return life


def said(effects: list[NodeEffect]) -> str:
    return "\n".join(effect.text for effect in effects if isinstance(effect, Say))


def without_words(effects: list[NodeEffect]) -> list[NodeEffect]:
    return [effect for effect in effects if not isinstance(effect, Say)]
