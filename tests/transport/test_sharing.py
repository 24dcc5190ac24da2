"""Several jobs behind one endpoint: each node reaches its own coordinator."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Endpoint
from holdfast.transport import sentences, sharing
from holdfast.transport.auth import OPEN, ConnectionSecurity
from holdfast.transport.handshake import ADVICE
from holdfast.transport.server import Server
from holdfast.transport.sharing import EndpointShare, take_share

from ..another_user import HOLDS_NAMES, STRANGER, another_user
from ..free_ports import free_port
from .conftest import Certificates
from .stage import DEADLINE_S, LOOPBACK, Agent, Coordinator, Stage

SECRET = ConnectionSecurity(b"a secret token")


class Carrier:
    """A coordinator of one job at the endpoint, on the stage's loop."""

    def __init__(
        self, stage: Stage, job: str, share: EndpointShare, security: ConnectionSecurity
    ) -> None:
        self.coordinator, self.share = Coordinator(), share
        self.said: list[str] = []
        self.server = Server(stage.loop, job, security, self.coordinator, stage.spaces)
        self.coordinator.server = self.server
        share.serve(stage.loop, self.server, self.said.append)

    def close(self) -> None:
        self.server.close()
        self.share.close()


Carry = Callable[..., Carrier]


@pytest.fixture
def place() -> Endpoint:
    return Endpoint(LOOPBACK, free_port())


@pytest.fixture
def carry(stage: Stage, place: Endpoint) -> Iterator[Carry]:
    carriers: list[Carrier] = []

    def one(job: str, security: ConnectionSecurity = OPEN) -> Carrier:
        share = take_share(place, job, None, security.tls is None)
        assert share is not None, f"{job} cannot be carried"
        carriers.append(Carrier(stage, job, share, security))
        return carriers[-1]

    yield one
    for carrier in carriers:
        carrier.close()


def joined(
    stage: Stage,
    place: Endpoint,
    carrier: Carrier,
    node: str,
    job: str,
    security: ConnectionSecurity = OPEN,
) -> Agent:
    """An agent that has reached this carrier."""
    agent = stage.agent(node, security, job)
    agent.client.dial((place,), DEADLINE_S)
    stage.until(lambda: agent.lost or node in carrier.coordinator.tethered)
    assert agent.lost == []
    return agent


def test_nodes_of_two_jobs_reach_their_own_coordinators(
    stage: Stage, place: Endpoint, carry: Carry
) -> None:
    first, second = carry("first"), carry("second", SECRET)
    assert first.said == []
    assert second.said == [sentences.serves_others(place, 1)]
    assert carry("third").said == [sentences.serves_others(place, 2)]
    one = joined(stage, place, first, "one", "first")
    two = joined(stage, place, second, "two", "second", security=SECRET)
    for agent, carrier in ((one, first), (two, second)):
        assert carrier.server.nodes == {agent.node}
        agent.tethers.pop().close()
        heard = carrier.coordinator
        stage.until(partial(bool, heard.tethers_ended))
        assert heard.tethers_ended == [(agent.node, True)]
        agent.client.close()
        stage.until(partial(bool, heard.lost))


def test_a_job_that_shares_its_port_keeps_its_own_secret(
    stage: Stage, place: Endpoint, carry: Carry
) -> None:
    carry("first")
    second = carry("second", SECRET)
    stranger = stage.agent("stranger", job="second")
    stranger.client.dial((place,), DEADLINE_S)
    stage.until(lambda: stranger.lost)
    assert "requires a token" in stranger.lost[0][0]
    assert second.server.rejected == {"token": 1}


ASKS = """
import sys
from holdfast.store.client import CoordinatorStore
from holdfast.core.protocol.model import Endpoint
with CoordinatorStore(Endpoint(sys.argv[1], int(sys.argv[2])), "second") as store:
    store.set("key", b"value")
    print(store.get("key"))
"""


def test_the_store_of_a_job_that_shares_its_port_is_its_own(
    stage: Stage, place: Endpoint, carry: Carry
) -> None:
    carry("first")
    carry("second")
    stage.spaces.open(1)
    command = [sys.executable, "-c", ASKS, place.address, str(place.port)]
    told: list[bytes] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        number = client.stdout.fileno()
        stage.loop.add_reader(number, lambda: told.append(os.read(number, 1000)))
        stage.until(lambda: told)
        stage.loop.remove_reader(number)
    assert told[0].startswith(b"b'value'")


def test_each_host_hands_over_what_is_for_the_others(
    stage: Stage, place: Endpoint, carry: Carry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel deals connections out: both get one of the other's, sooner or later."""
    first, second = carry("first"), carry("second")
    handed: set[str] = set()
    hand_over = EndpointShare.hand_over

    def watched(share: EndpointShare, job: str, descriptor: int, opening: bytes) -> bool:
        handed.add(job)
        return hand_over(share, job, descriptor, opening)

    monkeypatch.setattr(EndpointShare, "hand_over", watched)
    dialled = 0
    while handed != {"first", "second"}:
        joined(stage, place, first, f"node {dialled}", "first")
        joined(stage, place, second, f"node {dialled}", "second")
        dialled += 1
    assert len(first.server.nodes) == len(second.server.nodes) == dialled


def test_a_job_does_not_notice_when_another_ends_that_shares_its_port(
    stage: Stage, place: Endpoint, carry: Carry
) -> None:
    first, second, third = carry("first"), carry("second"), carry("third")
    two = joined(stage, place, second, "two", "second")
    three = joined(stage, place, third, "three", "third")
    first.close()
    joined(stage, place, second, "late two", "second")
    joined(stage, place, third, "late three", "third")
    for agent, carrier in ((two, second), (three, third)):
        assert agent.node in carrier.server.nodes
        assert agent.lost == []
        assert carrier.coordinator.tethers_ended == []
    joined(stage, place, carry("first"), "one", "first")


def test_one_process_of_this_machine_carries_a_job(place: Endpoint, carry: Carry) -> None:
    first, second = carry("first"), carry("second")
    for job in ("first", "second"):
        for is_host in (None, True):
            assert take_share(place, job, is_host, may_share=True) is None
    second.close()
    first.close()
    for job in ("second", "first"):
        carry(job)


def test_a_job_that_nobody_carries_here_is_told_who_is_served_and_what_to_do(
    stage: Stage, place: Endpoint, carry: Carry
) -> None:
    first = carry("first")
    agent = stage.agent("node", job="second")
    agent.client.dial((place,), DEADLINE_S)
    stage.until(lambda: agent.lost)
    assert first.said == []
    words = f"{place}: this coordinator serves job first, not second ({ADVICE})"
    assert agent.lost == [(words, False)]


def test_a_port_of_another_program_is_not_shared(place: Endpoint) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((place.address, place.port))
        other.listen()
        assert take_share(place, "job", None, may_share=True) is None
        with pytest.raises(UsageError, match="cannot listen"):
            take_share(place, "job", True, may_share=True)
    share = take_share(place, "job", True, may_share=True)
    assert share is not None
    share.close()


def test_a_job_with_tls_shares_with_nobody(
    stage: Stage, place: Endpoint, carry: Carry, certificates: Certificates
) -> None:
    secure = ConnectionSecurity(tls=certificates.files())
    carry("first", secure)
    assert take_share(place, "second", None, may_share=True) is None
    with pytest.raises(UsageError, match="cannot listen"):
        take_share(place, "second", True, may_share=True)
    agent = stage.agent("node", job="second")
    agent.client.dial((place,), DEADLINE_S)
    stage.until(lambda: agent.lost)
    assert sentences.other_job("first", "second") in agent.lost[0][0]


def test_a_program_that_shares_its_port_with_anybody_is_no_job_of_ours(place: Endpoint) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind((place.address, place.port))
        other.listen()
        assert take_share(place, "job", None, may_share=True) is None
        with pytest.raises(UsageError, match="cannot listen"):
            take_share(place, "job", True, may_share=True)


def test_a_job_with_tls_does_not_share_with_one_without(place: Endpoint, carry: Carry) -> None:
    carry("first")
    assert take_share(place, "second", None, may_share=False) is None


def test_a_fork_keeps_neither_claim_nor_port(place: Endpoint, carry: Carry) -> None:
    first, second = carry("first"), carry("second")
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        os.write(tell, b"ready")
        signal.pause()
        os._exit(0)
    os.read(ready, 5)
    os.close(ready)
    os.close(tell)
    try:
        second.close()
        first.close()
        # A port that the fork still had would be taken: nobody has the claim of a job there.
        assert carry("second").said == []
        carry("first")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.root
def test_another_user_does_not_share_the_port(stage: Stage, place: Endpoint, carry: Carry) -> None:
    carry("first")
    child = os.fork()
    if not child:
        os.setuid(65534)
        os._exit(take_share(place, "second", None, may_share=True) is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    joined(stage, place, carry("second"), "node", "second")


def test_nonsense_that_is_handed_in_disturbs_nobody(
    stage: Stage, place: Endpoint, carry: Carry
) -> None:
    carry("first")
    second = carry("second")
    agent = joined(stage, place, second, "node", "second")
    for word, has_descriptor in ((b"nonsense", True), (b"nothing else", False), (b"", False)):
        line = sharing._connected(sharing._claim_on(place.port, "second"))
        assert line is not None
        ours, theirs = socket.socketpair()
        with line, ours, theirs:
            if word:
                socket.send_fds(line, [word], [theirs.fileno()] if has_descriptor else [])
    stage.until(lambda: second.server.rejected["garbage"] == 1 and not second.share._inlets)
    assert agent.node in second.server.nodes


@pytest.mark.root
@pytest.mark.parametrize("listens", [True, False], ids=["listening", "mute"])
def test_a_name_that_another_user_has_taken_does_not_keep_a_job_from_hosting(
    stage: Stage, place: Endpoint, carry: Carry, listens: bool
) -> None:
    name = sharing._claim_on(place.port, "job").removeprefix("\0")
    code = HOLDS_NAMES if listens else HOLDS_NAMES.replace("sock.listen(64)", "pass")
    with another_user(code, name):
        hosting = carry("job")
        whose = f"uid {STRANGER}" if listens else "a program that does not answer"
        (told,) = hosting.said
        assert whose in told
        joined(stage, place, hosting, "node", "job")
        assert take_share(place, "job", None, may_share=True) is None, "the port is taken"


@pytest.mark.root
def test_whose_a_taken_name_is_stands_beside_a_port_that_cannot_be_had(place: Endpoint) -> None:
    name = sharing._claim_on(place.port, "job").removeprefix("\0")
    with another_user(HOLDS_NAMES, name), socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((place.address, place.port))
        other.listen()
        with pytest.raises(UsageError, match=f"uid {STRANGER}"):
            take_share(place, "job", True, may_share=True)


@pytest.mark.root
def test_another_user_who_has_the_name_of_a_claim_gets_no_connection(
    stage: Stage, place: Endpoint, carry: Carry
) -> None:
    holder = carry("first")
    with another_user(HOLDS_NAMES, sharing._claim_on(place.port, "second").removeprefix("\0")):
        agent = stage.agent("node", job="second")
        agent.client.dial((place,), DEADLINE_S)
        stage.until(lambda: agent.lost)
    assert sentences.other_job("first", "second") in agent.lost[0][0]
    assert not holder.server.nodes
