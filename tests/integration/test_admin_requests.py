"""Outsiders ask a real job: through an agent on their machine, or with its token at an endpoint."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from holdfast.admin.client import (
    AdminClient,
    AdminError,
    connect_at,
    connect_here,
    connect_to,
    local_agents,
)
from holdfast.admin.sentences import remote_client
from holdfast.core.protocol.model import Endpoint
from holdfast.core.protocol.requests import (
    Answer,
    EventsAsked,
    EventsTold,
    JobAsked,
    JobTold,
    NotKnown,
    RanksAsked,
    RanksTold,
    RestartWanted,
    StacksAsked,
    StacksTold,
)
from holdfast.observe.story import StoryEvent
from holdfast.runtime.local_peer import user_of
from holdfast.transport.auth import ConnectionSecurity

from ..free_ports import free_port
from ..waiting import once, until

TOKEN = "a token that is long enough"
PROGRAM = """
import sys, time
import holdfast
for step in range(100_000):
    holdfast.progress(step)
    time.sleep(0.05)
"""
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    return f"visited-{os.getpid()}-{request.node.name.replace('[', '-').rstrip(']')}"


@pytest.fixture
def start(tmp_path: Path, holdfast: Path, job: str) -> Iterator[Start]:
    script = tmp_path / "steps.py"
    script.write_text(PROGRAM)
    started: list[subprocess.Popen[bytes]] = []

    def run(*words: str, token: str = "") -> subprocess.Popen[bytes]:
        environment = {**os.environ, **({"HOLDFAST_TOKEN": token} if token else {})}
        command = [holdfast, "run", f"--rdzv-id={job}", "--no-warm", *words, script]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(command, env=environment, **quiet))
        return started[-1]

    yield run
    for agent in started:
        agent.kill()
        agent.wait()


def running(client: AdminClient, workers: int) -> JobTold:
    """How the job is, once that many workers run and one of them has stepped."""

    def look() -> JobTold | None:
        try:
            told = client.ask_coordinator(JobAsked())
        except AdminError:
            return None  # The coordinator is being found.
        assert isinstance(told, JobTold)
        is_there = told.stage == "running" and told.world_size == workers
        return told if is_there and told.step is not None else None

    return once(look, "the job to run")


def connect_when_there(job: str) -> AdminClient:
    def look() -> AdminClient | None:
        return connect_here(job) if local_agents(job) else None

    return once(look, "the job to be there")


def stacks(client: AdminClient) -> dict[str, list[int]]:
    """The ranks of each node that say where they are."""
    found: dict[str, list[int]] = {}
    for node, answer in client.ask(StacksAsked(), of="all"):
        assert isinstance(answer, StacksTold), answer
        found[node] = [stack.rank for stack in answer.stacks if stack.frames]
    return found


@pytest.mark.thorough
def test_a_job_of_one_node_is_asked_on_its_machine(start: Start, job: str) -> None:
    start("--nproc-per-node=2")
    with connect_when_there(job) as client:
        told = running(client, workers=2)
        assert (told.run_id, told.round, told.node_count) == (job, 1, 1)
        assert sorted(rank for ranks in stacks(client).values() for rank in ranks) == [0, 1]
        assert client.missing == ()
        with pytest.raises(AdminError, match="no node is called nowhere"):
            list(client.ask(StacksAsked(), of="some", nodes=("nowhere",)))


@pytest.mark.thorough
def test_workers_are_seen_one_by_one(start: Start, job: str) -> None:
    start("--nproc-per-node=2")
    with connect_when_there(job) as client:
        running(client, workers=2)

        def look() -> tuple[str, RanksTold] | None:
            """Both workers, once both have stepped."""
            ((node, told),) = client.ask(RanksAsked(), of="all")
            assert isinstance(told, RanksTold), told
            return (node, told) if all(one.step is not None for one in told.ranks) else None

        node, told = once(look, "both workers to step")
        assert [one.rank for one in told.ranks] == [0, 1]
        assert all(one.memory_bytes for one in told.ranks)
        assert node == told.host


def kinds(told: Answer) -> list[str]:
    assert isinstance(told, EventsTold), told
    return [msgspec.msgpack.decode(one, type=StoryEvent).kind for one in told.events]


def test_events_are_told_from_the_beginning_and_as_they_come(start: Start, job: str) -> None:
    start("--nproc-per-node=1", "--max-restarts=1")
    with connect_when_there(job) as client:
        running(client, workers=1)
        told = client.ask_coordinator(EventsAsked())
        assert isinstance(told, EventsTold)
        assert kinds(told)[:2] == ["node_started", "round_formed"]
        ((_, ranks),) = client.ask(RanksAsked(), of="all")
        assert isinstance(ranks, RanksTold)
        os.kill(ranks.ranks[0].pid, signal.SIGKILL)
        seen: list[str] = []
        last = told.last
        while "recovered" not in seen:
            told = client.ask_coordinator(EventsAsked(last, wait_s=25.0))
            assert isinstance(told, EventsTold)
            assert told.last > last, "the answer waits for news"
            seen, last = seen + kinds(told), told.last
        assert {"worker_failed", "round_ended", "decision", "round_formed"} <= set(seen)


def test_the_end_of_a_job_ends_the_session_with_a_reason(start: Start, job: str) -> None:
    agent = start("--nproc-per-node=1")
    with connect_when_there(job) as client:
        running(client, workers=1)
        agent.terminate()
        agent.wait()
        with pytest.raises(AdminError, match=r"ended|reset"):
            client.ask_coordinator(JobAsked())
    with pytest.raises(AdminError, match=r"no job called|no job of yours"):
        connect_here(job)


def test_clients_are_limited_and_the_job_goes_on(start: Start, job: str) -> None:
    start("--nproc-per-node=1")
    with ExitStack() as stack:
        first = stack.enter_context(connect_when_there(job))
        others = [stack.enter_context(connect_here(job)) for _ in range(63)]
        with pytest.raises(AdminError, match="64 others look at this job already: try again later"):
            connect_here(job)
        assert running(first, workers=1).run_id == job
        others[0].close()
        with once(lambda: connect_if_there_is_room(job)) as client:
            assert running(client, workers=1).run_id == job


def connect_if_there_is_room(job: str) -> AdminClient | None:
    try:
        return connect_here(job)
    except AdminError:
        return None


def test_every_agent_answers_for_all_nodes(start: Start, job: str, tmp_path: Path) -> None:
    meet = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--snapshot-dir={tmp_path}")
    start(*meet)
    start(*meet)
    with connect_when_there(job) as client:
        told = running(client, workers=2)
        assert [node.condition for node in told.nodes] == ["in the round"] * 2
        found = stacks(client)
        assert sorted(found) == sorted(node.name for node in told.nodes)
        assert sorted(rank for ranks in found.values() for rank in ranks) == [0, 1]


def test_from_elsewhere_it_takes_the_token(start: Start, job: str, tmp_path: Path) -> None:
    place = Endpoint("127.0.0.1", free_port())
    meet = ("--nnodes=1:2", f"--rdzv-endpoint={place}", f"--snapshot-dir={tmp_path}")
    start(*meet, "--last-call=0", token=TOKEN)
    with connect_when_there(job) as client:
        running(client, workers=1)
    with connect_at((place,), job, ConnectionSecurity(TOKEN.encode())) as client:
        assert running(client, workers=1).run_id == job
    with pytest.raises(AdminError, match="token"):
        connect_at((place,), job, ConnectionSecurity(b"a token that is wrong"))
    with pytest.raises(AdminError, match="token"):
        connect_at((place,), job, ConnectionSecurity(None))
    with pytest.raises(AdminError, match="serves job"):
        connect_at((place,), "another", ConnectionSecurity(TOKEN.encode()))


def test_the_kernel_says_which_user_sent_a_command(start: Start, job: str) -> None:
    start("--nproc-per-node=1")
    with connect_when_there(job) as client:
        running(client, workers=1)
        client.ask_coordinator(RestartWanted("the pope"))
        words = reason_to_restart(client)
    assert words.startswith(f"{user_of(os.geteuid())} on ")
    assert "pope" not in words


def test_the_claimed_name_of_a_remote_client_is_shown_as_a_claim(
    start: Start, job: str, tmp_path: Path
) -> None:
    place = Endpoint("127.0.0.1", free_port())
    meet = ("--nnodes=1:2", f"--rdzv-endpoint={place}", f"--snapshot-dir={tmp_path}")
    start(*meet, "--last-call=0", token=TOKEN)
    with connect_when_there(job) as client:
        running(client, workers=1)
    with connect_at((place,), job, ConnectionSecurity(TOKEN.encode())) as client:
        client.ask_coordinator(RestartWanted("the pope"))
        words = reason_to_restart(client)
    assert words.startswith(f"{remote_client('127.0.0.1', 'the pope')} ")


def reason_to_restart(client: AdminClient) -> str:
    """Who asked for it, as it is told."""
    last = 0
    while True:
        told = client.ask_coordinator(EventsAsked(last, wait_s=25.0))
        assert isinstance(told, EventsTold)
        for event in (msgspec.msgpack.decode(one, type=StoryEvent) for one in told.events):
            if event.kind == "round_ended":
                return event.words.partition(": ")[2]
        last = told.last


def test_a_lost_coordinator_is_said_and_the_next_one_answers(
    start: Start, job: str, tmp_path: Path
) -> None:
    (tmp_path / "meet").mkdir()
    meet = ("--nnodes=1:2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path / 'meet'}")
    agents = [start(*meet), start(*meet)]
    survivor, leader = clients_by_leading(job, agents)
    try:
        leader.kill()
        leader.wait()
        told = running(survivor, workers=1)
        assert told.node_count == 1
    finally:
        survivor.close()


def clients_by_leading(
    job: str, agents: list[subprocess.Popen[bytes]]
) -> tuple[AdminClient, subprocess.Popen[bytes]]:
    """A client of the agent that does not lead, and the one that does."""
    until(lambda: len(local_agents(job)) == 2, "both agents are there")
    agents_here = {agent.node: agent for agent in local_agents(job)}
    with connect_here(job) as client:
        told = running(client, workers=2)
    leading = next(node.node for node in told.nodes if node.name == told.coordinator)
    pid = agents_here.pop(leading).pid
    leader = next(agent for agent in agents if agent.pid == pid)
    (other,) = agents_here.values()
    return connect_to(other), leader


def test_an_answer_that_says_nothing_of_ours_is_still_an_answer() -> None:
    from holdfast.core.protocol.requests import read_answer

    assert isinstance(read_answer(b"\xc1"), NotKnown)
