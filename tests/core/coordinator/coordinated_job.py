"""A coordinator, and nodes `a`, `b`, … that exist only by what they say to it."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from holdfast.core import coordinator
from holdfast.core.coordinator import begin
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    CoordinatorEvent,
    CoordinatorTimerFired,
    Explain,
    Heard,
    Tell,
    WakeCoordinator,
    Write,
    Written,
)
from holdfast.core.policy.config import JobConfig, Program, RestartPolicy, Timeouts
from holdfast.core.protocol.messages import (
    CloseJob,
    FromNode,
    NodeGreeted,
    NodeJoined,
    RoundReport,
    RoundStopped,
    RunRound,
    SaveHeard,
    StandBy,
    ToNode,
    Welcomed,
    WorkersFailed,
    WorkersSaved,
)
from holdfast.core.protocol.model import (
    Assignment,
    Endpoint,
    ExitStatus,
    Failure,
    NodeInfo,
    Outcome,
)

KILLED = ExitStatus(signal=9)


class Job:
    """What is written down is safe at once, unless `register_answers` is taken away."""

    def __init__(
        self,
        nodes: int = 1,
        at_most: int | None = None,
        timeouts: Timeouts | None = None,
        **policy: object,
    ) -> None:
        config = JobConfig(
            "job",
            Program("script", "train.py"),
            slots=2,
            min_nodes=nodes,
            max_nodes=at_most or nodes,
            restarts=RestartPolicy(**policy),  # type: ignore[arg-type]
            timeouts=timeouts or Timeouts(),
        )
        self.state = begin(config)
        self.now = 1000.0
        self.ports = 29500
        self.register_answers = True
        self.unanswered: list[int] = []
        """Versions that were to be written, and are not known to be."""

    def take(self, event: CoordinatorEvent) -> list[CoordinatorEffect]:
        """One step, and those that follow when what it wants written is written."""
        effects = coordinator.step(self.state, event, self.now)
        for effect in list(effects):
            if isinstance(effect, Write):
                self.unanswered.append(effect.version)
                if self.register_answers:
                    effects += self.write()
        return effects

    def write(self) -> list[CoordinatorEffect]:
        """The register answers: what was to be written last is."""
        version, self.unanswered = self.unanswered[-1], []
        return self.take(Written(version))

    def hear(self, node: str, message: FromNode) -> list[CoordinatorEffect]:
        return self.take(Heard(node, message))

    def wake(self, after_s: float = 0.0) -> list[CoordinatorEffect]:
        self.now += after_s
        return self.take(CoordinatorTimerFired("look"))

    def info(self, node: str, role: str = "default") -> NodeInfo:
        return NodeInfo(node, f"host-{node}", slots=2, role=role)

    def greet(
        self, node: str, report: RoundReport | None = None, **details: object
    ) -> list[CoordinatorEffect]:
        greeting = NodeGreeted(self.info(node), report=report)
        return self.hear(node, structs.replace(greeting, **details))

    def join(self, *nodes: str, role: str = "default") -> list[CoordinatorEffect]:
        """The nodes join one after the other; what came of the last."""
        effects: list[CoordinatorEffect] = []
        for node in nodes:
            effects = self.hear(node, NodeJoined(self.info(node, role), self.endpoint()))
        return effects

    def endpoint(self) -> Endpoint:
        self.ports += 1
        return Endpoint("10.0.0.1", self.ports)

    def fail(self, node: str, failure: Failure, round: int = 1) -> list[CoordinatorEffect]:
        return self.hear(node, WorkersFailed(round, (failure,)))

    def stop(self, node: str, *failures: Failure, round: int = 1) -> list[CoordinatorEffect]:
        return self.hear(node, RoundStopped(round, failures, self.endpoint()))

    def save(self, step: int | None = None) -> list[CoordinatorEffect]:
        """All members have saved at this step, or none of them asks; what came of the last word."""
        current = self.state.group.round
        assert current is not None
        assert current.is_running
        assert current.saves is not None
        assert current.saves.current is not None
        of, number = current.number, current.saves.current.number
        nodes = current.seats.present()
        effects: list[CoordinatorEffect] = []
        for node in nodes:
            effects = self.hear(node, SaveHeard(of, step is not None, step, number))
        for node in nodes if step is not None else []:
            effects = self.hear(node, WorkersSaved(of, number=number))
        return effects

    def fail_and_stop(self, failure: Failure, round: int = 1) -> list[CoordinatorEffect]:
        self.fail("a", failure, round)
        return self.stop("a", failure, round=round)


def running(*nodes: str, at_most: int | None = None, **policy: Any) -> Job:
    """A job whose first round runs on these nodes: as many as it needs."""
    job = Job(len(nodes), at_most, **policy)
    job.join(*nodes)
    if job.state.group.round is None:
        job.wake(job.state.config.timeouts.last_call_s)
    assert job.state.group.round is not None
    return job


def failure(
    rank: int = 0, at: float = 1000.0, status: ExitStatus = KILLED, **details: object
) -> Failure:
    return Failure(
        node="a",
        host="host-a",
        local_rank=rank,
        rank=rank,
        role="default",
        pid=100 + rank,
        status=status,
        observed_at=at,
        **details,  # type: ignore[arg-type]
    )


def told(effects: list[CoordinatorEffect]) -> dict[str, ToNode]:
    """What each node was told last; a welcome, or where it stands, decides nothing."""
    tells = [effect for effect in effects if isinstance(effect, Tell)]
    polite = (Welcomed, StandBy)
    return {one.node: one.message for one in tells if not isinstance(one.message, polite)}


def explained(effects: list[CoordinatorEffect]) -> str:
    return "\n".join(effect.text for effect in effects if isinstance(effect, Explain))


def woken_after(effects: list[CoordinatorEffect]) -> list[float]:
    return [effect.after_s for effect in effects if isinstance(effect, WakeCoordinator)]


def assignment(effects: list[CoordinatorEffect], node: str = "a") -> Assignment:
    message = told(effects)[node]
    assert isinstance(message, RunRound)
    return message.assignment


def members(effects: list[CoordinatorEffect]) -> list[str]:
    """Those who are told to run a round, in the order of their ranks."""
    runs = [node for node, message in told(effects).items() if isinstance(message, RunRound)]
    return sorted(runs, key=lambda node: assignment(effects, node).group_rank)


def outcome(effects: list[CoordinatorEffect], node: str = "a") -> Outcome:
    message = told(effects)[node]
    assert isinstance(message, CloseJob)
    return message.outcome
