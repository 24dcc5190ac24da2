"""(j): how many nodes one coordinator can carry, and what it costs.

The coordinator is that of a real `holdfast run`, whose own node is one of the N; the others are
simulated in this process, over loopback (`crowd`). Beside it: the rendezvous that `torchrun`
uses, one thread for each node, each with a connection of its own. The clock runs from the
first connection to the moment at which the last node knows its rank.
"""

from __future__ import annotations

import gc
import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks import processes
from benchmarks.crowd import Crowd
from benchmarks.figures import HOLDFAST, Figure, Target
from benchmarks.jobs import Job, RunFailed
from benchmarks.launchers import PROGRAMS, Meeting, free_port, holdfast, torchrun
from benchmarks.session import Session

SIZES: tuple[int, ...] = (64, 128, 1000, 4000, 10000)
PEER_SIZES: tuple[int, ...] = (64, 128)
TARGETS = {1000: Target("at most", 1), 10000: Target("at most", 8)}
LINEAR = (1000, 10000)
START_DEADLINE_S = 30.0
DEADLINE_S = 60.0
PEER_DEADLINE_S = 120.0
LISTENS_EVERY_S = 0.02
SETTLE_S = 1.0
REST_S = 5.0
RUNS = 2
MEGABYTE = 1_000_000
DESCRIPTORS_FOR_OTHERS = 100
PEER = PROGRAMS / "torch_rendezvous.py"


def crowd(session: Session) -> list[Figure]:
    """Each size by itself: joining, the end of a round, the next one, and standing still."""
    _allow_many_descriptors()
    figures = []
    for size in SIZES:
        own = _figures(size)
        for repeat in range(min(RUNS, session.repeats)):
            if size in PEER_SIZES:
                session.take(own[:1], torchrun, partial(_sample_peer, session, size), repeat)
            session.take(own, holdfast, partial(_sample, session, size), repeat)
        figures += own
    return [*figures, _growth(figures)]


def _figures(size: int) -> list[Figure]:
    joined = Figure("j", f"join_{size}", f"{size:,} nodes join one round")
    joined.target = TARGETS.get(size)
    return [
        joined,
        Figure("j", f"told_{size}", f"… {size:,} told that a worker failed"),
        Figure("j", f"again_{size}", f"… {size:,} in the next round after that"),
        Figure(
            "j", f"memory_{size}", f"… resident memory of the agent that carries {size:,}", "MB"
        ),
        Figure("j", f"cpu_{size}", "… its CPU time while all is well", "% of a core"),
    ]


def _growth(figures: list[Figure]) -> Figure:
    """What a node costs among many, beside what it costs among few."""
    few, many = LINEAR
    title = f"time for a node among {many:,} beside one among {few:,}"
    growth = Figure("j", "growth", title, "×", target=Target("at most", 1.5))
    medians = {figure.name: figure.median(HOLDFAST) for figure in figures}
    few_s, many_s = medians[f"join_{few}"], medians[f"join_{many}"]
    if few_s and many_s:
        growth.add(HOLDFAST, (many_s / many) / (few_s / few))
    else:
        growth.add_failure(HOLDFAST, "one of them was not measured")
    return growth


def _sample(session: Session, size: int) -> list[float]:
    meeting = Meeting(free_port(), f"{size}:{size}", {"is_host": "true"})
    others = size - 1
    with (
        _coordinator(session, meeting) as job,
        _without_garbage_collection(),
        Crowd(meeting.port, meeting.job, others, _tethers(others)) as nodes,
    ):
        joined_s = nodes.join(DEADLINE_S)
        nodes.rest(SETTLE_S)
        cpu_s, begun = processes.cpu_seconds(job.pid), time.monotonic()
        nodes.rest(REST_S)
        cpu_share = (processes.cpu_seconds(job.pid) - cpu_s) / (time.monotonic() - begun)
        memory = processes.memory(job.pid).resident_bytes / MEGABYTE
        told_s, again_s = nodes.fail_one(DEADLINE_S)
        if nodes.tethered < others:
            session.say(f"j  {nodes.tethered:,} of {others:,} have a tether: no more descriptors")
        return [joined_s, told_s, again_s, memory, 100 * cpu_share]


@contextmanager
def _coordinator(session: Session, meeting: Meeting) -> Iterator[Job]:
    """A node that carries the coordinator, and listens."""
    command = holdfast.node_command(meeting, "wait_to_be_stopped.py", "--no-warm")
    with session.job(holdfast, command) as job:
        until = time.monotonic() + START_DEADLINE_S
        while not _listens(meeting.port):
            job.settle(LISTENS_EVERY_S)
            if time.monotonic() > until:
                raise RunFailed(f"the coordinator does not listen after {START_DEADLINE_S:g} s")
        job.settle(SETTLE_S)
        yield job


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """The simulated nodes make no cycles, and looking for some would take their time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _allow_many_descriptors() -> None:
    """As many as this machine lets a process have, here and in what is started from here."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _tethers(nodes: int) -> int:
    """How many nodes can have one: at either end a process holds all connections."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, min(nodes, allowed - DESCRIPTORS_FOR_OTHERS - nodes))


def _sample_peer(session: Session, size: int) -> list[float]:
    command = [sys.executable, str(PEER), str(size), str(free_port())]
    environment = {**torchrun.environment(session.scratch), "RANK": "0"}
    with session.folder() as folder, Job(command, environment, folder) as job:
        job.await_reports(lambda reports: len(reports) == 1, PEER_DEADLINE_S)
        return [job.reports[0].reached - job.reports[0].begun]
