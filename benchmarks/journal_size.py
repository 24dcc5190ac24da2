"""Bytes that a coordinator writes into its journal: `python -m benchmarks.journal_size 100 1000`.

A real coordinator is told what the nodes of a job tell it; nothing runs. Printed are the bytes of
what follows from each thing that happens, and how many that is for each node.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from holdfast.core.coordinator import liveness
from holdfast.core.coordinator.bootstrap import Beginning
from holdfast.core.coordinator.io import (
    CoordinatorEffect,
    CoordinatorTimerFired,
    Write,
    Written,
)
from holdfast.core.policy.config import JobConfig, Program, RestartPolicy
from holdfast.core.protocol.messages import (
    NodeGreeted,
    NodeJoined,
    RoundStopped,
    Seen,
    WorkersFailed,
    WorkersProgressed,
)
from holdfast.core.protocol.model import (
    Endpoint,
    ErrorDetail,
    ExitStatus,
    Failure,
    NodeInfo,
    Tenure,
)
from holdfast.observe.journal import SCHEMA, Journal, JournalHeader

SLOTS = 8
MASTER = Endpoint("10.0.0.1", 29400)


class Crowd:
    """A coordinator, and what its nodes say to it."""

    def __init__(self, number: int, path: Path) -> None:
        nodes = {"min_nodes": number, "max_nodes": number, "slots": SLOTS}
        program, policy = Program("script", "train.py"), RestartPolicy(max_restarts=3)
        job = JobConfig("job", program, restarts=policy, **nodes)  # type: ignore[arg-type]
        header = JournalHeader(SCHEMA, "job", "host-0", "host", "2026-01-31T12:00:00+0000", job)
        beginning = Beginning(Tenure(1, 1), embedded=True)
        self.names = [f"node-{index:05}-0123abcd" for index in range(number)]
        self.now = 0.0
        self._path, self._seen = path, 0
        self._journal = Journal(path, header, limit_bytes=1 << 40)
        self._journal.began(self.now, beginning)
        self._liveness = liveness.liveness_of(beginning.state(job, self.now))

    def meet(self) -> None:
        for name in self.names:
            info = NodeInfo(name, name.rpartition("-")[0], slots=SLOTS)
            greeting = NodeGreeted(info, Seen(), None, None, heartbeat=1)
            self._write(liveness.receive(self._liveness, name, greeting, self.now))
            self._write(liveness.receive(self._liveness, name, NodeJoined(info, MASTER), self.now))
        self._look()

    def step(self, steps: int) -> None:
        for step in range(1, steps + 1):
            for name in self.names:
                told = WorkersProgressed(self._liveness.state.round_number, step)
                self._write(liveness.receive(self._liveness, name, told, self.now))

    def fail(self) -> None:
        number, name = self._liveness.state.round_number, self.names[-1]
        failure = Failure(
            node=name, host="node", local_rank=0, rank=0, role="default", pid=77,
            status=ExitStatus(code=1), observed_at=self.now,
            error=ErrorDetail("ValueError: broken", "Traceback …\n" * 10),
            stderr_tail="a line of text\n" * 20,
        )  # fmt: skip
        self._write(
            liveness.receive(self._liveness, name, WorkersFailed(number, (failure,)), self.now)
        )
        for each in self.names:
            stopped = RoundStopped(number, (failure,) if each == name else (), MASTER)
            self._write(liveness.receive(self._liveness, each, stopped, self.now))
        self._look()
        assert self._liveness.state.round_number == number + 1, "no round followed"

    def written(self) -> int:
        """Bytes since this was last asked."""
        before, self._seen = self._seen, self._path.stat().st_size
        return self._seen - before

    def _look(self) -> None:
        for _ in range(3):
            self.now += 5.0
            self._write(liveness.decide(self._liveness, CoordinatorTimerFired("look"), self.now))

    def _write(self, effects: list[CoordinatorEffect]) -> None:
        """What is to be written is written, and what follows is journalled."""
        self._journal.taken(self.now, self._liveness)
        for version in [effect.version for effect in effects if isinstance(effect, Write)]:
            self._write(liveness.decide(self._liveness, Written(version), self.now))


def main(numbers: list[int]) -> None:
    for number in numbers:
        with tempfile.TemporaryDirectory() as folder:
            crowd = Crowd(number, Path(folder) / "journal.jsonl")
            parts = (
                ("all join, and the first round", crowd.meet),
                ("60 steps of each node", lambda crowd=crowd: crowd.step(60)),
                ("a failure, and the next round", crowd.fail),
            )
            for what, happen in parts:
                happen()
                size = crowd.written()
                print(f"{number:6} nodes: {what:30} {size:12,} B {size / number:9.1f} B a node")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [100, 1000])
