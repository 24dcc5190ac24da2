"""Bytes that a coordinator writes into its journal: `python -m benchmarks.journal_size 100 1000`.

A real coordinator, in the engine of a node, is told what the nodes of a job tell it; nothing runs.
Printed are the bytes of what follows from each thing that happens, and how many that is for each
node.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tools.simulator.timeline import ManualClock

from holdfast.core.node_io import NodeEffect
from holdfast.core.policy.config import JobConfig, Program, RestartPolicy
from holdfast.core.protocol.messages import (
    FromNode,
    NodeGreeted,
    NodeJoined,
    RoundStopped,
    Seen,
    WorkersFailed,
    WorkersProgressed,
)
from holdfast.core.protocol.model import Endpoint, ErrorDetail, ExitStatus, Failure, NodeInfo
from holdfast.engine.engine import Engine
from holdfast.engine.ports import Ports
from holdfast.observe.journal import SCHEMA, ClockPair, Journal, JournalHeader

SLOTS = 8
STEPS = 60
MASTER = Endpoint("10.0.0.1", 29400)


class NoProcesses:
    """The coordinator's own node is never started: all that nodes say comes from here."""

    def do(self, effect: NodeEffect) -> None:
        raise AssertionError(f"a node that was not started wants {effect}")

    def hold_tether(self, tether: int) -> None: ...
    def share_tethers(self, tethers: list[int]) -> None: ...


class Crowd:
    """A coordinator, and what its nodes say to it."""

    def __init__(self, number: int, path: Path) -> None:
        nodes = {"min_nodes": number, "max_nodes": number, "slots": SLOTS}
        program, policy = Program("script", "train.py"), RestartPolicy(max_restarts=3)
        job = JobConfig("job", program, restarts=policy, **nodes)  # type: ignore[arg-type]
        header = JournalHeader(
            SCHEMA, "job", "host-0", "host", "2026-01-31T12:00:00+0000", job, ClockPair(0.0, 0.0)
        )
        self.names = [f"node-{index:05}-0123abcd" for index in range(number)]
        self._path, self._seen = path, 0
        self._journal = Journal(path, header, limit_bytes=1 << 40)
        ports = Ports(ManualClock(), NoProcesses(), self._journal, say=lambda text: None)
        coordinating = Engine(job, "host-0", "host", ports).link.coordinating
        assert coordinating is not None, "a node without a network coordinates"
        self._coordinating = coordinating

    @property
    def round(self) -> int:
        return self._coordinating.state.group.round_number

    def meet(self) -> None:
        for name in self.names:
            info = NodeInfo(name, name.rpartition("-")[0], slots=SLOTS)
            self._say(name, NodeGreeted(info, Seen(), None, None, heartbeat=1))
            self._say(name, NodeJoined(info, MASTER))
        assert self.round == 1, "no round was formed"

    def step(self) -> None:
        for step in range(1, STEPS + 1):
            for name in self.names:
                self._say(name, WorkersProgressed(self.round, step))

    def fail(self) -> None:
        """A worker of the last node fails; all stop, and the next round is formed."""
        number, name = self.round, self.names[-1]
        failure = Failure(
            node=name, host="node", local_rank=0, rank=SLOTS * (len(self.names) - 1),
            role="default", pid=77, status=ExitStatus(code=1), observed_at=0.0,
            error=ErrorDetail("ValueError: broken", "Traceback …\n" * 10),
            stderr_tail="a line of text\n" * 20,
        )  # fmt: skip
        self._say(name, WorkersFailed(number, (failure,)))
        for each in self.names:
            self._say(each, RoundStopped(number, (failure,) if each == name else (), MASTER))
        assert self.round == number + 1, "no round followed"

    def written(self) -> int:
        """Bytes since this was last asked."""
        before, self._seen = self._seen, self._path.stat().st_size
        return self._seen - before

    def close(self) -> None:
        self._journal.close()

    def _say(self, node: str, message: FromNode) -> None:
        self._coordinating.on_message(node, message)


def main(numbers: list[int]) -> None:
    for number in numbers:
        with tempfile.TemporaryDirectory() as folder:
            crowd = Crowd(number, Path(folder) / "journal.jsonl")
            parts = (
                ("all join, and the first round", crowd.meet),
                (f"{STEPS} steps of each node", crowd.step),
                ("a failure, and the next round", crowd.fail),
            )
            for what, happen in parts:
                happen()
                size = crowd.written()
                print(f"{number:6} nodes: {what:30} {size:12,} B {size / number:9.1f} B a node")
            crowd.close()


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [100, 1000])
