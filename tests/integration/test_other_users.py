"""Other users of the machine take names that look like ours: nobody speaks to them by mistake."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from holdfast.admin import sentences
from holdfast.admin.client import AdminError, LocalAgent, connect_here, connect_to, local_agents
from holdfast.cli.sentences import JOB_STOPS
from holdfast.core.protocol.model import Endpoint
from holdfast.engine.sentences import port_of_stranger
from holdfast.runtime.local_peer import peer_of, user_of
from holdfast.transport import sharing
from holdfast.transport.sentences import holder, not_shared
from holdfast.worker.channel import address_of

from .. import false_agent
from ..another_user import HOLDS_NAMES, HOLDS_PORT, STRANGER, another_user
from ..free_ports import free_port
from ..waiting import DEADLINE_S, once
from .conftest import Job, StartJob

OWNER = STRANGER + 1
NAMES = 8
PROGRAM = """
import time
while True:
    time.sleep(1)
"""


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    return f"other-users-{os.getpid()}-{request.node.name}"


def channel_name() -> str:
    """One that an agent could have."""
    return f"holdfast-{os.getpid()}-{os.urandom(8).hex()}"


def false_agent_of(uid: int, job: str, names: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.false_agent", str(uid), job, str(names)]
    folder = Path(__file__).parents[2]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def false_agents(job: str) -> Iterator[subprocess.Popen[str]]:
    """As many that one of them is sure to be found last, in whatever order they are looked at."""
    with false_agent_of(STRANGER, job, NAMES) as process:
        yield process
        process.kill()


@pytest.mark.root
def test_stop_ends_the_job_of_its_owner_and_not_what_passes_for_it(
    start_job: StartJob,
    run_holdfast: Callable[..., subprocess.CompletedProcess[str]],
    job: str,
    false_agents: subprocess.Popen[str],
) -> None:
    running = start_job(f"--rdzv-id={job}", "--no-warm", script=PROGRAM)
    once(lambda: agent_of(running, job), "the job to be there")
    stopped = run_holdfast("stop", job)
    assert stopped.returncode == 0, stopped.stderr
    assert JOB_STOPS in stopped.stdout
    running.process.wait(DEADLINE_S)


def agent_of(running: Job, job: str) -> LocalAgent | None:
    own = (agent for agent in local_agents(job) if agent.pid == running.process.pid)
    return next(own, None)


@pytest.mark.root
def test_dashboard_prints_no_link_of_another_user(
    start_job: StartJob,
    run_holdfast: Callable[..., subprocess.CompletedProcess[str]],
    job: str,
    false_agents: subprocess.Popen[str],
) -> None:
    running = start_job(f"--rdzv-id={job}", "--no-warm", "--dashboard=0", script=PROGRAM)
    once(lambda: agent_of(running, job), "the job to be there")
    told = once(lambda: run_holdfast("dashboard", job).stdout or None, "the dashboard")
    assert false_agent.LINK not in told
    assert len(told.splitlines()) == 1


@pytest.mark.root
def test_a_start_does_without_a_name_that_another_user_has(
    start_job: StartJob, job: str, tmp_path: Path
) -> None:
    port = free_port()
    name = sharing._claim_on(port, job).removeprefix("\0")
    meet = (f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={job}", "--nnodes=1:2")
    more = (f"--snapshot-dir={tmp_path}", "--rdzv-conf=last_call_timeout=0.2", "--no-warm")
    with another_user(HOLDS_NAMES, name):
        running = start_job(*meet, *more, script="print('trained')")
        assert running.process.wait(DEADLINE_S) == 0, running.stderr
    assert not_shared(f"127.0.0.1:{port}", holder(STRANGER)) in running.stderr


@pytest.mark.root
@pytest.mark.parametrize("place", ["127.0.0.1", "0.0.0.0"])
def test_a_job_without_a_token_does_not_dial_another_user_who_has_its_port(
    start_job: StartJob, job: str, tmp_path: Path, place: str
) -> None:
    port = free_port()
    meet = (f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={job}", "--nnodes=1:2")
    more = (f"--snapshot-dir={tmp_path}", "--no-warm")
    with another_user(HOLDS_PORT, place, str(port)) as stranger:
        running = start_job(*meet, *more, script="print('trained')")
        assert running.process.wait(DEADLINE_S) == 2, running.stderr
        stranger.kill()
        assert stranger.stdout is not None
        assert stranger.stdout.read() == "", "it was not dialled"
    mistake, hint = port_of_stranger(STRANGER, Endpoint("127.0.0.1", port))
    assert f"{mistake}\nhint: {hint}\n" in running.stderr


@pytest.mark.root
def test_root_is_told_whose_jobs_there_are_and_does_not_take_one_for_another(
    job: str, false_agents: subprocess.Popen[str]
) -> None:
    whose = {agent.uid for agent in local_agents(job)}
    assert whose == {STRANGER}
    with false_agent_of(OWNER, job, 1) as other:
        users = sorted(map(user_of, (STRANGER, OWNER)))
        with pytest.raises(AdminError, match=re.escape(sentences.jobs_of_several(users, job))):
            connect_here(job)
        other.kill()
    with connect_here(job) as visit:
        assert visit.run_id == job
    (agent, *_) = local_agents(job)
    with pytest.raises(AdminError, match=re.escape(sentences.just_ended(job))):
        connect_to(msgspec.structs.replace(agent, uid=OWNER))


LOOKS = """
import os, sys
from holdfast.admin import client
from holdfast.admin.client import *
import concurrent.futures.thread, encodings.ascii, pwd
os.setgroups([])
os.setresuid(int(sys.argv[1]), int(sys.argv[1]), int(sys.argv[1]))
print([door.run_id for door in local_agents()])
try:
    connect_here(sys.argv[2])
except AdminError as error:
    print(error)
"""


@pytest.mark.root
def test_a_user_asks_nobody_elses_agents_and_is_told_whose_they_are(
    job: str, false_agents: subprocess.Popen[str]
) -> None:
    """Neither those that would answer, nor those that are mute or have no room."""
    mute = [channel_name() for _ in range(NAMES)]
    with ExitStack() as stack:
        stack.enter_context(another_user(HOLDS_NAMES, *mute))
        for _ in range(200):  # More than they have room for.
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            sock.setblocking(False)
            try:
                sock.connect(address_of("@" + mute[0]))
            except BlockingIOError:
                break
        else:
            raise AssertionError("it has room for everybody")
        command = [sys.executable, "-c", LOOKS, str(OWNER), job]
        told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    false_agents.kill()
    assert false_agents.stdout is not None
    assert f"heard {OWNER}\n" not in false_agents.stdout.read(), "it was not spoken to"
    none, words = told.splitlines()
    assert none == "[]"
    before, after = sentences.no_own_job(["|"]).split("|")
    assert words.startswith(before)
    assert words.endswith(after)
    assert f"uid {STRANGER}" in words


def own_client(listening: socket.socket) -> socket.socket:
    """The next one of this process: other tests look for jobs on this machine, too."""
    while True:
        line, _ = listening.accept()
        if peer_of(line).pid == os.getpid():
            line.settimeout(DEADLINE_S)
            return line
        line.close()


def test_all_agents_are_asked_before_one_is_waited_for(job: str) -> None:
    found: list[list[LocalAgent]] = []
    with ExitStack() as stack:
        listening = []
        for _ in range(NAMES):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            sock.bind(address_of("@" + channel_name()))
            sock.listen(64)
            sock.settimeout(DEADLINE_S)
            listening.append(sock)
        looking = threading.Thread(target=lambda: found.append(local_agents(job)))
        looking.start()
        lines = [stack.enter_context(own_client(sock)) for sock in listening]
        for line in lines:
            assert b"visit" in line.recv(100)
        for number, line in enumerate(lines):
            agent = {"run_id": job, "node": str(number), "uid": 1, "pid": 1, "channel": "a lie"}
            line.send(msgspec.json.encode(agent))
        looking.join(DEADLINE_S)
    assert sorted(agent.node for agent in found[0]) == [str(number) for number in range(NAMES)]
    assert {(agent.pid, agent.uid) for agent in found[0]} == {(os.getpid(), os.geteuid())}


@pytest.mark.root
def test_an_agent_whose_room_strangers_take_lets_its_owner_in_all_the_same(job: str) -> None:
    """They connect again and again; whoever waits gets its turn."""
    found: list[list[LocalAgent]] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as own, ExitStack() as stack:
        name = channel_name()
        own.bind(address_of("@" + name))
        own.listen(4)
        own.settimeout(DEADLINE_S)
        stack.enter_context(another_user(CONNECTS_FOR_EVER, name))
        looking = threading.Thread(target=lambda: found.append(local_agents(job)))
        looking.start()
        with own_client(own) as line:
            line.recv(100)
            line.send(msgspec.json.encode({"run_id": job}))
            looking.join(DEADLINE_S)
    assert [agent.run_id for agent in found[0]] == [job]


CONNECTS_FOR_EVER = """
def connect():
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(None)
            try:
                sock.connect("\\0" + sys.argv[1])
                sock.send(b"x")
                sock.recv(1)
            except OSError:
                pass
for _ in range(16):
    threading.Thread(target=connect, daemon=True).start()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
    sock.setblocking(False)
    while True:
        try:
            sock.connect("\\0" + sys.argv[1])
            sock.close()
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.setblocking(False)
        except BlockingIOError:
            break
        except OSError:
            os._exit(1)
tell("ready")
time.sleep(1000)
"""
