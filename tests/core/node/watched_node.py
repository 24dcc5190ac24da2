"""What must hold on a node at every moment, whatever happens.

1. The workers of a round start only when no process of an older round is left, or may still
   be forked; and no worker of a round runs twice at once.
2. Round numbers only grow, and there are at most one more rounds than restarts allowed.
3. Workers are started warm only while there is a zygote.
4. Every round has a master of its own, at the endpoint that is held for it; and once a
   store was lost, no round relies on one.
5. After `EndSpawner` nothing more is started or prepared.
6. Nobody is given a grace who is not there, and the end waits for the spawner's, unless that
   wait was in vain.
7. The job closes once, and nothing is asked of the node after that.
8. `Finish` comes once, is the last thing, and its outcome is true.
9. Everything that is said has words in it, and every timer a time.
10. A node that leaves because it cannot go on is told how its job ended.
"""

from __future__ import annotations

from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    CoordinatorEvent,
    Explain,
    Heard,
    Tell,
    WakeCoordinator,
)
from holdfast.core.node import Timer
from holdfast.core.node_io import (
    DropZygote,
    Finish,
    NodeEffect,
    NodeEvent,
    NodeTimerFired,
    ReserveEndpoint,
    Say,
    SpawnerLost,
    StartWorkers,
    StartZygote,
    WakeNode,
    WorkerExited,
)
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.messages import CloseJob, NodeLeft, RunRound
from holdfast.core.protocol.model import Endpoint, ExitStatus, Outcome

from .imaginary_node import Node
from .imaginary_spawner import Worker


class WatchedNode(Node):
    """A node that fails the test as soon as a rule is broken."""

    def __init__(self, config: JobConfig, tick_s: float = 0.001) -> None:
        super().__init__(config, tick_s)
        self.rounds: list[int] = []
        self.masters: list[Endpoint] = []
        self.has_zygote = False
        self.closed = False
        self.waited_in_vain = False
        self.spawner_lost = False
        self.waits_for_outcome = False
        self.exits: dict[Worker, ExitStatus] = {}

    def on_agent_step(self, event: NodeEvent, effects: list[NodeEffect]) -> None:
        assert not (effects and self.finished), f"after the end: {effects}"
        match event:
            case WorkerExited():
                self.exits[Worker(event.round, event.local_rank)] = event.status
            case SpawnerLost():
                self.spawner_lost = True
            case NodeTimerFired():
                self.waited_in_vain |= event.name == Timer.UNKILLABLE
                if event.name == Timer.GRACE and effects:
                    self.check_grace()
        for effect in effects:
            self.check_effect(effect)
        assert not any(isinstance(effect, Finish) for effect in effects[:-1])

    def check_effect(self, effect: NodeEffect) -> None:
        prepares = isinstance(effect, StartWorkers | StartZygote | DropZygote)
        assert not (prepares and self.asked_to_end), f"after EndSpawner: {effect}"
        match effect:
            case ReserveEndpoint():
                assert not (effect.store and self.store_lost), "a store was lost before"
            case StartZygote():
                self.has_zygote = True
            case DropZygote():
                self.has_zygote = False
            case StartWorkers():
                self.check_start(effect)
            case Say():
                assert effect.text
            case WakeNode():
                assert effect.after_s >= 0
            case Finish():
                self.check_outcome(effect.outcome)

    def check_start(self, effect: StartWorkers) -> None:
        number = effect.assignment.round
        assert self.has_zygote or not effect.warm, "warm workers without a zygote"
        if number not in self.rounds:
            assert number > max(self.rounds, default=0), "the round's number did not grow"
            assert not self.spawner.alive, "a worker of an older round is left"
            assert not self.spawner.unforked, "a worker of an older round may still be forked"
            assert effect.assignment.master == self.held, "the master's port is not held"
            assert effect.assignment.master not in self.masters, "a port is used again"
            self.masters.append(effect.assignment.master)
            self.rounds.append(number)
        assert number == self.rounds[-1], "an old round starts workers"
        assert len(self.rounds) <= 1 + self.config.restarts.max_restarts, "too many rounds"

    def check_grace(self) -> None:
        on_the_way = self.spawner.requests or self.spawner.answers or self.spawner.unforked
        there = self.spawner.alive or self.spawner.silent
        assert there or on_the_way, "a grace was given to nobody"

    def check_outcome(self, outcome: Outcome) -> None:
        assert self.spawner.ended or self.waited_in_vain, "the end came before the spawner's"
        assert not self.spawner.silent or self.agent.given_up, "a silent spawner was left alive"
        assert outcome.reason
        match outcome.verdict:
            case "succeeded":
                assert outcome.exit_status == 0
                workers = [Worker(self.rounds[-1], local) for local in range(self.config.slots)]
                assert all(self.exits[worker].succeeded for worker in workers)
            case "interrupted":
                by_signal = [128 + number for number in self.signals[:1]]
                assert outcome.exit_status in by_signal + [1] * self.launcher_lost
            case "failed":
                assert outcome.exit_status == 1
                self.check_cause(outcome)
            case _:
                raise AssertionError(f"one node is always enough: {outcome}")

    def check_cause(self, outcome: Outcome) -> None:
        if outcome.cause is None:
            assert self.spawner_lost or self.waited_in_vain, "a failure without a cause"
            return
        worker = Worker(self.rounds[-1], outcome.cause.local_rank)
        assert self.exits[worker] == outcome.cause.status
        assert not outcome.cause.status.succeeded

    def check_end(self) -> None:
        assert self.closed or not self.waits_for_outcome, "nobody told the node how it ended"

    def on_coordinator_step(
        self, event: CoordinatorEvent, effects: list[CoordinatorEffect]
    ) -> None:
        if isinstance(event, Heard) and isinstance(event.message, NodeLeft):
            self.waits_for_outcome |= event.message.signal is None
        for effect in effects:
            match effect:
                case Tell():
                    assert not self.closed, f"after the job closed: {effect}"
                    self.closed = isinstance(effect.message, CloseJob)
                    if isinstance(effect.message, RunRound):
                        assert effect.message.assignment.round == len(self.rounds) + 1
                case Explain():
                    assert effect.text
                case WakeCoordinator():
                    assert effect.after_s >= 0
