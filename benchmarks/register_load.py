"""(l) What a job of N nodes asks of its etcd: at its start, at rest, and during a takeover.

At the start all nodes come at once, which is the worst case: none of them leads.
Then the leader and its five successors are real agents, `holdfast run` each. All others are whole
nodes without workers, hundreds in a process (`register_crowd.py`). What etcd was asked for is
what its three servers have counted themselves.

A takeover: all processes of the leader's node are killed; one of the successors leads, ends the
round, in which the leader had a part, and forms the next one with all others. In the largest job
they are also only stopped: the machine falls silent.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct
from tests.etcd_cluster import EtcdCluster

from benchmarks import etcd
from benchmarks.figures import HOLDFAST, Figure, Target
from benchmarks.jobs import Job
from benchmarks.launchers import Launcher, free_port, holdfast, torchrun
from benchmarks.session import Session
from benchmarks.takeover import KILLED, SILENT, Blow, await_leader, strike
from holdfast.core.protocol.document import LIMIT_BYTES, SUCCESSORS, Document, Ledger, brief, encode
from holdfast.core.protocol.model import Endpoint, ErrorDetail, ExitStatus, Failure, Outcome

SIZES = (10, 100, 1000)
REAL = 1 + SUCCESSORS
CROWD_AT_MOST = 250
START_DEADLINE_S = 90.0
AGAIN_DEADLINE_S = 60.0
SETTLE_S = 3.0
LAST_CALL_S = 60
"""The first round waits for all, also where they take long to start on this machine."""
REST_S = 30.0
TAKEOVER_S = 20.0
BESIDE, BESIDE_S = (3, 6), 10.0
LOOK_EVERY_S = 0.5
PEAK_LOOKS = 2
"""How many looks make a second."""


def load(session: Session) -> list[Figure]:
    """Each size once, and whether the load at rest grows with it."""
    figures = []
    for size in SIZES:
        at_start, own = _start_figures(size), _figures(size)
        session.take(at_start, holdfast, partial(_sample_start, session, size), 0)
        session.take(own, holdfast, partial(_sample, session, size), 0)
        figures += [*at_start, *own]
    silent = _silent_figures(SIZES[-1])
    session.take(silent, holdfast, partial(_sample_silent, session, SIZES[-1]), 0)
    beside = [_beside(session, size) for size in BESIDE]
    return [*figures, *silent, _growth(figures), *beside, _document()]


def _start_figures(size: int) -> list[Figure]:
    title = f"{size:,} nodes start at once: requests to etcd, in all"
    return [
        Figure("l", f"start_requests_{size}", title, ""),
        Figure("l", f"start_reads_{size}", "… reads", ""),
        Figure("l", f"start_writes_{size}", "… transactions", ""),
        Figure("l", f"start_leases_{size}", "… lease renewals and grants", ""),
        Figure("l", f"start_formed_{size}", "… from the commands until all are in the round"),
    ]


def _figures(size: int) -> list[Figure]:
    def figure(name: str, title: str, unit: str) -> Figure:
        return Figure("l", f"{name}_{size}", title, unit)

    document = figure("document", "… the document, as it is then", "bytes")
    document.target = Target("below", LIMIT_BYTES)
    return [
        figure("rest_requests", f"{size:,} nodes at rest: requests to etcd", "/s"),
        figure("rest_reads", "… reads", "/s"),
        figure("rest_writes", "… transactions", "/s"),
        figure("rest_keepalives", "… lease renewals", "/s"),
        figure("rest_told", "… messages to those who watch", "/s"),
        figure("rest_bytes", "… bytes in and out", "/s"),
        figure("rest_connections", "… open connections", ""),
        figure("takeover_requests", f"{size:,} nodes, takeover: requests, in all", ""),
        figure("takeover_peak", "… in the second with most of them", "/s"),
        figure("takeover_reads", "… reads", ""),
        figure("takeover_writes", "… transactions", ""),
        figure("takeover_leases", "… lease renewals and grants", ""),
        figure("takeover_watches", "… watches opened", ""),
        figure("takeover_told", "… messages to those who watch", ""),
        figure("takeover_again", "… from the kill until all others are in the next round", "s"),
        document,
    ]


def _silent_figures(size: int) -> list[Figure]:
    title = f"{size:,} nodes, leader silent: requests, in all"
    return [
        Figure("l", f"silent_requests_{size}", title, ""),
        Figure("l", f"silent_peak_{size}", "… in the second with most of them", "/s"),
        Figure("l", f"silent_reads_{size}", "… reads", ""),
        Figure("l", f"silent_writes_{size}", "… transactions", ""),
    ]


def _growth(figures: list[Figure]) -> Figure:
    few, many = SIZES[0], SIZES[-1]
    title = f"requests at rest of {many:,} nodes beside those of {few:,}"
    growth = Figure("l", "rest_growth", title, "×", target=Target("at most", 1.1))
    medians = {figure.name: figure.median(HOLDFAST) for figure in figures}
    least, most = medians[f"rest_requests_{few}"], medians[f"rest_requests_{many}"]
    if least and most:
        growth.add(HOLDFAST, most / least)
    else:
        growth.add_failure(HOLDFAST, "one of them was not measured")
    return growth


# One run.


class Stage(Struct):
    """A job of real and simulated nodes, and its etcd."""

    cluster: EtcdCluster
    place: etcd.Register
    real: list[Job]
    crowds: list[Job]


def _sample_start(session: Session, size: int) -> list[float]:
    with etcd.servers(session) as cluster, ExitStack() as stack:
        before, begun = etcd.load(cluster), time.monotonic()
        crowds = _crowds(session, stack, etcd.place_in(cluster), f"{size}:{size}", size)
        formed_at = _await_round(crowds, 1, START_DEADLINE_S)
        started = etcd.load(cluster).since(before)
        session.say(f"l  {size:,} nodes start: {started}")
    counts = [started.requests, started.reads, started.writes, started.leases]
    return [*counts, formed_at - begun]


def _sample(session: Session, size: int) -> list[float]:
    with etcd.servers(session) as cluster, _started(session, cluster, size) as stage:
        stage.real[0].settle(SETTLE_S)
        rest = _load_at_rest(stage)
        session.say(f"l  {size:,} nodes at rest for {REST_S:g} s: {rest}")
        connections = etcd.connections(cluster)
        taken, peak, again_s = _take_over(stage, KILLED)
        session.say(f"l  {size:,} nodes, {TAKEOVER_S:g} s of a takeover: {taken}")
        document = etcd.document_bytes(cluster, stage.place)
    counts = [rest.requests, rest.reads, rest.writes, rest.keepalives, rest.told]
    counts.append(rest.counts["bytes in"] + rest.counts["bytes out"])
    at_takeover: list[float] = [taken.requests, peak, taken.reads, taken.writes, taken.leases]
    at_takeover += [taken.counts["Watch"], taken.told, again_s, document]
    return [*(count / REST_S for count in counts), connections, *at_takeover]


def _sample_silent(session: Session, size: int) -> list[float]:
    with etcd.servers(session) as cluster, _started(session, cluster, size) as stage:
        stage.real[0].settle(SETTLE_S)
        taken, peak, _ = _take_over(stage, SILENT)
        session.say(f"l  {size:,} nodes, {TAKEOVER_S:g} s after the leader fell silent: {taken}")
    return [taken.requests, peak, taken.reads, taken.writes]


@contextmanager
def _started(session: Session, cluster: EtcdCluster, size: int) -> Iterator[Stage]:
    """All nodes in one round; the real ones came first, and so are leader and successors."""
    place, nodes = etcd.place_in(cluster), f"{size - 1}:{size}"
    options = ("--no-warm", "--rdzv-conf", f"last_call_timeout={LAST_CALL_S}")
    command = place.node_command(holdfast, nodes, "wait_to_be_stopped.py", *options)
    with ExitStack() as stack:
        real = []
        for number in range(REAL):
            real.append(stack.enter_context(session.job(holdfast, command)))
            if number == 0:
                await_leader(real[0])
        real[0].settle(SETTLE_S)
        crowds = _crowds(session, stack, place, nodes, size - REAL)
        _await_round(crowds, 1, START_DEADLINE_S)
        for job in real:
            job.await_reports(bool, START_DEADLINE_S)
        yield Stage(cluster, place, real, crowds)


def _crowds(
    session: Session, stack: ExitStack, place: etcd.Register, nodes: str, simulated: int
) -> list[Job]:
    """Processes with so many of the job's nodes in them."""
    crowds: list[Job] = []
    for first in range(0, simulated, CROWD_AT_MOST):
        many = min(CROWD_AT_MOST, simulated - first)
        words = (place.endpoints, place.job, nodes, len(crowds), first, many)
        own = [sys.executable, "-m", "benchmarks.register_crowd", *map(str, words)]
        crowds.append(stack.enter_context(_from_here(session, own)))
    return crowds


@contextmanager
def _from_here(session: Session, command: list[str]) -> Iterator[Job]:
    """A job of our own modules, which it finds although it starts in a folder of its own."""
    environment = {**holdfast.environment(session.scratch), "PYTHONPATH": _root()}
    with session.folder() as folder, Job(command, environment, folder) as job:
        yield job


def _root() -> str:
    return str(Path(__file__).parent.parent)


def _await_round(crowds: list[Job], number: int, deadline_s: float) -> float:
    """When the last of the simulated nodes ran that round or a later one."""
    reached = []
    for crowd in crowds:
        crowd.await_reports(lambda reports: any(r.attempt >= number for r in reports), deadline_s)
        reached.append(next(r.reached for r in crowd.reports if r.attempt >= number))
    return max(reached)


def _load_at_rest(stage: Stage) -> etcd.Load:
    before = etcd.load(stage.cluster)
    stage.real[0].settle(REST_S)
    return etcd.load(stage.cluster).since(before)


def _take_over(stage: Stage, blow: Blow) -> tuple[etcd.Load, int, float]:
    """What was asked for in all, at most in a second, and when all were in the next round."""
    leader, *others = stage.real
    looks = [etcd.load(stage.cluster)]
    struck_at, _ = strike(leader, blow)
    while time.monotonic() < struck_at + TAKEOVER_S:
        others[0].settle(LOOK_EVERY_S)
        looks.append(etcd.load(stage.cluster))
    again_at = _await_round(stage.crowds, 2, AGAIN_DEADLINE_S)
    for job in others:
        job.await_reports(lambda reports: len(reports) > 1, AGAIN_DEADLINE_S)
        again_at = max(again_at, job.reports[1].reached)
    seconds = zip(looks, looks[PEAK_LOOKS:], strict=False)
    peak = max(later.since(earlier).requests for earlier, later in seconds)
    return looks[-1].since(looks[0]), peak, again_at - struck_at


# Beside the peer.


def _beside(session: Session, size: int) -> Figure:
    """Few nodes, because each one of torchrun's takes a fifth of a gigabyte."""
    title = f"{size} nodes at rest: requests to etcd"
    figure = Figure("l", f"rest_requests_{size}", title, "/s")
    for launcher in (holdfast, torchrun):
        session.take([figure], launcher, partial(_sample_beside, session, launcher, size), 0)
    return figure


def _sample_beside(session: Session, launcher: Launcher, size: int) -> list[float]:
    is_peer = launcher is torchrun
    used, backend = etcd.torchrun_on_etcd() if is_peer else (launcher, "etcd")
    with etcd.servers(session, enable_v2=is_peer) as cluster, ExitStack() as stack:
        endpoints = cluster.servers[0].endpoint if is_peer else cluster.endpoints
        place = etcd.Register(backend, endpoints, f"bench-{free_port()}")
        command = place.node_command(used, f"{size}:{size}", "wait_to_be_stopped.py")
        nodes = [stack.enter_context(session.job(used, command)) for _ in range(size)]
        for node in nodes:
            node.await_reports(bool, START_DEADLINE_S)
        nodes[0].settle(SETTLE_S)
        before = etcd.load(cluster)
        nodes[0].settle(BESIDE_S)
        return [etcd.load(cluster).since(before).requests / BESIDE_S]


# The document at its largest.


def _document() -> Figure:
    """The longest names that Linux has, the longest addresses, and a failure that says a lot."""
    title = "the document of a job that failed, with names and texts as long as they get"
    figure = Figure("l", "document_worst", title, "bytes", target=Target("below", LIMIT_BYTES))
    host = "h" * 64
    names = [f"{host}-{number:08x}" for number in range(REAL)]
    text = "x" * 10_000
    failure = Failure(
        node=names[0],
        host=host,
        local_rank=7,
        rank=7999,
        role="default",
        pid=4_194_303,
        status=ExitStatus(code=1),
        observed_at=1234567.123456,
        error=ErrorDetail(text, text, 1794801893.123456),
        stderr_tail=text,
        out_of_memory=text,
        error_file="/" + "f" * 200,
        wall_time=1794801893.123456,
    )
    outcome = brief(Outcome("failed", text, 1, failure, (failure,) * 32))
    ledger = Ledger(1_000_000, 1000, 1000, outcome, 999, 2**56 - 1)
    address = "2001:0db8:1111:2222:3333:4444:5555:6666"
    places = {name: Endpoint(address, 65535) for name in names}
    document = Document(
        1794801893, 1000, 10**9, f"{names[0]}/{10**9}", names[0], tuple(names[1:]), ledger, places
    )
    figure.add(HOLDFAST, len(encode(document)))
    return figure
