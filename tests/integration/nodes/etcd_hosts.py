"""A job whose register is a real etcd of three servers, and what must hold of it at its end.

Rules
- The servers are on hosts of their own, or on the hosts of the job; the job's hosts are `host1`
  and so on. Jobs that share the servers have names of their own.
- Beside what holds of every job (`story.py`, `nodes_job.py`), each test that ends checks:
  - The document only ever went forward: instance and epoch, round and charges, each version
    written on top of the one before, and by a node that led.
  - No node did anything because of a message of a term older than one that it had heard of.
  - Of the whole job nothing is left in etcd but the document, with its outcome, and that will
    be forgotten within a minute.

How it works: the tests ask the servers through Unix sockets, whatever is cut or parted. etcd
still knows all older versions of a key, so that each version of the document can be looked at
when all is over. Times are those of the boot clock, which journals use too, and which is one
for all hosts.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.core.node_io import Told
from holdfast.core.protocol.document import LIMIT_BYTES, Document, Ledger, decode
from holdfast.core.protocol.model import Term
from holdfast.engine.sentences import LEADS
from holdfast.observe import journal

from ...etcd_cluster import QUICK_ELECTIONS, EtcdCluster, EtcdOptions, EtcdPlace
from ...waiting import until
from .hosts import Host
from .nodes_job import Agent, NodesJob

CLIENT_PORT, PEER_PORT = 2379, 2380
SERVERS = 3
FOLDER = "/holdfast"
REMEMBERED_S = 60
# A module that takes as long to import as the test wants.
WAIT_FOR_THE_OTHERS = """
import os, time
while not os.path.exists(os.environ["WAITS_FOR"]):
    time.sleep(0.02)
"""


def boot_time() -> float:
    """Now, on the clock of the journals."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def cluster_on(hosts: list[Host], folder: Path) -> EtcdCluster:
    """One server on each of these hosts."""
    places = [EtcdPlace(host.address, host.entry, CLIENT_PORT, PEER_PORT) for host in hosts]
    return EtcdCluster(folder, options=EtcdOptions(arguments=QUICK_ELECTIONS), places=places)


class Version(NamedTuple):
    """The document as it was from one revision of etcd on."""

    document: Document
    revision: int
    created: int
    lease: int
    size: int


class Takeover(NamedTuple):
    """How long after a moment a new coordinator was there, in seconds."""

    began: float
    """Until it had claimed the place."""
    first_told: float
    """Until the first of the others had heard from it."""
    all_told: float
    """Until the last of them had, but for the one that was lost."""

    def __str__(self) -> str:
        return (
            f"claimed after {self.began:.3f} s, first push {self.first_told:.3f} s, "
            f"all told {self.all_told:.3f} s"
        )


class EtcdJob(NodesJob):
    """A job of which any node can carry the coordinator."""

    def __init__(
        self, hosts: list[Host], folder: Path, holdfast: Path, cluster: EtcdCluster
    ) -> None:
        super().__init__(hosts, folder, holdfast)
        self.cluster = cluster
        self.endpoint = cluster.endpoints
        self.run_id = f"job-{uuid.uuid4().hex[:8]}"

    def start(self, host: Host, *words: str, env: Mapping[str, str] | None = None) -> Agent:
        return super().start(host, "--rdzv-backend=etcd", *words, env=env)

    def start_with_a_leader_that_stands_by(self, *words: str) -> tuple[Agent, list[Agent], int]:
        """Start three nodes for a round of two, of which the first leads and has no seat.

        It gets ready only when the round of the two others is full. Returns it, the others, and
        the number of the round.
        """
        (self.folder / "wait_for_the_others.py").write_text(WAIT_FOR_THE_OTHERS)
        slow = {"PYTHONPATH": str(self.folder), "WAITS_FOR": str(self.folder / "go")}
        words = ("--nnodes=1:2", *words)
        first = self.start(self.hosts[0], *words, "--preload=wait_for_the_others", env=slow)
        assert self.leader() is first
        others = [self.start(host, *words) for host in self.hosts[1:]]
        number = self.until_stepping(world=2)
        (self.folder / "go").touch()
        self.until(lambda: "stand" in first.stderr, "the coordinator's node to stand by")
        return first, others, number

    def left(self) -> list[str]:
        """The servers are not the job's, even where they run on its hosts."""
        servers = {str(server.pid) for server in self.cluster.servers if server.is_running}
        return [line for line in super().left() if line.split()[1] not in servers]

    # --- who leads --------------------------------------------------------------------------

    def document(self) -> Document | None:
        """What the register holds now."""
        version = self.version()
        return version.document if version else None

    def ledger(self) -> Ledger:
        """What is written down of the job, once something is."""
        document = self.document()
        assert document is not None
        return document.ledger

    def version(self, revision: int = 0) -> Version | None:
        """The document, as it is now or as it was at an older revision."""
        key = base64.b64encode(f"{FOLDER}/{self.run_id}/document".encode()).decode()
        found = self._ask("/v3/kv/range", {"key": key, "revision": str(revision)}).get("kvs", [])
        return _version(found[0]) if found else None

    def _ask(self, path: str, body: dict[str, str]) -> dict[str, Any]:
        """The answer of the first server that has one."""
        error = OSError("no server runs")
        for server in self.cluster.servers:
            if not server.is_running:
                continue
            try:
                answer: dict[str, Any] = server.ask(path, body)
                return answer
            except OSError as problem:
                error = problem
        raise error

    def agent_of(self, document: Document) -> Agent | None:
        """The agent that leads, if one does: the last one that was started on its host."""
        place = document.addresses.get(document.leader)
        found = [a for a in self.agents if place is not None and a.host.address == place.address]
        return found[-1] if found else None

    def leader(self, after_epoch: int = 0) -> Agent:
        """The agent that carries the coordinator, once one does under a later epoch."""
        found: list[Agent] = []

        def look() -> bool:
            document = self.document()
            if document is not None and document.epoch > after_epoch:
                agent = self.agent_of(document)
                if agent is not None and agent.process.poll() is None and LEADS in agent.stderr:
                    found.append(agent)
            return bool(found)

        self.until(look, f"a coordinator after epoch {after_epoch}")
        return found[0]

    def epoch(self) -> int:
        document = self.document()
        return document.epoch if document else 0

    def others(self, agent: Agent) -> list[Agent]:
        """All agents that run, but this one."""
        return [a for a in self.agents if a is not agent and a.process.poll() is None]

    def pids(self) -> dict[int, int]:
        """The workers of the newest round, by rank."""
        return {worker.rank: worker.pid for worker in self.workers(self.newest())}

    # --- measured, never judged -------------------------------------------------------------

    def takeover(self, since: float, lost: Agent) -> Takeover:
        """What the journals say of the first takeover after a moment in which one was lost."""
        beginnings = [
            (step.at, header.node, step.beginning.term)
            for header, steps in self.journals()
            for step in steps
            if isinstance(step, journal.CoordinatorBegan) and step.at > since
        ]
        began, leader, term = min(beginnings, key=lambda beginning: beginning[0])
        told = [
            _first_told(steps, term)
            for header, steps in self.journals()
            if header.node != leader and header.host != lost.host.name
        ]
        heard = [at - since for at in told if at is not None]
        return Takeover(began - since, min(heard), max(heard))

    # --- the end ----------------------------------------------------------------------------

    def check(self) -> None:
        super().check()
        self.check_history()
        self.check_obedience()

    def finish(self, *agents: Agent) -> None:
        super().finish(*agents)
        self.check_what_is_left_in_etcd()

    def check_history(self) -> None:
        """The document went forward only, one write at a time."""
        versions = list(self.history())
        assert versions, "there is no document"
        for newer, older in pairwise(versions):
            new, old = newer.document, older.document
            order = (old.term, old.ledger.round), (new.term, new.ledger.round)
            assert order[0] <= order[1], f"{old}\n{new}"
            assert old.ledger.round <= new.ledger.round, f"{old}\n{new}"
            assert old.ledger.charges <= new.ledger.charges, f"{old}\n{new}"
            is_forgotten = new == old  # Only its lease has changed.
            assert is_forgotten or new.counter == old.counter + 1, f"{old}\n{new}"
            leads = new.leader or old.leader
            assert is_forgotten or new.nonce.startswith(f"{leads}/"), f"{old}\n{new}"
        assert max(version.size for version in versions) <= LIMIT_BYTES

    def history(self) -> Iterator[Version]:
        """All versions of the document, the newest first."""
        version = self.version()
        while version is not None:
            yield version
            if version.revision == version.created:
                return
            version = self.version(version.revision - 1)

    def check_obedience(self) -> None:
        """Nobody did anything because of a message from a term that was over."""
        for header, steps in self.journals():
            highest = Term()
            for step in steps:
                if isinstance(step, journal.NodeStep) and isinstance(step.event, Told):
                    term = step.event.term
                    obeyed = term < highest and step.effects
                    assert not obeyed, f"{header.node} obeyed {step} after term {highest}"
                    highest = max(highest, term)

    def check_what_is_left_in_etcd(self) -> None:
        """The outcome, for a minute; soon nothing else."""
        until(lambda: list(self.keys()) == ["document"], "the end of all but the outcome")
        version = self.version()
        assert version is not None
        assert version.document.ledger.outcome is not None, version
        assert 0 < self.lease_s(version) <= REMEMBERED_S

    def keys(self) -> dict[str, bytes]:
        """All that etcd has of this job, by the last part of its key."""
        first, end = f"{FOLDER}/{self.run_id}/", f"{FOLDER}/{self.run_id}0"
        body = {
            "key": base64.b64encode(first.encode()).decode(),
            "range_end": base64.b64encode(end.encode()).decode(),
        }
        pairs = self._ask("/v3/kv/range", body).get("kvs", [])
        decode64 = base64.b64decode
        return {
            decode64(p["key"]).decode().removeprefix(first): decode64(p["value"]) for p in pairs
        }

    def lease_s(self, version: Version) -> int:
        """How many seconds etcd will still keep the document if nobody does anything."""
        if not version.lease:
            return -1
        return int(self._ask("/v3/lease/timetolive", {"ID": str(version.lease)})["TTL"])

    def record(self) -> str:
        """With what the register holds, as far as it can be had."""
        try:
            document: object = self.document()
        except OSError as error:
            document = error
        return f"{super().record()}\n--- {self.run_id} in etcd\n{document}"


def _version(pair: dict[str, Any]) -> Version:
    content = base64.b64decode(pair["value"])
    return Version(
        decode(content),
        int(pair["mod_revision"]),
        int(pair["create_revision"]),
        int(pair.get("lease", 0)),
        len(content),
    )


def _first_told(steps: list[journal.Step], term: Term) -> float | None:
    for step in steps:
        if not isinstance(step, journal.NodeStep):
            continue
        if isinstance(step.event, Told) and step.event.term == term:
            return step.at
    return None
