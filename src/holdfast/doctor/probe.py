"""One node's part in `holdfast doctor --nnodes`: it meets the others, dials them, and compares.

The nodes meet as for a job, with its token and certificates, and tell each other what they find
through the store of the round:

    peer/RANK     where a node can be dialled, and its facts ─▶ each dials each other one
    report/RANK   what came of it ─▶ the first node judges
    page/…        the page, for all

Rules
1. Every wait has an end: a node that does not answer is a finding.
2. What others send is bounded and typed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.bounds import Count, Port, cut
from holdfast.doctor import group, page, reading
from holdfast.doctor.facts import Few, Short, Wanted
from holdfast.doctor.findings import Finding
from holdfast.doctor.group import DialResult, Examined
from holdfast.elastic.rendezvous.membership import Membership, Seat
from holdfast.elastic.rendezvous.store import CoordinatorStore, StoreError, StoreTimeoutError
from holdfast.engine.secrets import Secrets, security_of
from holdfast.transport.addresses import usable_addresses
from holdfast.transport.listener import listening_socket

MEETING_S = 45.0
DIAL_S = 3.0
SHARED_S = 10.0
GOODBYE_S, LAST_WORD_S = 1.0, 10.0
PINGS = 5
PEERS_MOST = 64
"""Each dials so many others, those that come after it: in a job of thousands not all do."""
PIECE_BYTES = 1 << 19
_PONG = struct.Struct("!d")
_PULSE_S = 0.05

T = TypeVar("T")


class Peer(Struct, frozen=True):
    """A node's first message."""

    rank: Count
    addresses: Annotated[tuple[Short, ...], Few]
    """Of the first node, its master address comes first."""
    port: Port
    shared_file: Short = ""
    """Of the first node: a file that all should find, if a folder is shared, and what is in it."""
    nonce: Short = ""


def examine(
    config: JobConfig, secrets: Secrets, wanted: Wanted, shared: str, environ: Mapping[str, str]
) -> tuple[page.DoctorPage, bool]:
    """The page of all nodes, and whether this node is the first of them.

    Raises `NotMet`, or TimeoutError, where the nodes do not meet.
    """
    membership, goodbye_s = Membership(config, secrets), GOODBYE_S
    try:
        seat = membership.meet(config.timeouts.join_s)
        logging.disable(logging.INFO)  # How the nodes part is of no interest.
        store = CoordinatorStore(
            seat.store, config.run_id, security_of(config, secrets.token), seat.round
        )
        facts = reading.read(environ, log_dir=config.output.log_dir)
        found = Probe(seat, store, wanted, shared).run(Examined(seat.rank, facts))
        membership.note_success()
        goodbye_s = LAST_WORD_S  # The coordinator's host stays until all have the page.
        return found, seat.rank == 0
    finally:
        membership.leave(goodbye_s)


class Probe:
    """One node that has met the others."""

    def __init__(self, seat: Seat, store: CoordinatorStore, wanted: Wanted, shared: str) -> None:
        self._seat, self._store = seat, store
        self._wanted, self._shared = wanted, shared

    def run(self, own: Examined) -> page.DoctorPage:
        """Tell what is known here, learn what others know, and return the page."""
        shared_file = nonce = problem = ""
        addresses = usable_addresses()
        if self._seat.rank == 0:
            shared_file, nonce, problem = _share(self._shared)
            addresses = (self._seat.master.address, *addresses)
        try:
            with Pongs() as pongs:
                threading.Thread(target=pongs.serve_forever, args=(_PULSE_S,), daemon=True).start()
                me = Peer(
                    rank=own.rank,
                    addresses=tuple(dict.fromkeys(addresses))[:8],
                    port=int(pongs.socket.getsockname()[1]),
                    shared_file=shared_file,
                    nonce=nonce,
                )
                try:
                    return self._compare(me, own, problem)
                finally:
                    pongs.shutdown()
        except StoreError as error:
            cut_off = Finding(
                "error",
                cut(f"the other nodes were lost: {error}"),
                "look at what the others say; at firewalls, and at the address in --local-addr",
            )
            return page.page_of((own,), (cut_off,))
        finally:
            if shared_file:
                with contextlib.suppress(OSError):
                    os.unlink(shared_file)

    def _compare(self, me: Peer, own: Examined, problem: str) -> page.DoctorPage:
        self._tell("peer", me)
        peers = self._hear("peer", Peer)
        dials, shared = _dial_others(me.rank, peers), problem or _find(peers.get(0))
        self._tell("report", replace(own, dials=dials, shared=shared))
        if me.rank != 0:
            return self._read_page()
        reports = self._hear("report", Examined)
        every = [reports[rank] for rank in sorted(reports)]
        found = page.page_of(every, group.judge(every, self._wanted, self._seat.size))
        self._publish(found)
        return found

    # What is said goes through the store.

    def _tell(self, what: str, said: Peer | Examined) -> None:
        self._store.set(f"{what}/{self._seat.rank}", msgspec.msgpack.encode(said))

    def _hear(self, what: str, kind: type[T]) -> dict[int, T]:
        """The nodes' messages of one kind, by rank, as far as they come in time."""
        deadline = time.monotonic() + MEETING_S
        heard: dict[int, T] = {}
        for rank in range(self._seat.size):
            key = f"{what}/{rank}"
            with contextlib.suppress(StoreTimeoutError, msgspec.MsgspecError):
                self._store.wait([key], max(deadline - time.monotonic(), 0.0))
                heard[rank] = msgspec.msgpack.decode(self._store.get(key), type=kind)
        return {rank: said for rank, said in heard.items() if getattr(said, "rank", None) == rank}

    def _publish(self, found: page.DoctorPage) -> None:
        """In pieces, since the store bounds its values."""
        whole = msgspec.msgpack.encode(found)
        pieces = [whole[at : at + PIECE_BYTES] for at in range(0, len(whole), PIECE_BYTES)]
        for number, piece in enumerate(pieces):
            self._store.set(f"page/{number}", piece)
        self._store.set("page", str(len(pieces)))

    def _read_page(self) -> page.DoctorPage:
        self._store.wait(["page"], 2 * MEETING_S)
        pieces = [self._store.get(f"page/{n}") for n in range(int(self._store.get("page")))]
        return msgspec.msgpack.decode(b"".join(pieces), type=page.DoctorPage)


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


def _find(first: Peer | None) -> str | None:
    """Why the shared file is not found. What a shared disk shows late, it shows within seconds."""
    if first is None or not first.shared_file:
        return None
    deadline, problem = time.monotonic() + SHARED_S, ""
    while True:
        try:
            if Path(first.shared_file).read_text() == first.nonce:
                return ""
            problem = "a file has another content than was written"
        except OSError as error:
            problem = f"a file that the first node wrote is missing: {error.strerror}"
        if time.monotonic() > deadline:
            return cut(problem)
        with contextlib.suppress(OSError):
            os.listdir(os.path.dirname(first.shared_file))  # NFS looks again.
        threading.Event().wait(_PULSE_S)


# Dialling, and being dialled.


def _dial_others(rank: int, peers: dict[int, Peer]) -> tuple[DialResult, ...]:
    others = [peer for peer in peers.values() if peer.rank != rank]
    others.sort(key=lambda peer: (peer.rank < rank, peer.rank))
    return tuple(dial for peer in others[:PEERS_MOST] for dial in _dial_all(peer))


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


class Pongs(socketserver.ThreadingTCPServer):
    """Answers nodes that dial this one, each in a thread, on every address of this machine."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("", 0), Pong, bind_and_activate=False)
        self.socket.close()
        self.socket = listening_socket("", 0)


class Pong(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(OSError):
            self.request.settimeout(DIAL_S)
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while self.request.recv(1):
                self.request.sendall(_PONG.pack(time.time()))
