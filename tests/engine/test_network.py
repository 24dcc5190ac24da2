"""Nodes that really meet: over sockets, with a claim and a record, at an endpoint of loopback."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core.policy.config import JobConfig, Rendezvous
from holdfast.core.protocol.document import Document, Ledger
from holdfast.core.protocol.model import Endpoint
from holdfast.engine import sentences
from holdfast.engine.endpoint_host import EndpointClaim, RecordFile
from holdfast.engine.network import Means, RealNetwork, add_network
from holdfast.engine.ports import Ports
from holdfast.engine.secrets import Secrets
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import EventLoop
from holdfast.transport.auth import OPEN

from ..free_ports import free_port
from ..waiting import loop_until
from .by_hand import Node, World, job

DEADLINE_S = 60.0


class RealWorld:
    """A loop, a disk beside it, and what is to be closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.loop = EventLoop()
        self.said: list[str] = []
        self.disk = Disk(self.loop, self.said.append)
        self.closing: list[Callable[[], None]] = []
        self.config: JobConfig = job(
            2,
            rendezvous=Rendezvous("c10d", f"127.0.0.1:{free_port()}"),
            local_address="127.0.0.1",
            snapshot_dir=str(folder),
        )

    def until(self, condition: Callable[[], object]) -> None:
        loop_until(self.loop, condition)

    def claim(self, node: str) -> EndpointClaim:
        made = EndpointClaim(self.loop, self.config, node, OPEN, self.said.append)
        self.closing.append(made.close)
        return made

    def record(self) -> RecordFile:
        return RecordFile(self.config, self.disk, self.said.append)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RealWorld]:
    made = RealWorld(tmp_path)
    yield made
    for close in reversed(made.closing):
        close()
    made.disk.close()
    made.loop.close()


class Quiet:
    """Nobody comes to this exchange."""

    def on_message(self, node: str, message: object) -> None: ...
    def on_lost(self, node: str, reason: str) -> None: ...
    def on_tether(self, node: str) -> None: ...
    def on_tether_ended(self, node: str, clean: bool) -> None: ...


def take(world: RealWorld, claim: EndpointClaim) -> str:
    found: list[str] = []
    claim.take(lambda: found.append("here"), lambda: found.append("elsewhere"))
    world.until(lambda: found)
    return found[0]


def test_of_two_nodes_one_has_the_claim_and_the_other_when_it_is_released(
    world: RealWorld,
) -> None:
    first, second = world.claim("a"), world.claim("b")
    assert take(world, first) == "here"
    assert take(world, second) == "elsewhere"
    first.close()
    assert take(world, second) == "here"
    assert take(world, first) == "elsewhere"


def test_a_node_that_is_told_not_to_host_never_takes_the_place(world: RealWorld) -> None:
    world.config = job(2, rendezvous=world.config.rendezvous, is_host=False)
    assert take(world, world.claim("a")) == "elsewhere"


def test_whoever_dials_the_endpoint_reaches_the_exchange_that_is_served(world: RealWorld) -> None:
    claim = world.claim("a")
    assert take(world, claim) == "here"
    exchange = RealNetwork(world.loop, world.config, "a", OPEN, world.disk).exchange(Quiet())
    world.closing.append(exchange.close)
    claim.serve(exchange)
    assert claim.endpoint == Endpoint.parse(world.config.rendezvous.endpoint)
    assert any(sentences.LEADS in text for text in world.said)
    heard: list[str] = []

    class Line:
        def on_connected(self, local_address: str) -> None:
            heard.append(local_address)

        def on_line_lost(self, reason: str, permanent: bool) -> None: ...
        def on_unusable(self, error: object) -> None: ...
        def on_told(self, term: object, message: object) -> None: ...
        def on_own_tether(self, tether: int) -> None:
            world.closing.append(lambda: os.close(tether))

    line = RealNetwork(world.loop, world.config, "b", OPEN, world.disk).line(Line())
    world.closing.append(line.close)
    line.dial((claim.endpoint,), DEADLINE_S)
    world.until(lambda: heard)
    assert heard == ["127.0.0.1"]


def test_a_record_is_read_by_the_next_life_of_the_job(world: RealWorld) -> None:
    found: list[Document | None] = []
    problems: list[str] = []
    record = world.record()
    record.read(found.append)
    world.until(lambda: found)
    document = Document(7, 2, 1, "a/1", "a", ledger=Ledger(round=3))
    record.write(document, problems.append)
    world.until(lambda: problems)
    world.record().read(found.append)
    world.until(lambda: len(found) == 2)
    assert found == [None, document]
    assert problems == [""]
    record.remove()
    world.record().read(found.append)
    world.until(lambda: len(found) == 3)
    assert found[-1] is None


def test_a_record_that_cannot_be_written_says_why(world: RealWorld, tmp_path: Path) -> None:
    folder = tmp_path / "records"
    world.config = job(2, rendezvous=world.config.rendezvous, snapshot_dir=str(folder))
    found: list[Document | None] = []
    problems: list[str] = []
    record = world.record()
    record.read(found.append)
    world.until(lambda: found)
    shutil.rmtree(folder)
    folder.write_text("no folder any more")
    record.write(Document(7, 2, 1, "a/1", "a"), problems.append)
    world.until(lambda: problems)
    assert str(folder) in problems[0]


class OnALoop(World):
    """Time passes by itself."""

    def __init__(self, loop: EventLoop) -> None:
        super().__init__()
        self.clock = loop  # type: ignore[assignment]

    def pass_time(self, seconds: float = 0.0) -> None:
        assert seconds == 0.0, "nobody can make it pass"


class RealNode(Node):
    """An engine with processes by hand, that meets others over sockets."""

    def __init__(self, real: RealWorld, name: str) -> None:
        self._real = real
        super().__init__(OnALoop(real.loop), name, real.config, "real")

    def add_ports(self, ports: Ports, way: str) -> None:
        real = self._real
        add_network(ports, real.config, self.name, Means(real.loop, real.disk, Secrets()))
        real.closing.append(self.close)

    def close(self) -> None:
        self.engine.close()
        for tether in self.tethers:
            os.close(tether)

    def share_tethers(self, tethers: list[int]) -> None:
        self.tethers += tethers


def test_two_engines_meet_over_sockets_and_finish_together(world: RealWorld) -> None:
    first, second = (RealNode(world, name) for name in "ab")
    for node in (first, second):
        node.begin()
    world.until(lambda: first.workers and second.workers)
    assert sorted(node.leads for node in (first, second)) == [False, True]
    second.end(0, 1)
    world.until(lambda: first.round == second.round == 2 and first.workers and second.workers)
    for node in (first, second):
        node.succeed()
    world.until(lambda: first.outcomes and second.outcomes)
    world.until(lambda: not first.engine.is_needed and not second.engine.is_needed)
    assert {node.outcomes[0].verdict for node in (first, second)} == {"succeeded"}
