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

from holdfast.core.protocol.model import Endpoint
from holdfast.core.protocol.questions import (
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
from holdfast.node.visiting import Visit, VisitError, doors_here, enter, visit_at, visit_here
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


def running(visit: Visit, workers: int) -> JobTold:
    """How the job is, once that many workers run and one of them has stepped."""

    def look() -> JobTold | None:
        try:
            told = visit.ask_coordinator(JobAsked())
        except VisitError:
            return None  # The coordinator is being found.
        assert isinstance(told, JobTold)
        is_there = told.stage == "running" and told.world_size == workers
        return told if is_there and told.step is not None else None

    return once(look, "the job to run")


def visit_when_there(job: str) -> Visit:
    def look() -> Visit | None:
        return visit_here(job) if doors_here(job) else None

    return once(look, "the job to be there")


def stacks(visit: Visit) -> dict[str, list[int]]:
    """The ranks of each node that say where they are."""
    found: dict[str, list[int]] = {}
    for node, answer in visit.ask(StacksAsked(), of="all"):
        assert isinstance(answer, StacksTold), answer
        found[node] = [stack.rank for stack in answer.stacks if stack.frames]
    return found


@pytest.mark.thorough
def test_a_job_of_one_node_is_asked_on_its_machine(start: Start, job: str) -> None:
    start("--nproc-per-node=2")
    with visit_when_there(job) as visit:
        told = running(visit, workers=2)
        assert (told.run_id, told.round, told.node_count) == (job, 1, 1)
        assert sorted(rank for ranks in stacks(visit).values() for rank in ranks) == [0, 1]
        assert visit.missing == ()
        with pytest.raises(VisitError, match="no node is called nowhere"):
            list(visit.ask(StacksAsked(), of="some", nodes=("nowhere",)))


@pytest.mark.thorough
def test_workers_are_seen_one_by_one(start: Start, job: str) -> None:
    start("--nproc-per-node=2")
    with visit_when_there(job) as visit:
        running(visit, workers=2)

        def look() -> tuple[str, RanksTold] | None:
            """Both workers, once both have stepped."""
            ((node, told),) = visit.ask(RanksAsked(), of="all")
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
    with visit_when_there(job) as visit:
        running(visit, workers=1)
        told = visit.ask_coordinator(EventsAsked())
        assert isinstance(told, EventsTold)
        assert kinds(told)[:2] == ["node_started", "round_formed"]
        ((_, ranks),) = visit.ask(RanksAsked(), of="all")
        assert isinstance(ranks, RanksTold)
        os.kill(ranks.ranks[0].pid, signal.SIGKILL)
        seen: list[str] = []
        last = told.last
        while "recovered" not in seen:
            told = visit.ask_coordinator(EventsAsked(last, wait_s=25.0))
            assert isinstance(told, EventsTold)
            assert told.last > last, "the answer waits for news"
            seen, last = seen + kinds(told), told.last
        assert {"worker_failed", "round_ended", "decision", "round_formed"} <= set(seen)


def test_the_end_of_a_job_ends_the_visit_in_words(start: Start, job: str) -> None:
    agent = start("--nproc-per-node=1")
    with visit_when_there(job) as visit:
        running(visit, workers=1)
        agent.terminate()
        agent.wait()
        with pytest.raises(VisitError, match=r"ended|reset"):
            visit.ask_coordinator(JobAsked())
    with pytest.raises(VisitError, match=r"no job called|no job of yours"):
        visit_here(job)


def test_visitors_are_so_many_at_most_and_the_job_goes_on(start: Start, job: str) -> None:
    start("--nproc-per-node=1")
    with ExitStack() as stack:
        first = stack.enter_context(visit_when_there(job))
        others = [stack.enter_context(visit_here(job)) for _ in range(63)]
        with pytest.raises(VisitError, match="64 others look at this job already: try again later"):
            visit_here(job)
        assert running(first, workers=1).run_id == job
        others[0].close()
        with once(lambda: visit_if_there_is_room(job)) as visit:
            assert running(visit, workers=1).run_id == job


def visit_if_there_is_room(job: str) -> Visit | None:
    try:
        return visit_here(job)
    except VisitError:
        return None


def test_every_agent_answers_for_all_nodes(start: Start, job: str, tmp_path: Path) -> None:
    meet = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--snapshot-dir={tmp_path}")
    start(*meet)
    start(*meet)
    with visit_when_there(job) as visit:
        told = running(visit, workers=2)
        assert [node.condition for node in told.nodes] == ["in the round"] * 2
        found = stacks(visit)
        assert sorted(found) == sorted(node.name for node in told.nodes)
        assert sorted(rank for ranks in found.values() for rank in ranks) == [0, 1]


def test_from_elsewhere_it_takes_the_token(start: Start, job: str, tmp_path: Path) -> None:
    place = Endpoint("127.0.0.1", free_port())
    meet = ("--nnodes=1:2", f"--rdzv-endpoint={place}", f"--snapshot-dir={tmp_path}")
    start(*meet, "--last-call=0", token=TOKEN)
    with visit_when_there(job) as visit:
        running(visit, workers=1)
    with visit_at((place,), job, ConnectionSecurity(TOKEN.encode())) as visit:
        assert running(visit, workers=1).run_id == job
    with pytest.raises(VisitError, match="token"):
        visit_at((place,), job, ConnectionSecurity(b"a token that is wrong"))
    with pytest.raises(VisitError, match="token"):
        visit_at((place,), job, ConnectionSecurity(None))
    with pytest.raises(VisitError, match="serves job"):
        visit_at((place,), "another", ConnectionSecurity(TOKEN.encode()))


def test_whose_a_wish_is_says_the_kernel_and_not_who_wants_it(start: Start, job: str) -> None:
    start("--nproc-per-node=1")
    with visit_when_there(job) as visit:
        running(visit, workers=1)
        visit.ask_coordinator(RestartWanted("the pope"))
        words = reason_to_restart(visit)
    assert words.startswith(f"{user_of(os.geteuid())} on ")
    assert "pope" not in words


def test_what_a_visitor_from_elsewhere_says_it_is_is_shown_as_its_word(
    start: Start, job: str, tmp_path: Path
) -> None:
    place = Endpoint("127.0.0.1", free_port())
    meet = ("--nnodes=1:2", f"--rdzv-endpoint={place}", f"--snapshot-dir={tmp_path}")
    start(*meet, "--last-call=0", token=TOKEN)
    with visit_when_there(job) as visit:
        running(visit, workers=1)
    with visit_at((place,), job, ConnectionSecurity(TOKEN.encode())) as visit:
        visit.ask_coordinator(RestartWanted("the pope"))
        words = reason_to_restart(visit)
    assert words.startswith("someone at 127.0.0.1 (says it is the pope) asked")


def reason_to_restart(visit: Visit) -> str:
    """Who asked for it, as it is told."""
    last = 0
    while True:
        told = visit.ask_coordinator(EventsAsked(last, wait_s=25.0))
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
    survivor, leader = visits_by_leading(job, agents)
    try:
        leader.kill()
        leader.wait()
        told = running(survivor, workers=1)
        assert told.node_count == 1
    finally:
        survivor.close()


def visits_by_leading(
    job: str, agents: list[subprocess.Popen[bytes]]
) -> tuple[Visit, subprocess.Popen[bytes]]:
    """A visit at the agent that does not lead, and the one that does."""
    until(lambda: len(doors_here(job)) == 2, "both agents are there")
    doors = {door.node: door for door in doors_here(job)}
    with visit_here(job) as visit:
        told = running(visit, workers=2)
    leading = next(node.node for node in told.nodes if node.name == told.coordinator)
    pid = doors.pop(leading).pid
    leader = next(agent for agent in agents if agent.pid == pid)
    (other,) = doors.values()
    return enter(other), leader


def test_an_answer_that_says_nothing_of_ours_is_still_an_answer() -> None:
    from holdfast.core.protocol.questions import read_answer

    assert isinstance(read_answer(b"\xc1"), NotKnown)
