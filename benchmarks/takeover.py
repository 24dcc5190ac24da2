"""(k) The node that carries the coordinator is killed, or falls silent.

Three nodes with one worker each are on this machine and meet through an etcd of three servers,
all at their default settings. The first one leads. It is either a member of the round or a
spare that has no part in it. Killed means SIGKILL to all its processes; silent means SIGSTOP
to all of them: no connection ends, nothing is said any more.

The new coordinator's first push is the first message to another node in its journal, after
the line that says that it began. Journals and this program use the same clock.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct

from benchmarks import etcd, processes
from benchmarks.figures import Figure, Target
from benchmarks.jobs import Job, Report, RunFailed
from benchmarks.launchers import Meeting, free_port, holdfast, torchrun
from benchmarks.session import Session
from holdfast.core.coordinator_io import Tell
from holdfast.observe import journal

PROGRAM = "step_and_log.py"
NODES = 3
FORM_DEADLINE_S = 120.0
RECOVER_DEADLINE_S = 60.0
PEER_DEADLINE_S = 150.0
LOOK_EVERY_S = 0.02
SETTLE_S = 1.0
WATCHED_S = 4.0
"""How long the workers of a round that goes on are watched after the takeover."""
SILENT_RUNS = 3
ENDING = 200
"""How many characters of what a launcher said last are shown."""


class Blow(Struct, frozen=True):
    """What happens to the leader, on the clock of journals and on that of workers."""

    name: str
    number: int
    target_s: float


KILLED = Blow("killed", signal.SIGKILL, 1.0)
SILENT = Blow("silent", signal.SIGSTOP, 6.0)


def takeover(session: Session) -> list[Figure]:
    """Killed and silent, each with the leader in the round and beside it."""
    figures = []
    for blow, runs in ((KILLED, session.repeats), (SILENT, min(SILENT_RUNS, session.repeats))):
        member, spare = _figures(blow), _spare_figures(blow)
        for repeat in range(runs):
            session.take(member, holdfast, partial(_sample_member, session, blow), repeat)
            session.take(spare, holdfast, partial(_sample_spare, session, blow), repeat)
            if blow is KILLED and repeat == 0:
                session.take([member[1]], torchrun, partial(_sample_peer, session), repeat)
        figures += [*member, *spare]
    return [*figures, _take_peer_with_its_own_store(session)]


def _figures(blow: Blow) -> list[Figure]:
    about = f"leader of 3 {blow.name}"
    target = Target("at most", blow.target_s)
    pushed = Figure("k", f"push_{blow.name}", f"{about}, to the next one's first push")
    pushed.target = target
    stepping = Figure("k", f"steps_{blow.name}", f"… {about}, to the survivors' first step")
    stepping.target = target if blow is KILLED else None
    return [pushed, stepping]


def _spare_figures(blow: Blow) -> list[Figure]:
    about = f"leader with no part in the round {blow.name}"
    pushed = Figure("k", f"push_{blow.name}_spare", f"{about}, to the next one's first push")
    pushed.target = Target("at most", blow.target_s)
    touched = Figure("k", f"touched_{blow.name}", "… workers stopped or started", unit="")
    touched.target = Target("at most", 0)
    pause = Figure("k", f"pause_{blow.name}", "… longest time between two steps of a worker")
    return [pushed, touched, pause]


# Holdfast.


def _sample_member(session: Session, blow: Blow) -> list[float]:
    with etcd.register(session) as place, _nodes(session, place, f"1:{NODES}") as nodes:
        leader, *others = nodes
        _await_all(nodes)
        struck_at, struck_on_journals = strike(leader, blow)
        stepping_at = _step_again(others, struck_at, RECOVER_DEADLINE_S)
        pushed_s = _first_push(others, struck_on_journals) - struck_on_journals
        return [pushed_s, stepping_at - struck_at]


def _sample_spare(session: Session, blow: Blow) -> list[float]:
    """The leader gets ready late, when the two others are a round already: it stands by."""
    late = ("--preload", "waits_for_a_gate")
    with etcd.register(session) as place, _nodes(session, place, "2:2", late) as nodes:
        leader, *others = nodes
        for node in others:
            node.await_reports(lambda reports: bool(_in_world(reports, 2)), FORM_DEADLINE_S)
        (leader.folder / "gate").touch()
        leader.settle(SETTLE_S)
        leader.read_reports()
        if leader.reports:
            raise RunFailed("the leader has a part in the round")
        struck_at, struck_on_journals = strike(leader, blow)
        pushed_s = _first_push(others, struck_on_journals) - struck_on_journals
        others[0].settle(WATCHED_S)
        pauses = [_longest_pause(node, struck_at) for node in others]
        return [pushed_s, sum(map(_touched, others)), max(pauses)]


@contextmanager
def _nodes(
    session: Session, place: etcd.Register, size: str, leaders: tuple[str, ...] = ()
) -> Iterator[list[Job]]:
    """Three nodes; the first one leads, and is started with some options more."""
    with ExitStack() as stack:
        nodes = []
        for number in range(NODES):
            command = place.node_command(holdfast, size, PROGRAM, *(() if number else leaders))
            nodes.append(stack.enter_context(session.job(holdfast, command)))
            if number == 0:
                await_leader(nodes[0])
        yield nodes


def await_leader(node: Job) -> None:
    """Wait until a node carries the coordinator."""
    _await(node, partial(_leads, node), "it carries no coordinator")


def _leads(node: Job) -> bool:
    return any(isinstance(step, journal.CoordinatorBegan) for step in _steps(node)[1])


def _await(node: Job, condition: Callable[[], object], otherwise: str) -> None:
    until = time.monotonic() + RECOVER_DEADLINE_S
    while not condition():
        node.settle(LOOK_EVERY_S)
        if time.monotonic() > until:
            raise RunFailed(f"{otherwise} after {RECOVER_DEADLINE_S:g} s")


def strike(node: Job, blow: Blow) -> tuple[float, float]:
    """A signal to all processes of a node, its agent first; when, on both clocks."""
    pids = [node.pid, *processes.descendants(node.pid)]
    struck_at = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
    for pid in pids:
        try:
            os.kill(pid, blow.number)
        except ProcessLookupError:
            continue  # It went with one of the others.
    return struck_at


def _first_push(nodes: list[Job], after: float) -> float:
    """When one of the nodes first told another something, as the coordinator that it became."""
    found: list[float] = []

    def look() -> bool:
        found.extend(at for node in nodes if (at := _push_of(node, after)) is not None)
        return bool(found)

    _await(nodes[0], look, "no other coordinator said anything")
    return min(found)


def _push_of(node: Job, after: float) -> float | None:
    name, steps = _steps(node)
    for step in steps:
        if not isinstance(step, journal.CoordinatorStep) or step.at < after:
            continue
        told = (effect.node for effect in step.effects if isinstance(effect, Tell))
        if any(other != name for other in told):
            return step.at
    return None


def _steps(node: Job) -> tuple[str, list[journal.Step]]:
    """The name of a node, and its journal as far as it is written."""
    for path in node.folder.glob("logs/*/journal.jsonl"):
        if b"\n" in path.read_bytes():
            header, steps = journal.read(path)
            return header.node, steps
    return "", []


def _touched(node: Job) -> int:
    """Workers that were started beside the first one, or that do not run any more."""
    node.read_reports()
    ended = [report for report in node.reports if not Path(f"/proc/{report.pid}").exists()]
    return len(node.reports) - 1 + len(ended)


def _longest_pause(node: Job, since: float) -> float:
    log = node.folder / f"steps-{node.reports[0].pid}"
    steps = [at for at in map(float, log.read_text().split()) if at > since]
    if len(steps) < 2:
        raise RunFailed("a worker of the round did no more steps")
    return max(later - earlier for earlier, later in itertools.pairwise(steps))


def _step_again(nodes: list[Job], struck_at: float, deadline_s: float) -> float:
    """When the last of the nodes did its first step in a round without the one that was lost."""

    def again(reports: list[Report]) -> list[Report]:
        left = _in_world(reports, NODES - 1)
        return [report for report in left if report.reached > struck_at]

    for node in nodes:
        node.await_reports(lambda reports: bool(again(reports)), deadline_s)
    return max(again(node.reports)[0].reached for node in nodes)


def _in_world(reports: list[Report], size: int) -> list[Report]:
    return [report for report in reports if report.world == size]


# The peer.


def _sample_peer(session: Session) -> list[float]:
    """torchrun has no leader where it meets in etcd: the node of rank 0 is killed."""
    launcher, backend = etcd.torchrun_on_etcd()
    with etcd.servers(session, enable_v2=True) as cluster, ExitStack() as stack:
        endpoint = cluster.servers[0].endpoint  # It takes one.
        place = etcd.Register(backend, endpoint, f"bench-{free_port()}")
        command = place.node_command(launcher, f"1:{NODES}", PROGRAM)
        nodes = [stack.enter_context(session.job(launcher, command)) for _ in range(NODES)]
        _await_all(nodes)
        return [_lose_first(sorted(nodes, key=lambda node: node.reports[-1].rank))]


def _take_peer_with_its_own_store(session: Session) -> Figure:
    """Its c10d backend lives in one of the agents: what becomes of the others without it."""
    title = "… torchrun on c10d, the node that hosts its store killed: the whole job is lost"
    figure = Figure("k", "store_host_killed", title, counts_runs=True)
    session.take([figure], torchrun, partial(_sample_store_host, session), 0)
    return figure


def _sample_store_host(session: Session) -> list[float]:
    port = free_port()
    with ExitStack() as stack:
        nodes = []
        for number in range(NODES):
            meeting = Meeting(port, f"1:{NODES}", {"is_host": "false" if number else "true"})
            command = torchrun.node_command(meeting, PROGRAM)
            nodes.append(stack.enter_context(session.job(torchrun, command)))
        _await_all(nodes)
        try:
            _lose_first(nodes)
        except RunFailed as failure:
            session.say(f"k  torchrun without its store: {str(failure)[-ENDING:]}")
            return [1.0]
        return [0.0]


def _await_all(nodes: list[Job]) -> None:
    for node in nodes:
        node.await_reports(lambda reports: bool(_in_world(reports, NODES)), FORM_DEADLINE_S)
    nodes[0].settle(SETTLE_S)


def _lose_first(nodes: list[Job]) -> float:
    """Kill the first node; how long it takes until all others step again."""
    first, *others = nodes
    struck_at, _ = strike(first, KILLED)
    return _step_again(others, struck_at, PEER_DEADLINE_S) - struck_at
