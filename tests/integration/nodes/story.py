"""What the workers of a job did, read from their files, and whether it was right.

What must hold of every job, whatever happened to it:
- No two rounds overlapped: the last sign of life of any worker of a round comes before the
  first of any worker of a later one.
- The workers of a round agree on the world; ranks are unique, in range, and contiguous on a
  host; where a step was done, every rank was there.
- Every sum was that of all ranks of the world.
- Those that finished a round finished after the same step.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Worker:
    """One worker of one round: all that its file says."""

    def __init__(self, line: dict[str, Any]) -> None:
        self.host: str = line["host"]
        self.pid: int = line["pid"]
        self.round: int = line["round"]
        self.rank: int = line["rank"]
        self.world: int = line["world"]
        self.first: float = line["time"]
        self.last: float = line["time"]
        self.last_step: float = line["time"]
        self.first_step: float | None = None
        self.steps: list[int] = []
        self.sums: set[int] = set()
        self.saved_at: list[int] = []
        self.ended = False

    def add(self, line: dict[str, Any]) -> None:
        self.last = max(self.last, line["time"])
        self.ended = self.ended or line["did"] == "end"
        if line["did"] == "save":
            self.saved_at.append(line["step"])
        if line["did"] == "step":
            self.last_step = line["time"]
            self.first_step = self.first_step or line["time"]
            self.steps.append(line["step"])
            self.sums.add(line["sum"])

    def __repr__(self) -> str:
        return (
            f"round {self.round} rank {self.rank} of {self.world} on {self.host} "
            f"({self.pid}): {self.first:.3f} to {self.last:.3f}, {len(self.steps)} steps"
            f"{', finished' if self.ended else ''}"
        )


class Story:
    """All workers that wrote to a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._workers: dict[Path, Worker] = {}
        self._read: dict[Path, int] = {}

    def workers(self) -> list[Worker]:
        """Everybody who has said anything by now."""
        for path in self.folder.glob("worker.*.jsonl"):
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in map(json.loads, whole.splitlines()):
                self._workers.setdefault(path, Worker(line)).add(line)
        return list(self._workers.values())

    def rounds(self) -> dict[int, list[Worker]]:
        """The workers by round, in the order of its number."""
        found = defaultdict(list)
        for worker in sorted(self.workers(), key=lambda w: (w.round, w.rank)):
            found[worker.round].append(worker)
        return dict(found)

    def mistakes(self) -> list[str]:
        """Everything in which the workers' lives break the rules above."""
        rounds = self.rounds()
        found = list(_overlaps(rounds))
        for number, workers in rounds.items():
            found += [f"round {number}: {what}" for what in _mistakes_within(workers)]
        return found

    def __str__(self) -> str:
        return "\n".join(repr(w) for workers in self.rounds().values() for w in workers)


def _overlaps(rounds: dict[int, list[Worker]]) -> Iterator[str]:
    latest: Worker | None = None
    for workers in rounds.values():
        first = min(workers, key=lambda w: w.first)
        if latest is not None and latest.last >= first.first:
            yield f"two rounds overlapped: {latest!r} and {first!r}"
        latest = max([*workers, *([latest] if latest else [])], key=lambda w: w.last)


def _mistakes_within(workers: list[Worker]) -> Iterator[str]:
    worlds = {worker.world for worker in workers}
    ranks = [worker.rank for worker in workers]
    world = max(worlds)
    if len(worlds) > 1:
        yield f"worlds of {sorted(worlds)}"
    if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(world)):
        yield f"ranks {ranks} in a world of {world}"
    if any(worker.steps for worker in workers) and set(ranks) != set(range(world)):
        yield f"a step was done by ranks {ranks} of a world of {world}"
    by_host = defaultdict(list)
    for worker in workers:
        by_host[worker.host].append(worker.rank)
    for host, own in by_host.items():
        if max(own) - min(own) >= len(own):
            yield f"ranks {own} on {host} are not contiguous"
    wrong = set().union(*(worker.sums for worker in workers)) - {world * (world + 1) // 2}
    if wrong:
        yield f"sums {sorted(wrong)} in a world of {world}"
    ends = {worker.steps[-1] for worker in workers if worker.ended}
    if len(ends) > 1:
        yield f"finished after different steps: {sorted(ends)}"
