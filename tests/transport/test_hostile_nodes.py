"""Whatever an admitted node says, it alone is refused: the job goes on, and ends well.

One coordinator of a real job (leases, record, sockets), honest nodes in a running round, and one
client that went through the handshake and then lies.
"""

from __future__ import annotations

import math
import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.membership import NodeGone
from holdfast.core.policy.config import Leases
from holdfast.core.policy.sentences import ALL_ENDED, silent
from holdfast.core.protocol.messages import (
    ClosingWanted,
    FailuresDescribed,
    FromNode,
    Heartbeat,
    NodeDraining,
    NodeGreeted,
    NodeJoined,
    NodeLeft,
    RoundReport,
    RoundStopped,
    Seen,
    WorkersFailed,
    WorkersProgressed,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import (
    Endpoint,
    ErrorDetail,
    ExitStatus,
    Failure,
    NodeInfo,
    Outcome,
    Term,
)
from holdfast.transport.auth import OPEN, ConnectionSecurity

from .conftest import Certificates
from .hosted import HOST, INSTANCE, Hosted, config
from .stage import LOOPBACK, Stage

INFO = NodeInfo("mallory", "machine-mallory", slots=1)
GREETING = NodeGreeted(INFO, heartbeat=1)
PLACE = Endpoint(LOOPBACK, 4000)
FORGED = Failure(
    "good", "machine-good", 0, 1, "default", 1, ExitStatus(code=1), 1.0,
    ErrorDetail("Forged: not so", non_retryable=True),
)  # fmt: skip
OWN = replace(FORGED, node="mallory", host="machine-mallory", rank=2)
MUCH = "x" * 1_000_000


@pytest.fixture
def job(stage: Stage, tmp_path: Path) -> Hosted:
    job = Hosted(stage, tmp_path, settings=config(2, 3))
    job.start("good")
    return job


def greeted(**changes: object) -> NodeGreeted:
    return replace(GREETING, **changes)


def introduced(**changes: object) -> NodeGreeted:
    return greeted(info=replace(INFO, **changes))


def seen(instance: int, epoch: int = 1, round: int = 1, charges: int = 0) -> NodeGreeted:
    return greeted(seen=Seen(Term(instance, epoch), round, charges))


def placed(address: str, port: int) -> tuple[FromNode, ...]:
    return (greeted(endpoint=Endpoint(address, port)),)


def failed(**changes: object) -> tuple[FromNode, ...]:
    return (GREETING, WorkersFailed(1, (replace(OWN, **changes),)))


REFUSED: dict[str, tuple[FromNode, ...]] = {
    "a greeting under a name that nobody has": (introduced(node="nobody"),),
    "a greeting under another node's name": (introduced(node="good"),),
    "a greeting under the host's name": (introduced(node=HOST),),
    "a join under another node's name": (GREETING, NodeJoined(replace(INFO, node="good"), PLACE)),
    "a join under a name that nobody has": (GREETING, NodeJoined(replace(INFO, node="?"), PLACE)),
    "a join without a greeting": (NodeJoined(INFO, PLACE),),
    "a round of 2**64": (seen(INSTANCE, round=2**64 - 1),),
    "a round that leaves no room to count on": (seen(INSTANCE, round=2**53),),
    "an epoch of 2**64": (seen(INSTANCE, epoch=2**64 - 1),),
    "an epoch that leaves no room to count on": (seen(INSTANCE, epoch=2**53),),
    "an instance of 2**64": (seen(2**64 - 1),),
    "an instance of no time": (seen(2**53),),
    "a round below zero": (seen(INSTANCE, round=-1),),
    "a step of 2**63": (GREETING, WorkersProgressed(1, 2**63)),
    "a heartbeat of 2**64": (GREETING, Heartbeat(2**64 - 1)),
    "a megabyte of reason to leave": (GREETING, NodeLeft(MUCH)),
    "a megabyte of reason to drain": (GREETING, NodeDraining(MUCH)),
    "a greeting with a megabyte of reason": (greeted(draining=MUCH),),
    "a host with a name of 900 KB": (introduced(host="h" * 900_000),),
    "a host with a line of its own": (introduced(host="a\nholdfast: the job succeeded"),),
    "a host that moves the cursor": (introduced(host="\x1b[2Ja"),),
    "a role of 900 KB": (introduced(role="r" * 900_000),),
    "ten thousand slots": (introduced(slots=10_000),),
    "no slot": (introduced(slots=0),),
    "a rank below zero": (introduced(rank_hint=-(2**40)),),
    "an address with a NUL": placed("10.0.0.1\0", 4000),
    "an address with a newline": placed("10.0.0.1\nMASTER_PORT=1", 4000),
    "an address with a blank": placed("10.0.0.1 x", 4000),
    "a port below zero": placed("10.0.0.1", -5),
    "a port above all": placed("10.0.0.1", 99999999999),
    "a failure at NaN": failed(observed_at=math.nan),
    "a failure at infinity": failed(wall_time=math.inf),
    "an error before all time": failed(error=ErrorDetail(timestamp=-math.inf)),
    "a signal that there is not": failed(status=ExitStatus(signal=4711)),
    "a signal below zero": (GREETING, NodeLeft("bye", signal=-1)),
    "a rank above all": failed(rank=2**40),
    "failures described before a greeting": (FailuresDescribed(1, (FORGED,)),),
    "an end wanted before a greeting": (ClosingWanted(Outcome("failed", "by me", 1)),),
    "progress before a greeting": (WorkersProgressed(1, 10**9),),
    "success before a greeting": (WorkersSucceeded(1),),
    "a failure before a greeting": (WorkersFailed(1, (OWN,)),),
    "a stop before a greeting": (RoundStopped(1, (), PLACE),),
    "a drain before a greeting": (NodeDraining("why not"),),
    "a good end that is wanted": (GREETING, ClosingWanted(Outcome("succeeded", "all well", 0))),
    "another node's failure": (GREETING, WorkersFailed(1, (FORGED,))),
    "another node's failure described": (GREETING, FailuresDescribed(1, (FORGED,))),
    "another node's failure on leaving": (GREETING, NodeLeft("bye", failures=(FORGED,))),
    "another node's failure in a greeting": (
        greeted(report=RoundReport(1, 0, 2, "failed", (FORGED,), INSTANCE)),
    ),
}
IGNORED: dict[str, tuple[FromNode, ...]] = {
    "a failure of a round that it is not in": (GREETING, WorkersFailed(1, (OWN,))),
    "a description of a round that it is not in": (GREETING, FailuresDescribed(1, (OWN,))),
    "progress of a round that it is not in": (GREETING, WorkersProgressed(1, 10**9)),
    "success in a round that it is not in": (GREETING, WorkersSucceeded(1)),
    "leaving a round that it is not in": (GREETING, NodeLeft("bye", failures=(OWN,))),
    "a seat that is another's": (greeted(report=RoundReport(1, 1, 2, "stopped", (), INSTANCE)),),
    "a round of a million nodes": (
        greeted(report=RoundReport(1, 0, 1_000_000, "running", (), INSTANCE)),
    ),
    "a million charges": (seen(INSTANCE, charges=1_000_000),),
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
def test_who_says_this_is_refused_and_nobody_else_notices(
    job: Hosted, words: tuple[FromNode, ...]
) -> None:
    raw = job.attack(*words)
    job.stage.until(lambda: raw.is_ended)
    assert sum(job.server.rejected.values()) == 1, "nobody counted it"
    job.goes_on()


@pytest.mark.parametrize("words", IGNORED.values(), ids=IGNORED)
def test_this_counts_for_nothing(job: Hosted, words: tuple[FromNode, ...]) -> None:
    job.attack(*words)
    state = job.coordinating.state
    assert state.group.round is not None
    assert (state.group.round.failures, state.group.round.furthest_step) == ({}, None)
    assert not state.group.round.seats.succeeded
    assert state.group.round.is_whole, "nobody has ended it"
    job.goes_on()


@pytest.mark.parametrize("name", [HOST, "good"])
@pytest.mark.parametrize(
    "word", [NodeLeft("bye"), GREETING, WorkersSucceeded(1), RoundStopped(1, (), PLACE)], ids=repr
)
def test_a_name_belongs_to_whoever_was_admitted_with_it_first(
    job: Hosted, name: str, word: FromNode
) -> None:
    if isinstance(word, NodeGreeted):
        word = replace(word, info=replace(INFO, node=name))
    raw = job.attack(word, name=name)
    job.stage.until(lambda: raw.is_ended)
    assert job.server.rejected == {"name": 1}
    job.goes_on()


def test_who_comes_again_shows_that_it_is_the_same(job: Hosted) -> None:
    good = job.nodes["good"]
    assert good.client is not None
    good.client.dial((job.stage.endpoint,), 40.0)
    job.stage.until(lambda: len(good.rounds) == 2)
    good.is_answered()
    assert job.server.rejected == {}
    assert [seat.round for seat in good.rounds] == [1, 1]


@pytest.mark.parametrize("epoch", [2**64 - 1, 2**63, 2**53, 10**7])
def test_no_number_goes_into_the_record_that_the_next_host_could_not_count_on(
    stage: Stage, tmp_path: Path, epoch: int
) -> None:
    job = Hosted(stage, tmp_path)
    job.nodes[HOST].greet()
    job.attack(seen(INSTANCE, epoch=epoch, round=epoch))
    job.coordinating.close()
    job.server.close()
    later = Hosted(stage, tmp_path)
    later.start("good")
    assert later.round < 10**7
    later.goes_on()


def test_progress_that_was_made_up_leaves_later_rounds_their_own(job: Hosted) -> None:
    job.attack(GREETING, WorkersProgressed(1, 2**50))
    for step, name in enumerate(("good", HOST, "good"), start=1):
        job.nodes["good"].say(WorkersProgressed(job.round, 10 * step))
        job.nodes["good"].is_answered()
        job.nodes[name].fail()
        job.until_running(step + 1)
    assert job.coordinating.state.group.budget.fruitless == 0
    job.goes_on(rounds=4)


SHORT = Leases(lease_s=2.0, heartbeat_s=0.5, kill_margin_s=0.5, suspect_s=1.0, reconnect_s=0.2)


def cut_off(stage: Stage, folder: Path, security: ConnectionSecurity) -> list[str]:
    """One on the path ends all connections in order. Why the node counts as gone."""
    job = Hosted(stage, folder, security, replace(config(2, 2), leases=SHORT))
    job.start("good")
    good = job.nodes.pop("good")
    if security.tls is None:
        stage.until(lambda: good.tethers)
        good.tethers[0].shutdown(socket.SHUT_WR)
    assert good.client is not None
    good.client.close()

    def beat() -> None:
        job.nodes[HOST].say(Heartbeat(9))
        job.beating = stage.loop.call_later(SHORT.heartbeat_s, beat)

    beat()
    stage.until(lambda: any(isinstance(event, NodeGone) for event in job.events))
    job.beating.cancel()
    return [event.reason for event in job.events if isinstance(event, NodeGone)]


def test_the_end_of_a_tether_is_proof_where_the_network_is_trusted(
    stage: Stage, tmp_path: Path
) -> None:
    assert cut_off(stage, tmp_path, OPEN) == [ALL_ENDED]


def test_with_tls_the_end_of_connections_is_forged_in_vain(
    stage: Stage, tmp_path: Path, certificates: Certificates
) -> None:
    """Two rounds would run at once: its lease is waited for, whatever TCP says."""
    secure = ConnectionSecurity(b"a secret token", certificates.files())
    (reason,) = cut_off(stage, tmp_path, secure)
    assert reason.startswith(silent(12.0).partition("12")[0])
