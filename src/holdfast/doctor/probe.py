"""What `holdfast doctor` runs on each node of a job: finds out, compares, writes a file.

It is an ordinary worker: the nodes have met as for any job, and it knows the others by the round's
master address alone, as PyTorch would. All go through the first one:

    facts ──▶ everybody's places ──▶ who dialled whom ──▶ the page, for each to write

Rules
1. Every wait has an end: a node that does not answer is a finding.
2. What others send is bounded and typed.
3. It ends with 0 whatever it found: what is wrong is in the page, and a worker that fails would be
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
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.core.protocol.bounds import cut
from holdfast.doctor import group, page, reading
from holdfast.doctor.facts import Wanted
from holdfast.doctor.findings import Finding
from holdfast.doctor.group import DialResult, Examined
from holdfast.transport.listener import listening_socket

MEETING_S = 45.0
DIAL_S = 3.0
SHARED_S = 10.0
PINGS = 5
PEERS_MOST = 64
"""Each dials so many others, those that come after it: in a job of thousands not all do."""
FRAME_MOST = 64 << 20
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


class Peer(Struct, frozen=True):
    rank: int
    host: str
    addresses: tuple[str, ...]
    port: int


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
    with PingAnswers() as port:
        mine = Introduced(Peer(rank, facts.names.host, _addresses(), port), Examined(rank, facts))
        found = _first(task, mine, size) if rank == 0 else _other(mine)
    if rank == 0:
        Path(f"{task.answer}.first").touch()
    Path(task.answer).write_bytes(msgspec.json.encode(found))


def _addresses() -> tuple[str, ...]:
    from holdfast.transport.addresses import usable_addresses

    return usable_addresses()[:8]


# The first node hears all of them.


def _first(task: Task, mine: Introduced, size: int) -> page.DoctorPage:
    place = int(os.environ["MASTER_PORT"])
    deadline = time.monotonic() + MEETING_S
    lines: list[socket.socket] = []
    came: list[Introduced] = [mine]
    with listening_socket("", place) as server:
        while len(came) < size and (left := deadline - time.monotonic()) > 0:
            server.settimeout(left)
            with contextlib.suppress(OSError, msgspec.DecodeError):
                line = server.accept()[0]
                line.settimeout(MEETING_S)
                came.append(_receive(line, Introduced))
                lines.append(line)
        shared_file, nonce, problem = _share(task.shared)
        known = Introductions(tuple(one.peer for one in came), shared_file, nonce)
        for line in lines:
            with contextlib.suppress(OSError):
                _send(line, known)
        reports = [_look(mine, known, problem)]
        for line in lines:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                reports.append(_receive(line, Examined))
    if shared_file:
        with contextlib.suppress(OSError):
            os.unlink(shared_file)
    reports.sort(key=lambda report: report.rank)
    found = page.page_of(reports, group.judge(reports, task.wanted, size))
    for line in lines:
        with contextlib.suppress(OSError), line:
            _send(line, found)
    return found


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


def _other(mine: Introduced) -> page.DoctorPage:
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    try:
        with _reached(place) as line:
            line.settimeout(2 * MEETING_S)
            _send(line, mine)
            known = _receive(line, Introductions)
            _send(line, _look(mine, known, ""))
            found: page.DoctorPage = _receive(line, page.DoctorPage)
            return found
    except (OSError, msgspec.DecodeError) as error:
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
                theirs = _PONG.unpack(_exactly(line, _PONG.size))[0]
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


# Frames, and the answers to those who dial.


def _send(line: socket.socket, said: Struct) -> None:
    content = msgspec.json.encode(said)
    line.sendall(struct.pack("!I", len(content)) + content)


def _receive(line: socket.socket, kind: type[Any]) -> Any:
    (length,) = struct.unpack("!I", _exactly(line, 4))
    if length > FRAME_MOST:
        raise msgspec.DecodeError("too much was sent")
    return msgspec.json.decode(_exactly(line, length), type=kind)


def _exactly(line: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        more = line.recv(min(1 << 20, size - len(received)))
        if not more:
            raise ConnectionError(0, "the other side hung up")
        received += more
    return bytes(received)


class PingAnswers:
    """Answers whoever dials this node, until it is left; gives the port."""

    def __enter__(self) -> int:
        self._server = listening_socket("", 0)
        threading.Thread(target=self._serve, daemon=True).start()
        return int(self._server.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                line = self._server.accept()[0]
            except OSError:
                return
            threading.Thread(target=_answer, args=(line,), daemon=True).start()


def _answer(line: socket.socket) -> None:
    with contextlib.suppress(OSError), line:
        line.settimeout(MEETING_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while line.recv(1):
            line.sendall(_PONG.pack(time.time()))


if __name__ == "__main__":
    main(sys.argv[1])
