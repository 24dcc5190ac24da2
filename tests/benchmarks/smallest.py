"""`python -m tests.benchmarks.smallest NAME`: one measure, as small as it can be, without a peer.

In a process of its own: a benchmark ends whatever it finds below itself.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import (
    launching,
    register_cost,
    register_load,
    scale,
    standing_cost,
    tee,
)
from benchmarks.figures import HOLDFAST, Figure
from benchmarks.jobs import become_subreaper
from benchmarks.launchers import holdfast
from benchmarks.session import Session

NODES = 4


def launch(run: Session) -> list[Figure]:
    launching.SIZES = (1,)
    return launching.launch_nothing(run)


def memory(run: Session) -> list[Figure]:
    figures = [Figure("d", "resident", "resident"), Figure("d", "proportional", "proportional")]
    standing_cost._take_memory(run, standing_cost.COLD, figures, 0)
    return figures


def output(run: Session) -> list[Figure]:
    tee.MEGABYTES, tee.RECORDED_MEGABYTES = {HOLDFAST: 1}, 1
    figures = tee.tee(run)
    assert [figure.samples[HOLDFAST] for figure in figures[1:]] == [[0]] * 4, "lines were lost"
    return figures


def crowd(run: Session) -> list[Figure]:
    scale.SIZES, scale.LINEAR, scale.PEER_SIZES = (NODES,), (NODES, NODES), ()
    scale.SETTLE_S = scale.REST_S = 0.1
    return scale.crowd(run)


def register_start(run: Session) -> list[Figure]:
    figures = register_load._start_figures(NODES)
    run.take(figures, holdfast, partial(register_load._sample_start, run, NODES), 0)
    requests, reads, writes, _, _ = (figure.samples[HOLDFAST][0] for figure in figures)
    assert requests >= reads + writes, "more was answered than asked"
    assert reads >= NODES, "a node joined that never read the register"
    return figures


def register_standing(run: Session) -> list[Figure]:
    register_cost.SETTLE_S = register_cost.WATCH_S = 0.1
    return register_cost.cost(run)


SMALLEST: dict[str, Callable[[Session], list[Figure]]] = {
    "launch": launch,
    "memory": memory,
    "output": output,
    "crowd": crowd,
    "register-start": register_start,
    "register-standing": register_standing,
}
"""Those that need PyTorch, or a second launcher beside which they count, are not among them."""


def main(name: str) -> None:
    become_subreaper()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
        figures = SMALLEST[name](Session(1, Path(scratch), (holdfast,)))
    for figure in figures:
        assert not figure.failures, f"{figure.title}: {figure.failures}"
        assert len(figure.samples[HOLDFAST]) == 1, f"{figure.title} was not measured"


if __name__ == "__main__":
    main(sys.argv[1])
