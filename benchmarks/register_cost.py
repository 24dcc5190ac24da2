"""(m) What a register costs a job of two nodes, beside a coordinator that is embedded.

Both nodes are on this machine, each with one worker that does nothing and no zygote. Embedded, the
first node's host carries the coordinator; with etcd the one that comes first does, and the other
one is its successor, which keeps watch.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from msgspec import Struct

from benchmarks import etcd, processes
from benchmarks.figures import Figure
from benchmarks.jobs import Job, RunFailed
from benchmarks.launchers import Meeting, free_port, holdfast
from benchmarks.session import Session
from benchmarks.standing_cost import SPAWNER_NAME
from benchmarks.takeover import await_leader

PROGRAM = "wait_to_be_stopped.py"
NODES = "2:2"
START_DEADLINE_S = 60.0
SETTLE_S = 2.0
WATCH_S = 30.0
WATCHES = 1
MEGABYTE = 1_000_000


class Way(Struct, frozen=True):
    """How the two nodes meet."""

    name: str
    title: str
    places: tuple[str, str]
    """What the first node is, and the second."""


EMBEDDED = Way("embedded", "embedded coordinator", ("its host", "the other node"))
ETCD = Way("etcd", "etcd", ("the leader", "its successor"))
WAYS = (EMBEDDED, ETCD)


def cost(session: Session) -> list[Figure]:
    """From the commands to the workers' first lines; then memory and CPU time, at rest."""
    starts = {way.name: Figure("m", f"start_{way.name}", _start_title(way)) for way in WAYS}
    for repeat in range(session.repeats):
        for way in WAYS:
            sample = partial(_sample_start, session, way)
            session.take([starts[way.name]], holdfast, sample, repeat)
    standing = [figure for way in WAYS for figure in _standing_figures(way)]
    for repeat in range(min(WATCHES, session.repeats)):
        session.take(standing, holdfast, partial(_sample_standing, session), repeat)
    return [*starts.values(), *standing]


def _start_title(way: Way) -> str:
    return f"2 nodes start, {way.title}: from the commands to both workers' first lines"


def _standing_figures(way: Way) -> list[Figure]:
    made = []
    for place in way.places:
        about = f"{way.name}_{place.split()[-1]}"
        memory = f"{way.title}, {place}: resident memory of agent and spawner"
        made.append(Figure("m", f"memory_{about}", memory, "MB"))
        made.append(Figure("m", f"cpu_{about}", "… their CPU time at rest", "% of a core"))
        made.append(Figure("m", f"wake_ups_{about}", f"… their wake-ups in {WATCH_S:g} s", ""))
    return made


def _sample_start(session: Session, way: Way) -> list[float]:
    with etcd.register(session) as place, ExitStack() as stack:
        nodes = _nodes(session, stack, place, way)
        return [max(node.reports[0].reached for node in nodes) - nodes[0].started_at]


def _sample_standing(session: Session) -> list[float]:
    """Both ways stand idle over the same seconds: what they use is counted for each."""
    with etcd.register(session) as place, ExitStack() as stack:
        nodes = [
            node for way in WAYS for node in _nodes(session, stack, place, way, one_by_one=True)
        ]
        nodes[0].settle(SETTLE_S)
        staffs = [_staff(node) for node in nodes]
        before = [_used(staff) for staff in staffs]
        nodes[0].settle(WATCH_S)
        values: list[float] = []
        for staff, (cpu_s, wake_ups) in zip(staffs, before, strict=True):
            cpu_after, wake_ups_after = _used(staff)
            resident = sum(processes.memory(pid).resident_bytes for pid in staff)
            values.append(resident / MEGABYTE)
            values.append(100 * (cpu_after - cpu_s) / WATCH_S)
            values.append(wake_ups_after - wake_ups)
        return values


def _used(pids: list[int]) -> tuple[float, int]:
    return sum(map(processes.cpu_seconds, pids)), sum(map(processes.wake_ups, pids))


def _staff(node: Job) -> list[int]:
    below = processes.children(node.pid)
    spawners = [pid for pid in below if processes.name(pid) == SPAWNER_NAME]
    if len(spawners) != 1:
        raise RunFailed(f"{spawners} are not one spawner")
    return [node.pid, *spawners]


def _nodes(
    session: Session,
    stack: ExitStack,
    place: etcd.Register,
    way: Way,
    *,
    one_by_one: bool = False,
) -> list[Job]:
    """Two nodes whose workers have begun; `one_by_one` if the first one has to lead."""
    nodes = []
    for command in _commands(place, way):
        nodes.append(stack.enter_context(session.job(holdfast, command)))
        if one_by_one and len(nodes) == 1 and way is ETCD:
            await_leader(nodes[0])
    for node in nodes:
        node.await_reports(bool, START_DEADLINE_S)
    return nodes


def _commands(place: etcd.Register, way: Way) -> list[list[str]]:
    """The etcd runs either way, so that the machine has the same to do."""
    if way is ETCD:
        return [place.node_command(holdfast, NODES, PROGRAM, "--no-warm")] * 2
    port = free_port()
    meetings = [Meeting(port, NODES, {"is_host": word}) for word in ("true", "false")]
    options = ("--no-warm", "--log-dir", "logs")
    return [holdfast.node_command(meeting, PROGRAM, *options) for meeting in meetings]
