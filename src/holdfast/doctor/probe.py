"""What `holdfast doctor` runs on each node of a job: finds out, compares, writes a file.

It is an ordinary worker: the nodes have met as for any job, and it knows the others by the round's
master address alone, as PyTorch would. All go through the first one:

    facts ──▶ everybody's places ──▶ who dialled whom ──▶ the page, for each to write

Rules
1. Every wait has an end: a node that does not answer is a finding.
2. What others send is bounded and typed, and counts only if they know the job's token
   (`doctor.lines`).
3. It is started with a path and `-P`: nothing is imported from the current folder.
4. It ends with 0 whatever it found: what is wrong is in the page, and a worker that fails would be
   reported as one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from holdfast.core.protocol.bounds import Count, Host, Port, clean, cut
from holdfast.doctor import group, lines, page, reading
from holdfast.doctor.facts import Short, Wanted
from holdfast.doctor.findings import Finding
from holdfast.doctor.group import DialResult, Examined
from holdfast.doctor.lines import Line
from holdfast.transport.frames import ProtocolError

MEETING_S = 45.0
DIAL_S = 3.0
SHARED_S = 10.0
PINGS = 5
PEERS_MOST = 64
"""Each dials so many others, those that come after it: in a job of thousands not all do."""
LAST_WORD_S = 10.0
_PONG = struct.Struct("!d")
_PULSE_S = 0.05


class Task(Struct, frozen=True):
    """What the verb wants to know, as it wrote it for its worker."""

    answer: str
    """Where the page goes."""
    wanted: Wanted
    environ: dict[str, str]
    """Of whoever asked: a worker's own is made for it."""
    log_dir: str | None = None
    shared: str = ""
    job: str = ""
    key: bytes = b""
    """Made of the job's token (`lines.key_of`); empty where it has none."""


class Peer(Struct, frozen=True):
    rank: Count
    host: Host
    addresses: Annotated[tuple[Short, ...], Meta(max_length=8)]
    port: Port


class Introduced(Struct, frozen=True):
    """What a node tells first."""

    peer: Peer
    report: Examined


class Introductions(Struct, frozen=True):
    """What all are told: who is there, and what to look for in the shared folder."""

    peers: tuple[Peer, ...]
    shared_file: str = ""
    nonce: str = ""


def main(task_file: str) -> None:
    task = msgspec.json.decode(Path(task_file).read_bytes(), type=Task)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    facts = reading.read(task.environ, log_dir=task.log_dir)
    pings = lines.ThreadedServer(0, _answer_pings)
    me = Peer(rank, facts.names.host, _addresses(), pings.port)
    mine = Introduced(me, Examined(rank, facts))
    found = _first(task, mine, size) if rank == 0 else _other(task, mine)
    pings.close()
    if rank == 0:
        Path(f"{task.answer}.first").touch()
    Path(task.answer).write_bytes(msgspec.json.encode(found))


def _addresses() -> tuple[str, ...]:
    from holdfast.transport.addresses import usable_addresses

    return usable_addresses()[:8]


# The first node hears all of them.


def _first(task: Task, mine: Introduced, size: int) -> page.DoctorPage:
    came = _gather(task, size)
    shared_file, nonce, problem = _share(task.shared)
    peers = (mine.peer, *(introduced.peer for _, introduced in came.values()))
    known = Introductions(peers, shared_file, nonce)
    theirs: list[Examined] = []
    hearing = threading.Thread(target=lambda: theirs.extend(_hear(came, known)))
    hearing.start()
    reports = [_look(mine, known, problem)]
    hearing.join()
    if shared_file:
        with contextlib.suppress(OSError):
            os.unlink(shared_file)
    reports = sorted([*reports, *theirs], key=lambda report: report.rank)
    found = page.page_of(reports, group.judge(reports, task.wanted, size))
    others = [line for line, _ in came.values()]
    lines.side_by_side(lambda line: line.send(found, LAST_WORD_S), others, LAST_WORD_S)
    return found


def _gather(task: Task, size: int) -> dict[int, tuple[Line, Introduced]]:
    """The others, by rank, as far as they come."""
    side = lines.side_of_first(task.job, task.key)
    gathering = lines.Gathering(int(os.environ["MASTER_PORT"]), side, Introduced)
    came: dict[int, tuple[Line, Introduced]] = {}
    deadline = time.monotonic() + MEETING_S
    while len(came) < size - 1:
        one = gathering.next(deadline)
        if one is None:
            break
        line, introduced = one
        rank = introduced.peer.rank
        if 0 < rank < size and rank not in came and introduced.report.rank == rank:
            came[rank] = line, introduced
        else:
            line.close()
    gathering.close()
    return came


def _hear(came: dict[int, tuple[Line, Introduced]], known: Introductions) -> list[Examined]:
    """What the others find out, once they know of each other."""
    rank_of = {id(line): rank for rank, (line, _) in came.items()}

    def ask(line: Line) -> Examined:
        line.send(known, MEETING_S)
        report = line.receive(Examined, lines.REPORT_MOST, MEETING_S)
        if report.rank != rank_of[id(line)]:
            raise ProtocolError("garbage", "a node speaks for another")
        return report

    return lines.side_by_side(ask, [line for line, _ in came.values()], MEETING_S)


def _share(folder: str) -> tuple[str, str, str]:
    """Write a file that the others are to find: its path, what is in it, or why it cannot be."""
    if not folder:
        return "", "", ""
    nonce = os.urandom(8).hex()
    path = os.path.join(folder, f".holdfast-doctor-{nonce}")
    try:
        with open(path, "x") as file:
            file.write(nonce)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return "", "", f"it cannot be written to: {error.strerror}"
    return path, nonce, ""


# The others.


def _other(task: Task, mine: Introduced) -> page.DoctorPage:
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    try:
        with _reached(place) as connected:
            line = Line(connected)
            node = clean(f"{mine.peer.host or 'node'}-{mine.peer.rank}")
            line.greet(lines.side_of_other(task.job, node, task.key))
            line.send(mine, MEETING_S)
            known = line.receive(Introductions, lines.FRAME_MOST, 2 * MEETING_S)
            line.send(_look(mine, known, ""), MEETING_S)
            return line.receive(page.DoctorPage, lines.FRAME_MOST, 2 * MEETING_S)
    except (OSError, ProtocolError) as error:
        problem = cut(getattr(error, "strerror", None) or str(error))
    cut_off = Finding(
        "broken",
        f"the first node's master address, {place[0]}:{place[1]}, cannot be reached: {problem}",
        "give that node the address by which others reach it: --local-addr; look at firewalls",
    )
    return page.page_of((mine.report,), (cut_off,))


def _reached(place: tuple[str, int]) -> socket.socket:
    """The first node may be a moment later than we are."""
    deadline = time.monotonic() + MEETING_S
    while True:
        try:
            return socket.create_connection(place, timeout=DIAL_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            threading.Event().wait(_PULSE_S)


def _look(mine: Introduced, known: Introductions, problem: str) -> Examined:
    """Dial the others, look their names up, and see whether the shared folder is shared."""
    others = [peer for peer in known.peers if peer.rank != mine.peer.rank]
    others.sort(key=lambda peer: (peer.rank < mine.peer.rank, peer.rank))
    dials: list[DialResult] = []
    for peer in others[:PEERS_MOST]:
        dials += _dial_all(peer)
    knows = {peer.host: _meaning(peer.host) for peer in others[:PEERS_MOST]}
    shared = problem
    if known.shared_file:
        shared = _find(known)
    return Examined(mine.peer.rank, mine.report.facts, tuple(dials), knows, shared)


def _dial_all(peer: Peer) -> list[DialResult]:
    tried: list[DialResult] = []
    for address in peer.addresses:
        tried.append(_dial(peer, address))
        if tried[-1].round_trip_s is not None:
            break
    return tried


def _dial(peer: Peer, address: str) -> DialResult:
    try:
        with socket.create_connection((address, peer.port), timeout=DIAL_S) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            best, ahead = float("inf"), 0.0
            for _ in range(PINGS):
                sent, began = time.time(), time.perf_counter()
                line.sendall(b"p")
                theirs = _PONG.unpack(line.recv(_PONG.size, socket.MSG_WAITALL))[0]
                took = time.perf_counter() - began
                if took < best:
                    best, ahead = took, theirs - (sent + took / 2)
    except (OSError, struct.error) as error:
        words = "timed out" if isinstance(error, TimeoutError) else getattr(error, "strerror", "")
        return DialResult(peer.rank, address, problem=cut(words or str(error)))
    return DialResult(peer.rank, address, best, max(-1e12, min(1e12, ahead)))


def _meaning(host: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(one[4][0]) for one in found))[:64]


def _find(known: Introductions) -> str:
    """What a shared disk shows late, it shows within seconds."""
    deadline, problem = time.monotonic() + SHARED_S, ""
    while True:
        try:
            if Path(known.shared_file).read_text() == known.nonce:
                return ""
            problem = "a file has another content than was written"
        except OSError as error:
            problem = f"a file that the first node wrote is missing: {error.strerror}"
        if time.monotonic() > deadline:
            return cut(problem)
        with contextlib.suppress(OSError):
            os.listdir(os.path.dirname(known.shared_file))  # NFS looks again.
        threading.Event().wait(_PULSE_S)


# The answers to those who dial.


def _answer_pings(dialled: socket.socket) -> None:
    with contextlib.suppress(OSError), dialled:
        dialled.settimeout(DIAL_S)
        dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PINGS):
            if not dialled.recv(1):
                return
            dialled.sendall(_PONG.pack(time.time()))


if __name__ == "__main__":
    main(sys.argv[1])
